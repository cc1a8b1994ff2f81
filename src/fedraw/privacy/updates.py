"""Differential privacy of updates on the server: clipping, Gaussian noise, and the accountant.

An update changes the model by a vector g. The server replaces g with

    g · min(1, C / ||g||) + N(0, (z C)²)   in every coordinate

before it uses or stores the update. So a reader of the models, such as another site, learns little
about any one site; the server itself is trusted. Removing an update changes the clipped vector by
at most C, so n updates of one site are n Gaussian mechanisms of noise multiplier z: ρ = n / (2 z²)
in zero-concentrated differential privacy, which OpenDP converts to ε at a given δ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from typing import Annotated

import numpy as np

from fedraw.core.settings import Range, Settings, above, at_least
from fedraw.core.types import Vector
from fedraw.privacy.budget import opendp


@dataclass(frozen=True)
class UpdatePrivacy(Settings):
    """The norm C to which updates are clipped, the noise multiplier z, and δ of the accountant.

    >>> privacy = UpdatePrivacy(clip=5.0, noise=0.0)
    >>> privacy.protect(np.array([6, 8], np.float32), np.random.default_rng(1)).tolist()
    [3.0, 4.0]
    """

    clip: Annotated[float, above(0)]
    noise: Annotated[float, at_least(0)]  # in multiples of `clip`; 0 means clipping without noise
    delta: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 1e-5

    def protect(self, change: Vector, rng: np.random.Generator) -> Vector:
        """Return the clipped change with noise; the input is not modified."""
        norm = float(np.sqrt(np.square(change, dtype=np.float64).sum()))
        clipped: Vector = change * np.float32(min(1.0, self.clip / norm) if norm else 1.0)
        if self.noise:
            scale = np.float32(self.noise * self.clip)
            clipped += scale * rng.standard_normal(change.size, np.float32)
        return clipped

    def epsilon(self, updates: int) -> float:
        """Return ε of a site after this many updates.

        It is infinite without noise, and above ρ = 300, where e^ε exceeds the range of floats.

        >>> round(UpdatePrivacy(clip=1.0, noise=4.0).epsilon(10), 2)
        3.62
        """
        if not updates:
            return 0.0
        if self.noise == 0 or updates / (2 * self.noise**2) > 300:
            return inf
        return _epsilon(self.noise, updates, self.delta)


@cache
def _epsilon(noise: float, updates: int, delta: float) -> float:
    dp = opendp()
    dp.enable_features("idealized-numerics")  # OpenDP accounts only; NumPy draws the noise
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    mechanism = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=noise))
    # n mechanisms of sensitivity 1 cost as much as one of sensitivity √n.
    return float(mechanism.map(sqrt(updates)).epsilon(delta))
