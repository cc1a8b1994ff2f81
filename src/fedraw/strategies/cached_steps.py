"""Server steps from a cache of the clients' last differences: one engine for many methods.

After K arrivals, with S the clients that sent them, h_i the cached difference of client i (0 for a
client without updates) and h = (1/N) Σ_i h_i over all N members,

    v = β h + (1/N) Σ_{i in S} (Δ_i − β h_i) / p_i,   w ← w + η v,   then h_i ← Δ_i for i in S.

p_i is the probability that client i is in S. A method is a choice of β and p:

    MIFA, ACE              β = 1         p_i = 1
    CA2FL, FedVARP         β = 1         p_i = K/N
    FedStale               β in [0, 1]   p_i = K/N, 1, or estimated
    FedAU                  β = 0         p_i estimated: 1 / the mean number of steps from one
                                         participation to the next
    FedBuff (its own file) β = 0         p_i = K/N

A named method is a `CachedMethod` that chooses a `CacheRule`. When a client leaves, the engine
drops its h_i, and N is the number of members. Its Δ_i stays in the step of its buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from fedraw.core.aggregation import BLOCK, RunningSum, Term
from fedraw.core.federation import Federation
from fedraw.core.settings import Settings
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Event,
    Joined,
    Left,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)

Participation = Literal["buffer", "certain", "estimated"]
Repeated = Literal["round-start", "arrival", "newest"]


@dataclass(frozen=True)
class CacheRule:
    """The parameters of one method of the family.

    Attributes:
        buffer: K, the number of arrivals in a step.
        server_lr: η.
        beta: β, the weight of the cached differences.
        participation: p_i: K/N ("buffer"), 1 ("certain"), or "estimated" from the number of steps
            between the client's participations.
        repeated: What happens if a client arrives twice in one buffer. Both differences are
            compared with its h_i from the start of the round ("round-start"), or the second one
            with the first ("arrival"), or the second one replaces the first ("newest").
        average: What N counts: all members, or only those that have sent an update ("heard").
        wait: Whether the first step waits until every member has sent an update.
        cutoff: The longest interval between two participations; longer ones are cut there.
        single_statistics: Which batch-norm statistics are averaged if K = 1. The mean over a
            step's arrivals ("mean") would be that of one client, so the default ("newest") is the
            mean of the newest statistics of all clients.

    """

    buffer: int
    server_lr: float
    beta: float = 1.0
    participation: Participation = "buffer"
    repeated: Repeated = "round-start"
    average: Literal["members", "heard"] = "members"
    wait: bool = False
    cutoff: int = 50
    single_statistics: Literal["newest", "mean"] = "newest"

    @property
    def replaces_at_once(self) -> bool:
        """Whether v is the mean of the newest differences, so the cache alone determines it."""
        return self.beta == 1 and self.participation == "certain" and self.repeated == "newest"

    @property
    def needs(self) -> Needs:
        """Clients send differences; the weights in the log come from the cache if there is one."""
        return Needs(
            sends="delta",
            statistics=self.single_statistics if self.buffer == 1 else "mean",
            latest_only=self.repeated == "newest",
            influence="cache" if self.beta else "slots",
        )


@dataclass(eq=False)
class Intervals:
    """The completed intervals between a client's participations, and when the last one ended."""

    since: int  # the number of steps before the current interval
    count: int = 0
    total: int = 0

    def mean(self, steps: int, cutoff: int) -> float:
        """Return the mean of the intervals completed within `steps` steps, or 1 without any."""
        extra = (steps - self.since) // cutoff
        count = self.count + extra
        return (self.total + extra * cutoff) / count if count else 1.0

    def finish(self, steps: int, cutoff: int) -> None:
        """Complete the current interval, cut at the cutoff: the client is in the next step."""
        missed = steps - self.since
        self.count += missed // cutoff + 1
        self.total += missed + 1
        self.since = steps + 1


