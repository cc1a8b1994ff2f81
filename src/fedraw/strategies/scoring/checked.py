"""Checked labels: a declared label count is trusted as far as the client's updates support it.

- A declared label whose level never rises is discounted once a false claim is a better explanation
  than chance.
- A declared share is limited to MARGIN times the share that the updates show.
- An undeclared label that rises counts as held.
- A label for which the model has no output is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.types import Cleared, ClientId, Doubt, Finding, Floats, Label
from fedraw.strategies.scoring.evidence import ClientEvidence

# The prior odds that a declared label is held.
CLAIM_ODDS = 19.0
# After FEW_UPDATES updates a declared share is at most MARGIN times what the updates show.
FEW_UPDATES, MARGIN = 3, 3.0
# An undeclared label counts as held from this probability on.
EVIDENT = 0.99
# A doubt is reported if it concerns at least this share of a client's data: MATERIAL for a label
# that never rose, EXAGGERATED for one that did, because a model that knows a label well makes its
# true share look small.
MATERIAL, EXAGGERATED = 0.1, 0.5


class DeclaredLabels(NamedTuple):
    """One client's declared labels, by output of the model."""

    share: Floats
    counted: Floats  # 1 where the declaration counts in coverage
    without_output: dict[Label, float]  # shares of labels for which the model has no output


@dataclass(eq=False)
class CheckedRule:
    """Compares declared label counts with the evidence, and reports contradictions."""

    classes: list[Label]  # the label of each output of the model
    doubted: dict[ClientId, list[Label]] = field(default_factory=dict)
    _findings: list[Finding] = field(default_factory=list, init=False, repr=False)
    _output: dict[Label, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # The label 3 and the label "3" are the same output.
        self._output = {int(c): i for i, c in enumerate(self.classes) if str(c).isdecimal()}
        self._output |= {label: i for i, label in enumerate(self.classes)}

    def judge(
        self, client: ClientId, evidence: ClientEvidence, federation: Federation
    ) -> tuple[Floats, Floats]:
        """Return, per output, the trusted shares and the correction of the declared coverage."""
        share, counted, without_output = self._declared(client, federation)
        proven = evidence.risen > 0
        odds = CLAIM_ODDS * evidence.silence_probability
        unproven = np.minimum(1.0, 2 * odds / (1 + odds))
        bounded = np.minimum(1.0, MARGIN * evidence.share / np.maximum(share, 1e-12))
        believable = bounded if evidence.updates >= FEW_UPDATES else 1.0
        belief = np.where(proven, believable, unproven)
        evident = (share == 0) & (evidence.presence > EVIDENT)
        material = np.where(proven, EXAGGERATED, MATERIAL)
        doubted = (share * (1 - belief) > material) | (evidence.share * evident > MATERIAL)
        presence = evidence.presence.tolist()
        doubts = {self.classes[i]: (float(share[i]), presence[i]) for i in np.flatnonzero(doubted)}
        doubts |= {label: (own, 0.0) for label, own in without_output.items()}
        self._report(client, doubts, presence)
        correction = evident - (1 - np.where(proven, 1.0, belief)) * counted
        return share * belief + evidence.share * evident, correction

    def declared_coverage(self, federation: Federation) -> Floats:
        """Return, per output, the number of members that declare the label."""
        declared = np.zeros(len(self.classes))
        for label, coverage in zip(federation.labels, federation.coverage.tolist(), strict=True):
            if label in self._output:
                declared[self._output[label]] += coverage
        return declared

    def unheard_score(self, client: ClientId, federation: Federation, mean: float) -> float:
        """Return the declared score of a client without updates."""
        return federation.score(client)

    def leave(self, client: ClientId) -> None:
        """Drop the doubts about a client that has left; they are reported again if it returns."""
        self.doubted.pop(client, None)

    def drain_findings(self) -> list[Finding]:
        """Return the findings since the last call."""
        findings, self._findings = self._findings, []
        return findings

    def _declared(self, client: ClientId, federation: Federation) -> DeclaredLabels:
        declared = DeclaredLabels(np.zeros(len(self.classes)), np.zeros(len(self.classes)), {})
        row = federation.row(client)
        for column, share, count in zip(row.column.tolist(), row.share, row.count, strict=True):
            label = federation.labels[column]
            output = self._output.get(label)
            if output is None:
                declared.without_output[label] = float(share)
            else:
                declared.share[output] += share
                declared.counted[output] = declared.counted[output] or count > 0
        return declared

    def _report(
        self,
        client: ClientId,
        doubts: Mapping[Label, tuple[float, float]],
        presence: Sequence[float],
    ) -> None:
        """Record a finding for each new doubt and for each doubt that no longer holds."""
        before = self.doubted.pop(client, [])
        self._findings += [Doubt(client, c, *doubts[c]) for c in doubts if c not in before]
        for label in before:
            if label not in doubts:
                output = self._output.get(label)
                known = 0.0 if output is None else presence[output]
                self._findings.append(Cleared(client, label, known))
        if doubts:
            self.doubted[client] = list(doubts)
