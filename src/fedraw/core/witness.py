"""Rarity scores by what updates say, instead of or beside what clients claim.

inferred  nobody reports labels: S_i = Σ_l share(l, i) / holders(l), all of it from the updates.
checked   claims count as far as the updates bear them out: a claimed label whose output never
          rises is discounted once that is more likely a lie than chance, a claimed share is at most
          MARGIN times what the updates show, a label that rises unclaimed counts as held, and one
          for which the model has no output counts for nothing.

A score is told anew once it has changed by STEADY: what an arrival changes a little in everyone's
coverage leaves the coefficients of the updates in a buffer as they are, and costs O(labels) each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np

from fedraw.core.evidence import Evidence, Heard
from fedraw.core.federation import Federation
from fedraw.core.head import VERSIONS, Levels, levels
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Floats, Label, Vector
from fedraw.core.update import Update

Labels = Literal["declared", "checked", "inferred"]

# A claim is believed with these odds before any update has come.
CLAIM_ODDS = 19.0
# After so many updates a claimed share is at most so many times what the updates show.
FEW_UPDATES, MARGIN = 3, 3.0
# Nobody weighs nothing: a buffer full of liars must not weigh nothing either.
LEAST = 1e-3
# A score that has changed by less is told as before.
STEADY = 0.1
# A label that nobody claimed counts as held from this probability on.
EVIDENT = 0.99
# So few holders of a label are told by name.
FEW_HOLDERS = 5
# So much of a client's data has to be in doubt before it is told of; so much if it holds the label.
MATERIAL, EXAGGERATED = 0.1, 0.5


class Doubt(NamedTuple):
    """Updates contradict a claim, or (claimed = 0) show a label that was not claimed."""

    client: ClientId
    label: Label
    claimed: float  # its share, as the client says
    presence: float  # the probability of it, as the updates say


class Cleared(NamedTuple):
    """What was doubted is no longer."""

    client: ClientId
    label: Label
    presence: float


News = Doubt | Cleared


class Inferred(NamedTuple):
    """Which labels the updates show: how many clients have each, and who, the rarest first."""

    coverage: dict[str, float]
    holders: dict[str, list[ClientId]]


@dataclass(eq=False)
class Witness:
    """What the server knows from updates; part of a strategy's state."""

    mode: Labels
    classes: list[Label]  # the label of each output of the model
    evidence: Evidence
    levels: Levels
    # Inferred: how many clients hold each label. Checked: what to add to the claimed coverage.
    holders: Floats
    claimed: Floats  # how many claim each label
    part: dict[ClientId, Floats] = field(default_factory=dict)  # of each client in `holders`
    shares: dict[ClientId, Floats] = field(default_factory=dict)  # that count
    told: dict[ClientId, float] = field(default_factory=dict)  # scores
    doubted: dict[ClientId, list[Label]] = field(default_factory=dict)
    _news: list[News] = field(default_factory=list, init=False, repr=False)
    _output: dict[Label, int] = field(default_factory=dict, init=False, repr=False)
    _most: float = field(default=0.0, init=False, repr=False)  # that was ever told

    def __post_init__(self) -> None:
        # Who counts labels by number means the same label as who writes the number.
        self._output = {int(c): i for i, c in enumerate(self.classes) if str(c).isdecimal()}
        self._output |= {label: i for i, label in enumerate(self.classes)}
        self._most = max(self.told.values(), default=0.0)

    @classmethod
    def of(
        cls,
        mode: Labels,
        classes: Sequence[Label],
        model: Vector,
        layout: Layout,
        versions: int = VERSIONS,
    ) -> Witness:
        """`versions` back an update of whole models may have started and still be read."""
        kept, nobody = Levels.empty(len(classes), versions), np.zeros(len(classes))
        witness = cls(mode, list(classes), Evidence(len(classes)), kept, nobody, nobody)
        witness.handed(0, model, layout)
        return witness

    def handed(self, version: int, model: Vector, layout: Layout) -> None:
        """Remember a version of the model that clients may start from."""
        self.levels.keep(version, levels(model, layout))

    def hear(
        self, update: Update, layout: Layout, federation: Federation, sends_delta: bool
    ) -> None:
        """Take in what an update says."""
        client, sent = update.client, levels(update.vector, layout)
        start = np.zeros_like(sent) if sends_delta else self.levels.of(update.start_version)
        if start is not None:
            self.evidence.observe(client, sent - start)
        heard = self.evidence.heard.get(client)
        if heard is not None:
            self._weigh(client, heard, federation)

    def scores(self, clients: Sequence[ClientId], federation: Federation) -> list[float]:
        """Of one that was never heard: what it claims, or else the mean of the others."""
        found = [self._by_updates(client) for client in clients]
        known = [score for score in found if score is not None]
        usual = 0.0
        # A mean over everyone: looked at only where it makes a difference.
        if len(known) < len(found) or min(known, default=np.inf) < LEAST * self._most:
            usual = fmean(self.told.values()) if self.told else 1.0
        pairs = zip(clients, found, strict=True)
        return [self._tell_score(client, own, usual, federation) for client, own in pairs]

    def _by_updates(self, client: ClientId) -> float | None:
        share = self.shares.get(client)
        if share is None or (self.mode == "inferred" and not share.any()):
            return None
        return float((share / np.maximum(self.holders + self.claimed, 1.0)).sum())

    def _tell_score(
        self, client: ClientId, score: float | None, usual: float, federation: Federation
    ) -> float:
        told = self.told.get(client)
        if score is None:
            if told is not None:
                return told
            return federation.score(client) if self.mode == "checked" else usual
        score = max(score, LEAST * usual)
        if told is None or abs(score - told) > STEADY * told:
            told = self.told[client] = score
            self._most = max(self._most, told)
        return told

    def forget(self, client: ClientId) -> None:
        """A client has left: its labels are gone.

        Its last score stays with its update, and what was heard of it for when it is back: who
        leaves and joins again is no stranger.
        """
        part = self.part.pop(client, None)
        if part is not None:
            self.holders = self.holders - part
        self.shares.pop(client, None)
        self.doubted.pop(client, None)

    def inferred(self) -> Inferred:
        names = [str(label) for label in self.classes]
        coverage = {
            name: round(float(own), 2) for name, own in zip(names, self.holders, strict=True)
        }
        held = {
            name: [c for c, own in self.part.items() if own[i] > 0] for i, name in enumerate(names)
        }
        rarest = sorted(held, key=lambda name: len(held[name]))
        return Inferred(coverage, {n: held[n] for n in rarest if 0 < len(held[n]) <= FEW_HOLDERS})

    def take_news(self) -> list[News]:
        """What has come to be doubted, or no longer is, since this was last asked."""
        news, self._news = self._news, []
        return news

    def _weigh(self, client: ClientId, heard: Heard, federation: Federation) -> None:
        """Which shares of a client count, and of which labels it is a holder."""
        if self.mode == "inferred":
            share, part = heard.share, np.where(heard.presence > 0.5, heard.presence, 0.0)
        else:
            share, part = self._checked(client, heard, federation)
            self.claimed = self._claimed(federation)
        self.holders = self.holders + part - self.part.get(client, 0.0)
        self.part[client], self.shares[client] = part, share

    def _checked(
        self, client: ClientId, heard: Heard, federation: Federation
    ) -> tuple[Floats, Floats]:
        """By output: shares that the updates bear out, and what that changes in coverage."""
        share, counted, strange = self._claims(client, federation)
        odds = CLAIM_ODDS * heard.excuse
        silent = np.minimum(1.0, 2 * odds / (1 + odds))
        bounded = np.minimum(1.0, MARGIN * heard.share / np.maximum(share, 1e-12))
        proven = (heard.risen > 0) & (heard.updates >= FEW_UPDATES)
        belief = np.where(proven, bounded, np.where(heard.risen > 0, 1.0, silent))
        evident = (share == 0) & (heard.presence > EVIDENT)
        # What is held may be claimed too high by a model that has learnt it: only much counts.
        material = np.where(heard.risen > 0, EXAGGERATED, MATERIAL)
        doubted = (share * (1 - belief) > material) | (heard.share * evident > MATERIAL)
        self._tell(client, heard.presence, share, np.flatnonzero(doubted).tolist(), strange)
        part = evident - (1 - np.where(heard.risen > 0, 1.0, belief)) * counted
        return share * belief + heard.share * evident, part

    def _claimed(self, federation: Federation) -> Floats:
        """By output: how many members claim the label."""
        claimed = np.zeros(len(self.classes))
        for label, coverage in zip(federation.labels, federation.coverage.tolist(), strict=True):
            if label in self._output:
                claimed[self._output[label]] = coverage
        return claimed

    def _claims(
        self, client: ClientId, federation: Federation
    ) -> tuple[Floats, Floats, dict[Label, float]]:
        """By output: claimed shares, and whether they count in coverage; labels without output."""
        share, counted = np.zeros(len(self.classes)), np.zeros(len(self.classes))
        strange: dict[Label, float] = {}
        row = federation.row(client)
        for column, own, count in zip(row.column.tolist(), row.share, row.count, strict=True):
            label = federation.labels[column]
            place = self._output.get(label)
            if place is None:
                strange[label] = float(own)
            else:
                share[place], counted[place] = own, count > 0
        return share, counted, strange

    def _tell(
        self,
        client: ClientId,
        presence: Floats,
        claimed: Floats,
        doubted: list[int],
        strange: dict[Label, float],
    ) -> None:
        """Note what is doubted now and was not before, and the other way round."""
        now = {self.classes[i]: (float(claimed[i]), float(presence[i])) for i in doubted}
        now |= {label: (own, 0.0) for label, own in strange.items()}
        before = self.doubted.get(client, [])
        self._news += [Doubt(client, label, *now[label]) for label in now if label not in before]
        # Labels without an output stay doubted as long as they are claimed.
        cleared = [(label, self._output.get(label)) for label in before if label not in now]
        self._news += [
            Cleared(client, label, 0.0 if i is None else float(presence[i])) for label, i in cleared
        ]
        self.doubted[client] = list(now)
        if not now:
            del self.doubted[client]
