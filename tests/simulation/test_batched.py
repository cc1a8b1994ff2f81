"""Those due next are trained together, and wait trained until they are collected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedraw.core.types import ClientId
from fedraw.simulation.executors import Job, TrainingResult
from fedraw.simulation.executors.inline import AHEAD, Batched

MODEL = np.zeros(1, np.float32)


class Calls:
    """Stands for training: each vector is the client's number, each call is kept."""

    def __init__(self) -> None:
        self.clients: list[list[ClientId]] = []

    def __call__(self, jobs: Sequence[Job]) -> list[TrainingResult]:
        self.clients.append([job.client for job in jobs])
        return [TrainingResult(job.model + job.position, job.training) for job in jobs]


def submit(executor: Batched, client: int, due: float, training: int = 0) -> None:
    executor.submit(Job(client, client, training, MODEL, due))


def test_whoever_is_in_flight_is_trained_in_one_call_those_due_first_first() -> None:
    calls = Calls()
    executor = Batched(calls, slots=8)
    for client, due in ((1, 3.0), (2, 1.0), (3, 2.0)):
        submit(executor, client, due)
    assert calls.clients == []  # what never arrives costs nothing
    assert executor.collect(2).vector.tolist() == [2]
    assert calls.clients == [[2, 3, 1]]
    submit(executor, 2, due=2.5, training=7)
    assert executor.collect(3).vector.tolist() == [3]
    assert executor.collect(2).examples == 7
    assert executor.collect(1).vector.tolist() == [1]
    assert calls.clients == [[2, 3, 1], [2]]


def test_a_call_has_so_many_slots() -> None:
    calls = Calls()
    executor = Batched(calls, slots=2)
    for client in range(5):
        submit(executor, client, due=float(client))
    assert [executor.collect(client).vector.item() for client in range(5)] == [0, 1, 2, 3, 4]
    assert calls.clients == [[0, 1], [2, 3], [4]]


def test_results_that_wait_are_bounded_and_who_is_asked_for_is_trained_nevertheless() -> None:
    calls = Calls()
    executor = Batched(calls, slots=2)
    for client in range(40):
        submit(executor, client, due=100.0 + client)
    for newcomer in range(40, 60):  # always due before all others
        submit(executor, newcomer, due=float(newcomer))
        executor.collect(newcomer)
    waiting = sum(map(len, calls.clients)) - 20
    assert waiting == AHEAD * 2 - 1
    assert calls.clients[-1] == [59]


def test_equal_times_go_in_the_order_of_submission() -> None:
    calls = Calls()
    executor = Batched(calls, slots=3)
    for client in (5, 3, 9, 1):
        submit(executor, client, due=1.0)
    executor.collect(5)
    assert calls.clients == [[5, 3, 9]]


def test_who_was_never_submitted_cannot_be_collected() -> None:
    with pytest.raises(KeyError):
        Batched(Calls(), slots=3).collect(1)
