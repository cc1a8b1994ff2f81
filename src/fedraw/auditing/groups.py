"""Groups of clients that arrive alike and weigh alike: what makes a million clients cheap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.rarity import rarest
from fedraw.core.types import Floats, Ints

# Up to this many clients each client is its own group, and nothing is approximated.
MOST_GROUPS = 4096
# Bins per axis, of equal logarithmic width and again of equal numbers of clients. The error of
# binning is of second order.
BINS = 24
FEW_BINS = 10  # for what is computed many times
SLOTS = 50  # this many of the rarest clients stay ungrouped, because replay treats them singly


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of clients with (nearly) equal mean time and rarity score.

    A group's rate is the mean of its clients' rates and its score the mean of their scores, so
    that arrivals and the sum of scores are those of the federation.
    """

    rate: Floats
    score: Floats
    many: Ints
    of_client: Ints  # the group of each client
    rarest: Ints  # groups of the clients far above the median score, one client each, rarest first

    @classmethod
    def of(
        cls,
        rate: Floats,
        score: Floats,
        flag: npt.NDArray[np.bool_],
        bins: int = BINS,
        slots: int = SLOTS,
    ) -> Groups:
        """Group the clients; clients with and without the flag stay apart.

        The rarest clients, as many as a buffer has slots, are groups of one.

        >>> groups = Groups.of(np.ones(5000), np.ones(5000), np.arange(5000) < 2)
        >>> groups.many
        array([4998,    2])
        """
        if rate.size <= MOST_GROUPS:
            alone = np.ones(rate.size, np.int64), np.arange(rate.size)
            return cls(rate, score, *alone, rarest(score))
        key = (_bins(rate, bins) * 2 * bins + _bins(score, bins)) * 2 + flag
        first = rarest(score, slots)
        key[first] = 8 * bins * bins + np.arange(first.size)
        counts = np.bincount(key)
        held = np.flatnonzero(counts)
        many, of_client = counts[held], (np.cumsum(counts > 0) - 1)[key]
        mean_rate = np.bincount(of_client, rate, held.size) / many
        mean_score = np.bincount(of_client, score, held.size) / many
        return cls(mean_rate, mean_score, many, of_client, of_client[first])

    @property
    def shares(self) -> Floats:
        """The share of arrivals of one client in each group."""
        return np.asarray(self.rate / (self.rate * self.many).sum(), np.float64)

    def members(self, flag: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The groups that contain a client with the flag."""
        inside = np.zeros(self.many.size, np.bool_)
        inside[self.of_client[flag]] = True
        return inside


def _bins(values: Floats, bins: int) -> Ints:
    """Bin by width and by quantile, so that an outlier does not blur the other clients."""
    logs = np.log(values)
    if np.ptp(logs) < 1e-9:
        return np.zeros(values.size, np.int64)
    widths = np.linspace(logs.min(), logs.max(), bins + 1)
    edges = np.union1d(widths[1:-1], np.quantile(logs, np.arange(1, bins) / bins))
    return np.asarray(np.searchsorted(edges, logs, side="right"), np.int64)
