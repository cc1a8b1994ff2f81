"""The executor that trains on the nodes of a Ray cluster.

Data and models lie in Ray's object store, once each. A result depends on nothing but its job, so
the event log is the same byte for byte as with the inline executor, and a job whose worker or node
died is simply trained again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from fedraw.core.types import ClientId, Vector
from fedraw.errors import BadInput, WorkerDied
from fedraw.simulation.executor import Job, Train, Trained
from fedraw.simulation.ray_cluster import import_ray
from fedraw.simulation.ray_models import StoredModels
from fedraw.simulation.schedule import Place, Schedule
from fedraw.simulation.workers import cannot_load

# One trains while the next one's model is on its way.
JOBS_PER_WORKER = 2
# Bytes of a model that travels with its job: to store it would take longer.
SENT_ALONG = 65536
# So often a job may lose its worker, and workers may fail to start in a row.
ATTEMPTS = 4
# For the first worker: a node may have to start, and torch to be read from a slow disk.
STARTS_WITHIN = 300.0


class TrainingWorker:
    """Lives in a process of the cluster; its trainer is made once."""

    def __init__(self, name: str, recipe: list[Any]) -> None:
        self._name = name
        self._recipe = recipe
        self._train: Train | None = None

    def prepare(self) -> None:
        """Not done by the constructor: Ray would take an error there for a death."""
        ray = import_ray()
        try:
            make_train: Callable[[], Train] = ray.get(self._recipe[0])
        except ray.exceptions.RaySystemError as problem:
            cause = problem.client_exc
            if isinstance(cause, Exception):  # raised while the recipe was unpickled
                raise cannot_load(self._name, cause) from None
            raise
        self._train = make_train()

    def train(
        self, client: ClientId, position: int, training: int, due: float, model: Vector
    ) -> Trained:
        assert self._train is not None
        return self._train(Job(client, position, training, model, due))


@dataclass(eq=False)
class _Worker:
    actor: Any
    jobs: int = 0
    ready: bool = False


class RayWorkers:
    """Trains in `workers` processes of the cluster this process is connected to."""

    def __init__(self, make_train: Callable[[], Train], workers: int) -> None:
        self._ray = ray = import_ray()
        self._schedule = Schedule(workers)
        self._models = StoredModels(self._put_model)
        self._name = str(make_train)
        self._recipe = self._stored(make_train)
        self._actor_class = ray.remote(num_cpus=1)(TrainingWorker)
        self._workers: list[_Worker] = []
        # What was asked of whom; without a place in the queue: to get ready.
        self._asked: dict[Any, tuple[_Worker, Place | None]] = {}
        self._lost: dict[ClientId, int] = {}
        self._failed_starts = 0
        for _ in range(workers):
            self._start_worker()

    def submit(self, job: Job) -> None:
        self._models.expect(job.model)
        self._schedule.add(job)
        self._assign()

    def collect(self, client: ClientId) -> Trained:
        return self._schedule.collect(client, self._assign, self._receive)

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker.actor)  # what it trains now is never asked for
        self._workers.clear()
        self._asked.clear()

    def _put_model(self, model: Vector) -> Any:
        return model if model.nbytes <= SENT_ALONG else self._ray.put(model)

    def _stored(self, make_train: Callable[[], Train]) -> Any:
        try:
            return self._ray.put(make_train)
        except TypeError as problem:
            reason = str(problem).strip().splitlines()[0]
            raise BadInput(
                f"the ray executor cannot send this to a worker: {reason}; define models at the "
                "top level of a module, or use the inline executor"
            ) from None

    def _start_worker(self) -> None:
        # Inside a list Ray hands over the reference itself.
        worker = _Worker(self._actor_class.remote(self._name, [self._recipe]))
        self._workers.append(worker)
        self._asked[worker.actor.prepare.remote()] = (worker, None)

    def _assign(self, urgent: ClientId | None = None) -> None:
        """Give workers what is due next, the least busy first."""
        while free := [w for w in self._workers if w.ready and w.jobs < JOBS_PER_WORKER]:
            place = self._schedule.next(sum(w.jobs for w in self._workers), urgent)
            if place is None:
                return
            self._ask(min(free, key=lambda worker: worker.jobs), place)

    def _ask(self, worker: _Worker, place: Place) -> None:
        job = place.job
        model = self._models.stored(job.model)
        train = worker.actor.train
        answer = train.remote(job.client, job.position, job.training, job.due, model)
        self._asked[answer] = (worker, place)
        worker.jobs += 1

    def _receive(self) -> None:
        """Wait for at least one answer."""
        asked = list(self._asked)
        answers, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)
        for answer in answers or self._first_of(asked):
            if answer in self._asked:  # not of a worker that has just been found dead
                self._take(answer)

    def _first_of(self, asked: list[Any]) -> list[Any]:
        patience = None if any(worker.ready for worker in self._workers) else STARTS_WITHIN
        answers: list[Any] = self._ray.wait(asked, timeout=patience)[0]
        if not answers:
            raise WorkerDied(
                f"no worker of the Ray cluster has started within {patience:g} s; "
                "has it a free CPU? see `ray status`"
            )
        return answers

    def _take(self, answer: Any) -> None:
        worker, place = self._asked[answer]
        errors = self._ray.exceptions
        try:
            result = self._ray.get(answer)
        except errors.RayTaskError as problem:
            if not isinstance(problem.cause, errors.RayError):
                raise problem.cause from problem  # would be the same anywhere
            self._replace(worker, problem)
        except errors.RayError as problem:
            self._replace(worker, problem)
        else:
            del self._asked[answer]
            self._note(worker, place, result)

    def _note(self, worker: _Worker, place: Place | None, result: Trained) -> None:
        if place is None:
            worker.ready, self._failed_starts = True, 0
            return
        worker.jobs -= 1
        client = place.job.client
        self._lost.pop(client, None)
        self._models.release(place.job.model)
        # A copy: what lies in the object store is freed only when nobody looks at it.
        self._schedule.done[client] = result._replace(vector=np.array(result.vector))

    def _replace(self, worker: _Worker, problem: Exception) -> None:
        """Put another worker in the place of a dead one, whose jobs go back into the queue."""
        its = {answer: place for answer, (who, place) in self._asked.items() if who is worker}
        for answer, place in its.items():
            del self._asked[answer]
            self._put_back(place, problem)
        self._workers.remove(worker)
        self._ray.kill(worker.actor)  # one that is only out of reach must not come back
        self._start_worker()

    def _put_back(self, place: Place | None, problem: Exception) -> None:
        if place is None:
            self._failed_starts += 1
            if self._failed_starts == ATTEMPTS:
                _give_up("workers of the Ray cluster do not start", problem)
            return
        client = place.job.client
        self._lost[client] = self._lost.get(client, 0) + 1
        if self._lost[client] == ATTEMPTS:
            _give_up(f"{ATTEMPTS} workers died over client {client!r}", problem)
        self._schedule.put_back(place)


def _give_up(what: str, problem: Exception) -> NoReturn:
    reason = " ".join(str(problem).split())
    raise WorkerDied(f"{what}; was the last one killed, or out of memory? Ray says: {reason:.600}")
