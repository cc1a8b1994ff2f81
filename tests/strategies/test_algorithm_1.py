"""Algorithm 1 of the FedRAW paper, line by line in plain Python, and the library beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.labels import LabelTable
from fedraw.core.update import Update
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Arrived, Setup

Counts = dict[int, dict[str, int]]
Step = tuple[list[int], list[float], list[float]]

SIZE = 3


def rarity(counts: Counts) -> dict[int, float]:
    """Score every client: S_i = Σ_l freq(l, i) / coverage(l)."""
    coverage = Counter(label for own in counts.values() for label, n in own.items() if n > 0)
    return {
        client: sum(n / sum(own.values()) / coverage[label] for label, n in own.items() if n > 0)
        for client, own in counts.items()
    }


def algorithm_1(
    counts: Counts, k: int, model: list[float], arrivals: list[tuple[int, list[float]]]
) -> Iterator[Step]:
    """Yield the clients in the buffer, their weights, and the model after each arrival."""
    scores = rarity(counts)
    buffer: dict[int, list[float]] = {}  # keeps the order of insertion
    for client, theta in arrivals:
        if client not in buffer and len(buffer) == k:
            del buffer[next(iter(buffer))]  # the oldest
        buffer[client] = theta  # a client that is in the buffer keeps its place
        weights: list[float] = []
        if len(buffer) == k:
            total = sum(scores[j] for j in buffer)
            weights = [scores[j] / total for j in buffer]
            rows = zip(weights, buffer.values(), strict=True)
            model = np.sum([w * np.array(row) for w, row in rows], axis=0).tolist()
        yield list(buffer), weights, model


@st.composite
def federations(draw: st.DrawFn) -> tuple[Counts, int, list[tuple[int, list[float]]]]:
    counts = draw(
        st.lists(
            st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
            min_size=2,
            max_size=7,
        )
    )
    k = draw(st.integers(1, len(counts)))
    numbers = st.floats(-4, 4, width=32)
    arrival = st.tuples(
        st.integers(0, len(counts) - 1), st.lists(numbers, min_size=SIZE, max_size=SIZE)
    )
    return dict(enumerate(counts)), k, draw(st.lists(arrival, max_size=30))


@given(federations())
def test_the_library_is_algorithm_1_at_every_step(
    case: tuple[Counts, int, list[tuple[int, list[float]]]],
) -> None:
    counts, k, arrivals = case
    table = LabelTable.from_counts(counts)
    strategy = FedRAW(k)
    first = np.full(SIZE, 9, np.float32)
    state, _ = strategy.start(Setup(first, table))
    ours = dict(zip(counts, state.scorer.scores(list(counts)), strict=True))
    expected = rarity(counts)
    assert all(abs(ours[client] - score) < 1e-12 for client, score in expected.items())
    steps = algorithm_1(counts, k, first.tolist(), arrivals)
    for (client, theta), (clients, weights, model) in zip(arrivals, steps, strict=True):
        update = Update(client, state.version, np.array(theta, np.float32), examples=1)
        state, receivers = strategy.step(state, Arrived(update))
        assert receivers == [client]
        assert list(state.contents.clients) == clients
        np.testing.assert_allclose(list(state.contents.weights), weights, rtol=1e-12)
        np.testing.assert_allclose(state.model, model, rtol=1e-6, atol=1e-6)


def test_three_clients_by_hand() -> None:
    """Two clients share label x; the third alone has y and weighs twice as much."""
    counts = {0: {"x": 3}, 1: {"x": 1}, 2: {"y": 5}}
    assert rarity(counts) == {0: 0.5, 1: 0.5, 2: 1.0}
    arrivals = [(0, [1.0]), (2, [4.0]), (0, [4.0]), (1, [1.0])]
    assert list(algorithm_1(counts, 2, [9.0], arrivals)) == [
        ([0], [], [9.0]),
        ([0, 2], [1 / 3, 2 / 3], [3.0]),
        ([0, 2], [1 / 3, 2 / 3], [4.0]),  # in place: client 0 stays the oldest
        ([2, 1], [2 / 3, 1 / 3], [3.0]),
    ]
