"""Nodes that can be reached, the sites behind them, and how well they behave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# However often a site fails, it is asked again after at most this many seconds.
LONGEST_PAUSE = 3600.0


@dataclass
class Conduct:
    """How often someone failed in a row, and when to try again."""

    failures: int = 0
    not_before: float = 0.0

    def fail(self, pause: float, now: float) -> None:
        """Each further failure doubles the pause."""
        self.failures += 1
        self.not_before = now + min(pause * 2 ** (self.failures - 1), LONGEST_PAUSE)

    def wait(self, seconds: float, now: float) -> None:
        """Not its fault, but there is no use in asking at once."""
        self.not_before = now + seconds

    def succeed(self) -> None:
        self.failures, self.not_before = 0, 0.0


class Nodes:
    """Which nodes the engine lists, and which site answered there."""

    def __init__(self) -> None:
        self.online: frozenset[int] = frozenset()
        self.conduct: dict[int, Conduct] = {}
        self._site_at: dict[int, str] = {}
        self._node_of: dict[str, int] = {}
        self._listed: dict[int, float] = {}  # when last
        self._seen: dict[str, float] = {}  # when a site was last within reach

    def see(self, online: Collection[int], now: float) -> None:
        self.online = frozenset(online)
        for node in self.online:
            self._listed[node] = now
            self.conduct.setdefault(node, Conduct())
            if node in self._site_at:
                self._seen[self._site_at[node]] = now

    def strangers(self) -> list[int]:
        """Nodes within reach of which nobody knows who they are."""
        return sorted(node for node in self.online if node not in self._site_at)

    def of(self, site: str) -> int | None:
        """The site's node if it is within reach."""
        node = self._node_of.get(site)
        return node if node in self.online else None

    def away(self, site: str, now: float) -> float:
        """For how long the site has been out of reach; one never seen, since it was asked for."""
        return now - self._seen.setdefault(site, now)

    def bind(self, node: int, site: str, now: float) -> None:
        """From now on the site is there and nowhere else."""
        self.unbind(site)
        self._site_at[node], self._node_of[site] = site, node
        self._seen[site] = now
        self.conduct[node].succeed()

    def unbind(self, site: str) -> None:
        """Whoever is at its node will be asked who it is."""
        self._seen.pop(site, None)
        node = self._node_of.pop(site, None)
        if node is not None:
            del self._site_at[node]

    def forget(self, unlisted_since: float) -> None:
        """Nodes long gone: without authentication a restarted one has a new id every time."""
        for node in [n for n, last in self._listed.items() if last < unlisted_since]:
            if node not in self._site_at:
                del self._listed[node], self.conduct[node]