@dataclass(eq=False)
class CachedState:
    """The state of the engine.

    `residuals` = Σ (Δ_i − β h_i) ω_i over this buffer and `cache_sum` = Σ_i h_i. `newest` has the
    differences that become h_i at the next step. ω_i = 1/p_i if p is estimated, otherwise 1;
    `weights` has the estimated ω_i of the buffer.
    """

    model: Vector
    version: int
    federation: Federation
    residuals: RunningSum
    cache_sum: RunningSum
    cache: dict[ClientId, Vector] = field(default_factory=dict)
    newest: dict[ClientId, Vector] = field(default_factory=dict)
    clients: list[ClientId] = field(default_factory=list)
    full: bool = False
    weights: list[float] = field(default_factory=list)
    intervals: dict[ClientId, Intervals] = field(default_factory=dict)

    @property
    def contents(self) -> Contents:
        """The clients of this buffer; after the step, with equal or estimated weights."""
        if not self.full:
            return Contents(list(self.clients), [])
        weights = self.weights or [1.0] * len(self.clients)
        total = sum(weights)
        return Contents(list(self.clients), [weight / total for weight in weights])


S = TypeVar("S", bound=CachedState)


class CachedMethod(Settings, ABC):
    """A method of the family: its fields are its settings, which `rule` turns into a CacheRule."""

    @property
    @abstractmethod
    def rule(self) -> CacheRule:
        """The choice of β, p and the other parameters of the engine."""

    @cached_property
    def _rule(self) -> CacheRule:
        return self.rule

    @property
    def needs(self) -> Needs:
        """Clients send differences; the weights in the log come from the cache if there is one."""
        return self._rule.needs

    def start(self, setup: Setup) -> tuple[CachedState, Receivers]:
        """Start with an empty buffer and an empty cache."""
        state = empty_state(CachedState, setup, self._rule)
        if self._rule.participation == "estimated":
            state.intervals = {client: Intervals(0) for client in state.federation}
        return state, setup.clients.clients

    def step(self, state: CachedState, event: Event) -> tuple[CachedState, Receivers]:
        """Buffer a difference; after K of them, make a server step."""
        rule = self._rule
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event)
            if isinstance(event, Left):
                forget(state, event.client, rule)
            elif isinstance(event, Joined) and rule.participation == "estimated":
                state.intervals[event.client] = Intervals(state.version)
            return state, receivers
        check(state, event.update)
        take_in(state, event.update, rule)
        heard_all = state.version > 0 or len(state.cache) >= len(state.federation)
        if len(state.clients) >= rule.buffer and (heard_all or not rule.wait):
            aggregate(state, rule)
        return state, [event.update.client]


def empty_state(kind: type[S], setup: Setup, rule: CacheRule) -> S:
    """Return the state before the first event; sums that the rule does not need are empty."""
    size = setup.model.size
    residuals = RunningSum.zeros(0 if rule.replaces_at_once else size)
    cache_sum = RunningSum.zeros(size if rule.beta else 0)
    return kind(setup.model, 0, Federation.of(setup.clients), residuals, cache_sum)


def take_in(state: CachedState, update: Update, rule: CacheRule) -> None:
    """Add a difference to the buffer; after a step, empty the buffer first."""
    if state.full:
        state.residuals.clear()
        state.clients, state.weights, state.full = [], [], False
    client, delta = update.client, update.parameters
    if rule.replaces_at_once:
        _replace(state, client, delta)
        state.clients.append(client)
    else:
        _add_residual(state, client, delta, rule)


def aggregate(state: CachedState, rule: CacheRule) -> None:
    """Make the server step, then take the newest differences into the cache."""
    state.model = frozen(_moved(state, rule))
    for client in dict.fromkeys(state.clients) if rule.participation == "estimated" else ():
        if client in state.intervals:
            state.intervals[client].finish(state.version, rule.cutoff)
    state.version += 1
    state.full = True
    newest, state.newest = state.newest, {}
    if not rule.beta:
        return
    for client, delta in newest.items():
        if client in state.federation:
            _replace(state, client, delta)
    if state.cache and state.version % len(state.cache) == 0:  # so that no rounding errors add up
        state.cache_sum.recompute(_cached(state))


