"""Settings that fedraw 0.2 was the last version to have, and what to use instead.

A spec, a run config or a server's folder that still uses one is refused with one sentence. A value
under which the setting did nothing is left out, because files of version 0.2 have the defaults of
all settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AVERAGE = (
    "leave it out: where the holders of rare labels are slow, the average of the models recognised "
    "fewer of these labels than the last model"
)

PHASES = (
    "use kind = 'exponential', or kind = 'trace' with a file of phases drawn from any distribution"
)

DASHBOARD = "run fedraw dashboard beside the server; it has --port, --token-file and --alerts"
SERVERS = ("fedraw", "settings")  # the settings of a server on Flower, and on FLARE

# By key, or by key and value.
REMOVED: dict[str, str] = {
    "strategy.name = 'mf-ca2fl'": "use 'ca2fl', whose cache keeps every number as it is",
    **{f"{at}.{key}": AVERAGE for at in ("run", *SERVERS) for key in ("serve", "ema_decay")},
    **{f"{at}.dashboard{key}": DASHBOARD for at in SERVERS for key in ("", "_token")},
    **{f"{at}.alerts": DASHBOARD for at in SERVERS},
    **{f"{at}.log_segment": "leave it out: the log of a server is one file" for at in SERVERS},
    "losses.twice": "leave it out: every update that is not lost arrives once",
    **dict.fromkeys(("availability.kind = 'weibull'", "availability.shape"), PHASES),
    "summaries.mechanism = 'secure-sum'": "use 'randomised-response' with an epsilon; nobody had "
    "audited the secure sum",
    "strategy.memory": "leave it out: AREA's server keeps the last model of each client, and "
    "the result is the same up to rounding",
    "strategy.bits": "use strategy.name = 'ca2fl', whose cache keeps every number as it is",
}

# By key: the value that says what is always so now.
NEUTRAL: dict[str, object] = {
    "losses.twice": 0.0,
    "strategy.memory": "server",
    "server.log_segment": 1 << 26,
}


def removal(key: str, value: object = None) -> str | None:
    """Return the sentence about a setting that was removed; None if it never existed.

    A server on Flower has the tables of a spec below "fedraw".

    >>> removal("strategy.name", "mf-ca2fl")
    "strategy.name = 'mf-ca2fl' was removed after fedraw 0.2; use 'ca2fl', whose cache keeps every number as it is"
    >>> removal("fedraw.strategy.bits")
    "fedraw.strategy.bits was removed after fedraw 0.2; use strategy.name = 'ca2fl', whose cache keeps every number as it is"
    """  # noqa: E501 - the sentences as they are printed
    for found in (f"{key} = {value!r}", key):
        remedy = REMOVED.get(found) or REMOVED.get(found.removeprefix("fedraw."))
        if remedy is not None:
            return f"{found} was removed after fedraw 0.2; {remedy}"
    return None


def is_neutral(key: str, value: object) -> bool:
    """Return whether a removed setting has the value under which it did nothing.

    >>> is_neutral("losses.twice", 0.0), is_neutral("losses.twice", 0.1)
    (True, False)
    """
    own = key.removeprefix("fedraw.")
    return own in NEUTRAL and NEUTRAL[own] == value


def without_neutral(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a spec without removed settings that did nothing.

    >>> without_neutral({"version": 1, "losses": {"lost": 0.1, "twice": 0.0}})
    {'version': 1, 'losses': {'lost': 0.1}}
    """
    return {
        name: {key: own for key, own in table.items() if not is_neutral(f"{name}.{key}", own)}
        if isinstance(table, Mapping)
        else table
        for name, table in tables.items()
    }
