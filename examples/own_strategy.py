"""A strategy of your own in one class: the coordinate-wise median of the last K models."""

from dataclasses import dataclass, field

import numpy as np

import fedraw
from fedraw.core.federation import Federation
from fedraw.core.types import Vector
from fedraw.strategies import Contents, Event, Receivers, change_members, check, frozen


@dataclass(eq=False)
class MedianState:
    model: Vector
    federation: Federation
    version: int = 0
    latest: list[fedraw.Update] = field(default_factory=list)

    @property
    def contents(self) -> Contents:
        return Contents([update.client for update in self.latest])  # a median has no weights


@dataclass(frozen=True)
class Median:
    buffer: int = 10

    @property
    def needs(self) -> fedraw.Needs:
        return fedraw.Needs()  # clients send models; Needs(sends="delta") asks for differences

    def start(self, setup: fedraw.Setup) -> tuple[MedianState, Receivers]:
        return MedianState(setup.model, Federation.of(setup.clients)), setup.clients.clients

    def step(self, state: MedianState, event: Event) -> tuple[MedianState, Receivers]:
        if not isinstance(event, fedraw.Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)
        state.latest = [*state.latest, event.update][-self.buffer :]
        median = np.median([update.vector for update in state.latest], axis=0)
        state.model = frozen(median.astype(np.float32))  # nobody can write to it by mistake
        state.version += 1
        return state, [event.update.client]  # the sender gets the new model


if __name__ == "__main__":
    spec = fedraw.Spec.read({"partition": {"rare_labels": [8, 9]}, "run": {"events": 600}})
    row, *_ = fedraw.compare(fedraw.run(spec, strategy=Median()))
    print(f"{row.name}: AvgRare {row.metrics['AvgRare'].mean:.1f} % over seeds {row.seeds}")
