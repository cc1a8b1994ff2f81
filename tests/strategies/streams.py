"""Streams of arrivals with hand-computable numbers, fed to a strategy that starts from zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from tests.strategies.server import begun, sent

from fedraw.core.types import ClientId
from fedraw.strategies.protocol import Strategy

Stream = Sequence[tuple[ClientId, float]]

# Three clients; what each arrival has learned.
STREAM: Stream = [("a", 3), ("b", 6), ("a", 9), ("c", -3)]


def steps(strategy: Strategy[Any], stream: Stream, clients: Iterable[ClientId] = "abc") -> Any:
    """The model after each step; a sender is handed the newest model at once.

    What the client sends is what the strategy asks for: its difference, or its model.
    """
    state = begun(strategy, {client: {"x": 1} for client in clients}, 0)
    version, start = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0.0)
    models = []
    for client, learned in stream:
        value = learned if strategy.needs.sends == "delta" else start[client] + learned
        before = state.version
        state, _ = strategy.step(state, sent(client, value, version=version[client]))
        version[client], start[client] = state.version, float(state.model[0])
        if state.version > before:
            models.append(float(state.model[0]))
    return models


def streams(clients: str = "abcd", most: int = 40) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Any order of arrivals; whole numbers, so that sums are exact."""
    arrival = st.tuples(st.sampled_from(clients), st.integers(-9, 9))
    return st.lists(arrival, min_size=1, max_size=most)


@st.composite
def blocks(draw: Any, buffer: int, clients: str = "abcd", most: int = 8) -> list[tuple[str, int]]:
    """Arrivals in blocks of `buffer`, none of which has a client twice."""
    stream: list[tuple[str, int]] = []
    for _ in range(draw(st.integers(1, most))):
        order = draw(st.permutations(clients))[:buffer]
        stream += [(client, draw(st.integers(-9, 9))) for client in order]
    return stream
