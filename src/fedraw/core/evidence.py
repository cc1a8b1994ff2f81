"""Which labels stand behind a client's updates, read off the output layer.

Softmax with cross-entropy moves the output bias of label l, step by step, by the rate times (share
of l in the batch − mean probability that the model gives to l). Of a label that a client does not
have the first is zero, so that its bias can only fall: **one rise proves the label**. Of a label
that it has the bias rises in most updates, and in all the more, the less the model knows the label.

So each update says of each label whether it rose, and a filter with two states follows it:
presence changes rarely (HAZARD), a label that is there rises with a probability that is the lower,
the longer it has not risen (a Beta law over labels and stages of training), one that is not there
rises almost never (FALSE_RISE). Shares are how the rises of an update are spread, older ones
counting less. Everything is O(labels) an arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedraw.core.types import ClientId, Floats

# Found on digits and HAM10000, seeds 1 and 2; see docs/evidence.md.
RISE_ALPHA, RISE_BETA = 1.5, 0.5
FALSE_RISE = 1e-4
HAZARD = 0.0005
# From here on silence says no more than before.
LONG_SILENCE = 30
# What an update's rises count for after each further update of the client.
MEMORY = 0.95
# Smaller than this beside the largest change of an update is rounding.
ROUNDING = 1e-6


@dataclass(eq=False)
class Heard:
    """What one client's updates have said, label by label."""

    presence: Floats  # probability that the client holds the label
    silence: Floats  # updates since the label last rose
    excuse: Floats  # how probable that silence is of a label that is there
    mass: Floats  # what the rises were, older ones counting less
    risen: Floats  # 1 of a label that ever rose: that proves it
    updates: int = 0

    @classmethod
    def nothing(cls, labels: int) -> Heard:
        zeros, ones = np.zeros(labels), np.ones(labels)
        return cls(ones / 2, zeros, ones, zeros, zeros)

    @property
    def share(self) -> Floats:
        """Of the client's samples; nothing where no update has raised anything."""
        total = self.mass.sum()
        return self.mass / total if total > 0 else self.mass

    def observe(self, change: Floats) -> None:
        rose = change > ROUNDING * np.abs(change).max(initial=0.0)
        there = self.presence * (1 - HAZARD) + (1 - self.presence) * HAZARD
        rate = RISE_ALPHA / (RISE_ALPHA + RISE_BETA + np.minimum(self.silence, LONG_SILENCE))
        if_there = there * np.where(rose, rate, 1 - rate)
        if_not = (1 - there) * np.where(rose, FALSE_RISE, 1 - FALSE_RISE)
        self.presence = if_there / (if_there + if_not)
        self.silence = np.where(rose, 0.0, self.silence + 1)
        self.excuse = np.where(rose, 1.0, self.excuse * (1 - rate))
        self.risen = np.maximum(self.risen, rose)
        rises = np.where(rose, change, 0.0)
        if rose.any():
            self.mass = MEMORY * self.mass + rises / rises.sum()
        self.updates += 1


@dataclass(eq=False)
class Evidence:
    """What the updates of all clients have said so far.

    >>> evidence = Evidence(labels=3)
    >>> evidence.observe("a", np.array([0.4, 0.1, -0.5]))
    >>> evidence.presence("a").round(2).tolist(), evidence.share("a").round(2).tolist()
    ([1.0, 1.0, 0.2], [0.8, 0.2, 0.0])
    """

    labels: int
    heard: dict[ClientId, Heard] = field(default_factory=dict)

    def observe(self, client: ClientId, change: Floats) -> None:
        """Take in what an update changed in the levels of the output layer."""
        heard = self.heard.get(client)
        if heard is None:
            heard = self.heard[client] = Heard.nothing(self.labels)
        heard.observe(change)

    def presence(self, client: ClientId) -> Floats:
        return self.heard[client].presence

    def share(self, client: ClientId) -> Floats:
        return self.heard[client].share
