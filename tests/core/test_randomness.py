from __future__ import annotations

from itertools import product
from typing import get_args

import numpy as np

from fedraw.core.randomness import Purpose, Streams


def first(streams: Streams, purpose: Purpose, *indices: int) -> float:
    return float(streams.generator(purpose, *indices).random())


def test_a_stream_depends_on_its_address_only() -> None:
    busy = Streams(42)
    for _ in range(3):
        busy.generator("partition").random(1000)
    again = busy.generator("batches", 3, 1)
    assert again.random(5).tolist() == Streams(42).generator("batches", 3, 1).random(5).tolist()


def test_no_two_addresses_share_a_stream() -> None:
    seeds, purposes, indices = (0, 1), get_args(Purpose), ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    draws = [first(Streams(s), p, *i) for s, p, i in product(seeds, purposes, indices)]
    assert len(set(draws)) == len(draws) == 2 * len(purposes) * 6


def test_neighbouring_streams_are_uncorrelated() -> None:
    streams = Streams(0)
    draws = np.array([streams.generator("batches", i, 0).normal(size=4000) for i in range(5)])
    correlations = np.corrcoef(draws)[np.triu_indices(5, 1)]
    # Of 4000 pairs a correlation has a standard deviation of 1/sqrt(4000) = 0.016.
    assert np.abs(correlations).max() < 0.064
