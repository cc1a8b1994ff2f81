"""Losses of local training that correct for a client's uneven labels.

Each adds a fixed shift to the scores that a model gives to the labels, in training only:

    loss = cross-entropy(scores + shift, label).

FedLC (Zhang et al., ICML 2022), with n_l samples of label l on the client:

    shift_l = −τ · n_l^(−1/4)

The published formula leaves the true label out of the softmax's denominator. Published code keeps
it, as this module does, because training diverges without it.

Logit adjustment (Menon et al., ICLR 2021), with the share π_l of label l in the client's samples or
in those of all clients; τ = 1 is the balanced softmax (Ren et al., NeurIPS 2020):

    shift_l = τ · log π_l

A label with a count of 0 is masked: its shift is −∞, and its probability and gradient are 0. With
τ = 0 nothing is shifted or masked. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from fedraw.core.settings import one_of
from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput

Loss = Literal["cross-entropy", "fedlc", "logit-adjusted"]
Prior = Literal["local", "global"]
CROSS_ENTROPY: Final = "cross-entropy"


def logit_shift(
    counts: Sequence[int] | Ints,
    loss: Literal["fedlc", "logit-adjusted"],
    tau: float = 1.0,
) -> Vector:
    """Return the shift that is added to the scores of the labels before the cross-entropy.

    Args:
        counts: The number of samples of each label: the client's, or all clients' for logit
            adjustment with a global prior.
        loss: "fedlc" or "logit-adjusted".
        tau: The strength τ, 0 or more.

    >>> logit_shift([16, 1, 0], "fedlc")
    array([-0.5, -1. , -inf], dtype=float32)
    >>> logit_shift([3, 1], "logit-adjusted").round(3)
    array([-0.288, -1.386], dtype=float32)

    """
    one_of("loss", loss, ("fedlc", "logit-adjusted"))
    if not 0 <= tau < math.inf:
        raise BadInput(f"tau = {tau} must be a finite number of at least 0")
    n = np.asarray(counts, np.float64)
    if n.ndim != 1 or not np.isfinite(n).all() or (n < 0).any() or not n.any():
        raise BadInput(
            f"counts = {counts!r} must be one number of samples for each label, one of them above 0"
        )
    if tau == 0:
        return np.zeros(n.size, np.float32)
    with np.errstate(divide="ignore"):
        shift = -(n**-0.25) if loss == "fedlc" else np.log(n / n.sum())
    return (tau * shift).astype(np.float32)
