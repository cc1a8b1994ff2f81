"""Who takes part: nodes tell which site they are, sites come and go, some are shut out."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection

from fedraw.core.text import one_line
from fedraw.errors import BadInput
from fedraw.server.admission import MOST_IN_ALL, check_counts, check_name, check_new_labels
from fedraw.server.ledger import Ledger
from fedraw.server.orders import Kind, Summary
from fedraw.server.settings import Settings
from fedraw.server.sites import Conduct, Nodes

LOGGER = logging.getLogger("fedraw.server")

# The one label of a site that does not say which it has.
NOT_TOLD = "not told"
# The log names at most this many of the sites that are here before training begins.
MOST_NAMED = 20
# How soon a name that another node still has is asked for again.
NAME_IN_USE = 10.0


class Membership:
    """Sites by name, behind nodes that may change; `released` hears of every site that is set free.

    A site is free when nothing that it was asked counts any more: it has left, or is back after a
    restart.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        slots: int,
        released: Callable[[str], None],
        needs_counts: bool = True,
    ) -> None:
        self.nodes = Nodes()
        self.founders: dict[str, dict[str, int]] = {}
        self._ledger = ledger
        self._settings = settings
        self._slots = slots  # that need a site each
        self._released = released
        self._untold = {} if needs_counts else {NOT_TOLD: 1}
        # By site and kind of order: a site that trains well may still evaluate badly.
        self._conduct: defaultdict[tuple[str, Kind], Conduct] = defaultdict(Conduct)
        self._refused: dict[int, str] = {}  # why a node may not join

    @property
    def members(self) -> list[str]:
        return list(self._ledger.book.counts)

    def ready(self, site: str, now: float, kind: Kind = "train") -> int | None:
        """The site's node, if it is within reach and may be asked now."""
        return self.nodes.of(site) if self._conduct[site, kind].not_before <= now else None

    def introduce(self, node: int, summary: Summary, now: float) -> None:
        """A node has told which site it is."""
        site, ledger, conduct = summary.site, self._ledger, self.nodes.conduct[node]
        try:
            check_name(site)
        except BadInput as refusal:
            self._refuse(node, None, str(refusal), now)
            return
        try:
            self._admit(node, site)
            known = ledger.book.counts.get(site) or self.founders.get(site)
            counts = check_counts(site, summary.counts or self._untold, known)
            self.check_new_labels(site, counts)
        except BadInput as refusal:
            self._refuse(node, site, str(refusal), now)
            return
        self._refused.pop(node, None)
        holder = self.nodes.of(site)
        if holder is not None and holder != node:
            conduct.wait(NAME_IN_USE, now)
            online = f"which is online as node {holder}"
            ledger.note(f"node {node} says it is {site!r}, {online}; not let in", now, site)
        elif (left := ledger.quarantine_left(site, now)) > 0:
            conduct.wait(left, now)
        elif ledger.begun:
            self._welcome(node, site, counts, now)
        else:
            self.founders[site] = counts
            self.nodes.bind(node, site, now)
            LOGGER.info("%s", self.waiting)

    def _refuse(self, node: int, site: str | None, reason: str, now: float) -> None:
        self.nodes.conduct[node].fail(self._settings.back_off, now)
        if self._refused.get(node) != reason:  # once, however often it tries
            self._refused[node] = reason
            self._ledger.note(f"node {node} may not join: {reason}", now, site)

    def _admit(self, node: int, site: str) -> None:
        allowed, nodes = self._settings.sites, self._ledger.book.nodes
        if allowed and site not in allowed:
            raise BadInput(f"{site!r} is not among the sites that may take part; add it to `sites`")
        if not self._settings.pinned:
            return
        first = nodes.get(site, node)
        if first != node:
            raise BadInput(f"{site!r} is registered with node {first}, this is another key")
        owner = next((name for name, known in nodes.items() if known == node), site)
        if owner != site:
            raise BadInput(
                f"node {node} is registered as {owner!r}, so its key cannot take part as {site!r} "
                "as well; give each site a key of its own"
            )

    def check_new_labels(self, site: str, labels: Collection[str]) -> None:
        """Refuse more labels that no site had before than one site, or all of them, may add."""
        ledger = self._ledger
        if ledger.begun:
            federation, so_far = ledger.state.federation, ledger.book.introduced.get(site, 0)
            new = len(federation.new_labels(labels))
            check_new_labels(site, new, so_far, len(federation.labels))
        else:
            others = [own for name, own in self.founders.items() if name != site]
            if sum(map(len, others)) + len(labels) > MOST_IN_ALL:  # rarely: it costs all labels
                known = set().union(*others)
                check_new_labels(site, len(set(labels) - known), 0, len(known))

    def _welcome(self, node: int, site: str, counts: dict[str, int], now: float) -> None:
        ledger = self._ledger
        before = ledger.book.counts.get(site)
        if before is None:
            ledger.join(site, counts, node, now)
        else:  # restarted before anyone noticed, or the server was
            if before != counts:
                ledger.declare(site, counts, now)
            self._released(site)
            ledger.note(f"back as node {node}; asked again for what it was training", now, site)
        self.nodes.bind(node, site, now)
        self._conduct[site, "train"].succeed()

    @property
    def waiting(self) -> str:
        """For whom, before training begins."""
        here = [site for site in self.founders if self.nodes.of(site) is not None]
        shown = [one_line(site) for site in here[:MOST_NAMED]]
        shown += [f"and {len(here) - MOST_NAMED} more"] if len(here) > MOST_NAMED else []
        named = f": {', '.join(shown)}" if here else ""
        return f"{len(here)} of {self._settings.min_clients} sites are here{named}"

    def enough_to_begin(self) -> dict[str, int] | None:
        """The founders and their nodes, once there are enough within reach."""
        here = {site: self.nodes.of(site) for site in self.founders}
        nodes = {site: node for site, node in here.items() if node is not None}
        return nodes if len(nodes) >= self._settings.min_clients else None

    def succeeded(self, site: str, kind: Kind = "train") -> None:
        self._conduct[site, kind].succeed()

    def put_off(self, site: str, reason: str, now: float) -> None:
        """Something went wrong that the site cannot help."""
        self._conduct[site, "train"].wait(self._settings.back_off, now)
        self._ledger.note(f"asked again later: {reason}", now, site)

    def failed(self, site: str, reason: str, now: float, kind: Kind = "train") -> None:
        """Each failure in a row doubles the pause; too many of them, and the site is shut out."""
        if site not in self._ledger.book.counts:
            return
        conduct = self._conduct[site, kind]
        conduct.fail(self._settings.back_off, now)
        if conduct.failures < self._settings.patience:
            pause = conduct.not_before - now
            self._ledger.note(f"asked again in {pause:.0f} s: {reason}", now, site)
            return
        seconds, times = self._settings.quarantine, f"{conduct.failures} failures in a row"
        words = f"quarantined for {seconds:.0f} s after {times}: {reason}"
        if self._depart(site, words, now, quarantine=seconds):
            conduct.succeed()

    def tick(self, now: float) -> None:
        """Notice who is out of reach for too long."""
        for site in [s for s in self.founders if self.nodes.of(s) is None]:
            del self.founders[site]
            self.nodes.unbind(site)
        for site in self.members:
            away = self.nodes.away(site, now)
            if away > self._settings.absence:
                self._depart(site, f"out of reach for {away:.0f} s", now)
        self.nodes.forget(now - 10 * self._settings.absence)
        self._refused = {n: why for n, why in self._refused.items() if n in self.nodes.conduct}

    def _depart(self, site: str, reason: str, now: float, quarantine: float | None = None) -> bool:
        """False while the disk does not take it; then it is tried again at the next occasion."""
        try:
            self._ledger.leave(site, reason, now, quarantine)
        except OSError:
            return False
        self.nodes.unbind(site)
        self._released(site)
        if 1 < self._slots > len(self.members):
            self._ledger.note(
                f"{len(self.members)} sites cannot fill a buffer of {self._slots} with a slot "
                "each; until more join, it counts as full with as many slots as there are sites",
                now,
            )
        return True
