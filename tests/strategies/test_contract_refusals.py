"""An unusable update is refused by name, and the state stays as it was, under every method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.strategies.server import METHODS, Server, bits, vector

from fedraw.core.update import Update
from fedraw.errors import RefusedUpdate
from fedraw.strategies.protocol import Arrived, Strategy

ROUGH = vector(0, np.nan, 0, np.inf, 0)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"vector": ROUGH}, "client {c} sent 2 numbers that are NaN or infinite"),
    ({"vector": vector(-np.inf, 0, 0, 0, 0)}, "client {c} sent 1 numbers that are NaN or"),
    ({"vector": vector(1, 2, 3)}, "client {c} sent 3 numbers, the model has 5"),
    ({"vector": np.zeros((5, 1), np.float32)}, "client {c} sent .*5.*, the model has"),
    ({"client": "stranger"}, "client 'stranger' is unknown; it has to join first"),
    ({"start_version": 10_000}, "client {c} started from version 10000, the newest is"),
    ({"start_version": -1}, "client {c} started from version -1, the newest is"),
    ({"examples": 0}, "client {c} trained on 0 examples"),
    ({"examples": -3}, "client {c} trained on -3 examples"),
    ({"examples": np.nan}, "client {c} trained on nan examples"),
]
BAD_LOSS: list[tuple[dict[str, Any], str]] = [
    ({"loss": None}, "client {c} sent the loss None, not a number from 0 on"),
    ({"loss": np.nan}, "client {c} sent the loss nan"),
    ({"loss": np.inf}, "client {c} sent the loss inf"),
    ({"loss": -0.5}, "client {c} sent the loss -0.5"),
]


@pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS.keys())
@pytest.mark.parametrize("arrivals", [0, 7, 16])
def test_an_unusable_update_is_named_and_leaves_no_trace(
    strategy: Strategy[Any], arrivals: int
) -> None:
    server = Server(strategy)
    server.run(arrivals)
    client, (version, model) = next(iter(server.in_flight.items()))
    good = Update(client, version, model.copy(), examples=3, loss=1.0)
    before = bits(server.state)
    for change, words in BAD + (BAD_LOSS if strategy.needs.loss else []):
        with pytest.raises(RefusedUpdate, match=words.format(c=client)):
            server.happen(Arrived(replace(good, **change)))
        assert bits(server.state) == before, change
    server.happen(Arrived(good))


@pytest.mark.parametrize("name", ["fedavg", "qfedavg"])
def test_a_round_takes_each_of_its_clients_once(name: str) -> None:
    server = Server(METHODS[name])
    first = server.arrive(0)
    before = bits(server.state)
    with pytest.raises(RefusedUpdate, match="client 0 is not awaited in this round"):
        server.happen(Arrived(first))
    assert bits(server.state) == before


@pytest.mark.parametrize("name", ["fedavg", "qfedavg"])
def test_a_round_takes_no_update_of_an_earlier_one(name: str) -> None:
    server = Server(METHODS[name])
    first = server.arrive(0)
    server.run(5)
    before = bits(server.state)
    with pytest.raises(RefusedUpdate, match="client 0 started from version 0, this round from 1"):
        server.happen(Arrived(first))
    assert bits(server.state) == before
