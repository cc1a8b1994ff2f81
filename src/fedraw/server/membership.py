"""Nodes and their sites: which sites are members, which must wait, which are excluded."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedraw.core.text import one_line, several
from fedraw.errors import BadInput
from fedraw.server.admission import (
    MOST_LABELS_IN_ALL,
    UNDECLARED,
    check_counts,
    check_name,
    check_new_labels,
)
from fedraw.server.revocation import Revoked, RevokedSites
from fedraw.server.settings import ServerSettings
from fedraw.server.store import FederationStore
from fedraw.server.tasks import LATE_FACTOR, LabelSummary, TaskKind

# Upper bound of the back-off, in seconds.
LONGEST_PAUSE = 3600.0


@dataclass
class BackOff:
    """The number of failures in a row of a node or site, and when to ask it again."""

    failures: int = 0
    not_before: float = 0.0

    def fail(self, pause: float, now: float) -> None:
        """Count a failure; each further failure doubles the pause."""
        self.failures += 1
        self.not_before = now + min(pause * 2 ** (self.failures - 1), LONGEST_PAUSE)

    def wait(self, seconds: float, now: float) -> None:
        """Pause without counting a failure."""
        self.not_before = now + seconds

    def succeed(self) -> None:
        """Forget earlier failures."""
        self.failures, self.not_before = 0, 0.0


class Nodes:
    """The nodes that the engine lists, and the site of each node."""

    def __init__(self) -> None:
        self.online: frozenset[int] = frozenset()
        self.back_offs: dict[int, BackOff] = {}
        self._site_at: dict[int, str] = {}
        self._node_of: dict[str, int] = {}
        self._listed: dict[int, float] = {}  # when a node was last listed
        self._seen: dict[str, float] = {}  # when a site was last online

    def update(self, online: Collection[int], now: float) -> None:
        """Record the nodes that are online now."""
        self.online = frozenset(online)
        for node in self.online:
            self._listed[node] = now
            self.back_offs.setdefault(node, BackOff())
            if node in self._site_at:
                self.see(self._site_at[node], now)

    def unidentified(self) -> list[int]:
        """Return the online nodes whose site is not known yet."""
        return sorted(node for node in self.online if node not in self._site_at)

    def knows(self, node: int) -> bool:
        """Return whether the node is listed, or was listed not long ago."""
        return node in self.back_offs

    def site_at(self, node: int) -> str | None:
        """Return the site of the node, or None if it is not known yet."""
        return self._site_at.get(node)

    def node_of(self, site: str) -> int | None:
        """Return the site's node if it is online, otherwise None."""
        node = self._node_of.get(site)
        return node if node in self.online else None

    def seconds_offline(self, site: str, now: float) -> float:
        """Return the seconds since the site was last online, or since the first call."""
        return now - self._seen.setdefault(site, now)

    def see(self, site: str, now: float) -> None:
        """Record that the site is online now."""
        self._seen[site] = now

    def bind(self, node: int, site: str, now: float) -> None:
        """Bind the site to this node and to no other; the node must not have another site."""
        self.unbind(site)
        self._site_at[node], self._node_of[site] = site, node
        self.see(site, now)
        self.back_offs[node].succeed()

    def unbind(self, site: str) -> None:
        """Forget the site's node; the node will be asked for its site again."""
        self._seen.pop(site, None)
        node = self._node_of.pop(site, None)
        if node is not None:
            del self._site_at[node]

    def forget_unlisted(self, unlisted_since: float) -> None:
        """Forget nodes that have not been listed since this time.

        Without authentication, a node has a new id after every restart.
        """
        for node in [n for n, last in self._listed.items() if last < unlisted_since]:
            if node not in self._site_at and node not in self.online:
                del self._listed[node], self.back_offs[node]


LOGGER = logging.getLogger("fedraw.server")

# Before training begins, the console lists at most this many connected sites.
MOST_NAMED = 20
# Seconds to wait before asking a node again if another online node has the same site name.
NAME_IN_USE = 10.0


