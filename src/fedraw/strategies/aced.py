"""ACED: on every arrival, the model moves by the mean of the last differences that are not too old.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: "Mitigating
Participation Imbalance Bias in Asynchronous Federated Learning", arXiv 2511.19066, 2025.

On an arrival of client i at version t   h_i ← Δ_i,   A = {j : age_j ≤ τ},
                                         w ← w + η (1/|A|) Σ_{j in A} h_j   if A is not empty.

The authors' code and their text define age differently, so `age` selects one of two readings:

    "contact"   age_j = arrivals since the last one of client j, so the sender has age 0 (the code)
    "start"     age_j = t − the version from which client j trained h_j (the text)

Under "contact", A is the set of senders of the last τ + 1 arrivals. Under "start", a client that
takes longer than τ versions never counts, not even when it arrives. `tau_algo` is τ; "clients", the
default, is the number of members. A difference that is too old never comes back, so it is dropped.

Deviations: As for ACE. If A is empty, the version increases although the model stays the same,
because "start" measures ages in versions. The authors' code makes one step per N arrivals, for
simplicity; the paper's text and this file make one step per arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from fedraw.core.settings import Settings, above, at_least
from fedraw.core.types import ClientId
from fedraw.strategies.cached_steps import (
    CachedState,
    CacheRule,
    aggregate,
    empty_state,
    forget,
    take_in,
)
from fedraw.strategies.protocol import (
    Arrived,
    Event,
    Left,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)


@dataclass(eq=False)
class ACEDState(CachedState):
    """The engine's state; `born` is the version from which the age of each difference counts."""

    born: dict[ClientId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ACED(Settings):
    """ACED; `server_lr` is η, `tau_algo` is τ, and `age` is one of the two readings of age.

    Args:
        server_lr: The server rate: the factor by which a step moves the model.
        tau_algo: The greatest age at which a cached difference counts; "clients" is the number of
            members.
        age: When the age of a cached difference begins: at the last arrival of its client
            ("contact"), or at the version that it was trained from ("start").

    """

    server_lr: Annotated[float, above(0)] = 0.1
    tau_algo: Annotated[int | Literal["clients"], at_least(0)] = "clients"
    age: Literal["contact", "start"] = "contact"

    @cached_property
    def _rule(self) -> CacheRule:
        return CacheRule(
            1, self.server_lr, participation="certain", repeated="newest", average="heard"
        )

    @property
    def needs(self) -> Needs:
        """Clients send differences; the slots in the log are the clients of A."""
        return Needs(sends="delta", statistics="newest")

    def start(self, setup: Setup) -> tuple[ACEDState, Receivers]:
        """Start with an empty cache."""
        return empty_state(ACEDState, setup, self._rule), setup.clients.clients

    def step(self, state: ACEDState, event: Event) -> tuple[ACEDState, Receivers]:
        """Replace the client's h_i, drop those that are too old, and move by the mean of A."""
        if not isinstance(event, Arrived):
            receivers = change_members(state.federation, event)
            if isinstance(event, Left):
                self._drop(state, event.client)
            return state, receivers
        update = event.update
        check(state, update)
        take_in(state, update, self._rule)
        contact = self.age == "contact"
        state.born[update.client] = state.version if contact else update.start_version
        oldest = len(state.federation) if self.tau_algo == "clients" else self.tau_algo
        for client in [c for c, born in state.born.items() if state.version - born > oldest]:
            self._drop(state, client)
        state.clients = list(state.cache)  # A, which the log shows
        if state.cache:
            aggregate(state, self._rule)
        else:
            state.model, state.full = frozen(state.model.view()), True
            state.version += 1
        return state, [update.client]

    def _drop(self, state: ACEDState, client: ClientId) -> None:
        state.born.pop(client, None)
        forget(state, client, self._rule)
