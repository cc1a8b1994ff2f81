from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.simulation.scenes import add_one, correlated, flat, simulation, steps, timed

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.randomness import Streams
from fedraw.core.types import ClientId, Vector
from fedraw.simulation.arrivals import Fixed, poisson
from fedraw.simulation.executors import Inline, Job, TrainingResult, no_training
from fedraw.simulation.flights import Flight
from fedraw.simulation.loop import HandOut, Scheduled, Simulation
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Declared, Event, Receivers, Setup, Strategy

ASYNCHRONOUS: list[Strategy[Any]] = [FedFa(), FedBuff(), CA2FL(), FedAsync(), FedRAW(dedup=False)]


@pytest.mark.parametrize("strategy", [*ASYNCHRONOUS, FedAvg()])
def test_one_seed_is_one_run(strategy: Strategy[Any]) -> None:
    one, other = correlated(strategy, 3), correlated(strategy, 3)
    assert steps(one, 300) == steps(other, 300)
    assert np.array_equal(one.state.model, other.state.model)
    assert steps(correlated(strategy, 4), 300) != steps(correlated(strategy, 3), 300)


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_all_methods_meet_the_same_clients_at_the_same_times(strategy: Strategy[Any]) -> None:
    met = [(step.time, step.client) for step in steps(correlated(strategy, 5), 500)]
    assert met == [(step.time, step.client) for step in steps(correlated(FedRAW(), 5), 500)]


def test_versions_and_staleness_by_hand() -> None:
    # a arrives at 1, 2, 3, 4 and b, slow, at 3.5 with the model it was handed at the start.
    run = timed(FedAsync(alpha=1, staleness="none"), {"a": [1.0], "b": [3.5]})
    seen = [
        (s.event, s.time, s.client, s.start_version, s.version, s.staleness_versions)
        for s in steps(run, 5)
    ]
    assert seen == [
        (1, 1.0, "a", 0, 1, 0),
        (2, 2.0, "a", 1, 2, 0),
        (3, 3.0, "a", 2, 3, 0),
        (4, 3.5, "b", 0, 4, 3),
        (5, 4.0, "a", 3, 5, 1),
    ]


def test_staleness_in_events_counts_from_the_hand_out() -> None:
    run = timed(FedFa(2), {"a": [1.0], "b": [3.5]})
    arrived = steps(run, 8)
    assert [(s.client, s.staleness_events) for s in arrived] == [
        ("a", 1),
        ("a", 1),
        ("a", 1),
        ("b", 4),
        ("a", 2),
        ("a", 1),
        ("a", 1),
        ("b", 4),
    ]
    # In versions an arrival does not count itself, nor those that filled the buffer.
    assert [s.staleness_versions for s in arrived] == [0, 0, 0, 2, 1, 0, 0, 3]


def test_at_one_time_whoever_was_handed_its_model_first_arrives_first() -> None:
    run = timed(FedFa(1), {"b": [2.0], "a": [1.0], "c": [2.0]})
    assert [s.client for s in steps(run, 5)] == ["a", "b", "c", "a", "a"]


def test_a_model_is_the_one_that_was_current_at_the_hand_out() -> None:
    handed: dict[tuple[Any, int], float] = {}

    def train(job: Job) -> TrainingResult:
        handed[job.client, job.training] = float(job.model[0])
        return TrainingResult(job.model + np.float32(1), 1)

    run = simulation(FedFa(1), flat(2), Fixed(np.array([1.0, 2.5])), train)
    steps(run, 7)
    # 0 arrives at 1, 2, 3, 4, 5 and 1, from the start's model and that of 2.5 on, at 2.5 and 5.
    assert handed == {(0, 0): 0, (0, 1): 1, (1, 0): 0, (0, 2): 2, (0, 3): 3, (1, 1): 1, (0, 4): 4}


def test_training_is_done_in_the_order_of_arrival() -> None:
    trained: list[Any] = []

    def train(job: Job) -> TrainingResult:
        trained.append(job.client)
        return TrainingResult(job.model, 1)

    run = simulation(FedFa(3), flat(5), poisson(np.ones(5), Streams(0)), train)
    assert [step.client for step in steps(run, 60)] == trained


def test_each_training_is_numbered_and_placed() -> None:
    jobs: list[Job] = []

    def train(job: Job) -> TrainingResult:
        jobs.append(job)
        return TrainingResult(job.model, 1)

    table = LabelTable.from_counts({"p": {"x": 1}, "q": {"x": 1}})
    run = simulation(FedFa(1), table, poisson(np.ones(2), Streams(0)), train)
    steps(run, 40)
    numbers = defaultdict(list)
    for job in jobs:
        numbers[job.client, job.position].append(job.training)
    assert set(numbers) == {("p", 0), ("q", 1)}
    assert all(seen == list(range(len(seen))) for seen in numbers.values())


def test_a_strategy_of_differences_is_sent_differences() -> None:
    layout = Layout.of([("w", (1,))], [("mean", (1,))])

    def train(job: Job) -> TrainingResult:
        return TrainingResult(np.array([job.model[0] + 3, 7], np.float32), 1)

    start = np.array([10, 1], np.float32)
    strategy = FedBuff(1)
    run = simulation(strategy, flat(1), Fixed(np.ones(1)), train, start, layout=layout)
    steps(run, 2)
    assert run.state.model.tolist() == [16, 7]


