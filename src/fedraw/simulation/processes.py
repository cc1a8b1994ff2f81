"""The executor that keeps all cores busy: clients in flight train in worker processes.

Only model vectors cross, through shared memory. A result depends on nothing but its job, so the
event log is the same byte for byte as with the inline executor, for any number of workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput, WorkerDied
from fedraw.simulation.executor import Job, Train, Trained
from fedraw.simulation.schedule import Schedule
from fedraw.simulation.shared import SharedArray
from fedraw.simulation.workers import (
    CONTEXT,
    cannot_load,
    end_with_parent,
    leave_interrupts_to_parent,
    without_interrupts,
)

# Jobs that a worker holds: while the server takes in one result, it trains the next.
DEPTH = 2


class Order(NamedTuple):
    """What a worker is told: train this client from the vector in a slot, and put it back."""

    slot: int
    client: ClientId
    position: int
    training: int
    due: float


class Processes:
    """Trains in `workers` processes, those first that are due first."""

    def __init__(self, make_train: Callable[[], Train], size: int, workers: int) -> None:
        self._schedule = Schedule(workers)
        self._slots = SharedArray((DEPTH * workers, size), np.float32)  # slot % workers: whose
        self._busy: dict[int, ClientId] = {}
        self._heard: set[int] = set()  # workers that have answered
        self._workers: list[Any] = []
        self._pipes: list[Any] = []
        for _ in range(workers):
            self._start_worker(make_train)

    def submit(self, job: Job) -> None:
        self._schedule.add(job)
        self._assign()

    def collect(self, client: ClientId) -> Trained:
        return self._schedule.collect(client, self._assign, self._receive)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()  # what it trains now is never asked for
        for worker in self._workers:
            worker.join()
        for pipe in self._pipes:
            pipe.close()
        self._slots.close()

    def _start_worker(self, make_train: Callable[[], Train]) -> None:
        here, there = CONTEXT.Pipe()
        worker = CONTEXT.Process(target=_work, args=(_Packed(make_train), self._slots, there))
        try:
            with without_interrupts():
                worker.start()
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            self.close()
            raise BadInput(
                f"the processes executor cannot send this to a worker: {problem}; define models "
                "at the top level of a module, or use the inline executor"
            ) from None
        there.close()
        self._workers.append(worker)
        self._pipes.append(here)

    def _assign(self, urgent: ClientId | None = None) -> None:
        """Fill free slots with what is due next; an urgent job goes before all bounds."""
        # In this order every worker has a first job before one has a second.
        free = [slot for slot in range(len(self._slots.array)) if slot not in self._busy]
        for slot in free:
            place = self._schedule.next(len(self._busy), urgent)
            if place is None:
                return
            job = place.job
            self._slots.array[slot] = job.model
            self._busy[slot] = job.client
            self._send(Order(slot, job.client, job.position, job.training, job.due))

    def _send(self, order: Order) -> None:
        worker = order.slot % len(self._workers)
        try:
            self._pipes[worker].send(order)
        except (BrokenPipeError, ConnectionResetError):
            self._died(worker)

    def _receive(self) -> None:
        """Wait for at least one result."""
        busy = {slot % len(self._workers) for slot in self._busy}
        ready = connection.wait([self._pipes[worker] for worker in busy])
        for worker in [worker for worker in busy if self._pipes[worker] in ready]:
            try:
                outcome = self._pipes[worker].recv()
            except (EOFError, ConnectionResetError):
                self._died(worker)
            self._heard.add(worker)
            if isinstance(outcome, BaseException):
                raise outcome
            slot, examples, loss, odd = outcome
            vector: Vector = np.array(self._slots.array[slot]) if odd is None else odd
            self._schedule.done[self._busy.pop(slot)] = Trained(vector, examples, loss)

    def _died(self, number: int) -> NoReturn:
        worker = self._workers[number]
        worker.join(1)
        code = worker.exitcode
        if code is not None and code > 0 and number not in self._heard:
            raise WorkerDied(
                f"worker {number} ended with exit code {code} before it could train, with the "
                "error above; a script that uses worker processes must be a file, and start runs "
                "below `if __name__ == '__main__':`"
            )
        first = next((c for s, c in self._busy.items() if s % len(self._workers) == number), None)
        raise WorkerDied(
            f"worker {number} died (exit code {code}) while it trained client {first!r}; was it "
            "killed, or out of memory?"
        )


class _Packed:
    """A recipe for a trainer, which the worker unpacks itself.

    If it were pickled like any argument, a worker that cannot load it would die before its first
    line, and could not tell the parent why.
    """

    def __init__(self, make_train: Callable[[], Train]) -> None:
        self._make_train = make_train

    def __reduce__(self) -> tuple[Any, ...]:
        content = bytes(ForkingPickler.dumps(self._make_train))
        return _Unpacked, (str(self._make_train), content)


class _Unpacked(NamedTuple):
    name: str
    content: bytes

    def trainer(self) -> Train:
        try:
            make_train = pickle.loads(self.content)
        except Exception as problem:  # an import runs code that may fail in any way
            raise cannot_load(self.name, problem) from None
        train: Train = make_train()
        return train


def _work(recipe: _Unpacked, slots: SharedArray, pipe: Any) -> None:
    end_with_parent()
    leave_interrupts_to_parent()
    # Without a parent there is nobody to train for, and nobody to tell.
    with suppress(EOFError, ConnectionError):
        try:
            train = recipe.trainer()
        except Exception as problem:
            failure = _portable(problem)
            train = None
        while True:
            order: Order = pipe.recv()
            pipe.send(failure if train is None else _answer(train, slots, order))


def _answer(train: Train, slots: SharedArray, order: Order) -> Any:
    own = slots.array[order.slot]
    try:
        trained = train(Job(order.client, order.position, order.training, own, order.due))
    except Exception as problem:
        return _portable(problem)
    # A vector of another length does not fit; the server shall see and refuse it.
    fits = trained.vector.shape == own.shape
    if fits:
        own[:] = trained.vector
    return order.slot, trained.examples, trained.loss, None if fits else trained.vector


def _portable(problem: Exception) -> Exception:
    """The error itself if the parent can rebuild it, or else one that quotes it."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:
        return WorkerDied(f"training failed in a worker: {type(problem).__name__}: {problem}")
    return problem
