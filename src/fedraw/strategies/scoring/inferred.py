"""Inferred labels: clients declare none, and the updates alone show what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.types import ClientId, Finding, Floats, InferredLabels, Label
from fedraw.strategies.scoring.evidence import ClientEvidence

# `InferredLabels` names the holders of a label if there are at most this many.
FEW_HOLDERS = 5


@dataclass(eq=False)
class InferredRule:
    """Takes a client's labels and shares from its updates alone."""

    classes: list[Label]  # the label of each output of the model

    def judge(
        self, client: ClientId, evidence: ClientEvidence, federation: Federation
    ) -> tuple[Floats, Floats]:
        """Return, per output, the shares of the client's data and its part of the coverage."""
        return evidence.share, np.where(evidence.presence > 0.5, evidence.presence, 0.0)

    def declared_coverage(self, federation: Federation) -> Floats:
        """Return zeros, because clients declare nothing."""
        return np.zeros(len(self.classes))

    def unheard_score(self, client: ClientId, federation: Federation, mean: float) -> float:
        """Return the mean score for a client without updates."""
        return mean

    def leave(self, client: ClientId) -> None:
        """Do nothing: the rule keeps nothing about single clients."""

    def drain_findings(self) -> list[Finding]:
        """Return no findings, because there are no declarations to doubt."""
        return []

    def labels(self, coverage: Floats, held: Mapping[ClientId, Floats]) -> InferredLabels:
        """Return the coverage of each label and the holders of rare labels, for the log."""
        names = [str(label) for label in self.classes]
        rounded = {name: round(float(own), 2) for name, own in zip(names, coverage, strict=True)}
        holders = {n: [c for c, own in held.items() if own[i] > 0] for i, n in enumerate(names)}
        rarest = sorted(holders, key=lambda name: len(holders[name]))
        few = {n: holders[n] for n in rarest if 0 < len(holders[n]) <= FEW_HOLDERS}
        return InferredLabels(rounded, few)