def forget(state: CachedState, client: ClientId, rule: CacheRule) -> None:
    """Drop everything that is cached about a client.

    If a later difference in the same buffer replaces the first one, the first one stays known,
    because it is part of the residuals and the client may return.
    """
    if rule.repeated != "newest":
        state.newest.pop(client, None)
    state.intervals.pop(client, None)
    kept = state.cache.pop(client, None)
    if kept is not None:
        state.cache_sum.correct([(-1.0, kept)], _cached(state))


def _add_residual(state: CachedState, client: ClientId, delta: Vector, rule: CacheRule) -> None:
    weight = 1.0
    if rule.participation == "estimated":
        weight = state.intervals[client].mean(state.version, rule.cutoff)
    terms: list[Term] = [(weight, delta)]
    earlier = state.newest.get(client)
    if rule.repeated == "newest" and earlier is not None:
        terms.append((-_take_weight(state, client), earlier))  # the sum already contains −β h_i
    elif rule.repeated == "arrival" and earlier is not None:
        terms.append((-weight * rule.beta, earlier))
    elif (kept := state.cache.get(client)) is not None:
        terms.append((-weight * rule.beta, kept))
    state.newest[client] = delta
    state.clients.append(client)
    if rule.participation == "estimated":
        state.weights.append(weight)
    if rule.repeated == "newest" and not rule.beta:
        state.residuals.correct(terms, _weighted_newest(state))
    else:
        state.residuals.add(terms)


def _take_weight(state: CachedState, client: ClientId) -> float:
    """Return the ω_i of the client's last difference in this buffer, and set it to 0 there."""
    if not state.weights:
        return 1.0
    last = len(state.clients) - 1 - state.clients[::-1].index(client)
    weight, state.weights[last] = state.weights[last], 0.0
    return weight


def _weighted_newest(state: CachedState) -> Iterator[Term]:
    """Yield the terms of the residuals of a method without β, whose newest differences count."""
    weights = dict(zip(state.clients, state.weights, strict=False))
    return ((weights.get(client, 1.0), delta) for client, delta in state.newest.items())


def _moved(state: CachedState, rule: CacheRule) -> Vector:
    """Return the model after the step w + η v, in one pass over memory."""
    members = max(len(state.federation), 1)
    heard = [c for c in state.cache.keys() | state.newest.keys() if c in state.federation]
    count = members if rule.average == "members" else max(len(heard), 1)
    # (1/N) / p_i with p_i = K/N is 1/K, whatever N counts in the mean of the cache.
    divisor = rule.buffer if rule.participation == "buffer" else count
    rate = np.float32(rule.server_lr)
    moved = np.empty_like(state.model)
    for start in range(0, moved.size, BLOCK):
        block = slice(start, start + BLOCK)
        if rule.beta:
            step = state.cache_sum.total[block] / count
            if rule.beta != 1:
                step *= rule.beta
            if not rule.replaces_at_once:
                step += state.residuals.total[block] / divisor
        else:
            step = state.residuals.total[block] / divisor
        np.multiply(step.astype(np.float32), rate, out=moved[block])
        moved[block] += state.model[block]
    return moved


def _replace(state: CachedState, client: ClientId, delta: Vector) -> None:
    """Replace the client's cached difference."""
    before = state.cache.get(client)
    terms: list[Term] = [(1.0, delta)]
    if before is not None:
        terms.append((-1.0, before))
    state.cache[client] = delta
    state.cache_sum.correct(terms, _cached(state))


def _cached(state: CachedState) -> Iterator[Term]:
    return ((1.0, kept) for kept in state.cache.values())
