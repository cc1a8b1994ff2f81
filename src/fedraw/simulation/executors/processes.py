"""The executor that trains in worker processes of this machine, to use all of its cores.

Models travel through shared memory. A result depends on its job alone, so the event log is byte for
byte that of the inline executor, for any number of workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput, WorkerDied
from fedraw.simulation.executors.base import Job, JobQueue, Train, TrainingResult
from fedraw.simulation.executors.workers import (
    CONTEXT,
    SharedArray,
    death_notice,
    end_with_parent,
    leave_interrupts_to_parent,
    pack,
    starting_workers,
    unpack,
)

# Jobs that a worker holds: it trains the next one while the parent processes a result.
DEPTH = 2
# Stands for the model of a job that is sent to a worker: the model itself lies in a slot.
IN_SLOT: Vector = np.empty(0, np.float32)


class Processes:
    """Trains in `workers` processes; the job that is due first is trained first.

    Every worker has slots in shared memory. It finds the start model of a job in a slot, and writes
    the trained model into the same slot.
    """

    trains_ahead = True

    def __init__(self, make_train: Callable[[], Train], size: int, workers: int) -> None:
        self._queue = JobQueue(workers)
        # Slot s belongs to worker s % workers.
        self._slots = SharedArray((DEPTH * workers, size), np.float32)
        self._busy: dict[int, ClientId] = {}
        self._answered: set[int] = set()
        self._workers: list[Any] = []
        self._pipes: list[Any] = []
        for _ in range(workers):
            self._start_worker(make_train)

    def submit(self, job: Job) -> None:
        """Queue the job, and give it to a worker if one is free."""
        self._queue.add(job)
        self._assign()

    def collect(self, client: ClientId) -> TrainingResult:
        """Wait until the client's result is there."""
        return self._queue.collect(client, self._assign, self._receive)

    def close(self) -> None:
        """End all workers. Nobody collects the results of jobs that still train."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        for pipe in self._pipes:
            pipe.close()
        self._slots.close()

    def _start_worker(self, make_train: Callable[[], Train]) -> None:
        here, there = CONTEXT.Pipe()
        worker = CONTEXT.Process(target=_work, args=(_Packed(make_train), self._slots, there))
        try:
            with starting_workers():
                worker.start()
        except BadInput:  # the user's model or training function cannot be sent
            self.close()
            raise
        there.close()
        self._workers.append(worker)
        self._pipes.append(here)

    def _assign(self, urgent: ClientId | None = None) -> None:
        """Fill free slots with the jobs that are due next; the urgent job is exempt from limits."""
        # In this order every worker gets a first job before any gets a second one.
        free = [slot for slot in range(len(self._slots.array)) if slot not in self._busy]
        for slot in free:
            queued = self._queue.next(len(self._busy), urgent)
            if queued is None:
                return
            self._slots.array[slot] = queued.job.model
            self._busy[slot] = queued.job.client
            self._send(slot, queued.job)

    def _send(self, slot: int, job: Job) -> None:
        worker = slot % len(self._workers)
        try:
            self._pipes[worker].send((slot, job._replace(model=IN_SLOT)))
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
            self._answered.add(worker)
            if isinstance(outcome, BaseException):
                raise outcome
            slot, trained, fits = outcome
            if fits:
                trained = trained._replace(vector=np.array(self._slots.array[slot]))
            self._queue.done[self._busy.pop(slot)] = trained

    def _died(self, number: int) -> NoReturn:
        worker = self._workers[number]
        worker.join(1)
        code = worker.exitcode
        if code is not None and code > 0 and number not in self._answered:
            raise WorkerDied(
                f"worker {number} ended with exit code {code} before it could train, with the "
                "error above; a script that uses worker processes must be a file, and start runs "
                "below `if __name__ == '__main__':`"
            )
        first = next((c for s, c in self._busy.items() if s % len(self._workers) == number), None)
        raise WorkerDied(
            death_notice(f"worker {number}", code, f" while it trained client {first!r}")
        )


class _Packed:
    """A function that makes the trainer, packed so that the worker unpacks it itself.

    If it were pickled like any other argument, a worker that cannot load it would die before its
    first line, and could not tell the parent why.
    """

    def __init__(self, make_train: Callable[[], Train]) -> None:
        self._make_train = make_train

    def __reduce__(self) -> tuple[Any, ...]:
        name = str(self._make_train)
        return _Unpacked, (name, pack(self._make_train, name))


class _Unpacked(NamedTuple):
    """What a worker receives of `_Packed`."""

    name: str
    content: bytes

    def trainer(self) -> Train:
        train: Train = unpack(self.content, self.name)()
        return train


def _work(recipe: _Unpacked, slots: SharedArray, pipe: Any) -> None:
    end_with_parent()
    leave_interrupts_to_parent()
    # These errors mean that the parent is gone: there is nobody to train for or to tell.
    with suppress(EOFError, ConnectionError):
        try:
            train = recipe.trainer()
        except Exception as problem:
            failure = _portable(problem)
            train = None
        while True:
            slot, job = pipe.recv()
            pipe.send(failure if train is None else _answer(train, slots.array[slot], slot, job))


def _answer(train: Train, own: Vector, slot: int, job: Job) -> Any:
    """Train from the model in the slot `own`, and leave the result there."""
    try:
        trained = train(job._replace(model=own))
    except Exception as problem:
        return _portable(problem)
    # A vector of another length does not fit into the slot; the strategy shall see and refuse it.
    fits = trained.vector.shape == own.shape
    if fits:
        own[:] = trained.vector
        trained = trained._replace(vector=IN_SLOT)
    return slot, trained, fits


def _portable(problem: Exception) -> Exception:
    """Return the error if the parent can unpickle it, or else an error that quotes it."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:
        return WorkerDied(f"training failed in a worker: {type(problem).__name__}: {problem}")
    return problem
