"""The executor that keeps all cores busy: clients in flight train in worker processes.

Only model vectors cross, through shared memory. A result depends on nothing but its job, so the
event log is the same byte for byte as with the inline executor, for any number of workers.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput, WorkerDied
from fedraw.simulation.executor import Job, Train, Trained
from fedraw.simulation.shared import SharedArray
from fedraw.simulation.workers import CONTEXT, end_with_parent, leave_interrupts_to_parent

# Jobs that may be trained, or wait trained, per worker: enough that none idles, few in memory.
AHEAD = 4


class Order(NamedTuple):
    """What a worker is told: train this client from the vector in its slot, and put it back."""

    client: ClientId
    position: int
    training: int
    due: float


class Processes:
    """Trains in `workers` processes, those first that are due first."""

    def __init__(self, make_train: Callable[[], Train], size: int, workers: int) -> None:
        if workers < 1:
            raise BadInput(f"{workers} workers cannot train; use at least 1")
        self._slots = SharedArray((workers, size), np.float32)
        self._waiting: list[tuple[float, int, Job]] = []
        self._turn = 0
        self._done: dict[ClientId, Trained] = {}
        self._busy: dict[int, ClientId] = {}
        self._workers: list[Any] = []
        self._pipes: list[Any] = []
        for slot in range(workers):
            self._start_worker(make_train, slot)

    def submit(self, job: Job) -> None:
        heapq.heappush(self._waiting, (job.due, self._turn, job))
        self._turn += 1
        self._assign()

    def collect(self, client: ClientId) -> Trained:
        while client not in self._done:
            self._assign(urgent=client)
            self._receive()
        result = self._done.pop(client)
        self._assign()
        return result

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()  # what it trains now is never asked for
        for worker in self._workers:
            worker.join()
        for pipe in self._pipes:
            pipe.close()
        self._slots.close()

    def _start_worker(self, make_train: Callable[[], Train], slot: int) -> None:
        here, there = CONTEXT.Pipe()
        worker = CONTEXT.Process(target=_work, args=(make_train, self._slots, slot, there))
        try:
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
        """Give idle workers what is due next; an urgent job goes before all bounds."""
        idle = [slot for slot in range(len(self._workers)) if slot not in self._busy]
        for slot in idle:
            full = len(self._done) + len(self._busy) >= AHEAD * len(self._workers)
            next_is_urgent = bool(self._waiting) and self._waiting[0][2].client == urgent
            if not self._waiting or (full and not next_is_urgent):
                return
            _, _, job = heapq.heappop(self._waiting)
            self._slots.array[slot] = job.model
            self._busy[slot] = job.client
            self._send(slot, Order(job.client, job.position, job.training, job.due))

    def _send(self, slot: int, order: Order) -> None:
        try:
            self._pipes[slot].send(order)
        except (BrokenPipeError, ConnectionResetError):
            self._died(slot)

    def _receive(self) -> None:
        """Wait for at least one result."""
        ready = connection.wait([self._pipes[slot] for slot in self._busy])
        for slot in [slot for slot in self._busy if self._pipes[slot] in ready]:
            try:
                outcome = self._pipes[slot].recv()
            except (EOFError, ConnectionResetError):
                self._died(slot)
            if isinstance(outcome, BaseException):
                raise outcome
            examples, loss, odd = outcome
            vector: Vector = np.array(self._slots.array[slot]) if odd is None else odd
            self._done[self._busy.pop(slot)] = Trained(vector, examples, loss)

    def _died(self, slot: int) -> NoReturn:
        worker = self._workers[slot]
        worker.join(1)
        raise WorkerDied(
            f"worker {slot} died (exit code {worker.exitcode}) while it trained client "
            f"{self._busy.get(slot)!r}; was it killed, or out of memory?"
        )


def _work(make_train: Callable[[], Train], slots: SharedArray, slot: int, pipe: Any) -> None:
    end_with_parent()
    leave_interrupts_to_parent()
    train = make_train()
    own = slots.array[slot]
    while True:
        try:
            order: Order = pipe.recv()
        except EOFError:
            return
        try:
            model = own.copy()
            trained = train(Job(order.client, order.position, order.training, model, order.due))
            # A vector of another length does not fit; the server shall see and refuse it.
            fits = trained.vector.shape == own.shape
            if fits:
                own[:] = trained.vector
            pipe.send((trained.examples, trained.loss, None if fits else trained.vector))
        except Exception as problem:  # told to the parent, whose run it ends
            pipe.send(problem)