class SiteMembership:
    """The sites of a federation by name; a site's node may change.

    Args:
        store: Stores every change of members.
        settings: The settings of the server.
        slots: The number of buffer slots, each of which needs a different site.
        released: Called with each site whose pending tasks no longer count, because it has left or
            has restarted.
        needs_counts: Whether sites must declare their labels.

    """

    def __init__(
        self,
        store: FederationStore,
        settings: ServerSettings,
        slots: int,
        released: Callable[[str], None],
        needs_counts: bool = True,
    ) -> None:
        self.nodes = Nodes()
        self.initial_sites: dict[str, dict[str, int]] = {}
        self._store = store
        self._settings = settings
        self._slots = slots
        self._released = released
        self._undeclared = {} if needs_counts else {UNDECLARED: 1}
        # By site and kind of task, because a site that trains well may still evaluate badly.
        self._back_offs: defaultdict[tuple[str, TaskKind], BackOff] = defaultdict(BackOff)
        self._refused: dict[int, str] = {}  # the reason for which each node may not join
        self._revoked = RevokedSites(store.folder)
        # Until then, a site may still train for the server before a restart; set by the first tick.
        self._busy_until: float | None = None

    @property
    def members(self) -> list[str]:
        """The names of all members."""
        return list(self._store.state.counts)

    def ready(self, site: str, now: float, kind: TaskKind = "train") -> int | None:
        """Return the site's node if it is online and not in back-off, otherwise None."""
        return self.nodes.node_of(site) if self._back_offs[site, kind].not_before <= now else None

    def handle_summary(self, node: int, summary: LabelSummary, now: float) -> None:
        """Handle a node's label summary: admit its site, let it wait, or refuse it."""
        site, store, back_off = summary.site, self._store, self.nodes.back_offs[node]
        try:
            check_name(site)
        except BadInput as refusal:
            self._refuse(node, None, str(refusal), now)
            return
        try:
            self._check_allowed(node, site)
            known = store.state.counts.get(site) or self.initial_sites.get(site)
            counts = check_counts(site, summary.counts or self._undeclared, known)
            self.check_new_labels(site, counts)
        except BadInput as refusal:
            self._refuse(node, site, str(refusal), now)
            return
        self._refused.pop(node, None)
        holder = self.nodes.node_of(site)
        if holder is not None and holder != node:
            back_off.wait(NAME_IN_USE, now)
            reason = f"{site!r} is online as node {holder}"
            store.note(f"node {node} may not join: {reason}", now, site)
        elif (left := store.quarantine_left(site, now)) > 0:
            back_off.wait(left, now)
        elif store.begun:
            self._add_member(node, site, counts, now)
        else:
            self.initial_sites[site] = counts
            self.nodes.bind(node, site, now)
            LOGGER.info("%s", self.waiting)

    def _refuse(self, node: int, site: str | None, reason: str, now: float) -> None:
        self.nodes.back_offs[node].fail(self._settings.back_off, now)
        if self._refused.get(node) != reason:  # log a repeated refusal once
            self._refused[node] = reason
            self._store.note(f"node {node} may not join: {reason}", now, site)

    def _check_allowed(self, node: int, site: str) -> None:
        allowed, nodes = self._settings.sites, self._store.state.nodes
        bound = self.nodes.site_at(node)
        if bound not in (None, site):
            raise BadInput(
                f"node {node} takes part as {bound!r}, so it cannot take part as {site!r} as well; "
                "give each node one site"
            )
        revoked = self._revoked.current()
        if site in revoked.sites:
            raise BadInput(
                f"{site!r} was revoked by the operator; fedraw server revoke --undo admits it again"
            )
        if self._settings.pinned and node in revoked.nodes:
            raise BadInput(f"the key of node {node} was revoked; give {site!r} a new key")
        if allowed and site not in allowed:
            raise BadInput(f"{site!r} is not among the sites that may take part; add it to `sites`")
        if not self._settings.pinned:
            return
        first = nodes.get(site, node)
        if first != node and first not in revoked.nodes:
            raise BadInput(
                f"{site!r} is registered with node {first}, and this node has another key; revoke "
                "the site and admit it again to replace its key"
            )
        owner = next((name for name, known in nodes.items() if known == node), site)
        if owner != site:
            raise BadInput(
                f"node {node} is registered as {owner!r}, so its key cannot take part as {site!r} "
                "as well; give each site its own key"
            )

    def check_new_labels(self, site: str, labels: Collection[str]) -> None:
        """Refuse labels beyond the number that one site, or all sites together, may add."""
        store = self._store
        if store.begun:
            federation = store.strategy_state.federation
            new, so_far = len(federation.new_labels(labels)), store.state.labels_added.get(site, 0)
            check_new_labels(site, new, so_far, len(federation.labels))
        else:
            others = [own for name, own in self.initial_sites.items() if name != site]
            # The union of all labels is slow to compute, and rarely needed.
            if sum(map(len, others)) + len(labels) > MOST_LABELS_IN_ALL:
                known = set().union(*others)
                check_new_labels(site, len(set(labels) - known), 0, len(known))

    def _add_member(self, node: int, site: str, counts: dict[str, int], now: float) -> None:
        store = self._store
        before = store.state.counts.get(site)
        if before is None:
            store.join(site, counts, node, now)
        else:  # the site or the server was restarted
            if before != counts:
                store.declare(site, counts, now)
            self._released(site)
            store.note(f"back as node {node}; asked again for what it was training", now, site)
        self.nodes.bind(node, site, now)
        self._back_offs[site, "train"].succeed()

    @property
    def waiting(self) -> str:
        """A sentence for the operator that says how many sites are connected."""
        here = [site for site in self.initial_sites if self.nodes.node_of(site) is not None]
        named = f": {several(map(one_line, here), MOST_NAMED)}" if here else ""
        return f"{len(here)} of {self._settings.min_clients} sites are connected{named}"

    def enough_to_begin(self) -> dict[str, int] | None:
        """Return the first sites and their nodes once enough are online, otherwise None."""
        here = {site: self.nodes.node_of(site) for site in self.initial_sites}
        nodes = {site: node for site, node in here.items() if node is not None}
        return nodes if len(nodes) >= self._settings.min_clients else None

    def succeeded(self, site: str, kind: TaskKind = "train") -> None:
        """Reset the site's back-off after a completed task."""
        self._back_offs[site, kind].succeed()

    def postpone(self, site: str, reason: str, now: float) -> None:
        """Ask the site again later, without counting a failure."""
        pause = self._settings.back_off
        self._back_offs[site, "train"].wait(pause, now)
        self._store.note(f"asked again later: {reason}", now, site, pause)

    def failed(self, site: str, reason: str, now: float, kind: TaskKind = "train") -> None:
        """Count a failure of the site; `patience` failures in a row lead to quarantine."""
        if site not in self._store.state.counts:
            return
        back_off = self._back_offs[site, kind]
        back_off.fail(self._settings.back_off, now)
        if back_off.failures < self._settings.patience:
            pause = back_off.not_before - now
            self._store.note(f"asked again in {pause:.0f} s: {reason}", now, site, pause)
            return
        seconds, times = self._settings.quarantine, f"{back_off.failures} failures in a row"
        words = f"quarantined for {seconds:.0f} s after {times}: {reason}"
        if self._remove_member(site, words, now, quarantine=seconds):
            back_off.succeed()

    def tick(self, now: float) -> None:
        """Remove sites that were revoked or have been offline for longer than `absence`."""
        revoked = self._revoked.current()
        for site in self.members:
            if site in revoked.sites or self._has_revoked_key(site, revoked):
                self._remove_member(site, "revoked by the operator", now)
        for site in [s for s in self.initial_sites if self.nodes.node_of(s) is None]:
            del self.initial_sites[site]
            self.nodes.unbind(site)
        if self._busy_until is None:
            self._busy_until = now + LATE_FACTOR * self._settings.deadline
        for site in self.members:
            if now <= self._busy_until and self._may_be_busy(site):
                self.nodes.see(site, now)
            away = self.nodes.seconds_offline(site, now)
            if away > self._settings.absence:
                self._remove_member(site, f"out of reach for {away:.0f} s", now)
        self.nodes.forget_unlisted(now - 10 * self._settings.absence)
        self._refused = {n: why for n, why in self._refused.items() if n in self.nodes.back_offs}

    def _has_revoked_key(self, site: str, revoked: Revoked) -> bool:
        """Return whether the member has joined with a key that was revoked since."""
        return self._settings.pinned and self._store.state.nodes.get(site) in revoked.nodes

    def _may_be_busy(self, site: str) -> bool:
        """Return whether the site's node is online, but has not answered since the restart.

        A node handles one message at a time. So a site that trains for the server before the
        restart gives its name only after that training.
        """
        node = self._store.state.nodes.get(site)
        return (
            node is not None
            and node in self.nodes.online
            and self.nodes.site_at(node) is None
            and node not in self._refused
        )

    def _remove_member(
        self, site: str, reason: str, now: float, quarantine: float | None = None
    ) -> bool:
        """Remove a member; return False if the disk is full, so that `tick` tries again."""
        try:
            self._store.leave(site, reason, now, quarantine)
        except OSError:
            return False
        self.nodes.unbind(site)
        self._released(site)
        if 1 < self._slots > len(self.members):
            self._store.note(
                f"{len(self.members)} sites cannot fill {self._slots} buffer slots; until more "
                "sites join, the buffer counts as full with one slot per site",
                now,
            )
        return True
