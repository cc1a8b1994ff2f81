"""Write tables of settings as TOML, which the standard library can only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Any]) -> str:
    """Format tables one level deep, with strings, numbers, booleans and lists as values.

    >>> print(to_toml({"version": 1, "run": {"seeds": [42], "fast": True}}), end="")
    version = 1
    <BLANKLINE>
    [run]
    seeds = [42]
    fast = true
    """
    lines = [f"{key} = {_value(v)}" for key, v in tables.items() if not isinstance(v, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes; unlike JSON, TOML does not allow a raw DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
