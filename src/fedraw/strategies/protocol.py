"""The protocol of strategies: a driver sends events, a strategy answers with receivers.

A driver (the simulator, the server) reads a strategy's `needs`, calls `start` with a `Setup`, and
then `step` with one event after the other. Everything that a strategy remembers is in its state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.settings import one_of
from fedraw.core.types import ClientId, Label, LabelCounts, Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.strategies.scoring import LabelEvidence, Scorer


class Arrived(NamedTuple):
    """A client's update has reached the server."""

    update: Update


class Joined(NamedTuple):
    """A client takes part from now on; it declares these counts of its training labels."""

    client: ClientId
    counts: LabelCounts


class Left(NamedTuple):
    """A client no longer takes part; the method decides what remains of its last update."""

    client: ClientId


class Declared(NamedTuple):
    """A member declares new label counts."""

    client: ClientId
    counts: LabelCounts


Event = Arrived | Joined | Left | Declared


class Payload(Protocol):
    """What clients send if it is neither a model nor a difference: one vector of another form.

    Drivers and servers read from here how long a message is and of which number type. The strategy
    checks the numbers themselves.
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        ...

    @property
    def declared(self) -> bool:
        """Whether clients must declare their label counts."""
        ...

    def layout(self, model: Layout | None) -> Layout:
        """Return where the parts of a message are, for a model with this layout."""
        ...

    def norm(self, message: Any, model: Layout | None) -> float:
        """Return the size of a message, independent of the number of samples behind it."""
        ...


@dataclass(frozen=True)
class Needs:
    """Everything that a driver has to know about a strategy before the first event.

    Attributes:
        sends: What clients send: the model after local training ("model"), or its difference to
            the model that they started from ("delta"). With "sums", clients do not train: each
            sends the sums of its fixed features in the form `payload`, and the driver gives the
            strategy a linear model of these features.
        loss: Whether clients also send their mean training loss at the start model.
        proximal: The factor ρ of the proximal term (ρ/2) ||x − x_start||² in the local loss.
        min_clients: The fewest clients with which the strategy can start.
        label_evidence: The basis of rarity scores: the label counts that clients declare, these
            counts checked against the updates, or the updates alone. With "inferred", clients need
            not declare any counts. None: the strategy does not use labels.
        statistics: Who averages batch-norm statistics. "model": the strategy, as a part of the
            model; it sees them at the end of every vector. Otherwise the library: each new version
            gets the mean of the statistics that arrived since the last one, plain ("mean") or
            weighted by sample counts ("samples"), or the plain mean of the newest statistics of all
            members that have sent some ("newest"), and the strategy sees models and updates
            without statistics. Default: "model" for models, "mean" for differences. Differences
            with "model" are refused, because their statistics are not differences.
        latest_only: Whether a client's newer update replaces its earlier one within a version.
        influence: How the log determines a client's weight in the model: from the slots of the
            buffer, or from a cache of every client's last update.
        payload: The form of what clients send, if they send sums.
        finishes: Whether the state has a property `finished`, which tells why no further arrival
            can change the model; see `FinishingState`.

    """

    sends: Literal["model", "delta", "sums"] = "model"
    loss: bool = False
    proximal: float = 0.0
    min_clients: int = 1
    label_evidence: LabelEvidence | None = None
    statistics: Literal["model", "mean", "samples", "newest"] | None = None
    latest_only: bool = False
    influence: Literal["slots", "cache"] = "slots"
    payload: Payload | None = None
    finishes: bool = False

    def __post_init__(self) -> None:
        one_of("Needs.sends", self.sends, ("model", "delta", "sums"))
        if (self.sends == "sums") != (self.payload is not None):
            raise BadInput(
                f"Needs(sends={self.sends!r}, payload={self.payload!r}): clients that send sums "
                "have a payload, and no others; give both, such as payload=Sums()"
            )
        if self.statistics is None:
            usual = "mean" if self.sends == "delta" else "model"
            object.__setattr__(self, "statistics", usual)
        known = ("model", "mean", "samples", "newest")
        one_of("Needs.statistics", self.statistics or "", known)
        if self.sends == "delta" and self.statistics == "model":
            raise BadInput(
                "Needs(sends='delta', statistics='model'): clients send batch-norm statistics as "
                "they are, never as differences; use statistics = 'mean' or 'samples'"
            )


@dataclass(frozen=True, eq=False)
class Setup:
    """The initial model, the clients and what the driver knows about the task.

    Attributes:
        model: The initial model; a private, read-only copy.
        clients: The members of the federation and their label counts.
        layout: The layout of the model's tensors in its vector, if the driver knows it.
        classes: The labels of the model's outputs, if the driver knows them.
        local_lr: The learning rate of the clients' local training, if the driver knows it.

    """

    model: Vector
    clients: LabelTable
    layout: Layout | None = None
    classes: Sequence[Label] | None = None
    local_lr: float | None = None

    def __post_init__(self) -> None:
        model = np.array(self.model, np.float32)
        if model.ndim != 1:
            raise BadInput(f"a model is one flat vector, got an array of shape {model.shape}")
        if not is_finite(model):
            raise BadInput("the initial model has NaN or infinite numbers")
        if self.layout is not None and self.layout.size != model.size:
            raise BadInput(
                f"the layout has {self.layout.size} numbers, the model {model.size}; "
                "give the layout of this model"
            )
        object.__setattr__(self, "model", frozen(model))


class Contents(NamedTuple):
    """The contents of the buffer after the last arrival, oldest first.

    `weights` are the weights of the slots in the aggregation that the arrival caused; they sum to
    one. They are empty if it caused none, or if the method does not weight its clients.
    """

    clients: Sequence[ClientId] = ()
    weights: Sequence[float] = ()


class State(Protocol):
    """The part of a strategy's state that drivers read; the rest is private to the strategy."""

    @property
    def model(self) -> Vector:
        """The current global model."""
        ...

    @property
    def version(self) -> int:
        """The number of times that the model has changed."""
        ...

    @property
    def federation(self) -> Federation:
        """The members and their declared labels."""
        ...

    @property
    def contents(self) -> Contents:
        """The clients in the buffer, and their weights if the last event aggregated."""
        ...


