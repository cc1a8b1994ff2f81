"""A strategy of your own, for any model: differences weighted by rarity and by staleness.

Every K arrivals the server adds the weighted mean of their differences to the model; the weights
are proportional to S_i / sqrt(1 + staleness). The network has batch norm: clients send its
statistics unchanged, and the library averages them. The script prints the recall of the rare labels
under FedBuff, which gives all updates the same weight, and under this method.
"""

from dataclasses import dataclass, field

import numpy as np
from torch import nn

import fedraw
from fedraw.strategies import (
    Contents,
    Event,
    Federation,
    Receivers,
    Vector,
    change_members,
    check,
    frozen,
)


@dataclass(eq=False)
class RareFreshState:
    """The state of the method; its fields are stored in checkpoints."""

    model: Vector
    federation: Federation  # the members, their labels and their rarity scores
    version: int = 0  # how often the model has changed
    buffer: list[fedraw.Update] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)  # empty while the buffer fills

    @property
    def contents(self) -> Contents:
        """The clients in the buffer and their weights, for the log."""
        return Contents([update.client for update in self.buffer], self.weights)


@dataclass(frozen=True)
class RareFresh:
    """The method and its settings."""

    buffer: int = 5

    @property
    def needs(self) -> fedraw.Needs:
        """Clients send differences and declare their labels."""
        return fedraw.Needs(sends="delta", label_evidence="declared")

    def start(self, setup: fedraw.Setup) -> tuple[RareFreshState, Receivers]:
        """Hand the initial model to all clients."""
        return RareFreshState(setup.model, Federation.of(setup.clients)), setup.clients.clients

    def step(self, state: RareFreshState, event: Event) -> tuple[RareFreshState, Receivers]:
        """Add an update to the buffer, and hand the newest model to its sender."""
        if not isinstance(event, fedraw.Arrived):
            return state, change_members(state.federation, event)
        check(state, event.update)  # refuses NaN and wrong shapes before anything has changed
        kept = [] if state.weights else state.buffer  # an aggregation empties the buffer
        state.buffer, state.weights = [*kept, event.update], []
        if len(state.buffer) == self.buffer:
            self._aggregate(state)
        return state, [event.update.client]

    def _aggregate(self, state: RareFreshState) -> None:
        scores = np.array(state.federation.scores([update.client for update in state.buffer]))
        staleness = np.array([state.version - update.start_version for update in state.buffer])
        scores /= np.sqrt(1 + staleness)
        state.weights = (scores / scores.sum()).tolist()
        moved = np.average([update.vector for update in state.buffer], 0, state.weights)
        state.model = frozen((state.model + moved).astype(np.float32))  # makes it read-only
        state.version += 1


def net() -> nn.Module:
    """Make a network with batch norm for 8 x 8 images of digits."""
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(32, 10))


if __name__ == "__main__":
    clients = fedraw.Coverage(clients=20, rare_labels=[8, 9], clients_per_common_label=14)
    sgd = fedraw.SGD(epochs=2, batch=30, lr=0.1)  # batch norm needs 2 or more samples per batch
    for strategy in (fedraw.FedBuff(buffer=5), RareFresh(buffer=5)):
        result = fedraw.simulate(
            strategy=strategy, partition=clients, model=net, train=sgd,
            events=400, evaluate_every=20, seeds=1,
        )  # fmt: skip
        print(f"{result.name}: AvgRare {np.mean(result.curves['AvgRare'][-5:]):.0f} %")
