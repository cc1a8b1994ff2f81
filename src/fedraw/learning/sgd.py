"""Settings of the built-in local training. The module needs no torch, because specs use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fedraw.core.settings import (
    COUNT,
    LATER,
    PROBABILITY,
    BadSetting,
    Range,
    Settings,
    With,
    above,
    at_least,
)
from fedraw.core.types import Ints, Vector
from fedraw.learning.losses import CROSS_ENTROPY, Loss, Prior, logit_shift

Schedule = Literal["constant", "cosine", "step"]


@dataclass(frozen=True)
class SGD(Settings):
    """Local training with mini-batch SGD.

    A step with the gradient g of the loss at the parameters x is

        v ← momentum · v + g + weight_decay · x,    x ← x − lr · v,

    and v = 0 at the start of each local training. The samples are shuffled in each epoch, and the
    last, smaller mini-batch is kept.

    Args:
        epochs: Passes over the client's samples in one training.
        batch: Samples in a mini-batch.
        lr: The learning rate, above 0.
        momentum: The factor of the velocity v, at least 0 and below 1.
        weight_decay: The factor of x in the step.
        nesterov: Whether a step uses g + weight_decay · x + momentum · v instead of v. It needs
            momentum.
        schedule: How the learning rate decreases during the run; see `rate`.
        lr_decay: The factor of the schedule "step".
        clip_norm: The largest norm of g. A longer gradient is scaled down to it before weight decay
            and a proximal term are added. None sets no limit.
        label_smoothing: The share ε of the target that is spread over all labels. The loss is the
            cross-entropy with (1 − ε) for the true label and ε / labels for every label.
        loss: "cross-entropy"; or a loss that corrects for the client's uneven labels, "fedlc" or
            "logit-adjusted", with the formulas of `fedraw.logit_shift`. Both mask labels with a
            count of 0, so they exclude label_smoothing.
        tau: The strength τ of "fedlc" and "logit-adjusted", 0 or more; 0 is cross-entropy.
        prior: The label counts of "logit-adjusted": the client's own ("local"), or those of all
            clients together ("global"), which the server then sends to the clients.

    >>> SGD(lr=0.2, schedule="cosine").rate(0.5)
    0.1

    """

    epochs: Annotated[int, COUNT] = 2
    batch: Annotated[int, COUNT] = 16
    lr: Annotated[float, above(0)] = 0.1
    momentum: Annotated[float, PROBABILITY] = 0.0
    weight_decay: Annotated[float, at_least(0)] = 0.0
    nesterov: Annotated[bool, LATER] = False
    schedule: Annotated[Schedule, LATER] = "constant"
    lr_decay: Annotated[float, With("schedule", ("step",)), Range(0, 1, open_low=True), LATER] = 0.1
    clip_norm: Annotated[float | None, above(0)] = None
    label_smoothing: Annotated[float, PROBABILITY, LATER] = 0.0
    loss: Annotated[Loss, LATER] = CROSS_ENTROPY
    tau: Annotated[float, With("loss", ("fedlc", "logit-adjusted")), at_least(0), LATER] = 1.0
    prior: Annotated[Prior, With("loss", ("logit-adjusted",)), LATER] = "local"

    def validate(self) -> None:
        """Refuse settings that would have no effect or contradict one another."""
        if self.nesterov and not self.momentum:
            raise BadSetting(
                f"{self.named('nesterov')} = true needs momentum; set momentum, for example to 0.9"
            )
        if self.loss != CROSS_ENTROPY and self.label_smoothing:
            self.refuse(
                "label_smoothing",
                f"gives weight to labels that loss = {self.loss!r} masks; leave one of them out",
            )

    def shift(
        self, counts: Sequence[int] | Ints, totals: Sequence[int] | Ints | None = None
    ) -> Vector | None:
        """Return the shift that the loss adds to a client's scores; None for cross-entropy.

        Args:
            counts: The number of the client's samples of each label.
            totals: The number of samples of each label over all clients; only a global prior needs
                them.

        >>> SGD(loss="fedlc", tau=2.0).shift([16, 1])
        array([-1., -2.], dtype=float32)

        """
        if self.loss == CROSS_ENTROPY or self.tau == 0:
            return None
        known = totals if self.prior == "global" else counts
        if known is None:
            raise ValueError("a global prior needs the label counts of all clients")
        return logit_shift(known, self.loss, self.tau)

    def rate(self, progress: float) -> float:
        """Return the learning rate of a training that starts at this point of the run.

        `progress` is the share of the run's events that had happened when the client received its
        model. Clients that start at the same time therefore have the same rate, whatever the number
        of their earlier trainings, and slow clients do not keep the large rate of the beginning.

            constant  lr
            cosine    lr · (1 + cos(π · progress)) / 2
            step      lr, then lr · lr_decay from half of the run on, and lr · lr_decay² from
                      three quarters on

        >>> [SGD(lr=1.0, schedule="step").rate(now) for now in (0, 0.5, 0.6)]
        [1.0, 0.1, 0.1]
        """
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * min(1.0, progress))) / 2
        if self.schedule == "step":
            return self.lr * self.lr_decay ** ((progress >= 0.5) + (progress >= 0.75))
        return self.lr
