"""One pass: a linear layer solved from sums that every client sends once.

Nobody trains. A client sends the counts, sums and products of the fixed features of its samples
(`core.sums`), the server adds them up, and the model is the linear layer that is solved from the
totals (`core.linear_head`). The totals do not depend on the order of the messages, on anybody's
speed, on staleness or on a buffer: the model knows a label from the message of its first holder on,
and in full once all of its holders were heard.

The discriminant follows from pooled moments as in GH-OFL (arXiv 2602.01186, ICLR 2026), ridge
regression on the same sums is Fed3R (arXiv 2406.01116, ICML 2024). With targets that are numbers,
clients sum them beside the features, and the layer is their ridge regression.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from fedraw.core.federation import Federation
from fedraw.core.labels import NO_LABELS
from fedraw.core.linear_head import LinearHead, Readout, held_labels
from fedraw.core.private_sums import DELTA, EPSILON, EXACT, Noise, SumsPrivacy
from fedraw.core.settings import COUNT, SHARE, Settings, above, at_least
from fedraw.core.sums import GRID, MOST_SAMPLES, Sums, SumsShape
from fedraw.core.sums_outliers import far_means
from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats, Label, Vector
from fedraw.errors import RefusedUpdate
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Declared,
    Event,
    Expected,
    Joined,
    Left,
    Needs,
    Receivers,
    Setup,
    change_members,
    check,
    frozen,
)

# The other terms of a budget, if only epsilon is given.
USUAL_TERMS = {"delta": 1e-5, "clip": 1.0, "group": 1}
# Targets whose standard deviation is smaller lose accuracy when they are rounded to the grid.
LEAST_SPREAD = 32 * GRID


@dataclass(eq=False)
class OnePassState:
    """The totals of all clients that were heard, and the newest message of each.

    `awaited` holds the members whose message is still missing or was asked for again. A client that
    has left stays in the totals.
    """

    shape: SumsShape
    head: LinearHead
    federation: Federation
    labels: list[Label] | None
    totals: Floats
    messages: dict[ClientId, Floats]
    awaited: dict[ClientId, bool]
    privacy: SumsPrivacy | None = None
    version: int = 0
    _solved: Vector | None = field(default=None, init=False, repr=False)

    @property
    def model(self) -> Vector:
        """The linear layer, which is solved when somebody reads it."""
        if self._solved is None:
            self._solved = frozen(self.head.solve(self.shape, self.totals, self.noise))
        return self._solved

    @property
    def noise(self) -> Noise | None:
        """The noise of the totals, if clients add noise."""
        if self.privacy is None:
            return None
        return self.privacy.noise(self.shape).of_messages(len(self.messages))

    @property
    def contents(self) -> Contents:
        """The clients that were heard, each weighted by its samples."""
        counts = self.shape.counts
        samples = {c: max(0.0, float(counts(own).sum())) for c, own in self.messages.items()}
        total = sum(samples.values()) or 1.0
        return Contents(tuple(samples), tuple(n / total for n in samples.values()))

    @property
    def finished(self) -> str | None:
        """Every member was heard, so that no further arrival is to come."""
        if self.awaited or not self.messages:
            return None
        return f"every member was heard{self._left_out()}{self._coarse()}{self._far_means()}"

    def _coarse(self) -> str:
        """Return that targets are too small for the grid, for the log."""
        n, own = self.shape.counts(self.totals).sum(), self.shape.targets
        if not own or n < 1 or self.privacy is not None:
            return ""
        squares = self.shape.squares(self.totals)[-own:] / n
        variance = squares - (self.shape.sums(self.totals)[0, -own:] / n) ** 2
        if variance.max() >= LEAST_SPREAD**2:
            return ""
        return (
            f"; no target has a standard deviation of {LEAST_SPREAD:g}, and targets are rounded to "
            f"{GRID:.3f}; multiply them by a constant that all clients share"
        )

    def _far_means(self) -> str:
        """Return whose sums differ most from those of other holders, for the log."""
        found = [] if self.privacy else far_means(self.shape, self.messages, self.totals)
        if not found:
            return ""
        client, label, distance, others = found[0]
        name = label if self.labels is None else self.labels[label]
        of = "" if self.shape.targets else f" of label {name!r}"
        words = (
            f"; compare the samples of client {client!r}: its mean{of} is "
            f"{distance:.1f} deviations from the median of {others} other holders"
        )
        more = len({one.client for one in found}) - 1
        return words if not more else f"{words}, and {more} more have such means"

    def _left_out(self) -> str:
        """Return which labels the model leaves out, for the log."""
        held = set(held_labels(self.shape, self.totals, self.noise).tolist())
        names = [*range(self.shape.labels)] if self.labels is None else self.labels
        absent = [str(name) for i, name in enumerate(names) if i not in held]
        if not absent:
            return ""
        if self.shape.targets:
            return "; the totals tell of no samples, so the model predicts 0; check the floor"
        listed, them = several(absent, most=10), "it" if len(absent) == 1 else "them"
        if self.privacy is not None:
            return f"; noise hides whether anyone has {listed}, and the model leaves {them} out"
        return (
            f"; nobody has sent samples of {listed}, and the model leaves {them} out; check the "
            "label counts and the floor"
        )

    def replace(self, client: ClientId, message: Floats) -> None:
        """Put a client's message in the place of its earlier one; both steps are exact."""
        old = self.messages.pop(client, None)
        if old is not None:
            self.totals -= old
        self.messages[client] = message
        self.totals += message
        self._changed()

    def forget(self, client: ClientId) -> bool:
        """Remove everything that a client has sent; return whether it had sent anything.

        The totals are then, byte for byte, those of a federation that never heard it.
        """
        message = self.messages.pop(client, None)
        if message is None:
            return False
        self.totals -= message
        self.totals += 0.0  # a difference of zero has a sign
        self._changed()
        return True

    def _changed(self) -> None:
        self.version += 1
        self._solved = None