class ScoringState(State, Protocol):
    """The state of a strategy whose `needs.label_evidence` is "checked" or "inferred"."""

    @property
    def scorer(self) -> Scorer:
        """The scorer, which knows the members and their scores."""
        ...


class FinishingState(State, Protocol):
    """The state of a strategy whose `needs.finishes` is set."""

    @property
    def finished(self) -> str | None:
        """The reason why no further arrival can change the model; None as long as one can."""
        ...


class Members(Protocol):
    """An object that records joins and leaves: a federation, or a scorer."""

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        """Add a member with the labels that it declares."""
        ...

    def leave(self, client: ClientId) -> None:
        """Remove a member."""
        ...

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace the labels that a member declares."""
        ...


S = TypeVar("S", bound=State)

# The clients that may be handed the model next. A client that trains already, or waits for the
# model, keeps its place, so naming it again changes nothing.
Receivers = Collection[ClientId]


class Strategy(Protocol[S]):
    """Decides on each event what the global model becomes and which clients receive it next.

    Synchrony is a choice of receivers: an asynchronous method names the sender at once, a
    synchronous one names no client until the round is complete. `step` consumes the state that it
    is given and may reuse the state's private arrays, but it never modifies an update or a model
    that was handed in or out. It raises `RefusedUpdate` before it has changed anything, so the
    state stays usable.
    """

    @property
    def needs(self) -> Needs:
        """What the strategy requires of clients and drivers."""
        ...

    def start(self, setup: Setup) -> tuple[S, Receivers]:
        """Return the state before the first event, and the clients that get the initial model."""
        ...

    def step(self, state: S, event: Event) -> tuple[S, Receivers]:
        """Return the state after an event, and the clients that get the model because of it."""
        ...


class Expected(NamedTuple):
    """The size and the number type of what clients send."""

    size: int
    dtype: np.dtype[Any]


def check(
    state: State, update: Update, needs_loss: bool = False, payload: Expected | None = None
) -> None:
    """Refuse an update that would corrupt the model or that contradicts itself.

    `payload` is the form of the update if it has not that of the model.
    """
    check_form(state, update, needs_loss, payload)
    if not (update.known_finite or is_finite(update.vector)):
        bad = int(np.count_nonzero(~np.isfinite(update.vector)))
        raise RefusedUpdate(f"client {update.client!r} sent {bad} numbers that are NaN or infinite")


def check_form(
    state: State, update: Update, needs_loss: bool = False, payload: Expected | None = None
) -> None:
    """Make all checks of an update except whether its numbers are finite."""
    client = update.client
    if client not in state.federation:
        raise RefusedUpdate(f"client {client!r} is unknown; it has to join first")
    sent, dtype = update.vector, _FLOAT32
    if payload is None:
        size, whole = state.model.size, "the model has"
    else:
        size, dtype, whole = *payload, "a message of this method has"
    if sent.ndim != 1 or sent.size != size:
        shape = f"{sent.size} numbers" if sent.ndim == 1 else f"an array of shape {sent.shape}"
        raise RefusedUpdate(f"client {client!r} sent {shape}, {whole} {size}")
    if sent.dtype != dtype:
        raise RefusedUpdate(f"client {client!r} sent numbers of type {sent.dtype}, not {dtype}")
    if not 0 <= update.start_version <= state.version:
        raise RefusedUpdate(
            f"client {client!r} started from version {update.start_version}, "
            f"the newest is {state.version}"
        )
    if not 1 <= update.examples < np.inf:
        raise RefusedUpdate(f"client {client!r} trained on {update.examples} examples")
    if needs_loss and not (update.loss is not None and 0 <= update.loss < np.inf):
        raise RefusedUpdate(
            f"client {client!r} sent the loss {update.loss}, not a number from 0 on"
        )


def is_finite(vector: Vector) -> bool:
    """Return whether every number is finite.

    NaN and infinity propagate to the sum, so checking the sum almost always suffices.

    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([1, np.nan], np.float32))
    (True, False)
    """
    if not vector.size:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(vector)
    return bool(np.isfinite(total)) or bool(np.isfinite(vector).all())


def checked_answer(
    strategy: Strategy[S], answer: tuple[S, Receivers], needs: Needs | None = None
) -> tuple[S, Receivers]:
    """Return what `start` or `step` returned, or refuse it if it is not a state and receivers.

    An array of receivers becomes a list. `needs` are those of the strategy, from a driver that has
    read them once, because making them takes as long as a small step.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise BadInput(
            f"strategy {type(strategy).__name__} returned {type(answer).__name__} instead of a "
            "state and receivers; end start and step with, for example, 'return state, [client]'"
        )
    state, receivers = answer
    if not isinstance(receivers, _USUAL):
        receivers = _checked_receivers(strategy, receivers)
    if (needs or strategy.needs).payload is not None:  # the model is solved when somebody reads it
        return state, receivers
    model = getattr(state, "model", None)
    if not isinstance(model, np.ndarray) or model.dtype != _FLOAT32 or model.ndim != 1:
        raise _bad_model(strategy, model)
    return state, receivers


