"""Synchronous rounds, for FedAvg and q-FedAvg.

A round includes all clients that are members when it begins. A newcomer waits for the next round.
The round does not wait for a client that has left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fedraw.core.federation import Federation
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.errors import RefusedUpdate
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Left,
    Receivers,
    change_members,
    check,
    frozen,
)


@dataclass(eq=False)
class Round:
    """The clients that are still awaited, those that have arrived, and their weights."""

    awaited: dict[ClientId, None]  # a dict, because the order of a set of strings varies by run
    clients: list[ClientId] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, federation: Federation) -> Round:
        """Return a round with all members."""
        return cls(dict.fromkeys(federation))

    @property
    def contents(self) -> Contents:
        """The clients that have arrived, with their weights."""
        total = sum(self.weights)
        return Contents(list(self.clients), [weight / total for weight in self.weights])


class RoundState(Protocol):
    """The fields of a method's state that `step_in_rounds` needs."""

    model: Vector
    version: int
    federation: Federation
    round: Round
    closed: Round | None  # the round that the last event closed

    @property
    def contents(self) -> Contents:
        """The clients of the round that the last event closed, with their weights."""
        ...


R = TypeVar("R", bound=RoundState)


def step_in_rounds(
    state: R,
    event: Event,
    take_in: Callable[[R, Update], float],
    aggregate: Callable[[R], Vector],
    needs_loss: bool = False,
) -> tuple[R, Receivers]:
    """Wait until the round is complete, then aggregate and hand the model to all members.

    `take_in` adds an update to the state's sums and returns its weight. `aggregate` returns the new
    model and clears the sums.
    """
    if isinstance(event, Arrived):
        update = event.update
        check(state, update, needs_loss)
        _check_round(state, update)
        state.round.weights.append(take_in(state, update))
        state.round.clients.append(update.client)
        del state.round.awaited[update.client]
    else:
        change_members(state.federation, event)
        if isinstance(event, Left):
            state.round.awaited.pop(event.client, None)
    state.closed = None
    if state.round.awaited:
        return state, []
    if state.round.clients:
        state.model = frozen(aggregate(state))
        state.version += 1
        state.closed = state.round
    state.round = Round.of(state.federation)
    return state, list(state.federation)


def _check_round(state: RoundState, update: Update) -> None:
    if update.start_version != state.version:
        raise RefusedUpdate(
            f"client {update.client!r} started from version {update.start_version}, "
            f"this round from {state.version}"
        )
    if update.client not in state.round.awaited:
        raise RefusedUpdate(f"client {update.client!r} is not awaited in this round")
