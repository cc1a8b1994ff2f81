"""The seam every method stands on: events in, receivers out, everything remembered in the state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.head import VERSIONS, outputs
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Label, LabelCounts, Vector
from fedraw.core.update import Update
from fedraw.core.witness import Inferred, Labels, News, Witness
from fedraw.errors import BadInput, RefusedUpdate


class Arrived(NamedTuple):
    """A client's update has reached the server."""

    update: Update


class Joined(NamedTuple):
    """A client takes part from now on, with these training labels."""

    client: ClientId
    counts: LabelCounts


class Left(NamedTuple):
    """A client is gone: nobody waits for it. What stays of its last update is up to the method."""

    client: ClientId


class Declared(NamedTuple):
    """A member reports new label counts."""

    client: ClientId
    counts: LabelCounts


Event = Arrived | Joined | Left | Declared


class Request(NamedTuple):
    """What a strategy asks of its clients beside plain local training.

    Batch-norm statistics in a difference ("delta") are sent as they are: they are no difference.
    `separates_statistics` says that the strategy knows which part of a difference they are and
    treats that part by itself. Without it, a model with statistics is refused.
    """

    sends: Literal["model", "delta"] = "model"
    loss: bool = False
    proximal: float = 0.0
    separates_statistics: bool = False


class Contents(NamedTuple):
    """What the last arrival left in the buffer, oldest first.

    `weights` are the slots' shares of the aggregation it led to (they sum to one), and empty if
    there was none.
    """

    clients: Sequence[ClientId] = ()
    weights: Sequence[float] = ()


class State(Protocol):
    """What every strategy's state tells the outside. The rest of it is the strategy's own."""

    model: Vector
    version: int
    federation: Federation

    @property
    def contents(self) -> Contents: ...


S = TypeVar("S", bound=State)

# Who may be handed the model next.
Receivers = Collection[ClientId]


class Strategy(Protocol[S]):
    """Decides, on each event, what the global model becomes and who is handed it next.

    Synchrony is a choice of receivers: an asynchronous method names the sender at once, a
    synchronous one nobody until the round is in. `step` consumes the state it is given and may
    reuse the state's private arrays; it never modifies an update or a model it has handed out. A
    `RefusedUpdate` is raised before anything has changed, so the state then stays good.
    """

    @property
    def request(self) -> Request: ...

    def start(self, model: Vector, clients: LabelTable) -> tuple[S, Receivers]: ...

    def step(self, state: S, event: Event) -> tuple[S, Receivers]: ...


def refuse_unknown_statistics(strategy: Strategy[Any], layout: Layout | None) -> None:
    """Refuse a strategy that would take a model's batch-norm statistics for differences.

    What it asks for has to be known first: with a misspelt `sends` clients would send models.
    """
    request = strategy.request
    one_of(f"{type(strategy).__name__}: Request.sends", request.sends, ("model", "delta"))
    if layout is None or request.sends == "model" or request.separates_statistics:
        return
    count = layout.size - layout.parameter_count
    if count:
        raise BadInput(
            f"{type(strategy).__name__} asks clients for differences, and this model has {count} "
            "batch-norm statistics, which clients send as they are. Average them apart from the "
            "differences (see fedraw.strategies.fedbuff) and declare that with "
            "Request(sends='delta', separates_statistics=True); or ask for models, or choose a "
            "model without batch norm"
        )


def check(state: State, update: Update, needs_loss: bool = False) -> None:
    """Refuse an update that would poison the model or that cannot be what it says it is."""
    check_form(state, update, needs_loss)
    if not is_finite(update.vector):
        bad = int(np.count_nonzero(~np.isfinite(update.vector)))
        raise RefusedUpdate(f"client {update.client!r} sent {bad} numbers that are NaN or infinite")


def check_form(state: State, update: Update, needs_loss: bool = False) -> None:
    """All of it but a look at each number."""
    client = update.client
    if client not in state.federation:
        raise RefusedUpdate(f"client {client!r} is unknown; it has to join first")
    sent = update.vector
    if sent.ndim != 1 or sent.size != state.model.size:
        shape = f"{sent.size} numbers" if sent.ndim == 1 else f"an array of shape {sent.shape}"
        raise RefusedUpdate(f"client {client!r} sent {shape}, the model has {state.model.size}")
    if sent.dtype != np.float32:
        raise RefusedUpdate(f"client {client!r} sent numbers of type {sent.dtype}, not float32")
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
    """Whether every number is; NaN and infinity survive a sum, so one look at it mostly suffices.

    >>> is_finite(np.array([3e38, 3e38], np.float32)), is_finite(np.array([1, np.nan], np.float32))
    (True, False)
    """
    if not vector.size:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(vector)
    return bool(np.isfinite(total)) or bool(np.isfinite(vector).all())


def called(
    labels: Labels,
    classes: Sequence[Label] | None,
    model: Vector,
    layout: Layout | None,
    request: Request,
) -> Witness | None:
    """The witness that a strategy with `labels` needs; none if clients are taken at their word."""
    if labels == "declared":
        return None
    count = outputs(layout, f"labels = {labels!r}")
    names = [str(i) for i in range(count)] if classes is None else classes
    if len(names) != count:
        raise BadInput(f"classes has {len(names)} labels, the model {count} outputs")
    assert layout is not None  # `outputs` has refused it
    # A difference says by itself what it changed.
    versions = 1 if request.sends == "delta" else VERSIONS
    return Witness.of(labels, names, model, layout, versions)


def scores_of(
    federation: Federation, witness: Witness | None, clients: Sequence[ClientId]
) -> list[float]:
    """S of each: by what clients declare, or by what a witness makes of it."""
    if witness is None:
        return federation.scores(clients)
    return witness.scores(clients, federation)


def change_members(
    federation: Federation, event: Joined | Left | Declared, witness: Witness | None = None
) -> Receivers:
    """Apply an event that is no arrival; a newcomer is handed the model."""
    match event:
        case Joined(client, counts):
            federation.join(client, counts)
            return [client]
        case Left(client):
            federation.leave(client)
            if witness is not None:
                witness.forget(client)
        case Declared(client, counts):
            federation.declare(client, counts)
    return []


def news(state: State) -> Sequence[News]:
    """Claims that the last arrival has made doubtful, or cleared; only with a witness."""
    witness: Witness | None = getattr(state, "witness", None)
    return () if witness is None else witness.take_news()


def inferred(state: State) -> Inferred | None:
    """What is known of labels that nobody reports; None where someone does."""
    witness: Witness | None = getattr(state, "witness", None)
    return witness.inferred() if witness is not None and witness.mode == "inferred" else None


def frozen(model: Vector) -> Vector:
    """The model as handed out: nobody can write into it by mistake."""
    model.flags.writeable = False
    return model


def starting(model: Vector) -> Vector:
    """A private float32 copy of the initial model."""
    vector = np.array(model, np.float32)
    if vector.ndim != 1:
        raise BadInput(f"a model is one flat vector, got an array of shape {vector.shape}")
    if not is_finite(vector):
        raise BadInput("the initial model has NaN or infinite numbers")
    return frozen(vector)


def positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise BadInput(f"{name} = {value} must be a positive number")


def whole(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} = {value!r} must be a whole number, at least 1")


def between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadInput(f"{name} = {value} must be from {least:g} to {most:g}")


def at_least(name: str, value: float, least: float) -> None:
    if not least <= value < np.inf:
        raise BadInput(f"{name} = {value} must be at least {least:g} and finite")


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise BadInput(f"{name} = {value!r} is unknown; known: {', '.join(known)}")