def checked_step(
    strategy: Strategy[S], state: S, event: Event, needs: Needs | None = None
) -> tuple[S, Receivers]:
    """Let the strategy take a step, and refuse one that changes the model without a new version.

    Drivers recognise a new model by its version. The model becomes read-only, because clients may
    have been handed it. No number is compared.
    """
    version, needs = state.version, needs or strategy.needs
    if needs.payload is not None:
        return checked_answer(strategy, strategy.step(state, event), needs)
    model = state.model
    if model.flags.writeable:
        frozen(model)
    try:
        answer = checked_answer(strategy, strategy.step(state, event), needs)
    except ValueError as problem:
        if "read-only" not in str(problem):
            raise
        raise BadInput(
            f"strategy {type(strategy).__name__} writes to an array that was handed in or out "
            f"({problem}); make a new array instead, for example state.model = "
            "frozen(state.model + change), and increase state.version"
        ) from problem
    after = answer[0]
    if after.version < version or (after.version == version and after.model is not model):
        raise BadInput(
            f"strategy {type(strategy).__name__} has a new model and the version {after.version} "
            f"after version {version}; add 1 to state.version in the step that changes the model, "
            "and keep the same array in all other steps"
        )
    return answer


_USUAL = (list, tuple)  # the abstract class takes longer, and this is checked at every event
_FLOAT32 = np.dtype(np.float32)


def _checked_receivers(strategy: object, receivers: Receivers) -> Receivers:
    if isinstance(receivers, np.ndarray):
        receivers = receivers.tolist()
    if isinstance(receivers, str) or not isinstance(receivers, Collection):
        raise BadInput(
            f"strategy {type(strategy).__name__} returned {receivers!r} as the receivers; return a "
            "list of clients, which may be empty"
        )
    return receivers


def _bad_model(strategy: object, model: object) -> BadInput:
    form = f"type {type(model).__name__}"
    if isinstance(model, np.ndarray):
        form = f"type {model.dtype} and shape {model.shape}"
    return BadInput(
        f"strategy {type(strategy).__name__} has a model of {form}; models are flat float32 "
        "arrays, such as setup.model"
    )


def change_members(members: Members, event: Joined | Left | Declared) -> Receivers:
    """Apply an event that is not an arrival; a newcomer receives the model at once.

    `members` is the federation or the scorer of a strategy's state.
    """
    match event:
        case Joined(client, counts):
            members.join(client, counts)
            return [client]
        case Left(client):
            members.leave(client)
        case Declared(client, counts):
            members.declare(client, counts)
    return []


def scorer_of(needs: Needs, state: State) -> Scorer | None:
    """Return the scorer of a strategy that uses updates as label evidence, otherwise None."""
    if needs.label_evidence in (None, "declared"):
        return None
    return cast(ScoringState, state).scorer


def finished(needs: Needs, state: State) -> str | None:
    """Return why no further arrival can change the model, if the strategy tells it."""
    return cast(FinishingState, state).finished if needs.finishes else None


def frozen(model: Vector) -> Vector:
    """Make a model read-only, like every model that a strategy hands out."""
    model.setflags(write=False)
    return model
