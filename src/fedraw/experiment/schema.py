"""The JSON Schema of a SPEC.toml, by which an editor completes, explains and checks its keys.

It follows from the same annotations and docstrings as the sections themselves. Rules between two
sections are left to `fedraw run`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedraw.core.settings import Key, Range, With, alternatives, keys, meanings, plain
from fedraw.core.text import one_line
from fedraw.experiment.sections import KnownOrPlugin, StrategySpec
from fedraw.experiment.spec import VERSION, sections
from fedraw.storage.files import atomic_write
from fedraw.strategies.catalog import CATALOG, Method

# The file beside a SPEC.toml that `fedraw new` names in its first line.
SCHEMA_FILE = "fedraw.schema.json"

PLUGIN = {"type": "string", "pattern": ":"}
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a SPEC.toml.

    >>> spec_schema()["properties"]["run"]["properties"]["evaluate_every"]["minimum"]
    1
    """
    parts = {name: _section(kind) for name, kind in sections().items() if kind is not StrategySpec}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"An experiment of fedraw (SPEC.toml, version {VERSION})",
        "type": "object",
        "properties": {
            "version": {"const": VERSION, "description": "The version of the format."},
            "plugins": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Your own modules, which the sections may name. No others are "
                "imported.",
            },
            "plugin_folder": {
                "type": "string",
                "description": "The folder that is searched for the plugins first.",
            },
            **parts,
            "strategy": _strategy(),
        },
        "additionalProperties": False,
    }


def write_schema(path: Path) -> None:
    """Write the schema to a file."""
    atomic_write(path, json.dumps(spec_schema(), indent=2).encode() + b"\n")


def _section(kind: Any) -> dict[str, Any]:
    known, texts = keys(kind), meanings(kind)
    return {
        "type": "object",
        "description": _summary(kind),
        "properties": {name: _property(key, texts.get(name)) for name, key in known.items()},
        "required": [name for name, key in known.items() if key.default is MISSING],
        **_companions(known),
        "additionalProperties": False,
    }


def _strategy() -> dict[str, Any]:
    """Return the schema of [strategy], whose keys depend on the method."""
    choices = [_chosen(method) for method in CATALOG.values()]
    own = {"if": {"properties": {"name": PLUGIN}, "required": ["name"]}, "then": {}}
    usual = CATALOG[StrategySpec.name]
    return {
        "type": "object",
        "description": "The method and its settings; see 'fedraw methods'.",
        "properties": {
            "name": {
                "anyOf": [{"enum": list(CATALOG)}, PLUGIN],
                "default": usual.name,
                "description": "The method, or a plugin's 'module:function'.",
            }
        },
        "allOf": [*choices, own, {"if": {"required": ["name"]}, "else": _settings(usual)}],
    }


def _chosen(method: Method) -> dict[str, Any]:
    named = {"properties": {"name": {"const": method.name}}, "required": ["name"]}
    return {"if": named, "then": _settings(method)}


def _settings(method: Method) -> dict[str, Any]:
    usual, texts = method.spec_settings, method.setting_meanings
    known = {
        name: replace(key, default=usual[name])
        for name, key in keys(method.factory).items()
        if name in usual
    }
    own = {name: _property(key, texts[name]) for name, key in known.items()}
    for name, value in method.preset.items():
        own[name] = {"const": value, "description": f"What {method.name!r} means."}
    return {
        "properties": {"name": {}, **own},
        **_companions(known),
        "additionalProperties": False,
    }


def _property(key: Key, text: str | None) -> dict[str, Any]:
    """Return the schema of one key: its type, its rules, its default and its meaning."""
    found: dict[str, Any] = _type(key.kind)
    for rule in key.rules:
        if isinstance(rule, Range):
            found |= _limits(rule)
        elif isinstance(rule, KnownOrPlugin):
            found = {"anyOf": [{"enum": list(rule)}, PLUGIN]}
    if key.default not in (None, MISSING):
        found["default"] = plain(key.default)
    return found | ({"description": text} if text else {})


def _type(kind: Any) -> dict[str, Any]:
    options = [one for one in alternatives(kind) if one is not type(None)]
    if len(options) > 1:
        return {"anyOf": [_type(one) for one in options]}
    (only,) = options
    if get_origin(only) is Literal:
        return {"enum": list(get_args(only))}
    if get_origin(only) is tuple:
        return {"type": "array", "items": _type(get_args(only)[0])}
    return {"type": _TYPES[only]}


def _limits(rule: Range) -> dict[str, Any]:
    ends: Iterable[tuple[str, bool, float]] = (
        ("inimum", rule.open_low, rule.low),
        ("aximum", rule.open_high, rule.high),
    )
    return {
        f"exclusiveM{end}" if is_open else f"m{end}": value
        for end, is_open, value in ends
        if abs(value) != float("inf")
    }


def _companions(known: dict[str, Key]) -> dict[str, Any]:
    """Return the rules between the keys of a table."""
    rules = [_companion(key, rule, known) for key in known.values() for rule in key.goes_with]
    return {"allOf": rules} if rules else {}


def _companion(key: Key, rule: With, known: dict[str, Key]) -> dict[str, Any]:
    """Return the rule that a key is given only with some values of another, and perhaps must be."""
    chosen: dict[str, Any] = {"properties": {rule.key: {"enum": list(rule.values)}}}
    if known[rule.key].default not in rule.values:
        chosen["required"] = [rule.key]
    needed = key.default is None and rule.default is None and not rule.optional
    absent: dict[str, Any] = {"not": {"required": [key.name]}}
    if key.default is not None:  # a resolved spec has the default of a key that does nothing
        absent = {"properties": {key.name: {"const": plain(key.default)}}}
    found: dict[str, Any] = {"if": chosen, "else": absent}
    return found | ({"then": {"required": [key.name]}} if needed else {})


def _summary(kind: Any) -> str:
    return one_line((kind.__doc__ or "").split("\n\n")[0])
