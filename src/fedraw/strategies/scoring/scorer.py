"""Scorers: rarity scores S_i from declared labels, checked labels, or updates alone.

A strategy asks its scorer for scores and knows nothing about where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.types import (
    ClientId,
    Finding,
    Floats,
    InferredLabels,
    Label,
    LabelCounts,
    Vector,
)
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.strategies.scoring.checked import CheckedRule
from fedraw.strategies.scoring.evidence import ClientEvidence
from fedraw.strategies.scoring.inferred import InferredRule
from fedraw.strategies.scoring.output_layer import LevelHistory, OutputLayer

if TYPE_CHECKING:
    from fedraw.strategies.protocol import Setup

# The basis of rarity scores.
LabelEvidence = Literal["declared", "checked", "inferred"]

# The smallest score, relative to the mean, so that a buffer of false claims has a positive weight.
LEAST = 1e-3
# A score that has changed by less than this, relative to its value, is reported as before.
STEADY = 0.1


class Scorer(Protocol):
    """Knows the members of a federation and how rare their labels are.

    It is a part of a strategy's state, so it can be written to disk.
    """

    federation: Federation

    def observe(self, update: Update) -> None:
        """Record an update before it is buffered."""
        ...

    def model_changed(self, version: int, model: Vector) -> None:
        """Record a new version of the global model, from which clients may start."""
        ...

    def scores(self, clients: Sequence[ClientId]) -> list[float]:
        """Return S_i of members, and of clients that have left but whose updates are in use."""
        ...

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        """Add a member with the labels that it declares."""
        ...

    def leave(self, client: ClientId) -> None:
        """Remove a member."""
        ...

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace the labels that a member declares."""
        ...

    def drain_findings(self) -> Sequence[Finding]:
        """Return the findings about clients since the last call."""
        ...

    def inferred_labels(self) -> InferredLabels | None:
        """Return coverage and holders of the labels if the scorer infers them, otherwise None."""
        ...