@dataclass(frozen=True)
class OnePass(Settings):
    """A linear layer solved from sums; for the settings of the layer see `LinearHead`.

    Args:
        prior: The temper of the prior: 1 expects labels as often as clients hold them, 0 expects
            all labels equally often.
        shrinkage: The part of the covariance that is replaced by a multiple of the identity, or
            "auto".
        readout: "discriminant" or "ridge" for labels, "regression" for targets that are numbers.
        floor: Clients leave out labels of which they have fewer samples. In a regression, clients
            with fewer samples leave out all of them.
        epsilon: Clients add noise to their sums: the budget of one message. None: no noise.
        delta: With epsilon, the probability that its bound does not hold; default: 1e-5.
        clip: With epsilon, the root mean square to which a sample's features are scaled down;
            default: 1.
        group: With epsilon, the most samples of one person at a client; default: 1.

    """

    prior: Annotated[float, at_least(0)] = 1.0
    shrinkage: Annotated[float | Literal["auto"], SHARE] = "auto"
    readout: Readout = "discriminant"
    floor: Annotated[int, COUNT] = 1
    epsilon: Annotated[float | None, EPSILON] = None
    delta: Annotated[float | None, DELTA] = None
    clip: Annotated[float | None, above(0)] = None
    group: Annotated[int | None, COUNT] = None

    def validate(self) -> None:
        """Refuse a budget out of range, and a budget's terms without a budget."""
        if self.epsilon is not None:  # logs have the terms in full, and others have none of them
            for key, default in USUAL_TERMS.items():
                if getattr(self, key) is None:
                    object.__setattr__(self, key, default)
            _ = self.privacy  # refuses terms out of range
        for key in USUAL_TERMS:
            if self.epsilon is None and getattr(self, key) is not None:
                self.refuse(
                    key,
                    "has no effect without epsilon, because no noise is added; set epsilon, or "
                    "leave it out",
                )
        if self.epsilon is not None and self.floor > 1:
            self.refuse(
                "floor",
                "does not go with epsilon: whether a label is above the floor depends on single "
                "samples, and noise hides small counts; leave floor out",
            )

    @property
    def privacy(self) -> SumsPrivacy | None:
        """The budget of a message, if clients add noise."""
        if self.epsilon is None:
            return None
        assert self.delta is not None
        assert self.clip is not None
        assert self.group is not None
        return SumsPrivacy(self.epsilon, self.delta, self.clip, self.group)

    @property
    def payload(self) -> Sums:
        """The form of the message of a client."""
        return Sums(self.floor, self.privacy, self.readout == "regression")

    @property
    def needs(self) -> Needs:
        """Clients send sums, once."""
        return Needs(sends="sums", payload=self.payload, finishes=True, latest_only=True)

    def start(self, setup: Setup) -> tuple[OnePassState, Receivers]:
        """Ask every client for its sums."""
        shape = self.payload.shape_for(setup.layout)
        labels = None if setup.classes is None else list(setup.classes)
        if shape.targets:  # all samples have the same label
            labels = [NO_LABELS]
        members = setup.clients.clients
        federation = Federation.of(setup.clients)
        head = LinearHead(self.prior, self.shrinkage, self.readout)
        awaited = dict.fromkeys(members, True)
        totals, privacy = shape.zeros(), self.privacy
        state = OnePassState(shape, head, federation, labels, totals, {}, awaited, privacy)
        return state, members

    def step(self, state: OnePassState, event: Event) -> tuple[OnePassState, Receivers]:
        """Add a message to the totals; ask newcomers, and members whose labels have changed."""
        match event:
            case Arrived(update):
                message: Any = update.vector
                size, dtype = state.totals.size, state.totals.dtype
                check(state, update, payload=Expected(size, dtype))
                self.payload.check(state.shape, update.client, message, update.examples)
                if self.privacy is None:  # noisy counts are not the declared ones
                    self._check_counts(state, update.client, message)
                self._check_room(state, update.client, message)
                state.replace(update.client, message)
                state.awaited.pop(update.client, None)
                return state, []
            case Joined(client) | Declared(client):
                change_members(state.federation, event)
                state.awaited[client] = True
                return state, [client]
            case Left(client):
                state.awaited.pop(client, None)
                return state, change_members(state.federation, event)

    def _check_counts(self, state: OnePassState, client: ClientId, message: Floats) -> None:
        """Refuse sums that contradict the label counts that the client declares."""
        if state.labels is None:
            return
        row, names = state.federation.row(client), state.federation.labels
        pairs = zip(row.column.tolist(), row.count.tolist(), strict=True)
        declared = {names[column]: int(count) for column, count in pairs}
        if state.shape.targets:
            declared = {NO_LABELS: sum(declared.values())}
        declared = {label: count for label, count in declared.items() if count >= self.floor}
        counts = state.shape.counts(message)
        sent = {state.labels[i]: int(counts[i]) for i in np.flatnonzero(counts)}
        if declared == sent:
            return
        label = next(own for own in {**declared, **sent} if declared.get(own) != sent.get(own))
        of = "" if state.shape.targets else f" of label {label!r}"
        raise RefusedUpdate(
            f"client {client!r} sent the sums of {sent.get(label, 0):,} samples{of} and "
            f"declares {declared.get(label, 0):,}; declare the counts of the samples that are "
            "summed"
        )

    def _check_room(self, state: OnePassState, client: ClientId, message: Floats) -> None:
        """Refuse a message with which the totals would not be exact any more."""
        old = state.messages.get(client)
        if self.privacy is not None:
            sizes = np.abs(state.totals) + np.abs(message) + (0 if old is None else np.abs(old))
            if sizes.max() >= EXACT:
                raise RefusedUpdate(
                    f"with the sums of client {client!r} the totals would be above {EXACT:,.0f}, "
                    "beyond which they are not exact; a larger epsilon or a smaller clip has less "
                    "noise"
                )
            return
        others = state.shape.counts(state.totals).sum()
        if old is not None:
            others -= state.shape.counts(old).sum()
        if others + state.shape.counts(message).sum() > MOST_SAMPLES:
            raise RefusedUpdate(
                f"with the sums of client {client!r} the totals would have more than "
                f"{MOST_SAMPLES:,} samples, beyond which they are not exact"
            )