def now_and_then(bad: Vector) -> Any:
    """Every third training goes wrong."""
    return lambda job: TrainingResult(bad if job.training % 3 == 2 else job.model, 1, 1.0)


@pytest.mark.parametrize("strategy", [*ASYNCHRONOUS, FedAvg()])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.array([np.nan], np.float32), "sent 1 numbers that are NaN or infinite"),
        (np.array([1, 2], np.float32), "sent 2 numbers, the model has 1"),
    ],
)
def test_a_run_goes_on_without_what_was_refused(
    strategy: Strategy[Any], bad: Vector, words: str
) -> None:
    run = simulation(strategy, flat(12), poisson(np.ones(12), Streams(2)), now_and_then(bad))
    arrived = steps(run, 400)
    refused = [step for step in arrived if step.refused is not None]
    assert 100 < len(refused) < 150
    for step in refused:
        assert step.refused == f"client {step.client} {words}"
        assert not step.aggregated
    assert run.state.model.tolist() == [0]
    assert run.state.version == sum(step.aggregated for step in arrived) > 5


def test_training_free_clients_hand_back_what_they_got() -> None:
    train = no_training([np.array([3, 5]), np.array([4, 4])])
    model = np.ones(2, np.float32)
    assert train(Job("b", 1, 0, model, due=2.0)) == TrainingResult(model, 5, 1.0)
    executor = Inline(train)
    executor.submit(Job("a", 0, 0, model, due=1.0))
    assert executor.collect("a").examples == 3
    executor.submit(Job("a", 0, 0, model, due=1.0, epoch=1))
    assert executor.collect("a").examples == 4


def test_only_a_method_of_rounds_is_ever_mid_round() -> None:
    waiting, at_once = (
        simulation(s, flat(3), Fixed(np.array([1.0, 2, 3])), keep) for s in (FedAvg(), FedFa(2))
    )
    assert [(waiting.mid_round, waiting.step().event)[0] for _ in range(7)] == [
        *(False, True, True),
        *(False, True, True),
        False,
    ]
    assert not any((at_once.mid_round, at_once.step().event)[0] for _ in range(7))


def keep(job: Job) -> TrainingResult:
    return TrainingResult(job.model, 1)


def test_clients_train_in_the_next_epoch_once_they_are_handed_the_model_after_the_change() -> None:
    seen: list[tuple[Any, int]] = []

    def train(job: Job) -> TrainingResult:
        seen.append((job.client, job.epoch))
        return TrainingResult(job.model, 1)

    law = Fixed(np.array([1.0, 2.5]))
    setup = Setup(np.zeros(1, np.float32), flat(2))
    changes = [Scheduled(2, [Declared(0, {"y": 3})]), Scheduled(4)]
    run = Simulation(FedFa(1), setup, law, Inline(train), scheduled=changes)
    steps(run, 2)
    assert run.state.federation.score(0) == 0.5
    steps(run, 5)
    assert run.state.federation.score(0) == 1.0
    # 0 arrives at 1, 2, 3, 4, 5 and 1 at 2.5 and 5.
    assert seen == [(0, 0), (0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 2)]


@dataclass(frozen=True)
class Naming(FedFa):
    """FedFa, with other receivers of each step."""

    receivers: Callable[[Receivers], Receivers] = list

    def step(self, state: Any, event: Event) -> Any:
        state, named = super().step(state, event)
        return state, self.receivers(named)


class OftenOffline:
    """Each client is online in every other second; the even ones first."""

    why_never = "never"

    def ready(self, client: int, now: float) -> float:
        return now if int(now + client) % 2 == 0 else float(int(now) + 1)

    def flight(self, client: int, training: int, now: float, seconds: float) -> Flight:
        return Flight(now + seconds)


@pytest.mark.parametrize(
    "receivers",
    [lambda named: [*named, *named], lambda _: range(5), lambda named: [*named, *range(5)]],
    ids=["twice", "all", "all and the sender"],
)
@pytest.mark.parametrize("conditions", [None, OftenOffline()], ids=["online", "often offline"])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_client_that_trains_or_waits_keeps_its_place_if_it_is_named_again(
    concurrency: int | None, conditions: Any, receivers: Callable[[Receivers], Receivers]
) -> None:
    def run(strategy: Strategy[Any]) -> Simulation:
        setup, law = Setup(np.zeros(1, np.float32), flat(5)), Fixed(np.array([1.0, 2.5, 3, 3.2, 4]))
        hand_out = HandOut(concurrency)
        return Simulation(strategy, setup, law, Inline(add_one), hand_out, conditions=conditions)

    one, other = run(FedFa(2)), run(Naming(2, receivers=receivers))
    assert steps(one, 40) == steps(other, 40)
    again = run(Naming(2, receivers=receivers))
    again.restore(one.save())
    assert steps(again, 40) == steps(other, 40)


def test_a_set_of_receivers_is_handed_the_model_in_the_order_of_the_clients() -> None:
    class InSets(FedAvg):
        def start(self, setup: Setup) -> Any:
            state, named = super().start(setup)
            return state, set(named)

    # All train for one second, so they arrive in the order of their hand-out.
    clients: list[ClientId] = [f"site {i}" for i in range(12)]
    run = timed(InSets(), {client: [1.0] for client in clients})
    assert [step.client for step in steps(run, 12)] == clients
