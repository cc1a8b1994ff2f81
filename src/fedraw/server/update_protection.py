"""Clips updates and adds noise on the server, and logs the privacy budget that sites have spent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.state import RunState
from fedraw.privacy.updates import UpdatePrivacy
from fedraw.server.discarded import discarded_updates
from fedraw.server.store import FederationStore
from fedraw.strategies.protocol import Needs


class UpdateProtection:
    """Clips updates and adds noise before they reach the journal and the strategy."""

    def __init__(
        self, privacy: UpdatePrivacy, needs: Needs, layout: Layout, store: FederationStore
    ) -> None:
        if layout.statistics_count:
            raise BadInput(
                "update_privacy does not protect batch-norm statistics, because they are not "
                "differences; use a model without them, such as one with group norm"
            )
        if needs.loss:
            raise BadInput(
                "update_privacy does not protect the losses by which this strategy weighs sites; "
                "use another strategy"
            )
        privacy.epsilon(1)  # reports a missing library now
        self._privacy = privacy
        self._sends_model = needs.sends == "model"
        self._store = store
        self._rng = np.random.default_rng()  # seeded by the operating system, so nobody knows it
        self._updates = discarded_updates(store.folder)
        if store.begun:
            known = RunState.of(read_log(store.log.path, allow_cut_off=True), bounded=True)
            self._updates.update({str(site): own.arrivals for site, own in known.sites.items()})

    def protect(self, update: Update, start: Vector) -> Update:
        """Return the clipped update with noise; `start` is the model that the site received."""
        sent = update.vector
        if not self._sends_model:
            return replace(update, vector=self._privacy.protect(sent, self._rng))
        return replace(update, vector=start + self._privacy.protect(sent - start, self._rng))

    def count_update(self, site: str) -> None:
        """Count an accepted update of the site."""
        self._updates[site] += 1

    def log_budget(self, now: float) -> None:
        """Log the epsilon of the site with the most updates."""
        if not self._updates:
            return
        site, updates = self._updates.most_common(1)[0]
        epsilon, delta = self._privacy.epsilon(updates), self._privacy.delta
        self._store.note(
            f"update privacy: epsilon = {epsilon:.3g} at delta = {delta:g} after {updates} "
            f"updates of {site!r}, which has sent most",
            now,
        )
