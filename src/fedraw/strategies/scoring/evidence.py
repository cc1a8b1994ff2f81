"""The evidence that the output layer of a client's updates gives about its labels.

In every step of softmax training with cross-entropy, the output bias of label l changes by the
learning rate times (share of l in the batch − mean probability that the model gives to l). For a
label that the client does not hold the first term is zero, so its bias can only fall: **one rise
proves the label**. For a label that the client holds, the bias rises in most updates, and more
often the less the model knows the label.

Each update therefore shows for each label whether its level rose. A filter with two states, present
and absent, processes these observations. Presence changes rarely (HAZARD). A label that is present
rises with a probability that falls with the time since its last rise (a Beta distribution over
labels and stages of training). A label that is absent almost never rises (FALSE_RISE). The shares
of the labels are the relative sizes of their rises, with older updates counting less. An arrival
costs O(labels).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedraw.core.types import Floats

# Fitted on digits and HAM10000 with seeds 1 and 2; see docs/research/evidence.md.
RISE_ALPHA, RISE_BETA = 1.5, 0.5
FALSE_RISE = 1e-4
HAZARD = 0.0005
# After this many updates without a rise, a further one does not change the probability of a rise.
LONG_SILENCE = 30
# The factor by which the weight of an update's rises shrinks with each further update.
MEMORY = 0.95
# A change smaller than this, relative to the largest change of the update, is rounding.
ROUNDING = 1e-6


@dataclass(eq=False)
class ClientEvidence:
    """What one client's updates show, label by label.

    >>> evidence = ClientEvidence.none(labels=3)
    >>> evidence.observe(np.array([0.4, 0.1, -0.5]))
    >>> evidence.presence.round(2).tolist(), evidence.share.round(2).tolist()
    ([1.0, 1.0, 0.2], [0.8, 0.2, 0.0])
    """

    presence: Floats  # probability that the client holds the label
    silence: Floats  # number of updates since the label last rose
    silence_probability: Floats  # probability of such a silence if the client holds the label
    mass: Floats  # discounted sum of the label's rises
    risen: Floats  # 1 if the label has ever risen, which proves it
    updates: int = 0

    @classmethod
    def none(cls, labels: int) -> ClientEvidence:
        """Return the evidence before the client's first update."""
        zeros, ones = np.zeros(labels), np.ones(labels)
        return cls(ones / 2, zeros, ones, zeros, zeros)

    @property
    def share(self) -> Floats:
        """The labels' shares of the client's data; all zero until a label has risen."""
        total = self.mass.sum()
        return self.mass / total if total > 0 else self.mass

    def observe(self, change: Floats) -> None:
        """Record how an update changed the level of each label."""
        rose = change > ROUNDING * np.abs(change).max(initial=0.0)
        prior = self.presence * (1 - HAZARD) + (1 - self.presence) * HAZARD
        rate = RISE_ALPHA / (RISE_ALPHA + RISE_BETA + np.minimum(self.silence, LONG_SILENCE))
        if_present = prior * np.where(rose, rate, 1 - rate)
        if_absent = (1 - prior) * np.where(rose, FALSE_RISE, 1 - FALSE_RISE)
        self.presence = if_present / (if_present + if_absent)
        self.silence = np.where(rose, 0.0, self.silence + 1)
        self.silence_probability = np.where(rose, 1.0, self.silence_probability * (1 - rate))
        self.risen = np.maximum(self.risen, rose)
        rises = np.where(rose, change, 0.0)
        if rose.any():
            self.mass = MEMORY * self.mass + rises / rises.sum()
        self.updates += 1
