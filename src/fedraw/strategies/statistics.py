"""Batch-norm statistics, which the library averages for strategies that do not.

Clients send running means and variances as they are, never as differences. A strategy with
`Needs.statistics` other than "model" sees models and updates without them. Whenever such a strategy
changes its model, the statistics become the mean of those that arrived since the previous version,
or with "newest" the mean of every member's newest ones, without server rate or staleness weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedraw.core.aggregation import RunningSum, Term
from fedraw.core.federation import Federation
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Left,
    Needs,
    Receivers,
    Setup,
    State,
    Strategy,
    check,
    check_form,
    checked_answer,
    checked_step,
    frozen,
    is_finite,
)
from fedraw.strategies.scoring import Scorer


def with_statistics(strategy: Strategy[Any], layout: Layout | None) -> Strategy[Any]:
    """Wrap a strategy for a model with this layout, so that the library averages statistics.

    Returns the strategy itself if the model has no batch-norm statistics or if the strategy treats
    them as a part of the model.
    """
    if layout is None or not layout.statistics_count or strategy.needs.statistics == "model":
        return strategy
    return AverageStatistics(strategy, layout)


@dataclass(eq=False)
class AverageStatisticsState:
    """A strategy's state, the statistics of the model, and the sum for the next ones.

    `sum` = Σ_i n_i s_i and `weight` = Σ_i n_i, over the statistics s_i that arrived since the last
    version, or over the newest ones of all members.
    """

    inner: Any  # `_state_type` narrows the type, so that a snapshot can be restored
    statistics: Vector
    sum: RunningSum
    weight: float = 0.0
    latest: dict[ClientId, Term] = field(default_factory=dict)  # if newer ones replace earlier ones
    model: Vector = field(init=False)  # the parameters and the statistics together

    def __post_init__(self) -> None:
        self.model = frozen(np.concatenate([self.inner.model, self.statistics]))

    @property
    def version(self) -> int:
        """The version of the strategy's model."""
        return int(self.inner.version)

    @property
    def federation(self) -> Federation:
        """The members, as the strategy knows them."""
        federation: Federation = self.inner.federation
        return federation

    @property
    def contents(self) -> Contents:
        """The contents of the strategy's buffer."""
        contents: Contents = self.inner.contents
        return contents

    @property
    def scorer(self) -> Scorer:
        """The strategy's scorer, if it has one."""
        scorer: Scorer = self.inner.scorer
        return scorer


@dataclass(frozen=True)
class AverageStatistics:
    """Runs a strategy on the parameters of a model, and averages the statistics separately."""

    strategy: Strategy[Any]
    layout: Layout

    @property
    def needs(self) -> Needs:
        """The needs of the strategy."""
        return self.strategy.needs

    def start(self, setup: Setup) -> tuple[AverageStatisticsState, Receivers]:
        """Start the strategy with the parameters alone."""
        parameters = setup.model[self.layout.parameters]
        inner_setup = replace(setup, model=parameters, layout=self.layout.without_statistics())
        inner, receivers = checked_answer(self.strategy, self.strategy.start(inner_setup))
        statistics = setup.model[self.layout.statistics].copy()
        empty = RunningSum.zeros(statistics.size)
        return _state_type(inner.__class__)(inner, statistics, empty), receivers

    def step(
        self, state: AverageStatisticsState, event: Event
    ) -> tuple[AverageStatisticsState, Receivers]:
        """Pass the parameters to the strategy; replace the statistics if its model changed."""
        before = state.version
        if isinstance(event, Arrived):
            update = event.update
            self._check(state, update)
            parameters = update.vector[self.layout.parameters]
            inner_event = Arrived(replace(update, vector=parameters, statistics_size=0))
            state.inner, receivers = checked_step(self.strategy, state.inner, inner_event)
            self._collect(state, update)
        else:
            state.inner, receivers = checked_step(self.strategy, state.inner, event)
            if isinstance(event, Left) and self.needs.statistics == "newest":
                self._forget(state, event.client)
        if state.version > before:
            self._replace_statistics(state)
        return state, receivers

    def _check(self, state: State, update: Update) -> None:
        """Check the whole vector and the statistics; the strategy itself checks the parameters."""
        check_form(state, update)
        if not is_finite(update.vector[self.layout.statistics]):
            check(state, update)

    def _collect(self, state: AverageStatisticsState, update: Update) -> None:
        client, statistics = update.client, update.vector[self.layout.statistics]
        weight = float(update.examples) if self.needs.statistics == "samples" else 1.0
        changes: list[Term] = [(weight, statistics)]
        if self.needs.latest_only or self.needs.statistics == "newest":
            if (earlier := state.latest.get(client)) is not None:
                changes.append((-earlier[0], earlier[1]))
            state.latest[client] = (weight, statistics.copy())  # the vector need not be kept
            state.sum.correct(changes, state.latest.values())
        else:
            state.sum.add(changes)
        state.weight += sum(n for n, _ in changes)

    def _replace_statistics(self, state: AverageStatisticsState) -> None:
        """Begin a version; it keeps the old statistics if no update has arrived."""
        if state.weight:
            state.statistics = state.sum.add([], divisor=state.weight)
        state.model = frozen(np.concatenate([state.inner.model, state.statistics]))
        if self.needs.statistics != "newest":
            state.sum.clear()
            state.weight, state.latest = 0.0, {}

    def _forget(self, state: AverageStatisticsState, client: ClientId) -> None:
        weight, statistics = state.latest.pop(client, (0.0, None))
        if statistics is not None:
            state.sum.correct([(-weight, statistics)], state.latest.values())
            state.weight -= weight


@cache
def _state_type(inner: type[Any]) -> type[AverageStatisticsState]:
    name = f"{inner.__name__}WithStatistics"
    annotations: Mapping[str, Any] = {"inner": inner}
    return make_dataclass(name, annotations.items(), bases=(AverageStatisticsState,), eq=False)
