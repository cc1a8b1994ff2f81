"""How often a client, or anyone of a group, is in the buffer; arrivals are memoryless."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from fedraw.analysis.product_form import log_chance_of_none, mean_field_presence, subsets
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput

# window: the last K arrivals (FedFa); blocks: K arrivals, then cleared (FedBuff, CA2FL, replay);
# dedup: one slot per client, evicted in order of first insertion (FedRAW).
Buffer = Literal["window", "blocks", "dedup"]

# Beyond this many steps the exact law takes seconds, and the mean field errs by less than 1e-5.
EXACT_UP_TO = 3 * 10**8


def arrival_shares(seconds: npt.ArrayLike) -> Floats:
    """The chance that the next arrival is client i's: its rate 1/s_i among all rates.

    >>> arrival_shares([1.0, 1.0, 2.0])
    array([0.4, 0.4, 0.2])
    """
    rate = 1 / np.asarray(seconds, np.float64)
    return np.asarray(rate / rate.sum(), np.float64)


def presence(
    shares: Floats,
    size: int,
    buffer: Buffer,
    many: Ints | None = None,
    kept: Ints | None = None,
) -> Floats:
    """The chance that each client has at least one slot; of those `kept` something is always there.

    >>> presence(np.array([0.5, 0.25, 0.25]), 2, "window")
    array([0.75  , 0.4375, 0.4375])
    >>> presence(np.array([0.5, 0.25, 0.25]), 2, "dedup").round(12)
    array([0.8, 0.6, 0.6])
    """
    if buffer != "dedup":
        with np.errstate(divide="ignore"):  # a client alone has every slot
            found = np.asarray(-np.expm1(size * np.log1p(-shares)), np.float64)
        found[[] if kept is None else kept] = 1.0
        return found
    check_fits(size, shares, many)
    if shares.size * size > EXACT_UP_TO:
        return mean_field_presence(np.log(shares), size, many)
    return subsets(np.log(shares), size, many).presence


def group_presence(
    shares: Floats,
    group: npt.NDArray[np.bool_],
    size: int,
    buffer: Buffer,
    many: Ints | None = None,
    kept: Ints | None = None,
) -> float:
    """The chance that at least one client of the group has a slot.

    >>> group_presence(np.array([0.5, 0.25, 0.25]), np.array([False, True, True]), 2, "dedup")
    1.0
    """
    if kept is not None and group[kept].any():
        return 1.0
    if buffer != "dedup":
        counts = np.ones(shares.size) if many is None else many
        share = min(float((shares * counts)[group].sum()), 1.0)
        return 1.0 if share == 1 else float(-np.expm1(size * np.log1p(-share)))
    check_fits(size, shares, many)
    return float(-np.expm1(log_chance_of_none(np.log(shares), group, size, many)))


def check_fits(size: int, shares: Floats, many: Ints | None = None) -> None:
    clients = shares.size if many is None else int(many.sum())
    if not 1 <= size <= clients:
        raise BadInput(
            f"a buffer of {size} with one slot per client never fills with {clients} clients; "
            f"give a size from 1 to {clients}"
        )
