"""Settings that fedraw 0.2 was the last version to have, and what to use instead.

A spec, a run config or a server's folder that still uses one is refused with one sentence.
"""

from __future__ import annotations

AVERAGE = (
    "leave it out: where the holders of rare labels are slow, the average of the models recognised "
    "fewer of these labels than the last model"
)

PHASES = (
    "use kind = 'exponential', or kind = 'trace' with a file of phases drawn from any distribution"
)

# By key, or by key and value.
REMOVED: dict[str, str] = {
    "strategy.name = 'mf-ca2fl'": "use 'ca2fl', whose cache keeps every number as it is",
    **dict.fromkeys(("run.serve", "run.ema_decay"), AVERAGE),  # of a spec
    **dict.fromkeys(("fedraw.serve", "fedraw.ema_decay"), AVERAGE),  # of a server on Flower
    **dict.fromkeys(("settings.serve", "settings.ema_decay"), AVERAGE),  # of a server on FLARE
    "availability.kind = 'weibull'": PHASES,
    "availability.shape": PHASES,
    "strategy.bits": "use strategy.name = 'ca2fl', whose cache keeps every number as it is",
}


def removal(key: str, value: object = None) -> str | None:
    """Return the sentence about a setting that was removed; None if it never existed.

    >>> removal("strategy.name", "mf-ca2fl")
    "strategy.name = 'mf-ca2fl' was removed after fedraw 0.2; use 'ca2fl', whose cache keeps every number as it is"
    """  # noqa: E501 - the sentence as it is printed
    for found in (f"{key} = {value!r}", key):
        if found in REMOVED:
            return f"{found} was removed after fedraw 0.2; {REMOVED[found]}"
    return None