@dataclass(eq=False)
class DeclaredScorer:
    """Trusts the label counts that clients declare."""

    federation: Federation

    def observe(self, update: Update) -> None:
        """Do nothing: declared scores do not depend on updates."""

    def model_changed(self, version: int, model: Vector) -> None:
        """Do nothing: declared scores do not depend on the model."""

    def scores(self, clients: Sequence[ClientId]) -> list[float]:
        """Return S_i = Σ_l freq(l, i) / coverage(l) from the declared counts."""
        return self.federation.scores(clients)

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        """Add a member with the labels that it declares."""
        self.federation.join(client, counts)

    def leave(self, client: ClientId) -> None:
        """Remove a member; its last score stays known."""
        self.federation.leave(client)

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace the labels that a member declares."""
        self.federation.declare(client, counts)

    def drain_findings(self) -> Sequence[Finding]:
        """Return no findings: declarations are never doubted."""
        return ()

    def inferred_labels(self) -> InferredLabels | None:
        """Return None: nothing is inferred."""
        return None


@dataclass(eq=False)
class EvidenceScorer:
    """Scores clients by the output layer of their updates: S_i = Σ_l share / coverage.

    The rule decides which shares of a client count and what they add to the coverage of the labels.
    A reported score stays the same until it has changed by more than STEADY. Small changes in
    coverage therefore leave the coefficients of buffered updates as they are, and an arrival costs
    O(labels) per requested client.
    """

    federation: Federation
    rule: CheckedRule | InferredRule
    output_layer: OutputLayer
    start_levels: LevelHistory | None  # None: clients send differences, which need no start model
    coverage: Floats  # by output: the sum of what the rule adds to the declared coverage
    declared: Floats  # by output: the number of members that declare the label
    evidence: dict[ClientId, ClientEvidence] = field(default_factory=dict)
    held: dict[ClientId, Floats] = field(default_factory=dict)  # each client's part of `coverage`
    shares: dict[ClientId, Floats] = field(default_factory=dict)  # the shares that count
    reported: dict[ClientId, float] = field(default_factory=dict)  # scores
    _highest: float = field(default=0.0, init=False, repr=False)  # score ever reported

    def __post_init__(self) -> None:
        self._highest = max(self.reported.values(), default=0.0)

    def observe(self, update: Update) -> None:
        """Infer from an update which labels its client holds.

        An update whose start model is no longer known gives no evidence.
        """
        client, levels = update.client, self.output_layer.levels(update.vector)
        start: Floats | float | None = 0.0
        if self.start_levels is not None:
            start = self.start_levels.of(update.start_version)
        evidence = self.evidence.get(client)
        if start is not None:
            if evidence is None:
                evidence = self.evidence[client] = ClientEvidence.none(self.output_layer.labels)
            evidence.observe(levels - start)
        self._judge(client)

    def model_changed(self, version: int, model: Vector) -> None:
        """Record the levels of a version, to compare updates with."""
        if self.start_levels is not None:
            self.start_levels.record(version, self.output_layer.levels(model))

    def scores(self, clients: Sequence[ClientId]) -> list[float]:
        """Return S_i from the evidence; the rule scores clients without updates."""
        found = [self._from_evidence(client) for client in clients]
        known = [score for score in found if score is not None]
        mean = 0.0
        # The mean over all clients is computed only if it is needed.
        if len(known) < len(found) or min(known, default=np.inf) < LEAST * self._highest:
            mean = fmean(self.reported.values()) if self.reported else 1.0
        return [self._report(c, own, mean) for c, own in zip(clients, found, strict=True)]

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        """Add a member; earlier evidence about a client that returns still counts."""
        self.federation.join(client, counts)
        self._judge(client)

    def leave(self, client: ClientId) -> None:
        """Take a member's labels out of coverage; its last score and its evidence are kept."""
        self.federation.leave(client)
        held = self.held.pop(client, None)
        if held is not None:
            self.coverage = self.coverage - held
        self.shares.pop(client, None)
        self.rule.leave(client)
        self.declared = self.rule.declared_coverage(self.federation)

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace the labels that a member declares, and compare them with its evidence."""
        self.federation.declare(client, counts)
        self._judge(client)

    def drain_findings(self) -> Sequence[Finding]:
        """Return the doubts that arose or were cleared since the last call."""
        return self.rule.drain_findings()

    def inferred_labels(self) -> InferredLabels | None:
        """Return coverage and holders of the labels if they are inferred, otherwise None."""
        if isinstance(self.rule, InferredRule):
            return self.rule.labels(self.coverage, self.held)
        return None

    def _judge(self, client: ClientId) -> None:
        """Compute a member's shares and its part of the coverage from its evidence, if any."""
        self.declared = self.rule.declared_coverage(self.federation)
        evidence = self.evidence.get(client)
        if evidence is not None:
            share, held = self.rule.judge(client, evidence, self.federation)
            self.coverage = self.coverage + held - self.held.get(client, 0.0)
            self.held[client], self.shares[client] = held, share

    def _from_evidence(self, client: ClientId) -> float | None:
        share = self.shares.get(client)
        if share is None or (isinstance(self.rule, InferredRule) and not share.any()):
            return None
        return float((share / np.maximum(self.coverage + self.declared, 1.0)).sum())

    def _report(self, client: ClientId, score: float | None, mean: float) -> float:
        reported = self.reported.get(client)
        if score is None:
            if reported is not None:
                return reported
            return self.rule.unheard_score(client, self.federation, mean)
        score = max(score, LEAST * mean)
        if reported is None or abs(score - reported) > STEADY * reported:
            reported = self.reported[client] = score
            self._highest = max(self._highest, reported)
        return reported


def make_scorer(
    labels: LabelEvidence,
    setup: Setup,
    classes: Sequence[Label] | None = None,
    *,
    sends_delta: bool = False,
) -> DeclaredScorer | EvidenceScorer:
    """Create the scorer for a kind of label evidence.

    `setup` is what the strategy starts from. `classes` are the labels of the model's outputs, by
    default those of the setup; without these they are "0", "1", and so on.
    """
    federation = Federation.of(setup.clients)
    if labels == "declared":
        return DeclaredScorer(federation)
    layer = OutputLayer.of(setup.layout, f"labels = {labels!r}")
    classes = setup.classes if classes is None else classes
    names: list[Label] = list(map(str, range(layer.labels)) if classes is None else classes)
    if len(names) != layer.labels:
        raise BadInput(f"classes has {len(names)} labels, the model {layer.labels} outputs")
    rule = CheckedRule(names) if labels == "checked" else InferredRule(names)
    history = None if sends_delta else LevelHistory.empty(layer.labels)
    zeros = np.zeros(layer.labels)
    scorer = EvidenceScorer(federation, rule, layer, history, coverage=zeros, declared=zeros)
    scorer.model_changed(0, setup.model)
    return scorer
