"""The methods under test by name, and a small server that drives one of them event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from examples.own_strategy import RareFresh

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, LabelCounts, Vector
from fedraw.core.update import Update, difference
from fedraw.storage.snapshot import Arrays, pack
from fedraw.strategies.ace import ACE
from fedraw.strategies.aced import ACED
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.catalog import CATALOG, Method
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.fedstale import FedStale
from fedraw.strategies.protocol import (
    Arrived,
    Event,
    Needs,
    Receivers,
    Setup,
    State,
    Strategy,
)
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay
from fedraw.strategies.statistics import with_statistics

# Three parameters and two batch-norm statistics.
NORMED = Layout.of([("w", (3,))], [("mean", (1,)), ("var", (1,))])
MODEL = np.array([1, -1, 0.5, 0, 1], np.float32)
# An output for each label, and a statistic.
HEADED = Layout.of([("head", (4, 1))], [("var", (1,))])
CLASSES = ("x", "y", "z", "rare")


@dataclass(frozen=True)
class On:
    """A strategy as a driver runs it on a model with this layout."""

    layout: Layout
    strategy: Strategy[Any]

    @property
    def needs(self) -> Needs:
        return self.strategy.needs

    def start(self, setup: Setup) -> tuple[Any, Receivers]:
        setup = replace(setup, layout=self.layout, classes=CLASSES)
        return with_statistics(self.strategy, self.layout).start(setup)

    def step(self, state: Any, event: Event) -> tuple[Any, Receivers]:
        return with_statistics(self.strategy, self.layout).step(state, event)


# Six clients of unequal rarity; a buffer of four.
COUNTS: dict[ClientId, LabelCounts] = {
    0: {"x": 3, "y": 1},
    1: {"x": 5},
    2: {"x": 1, "y": 1, "z": 2},
    3: {"y": 4},
    4: {"x": 2, "z": 9},
    5: {"x": 1, "y": 2, "rare": 5},
}

# What a row of the catalogue needs here if it has such a setting.
SMALL = {"buffer": 4, "lr": 0.1, "beta1": 0.5}
AT_ONCE = ("fedvarp",)  # with its own buffer of one


def small(method: Method) -> Strategy[Any]:
    known = {own.name for own in fields(method.factory)}
    if method.name in AT_ONCE:
        known.remove("buffer")
    return method.make({key: value for key, value in SMALL.items() if key in known})


# Methods whose clients do not train: test_one_pass.py has a contract of their own.
OF_SUMS = ("one-pass",)
# Every other row of the catalogue, then their other settings, and the example of an own strategy.
METHODS: dict[str, Strategy[Any]] = {
    name: small(method) for name, method in CATALOG.items() if name not in OF_SUMS
} | {
    "fedraw naive cap": FedRAW(4, cap="naive", cap_at=0.3),
    "fedraw water-filling": FedRAW(4, cap="water-filling", cap_at=0.3),
    "fedraw checked": On(HEADED, FedRAW(4, labels="checked")),
    "fedraw inferred": On(HEADED, FedRAW(4, labels="inferred")),
    "fedraw clip": On(NORMED, FedRAW(4, robust="clip")),
    "fedraw trim": FedRAW(4, robust="trim", cap="naive", cap_at=0.3),
    "fedraw inferred clip": On(HEADED, FedRAW(4, labels="inferred", robust="clip", robust_at=2)),
    "fedfa clip": FedFa(4, robust="clip"),
    "fedavg trim": On(NORMED, FedAvg(robust="trim", robust_at=0.2)),
    "fedbuff clip": On(NORMED, FedBuff(4, robust="clip", staleness="polynomial")),
    "fedbuff unique trim": FedBuff(4, robust="trim", unique=True),
    "fedbuff polynomial": FedBuff(4, staleness="polynomial", server_lr=0.7),
    "fedbuff unique": On(NORMED, FedBuff(4, unique=True)),
    "fedbuff statistics": On(NORMED, FedBuff(4)),
    "ca2fl arrival": CA2FL(4, refresh="arrival"),
    "ca2fl statistics": On(NORMED, CA2FL(4)),
    "ace statistics": On(NORMED, ACE()),
    "aced young": ACED(tau_algo=2, age="start"),
    "fedstale heard": FedStale(4, beta=1, participation="certain", average="heard"),
    "replay for few": Replay(2, threshold=1),
    "replay with a floor": Replay(4, floor=0.5),
    "replay statistics": On(NORMED, Replay(4)),
    "replay checked": On(HEADED, Replay(4, labels="checked")),
    "replay inferred": On(HEADED, Replay(4, threshold=1.2, labels="inferred")),
    "replay debt, rarity": Replay(2, select="debt", target="rarity"),
    "replay debt, samples": Replay(4, select="debt", target="samples"),
    "replay debt inferred": On(HEADED, Replay(4, select="debt", target="mix", labels="inferred")),
    "fedasync hinge": FedAsync(staleness="hinge", hinge_grace=1),
    "fedavg uniform": FedAvg(weighting="uniform"),
    "qfedavg q=0": QFedAvg(lr=0.1, q=0),
    "qfedavg statistics": On(NORMED, QFedAvg(lr=0.1, q=1, p="samples")),
    "example": RareFresh(4),
    "example statistics": On(NORMED, RareFresh(4)),
}


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def sent(
    client: ClientId,
    *values: float,
    version: int = 0,
    examples: int = 1,
    loss: float | None = None,
) -> Arrived:
    return Arrived(Update(client, version, vector(*values), examples, loss))


def begun(strategy: Strategy[Any], counts: Mapping[Any, LabelCounts], *model: float) -> Any:
    """The state before the first event."""
    return strategy.start(Setup(vector(*model), LabelTable.from_counts(counts)))[0]


def fed(strategy: Strategy[Any], state: Any, events: Iterable[Event]) -> Any:
    """The state after the events."""
    for event in events:
        state, _ = strategy.step(state, event)
    return state


def bits(state: Any) -> tuple[str, dict[str, bytes]]:
    """Everything in a state, for comparison."""
    arrays = Arrays()
    tree = json.dumps(pack(state, arrays))
    return tree, {path: array.tobytes() for path, array in arrays.items()}


class Server:
    """Hands models out and takes updates in; keeps a copy of every vector that passes."""

    def __init__(
        self,
        strategy: Strategy[Any],
        counts: Mapping[ClientId, LabelCounts] = COUNTS,
        seed: int = 0,
        model: Vector = MODEL,
    ) -> None:
        self.strategy = strategy
        self.rng = np.random.default_rng(seed)
        self.passed: list[tuple[Vector, Vector]] = []
        self.in_flight: dict[ClientId, tuple[int, Vector]] = {}
        self.state: State
        self._keep(model)
        self.state, receivers = strategy.start(Setup(model, LabelTable.from_counts(counts)))
        self._hand_out(receivers)

    def happen(self, event: Event) -> Receivers:
        self.state, receivers = self.strategy.step(self.state, event)
        self._hand_out(receivers)
        return receivers

    def arrive(self, client: ClientId) -> Update:
        """The client's training in flight ends; what it learned is drawn at random."""
        version, start = self.in_flight.pop(client)
        trained: Vector = (start + self.rng.normal(size=start.size)).astype(np.float32)
        if self.strategy.needs.sends == "delta":
            layout = self.strategy.layout if isinstance(self.strategy, On) else None
            trained = difference(trained, start, layout)
        examples, loss = int(self.rng.integers(1, 50)), float(self.rng.exponential())
        update = Update(client, version, trained, examples, loss)
        self._keep(trained)
        self.happen(Arrived(update))
        return update

    def arrive_any(self) -> Update:
        waiting = list(self.in_flight)
        return self.arrive(waiting[int(self.rng.integers(len(waiting)))])

    def run(self, arrivals: int) -> list[Vector]:
        """Arrivals in random order; the model after each."""
        models = []
        for _ in range(arrivals):
            self.arrive_any()
            models.append(self.state.model)
        return models

    def _hand_out(self, receivers: Receivers) -> None:
        for client in receivers:
            self.in_flight[client] = (self.state.version, self.state.model)
        self._keep(self.state.model)

    def _keep(self, passing: Vector) -> None:
        self.passed.append((passing, passing.copy()))
