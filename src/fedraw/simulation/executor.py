"""Who does the training: the small interface behind which it may be spread over cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from fedraw.core.types import ClientId, Ints, Vector


class Job(NamedTuple):
    """One client's n-th training, from the model it was handed; `due` in virtual time."""

    client: ClientId
    position: int
    training: int
    model: Vector
    due: float


class Trained(NamedTuple):
    vector: Vector
    examples: int
    loss: float | None = None


# Must depend on nothing but the job: then where and when it runs cannot change the result.
Train = Callable[[Job], Trained]


class Executor(Protocol):
    """Training is submitted when the model is handed out, collected when virtual time is there."""

    def submit(self, job: Job) -> None: ...

    def collect(self, client: ClientId) -> Trained:
        """The result of the client's one job in flight."""
        ...


class Inline:
    """Trains in this process when a result is asked for: what never arrives costs nothing."""

    def __init__(self, train: Train) -> None:
        self._train = train
        self._jobs: dict[ClientId, Job] = {}

    def submit(self, job: Job) -> None:
        self._jobs[job.client] = job

    def collect(self, client: ClientId) -> Trained:
        return self._train(self._jobs.pop(client))


def no_training(examples: Ints) -> Train:
    """Training-free: every client returns its model unchanged; `examples` is by data position."""
    counts = examples.tolist()
    return lambda job: Trained(job.model, counts[job.position], 1.0)
