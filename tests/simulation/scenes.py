"""Small federations in virtual time, without learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.randomness import Streams
from fedraw.core.types import ClientId, Vector
from fedraw.simulation.arrivals import ArrivalLaw, Fixed, Recorded, poisson
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.simulation.loop import HandOut, Simulation, Step
from fedraw.simulation.speeds import mean_seconds
from fedraw.strategies.protocol import Setup, Strategy

START = np.zeros(1, np.float32)


def flat(clients: int) -> LabelTable:
    return LabelTable.from_counts({client: {"x": 1} for client in range(clients)})


def add_one(job: Job) -> TrainingResult:
    """The constant drift: every training adds 1 to the value that it started from."""
    return TrainingResult(job.model + np.float32(1), 1, 1.0)


def simulation(
    strategy: Strategy[Any],
    clients: LabelTable,
    law: ArrivalLaw,
    train: Callable[[Job], TrainingResult] = add_one,
    model: Vector = START,
    layout: Layout | None = None,
    **hand_out: Any,
) -> Simulation:
    setup = Setup(model, clients, layout)
    return Simulation(strategy, setup, law, Inline(train), HandOut(**hand_out))


def timed(strategy: Strategy[Any], durations: Mapping[Any, Sequence[float]]) -> Simulation:
    """A simulation with these durations, client by client."""
    clients: list[ClientId] = list(durations)
    law = Recorded(clients, {str(client): own for client, own in durations.items()})
    return simulation(strategy, LabelTable.from_counts({c: {"x": 1} for c in clients}), law)


def steps(simulation: Simulation, events: int) -> list[Step]:
    return [simulation.step() for _ in range(events)]


# What a rare client of the paper's first dataset has: 25.5 % of a label that two hold.
RARE_SHARE = 0.255


def with_rare(clients: int, rare: int, share: float = RARE_SHARE) -> LabelTable:
    """The first `rare` clients share rare labels in pairs; every common label is held by 20."""
    common = {i: {(i + k) % clients: 500 for k in range(20)} for i in range(clients)}
    counts: dict[int, dict[Any, int]] = {i: dict(held) for i, held in common.items()}
    for i in range(rare):
        counts[i][f"rare {i // 2}"] = round(10_000 * share / (1 - share))
    return LabelTable.from_counts(counts)


def correlated(
    strategy: Strategy[Any],
    seed: int,
    clients: int = 30,
    rare: int = 6,
    *,
    table: LabelTable | None = None,
    fixed: bool = False,
    train: Callable[[Job], TrainingResult] = add_one,
    model: Vector = START,
) -> Simulation:
    """The paper's scene: rare clients are slow, U[1.5, 3] seconds against U[0.5, 1.5]."""
    streams = Streams(seed)
    mean = mean_seconds("correlated", clients, range(rare), streams.generator("speeds"))
    law: ArrivalLaw = Fixed(mean) if fixed else poisson(mean, streams)
    return simulation(strategy, table or with_rare(clients, rare), law, train, model)
