"""The kinds of record in an event log, one frozen dataclass each.

A line of a log is a JSON object: `kind` first, then the fields in the order of the dataclass. A
field whose value is its default is omitted. `docs/reference/event-log.md` describes every field for
users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from operator import attrgetter
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedraw.core.types import ClientId, Label
from fedraw.errors import nearest

# Increased by one when a change makes older logs unreadable. A new kind of record or a new optional
# field does not change the format: this version reads earlier logs, and earlier versions refuse
# unknown records and fields. Logs of any other format are refused.
FORMAT = 3

Origin = Literal["simulation", "server"]

# The rule for a client's weight in the global model; see eventlog.metrics.
# slots: a client has the weight of its slots in an aggregation.
# cache: every client with an update has the weight 1/N, because every step uses its last update.
InfluenceRule = Literal["slots", "cache"]

# back-off: the server asks a site again after a pause.
# roll-back: the operator has gone back to an earlier state, and later records are gone.
NoteTopic = Literal["back-off", "roll-back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """The first record: the method, its settings, and the labels."""

    kind: ClassVar = "start"

    format: int = FORMAT
    origin: Origin
    name: str  # the method's name in tables
    seed: int | None  # None on a server, which has no seed
    events: int | None  # the number of updates to receive; None if something else ends the run
    labels: Sequence[str]
    rare_labels: Sequence[str]  # the labels that count as rare in metrics
    attacker: ClientId | None = None
    influence: InfluenceRule = "slots"
    notes: Sequence[str] = ()  # caveats for every table that shows this run
    data: Mapping[str, Any] | None = None  # numbers of samples, and their SHA-256
    weights: Mapping[str, Any] | None = None  # the file of the initial model
    trace: Mapping[str, Any] | None = None  # the file with recorded durations
    sources: Mapping[str, str] | None = None  # SHA-256 of the source of the user's own parts
    engine: str | None = None  # the engine that carries a server's messages
    # The coverage from private label summaries: the number of "clients", and holders by "labels".
    coverage: Mapping[str, Any] | None = None
    spec: Mapping[str, Any]  # all settings; a server has the sections strategy and server
    epoch: float | None = None  # unix seconds at the log's time 0, on a server

    def __post_init__(self) -> None:
        for name, choices in (("origin", Origin), ("influence", InfluenceRule)):
            value, known = getattr(self, name), get_args(choices)
            if value not in known:
                raise ValueError(f"{name} = {value!r} is not one of {', '.join(known)}")
        for name in ("data", "partition", "strategy", "run", "server"):
            if not isinstance(self.spec.get(name, {}), Mapping):
                raise ValueError(f"its spec.{name} = {self.spec[name]!r:.40} is not a table")

    @property
    def is_server(self) -> bool:
        """Whether a real server wrote the log, and not a simulation."""
        return self.origin == "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happening:
    """What every record has after the first one."""

    kind: ClassVar[str]

    event: int  # the number of the last update that has reached the server
    time: float  # in seconds; see docs/reference/event-log.md


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRecord(_Happening):
    """A client joins with these label counts, at the start or later."""

    kind: ClassVar = "joined"

    client: ClientId
    counts: Mapping[str, int]
    node: int | None = None  # the engine's number for the site


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRecord(_Happening):
    """A client leaves."""

    kind: ClassVar = "left"

    client: ClientId
    reason: str
    until: float | None = None  # the end of a quarantine, in the log's time


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecord(_Happening):
    """A client reports new label counts; a record without counts is a false claim."""

    kind: ClassVar = "declared"

    client: ClientId
    counts: Mapping[str, int] | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRecord(_Happening):
    """An update that the server accepted, and its effect."""

    kind: ClassVar = "arrival"

    client: ClientId
    start_time: float  # when the client received its model
    start_version: int
    version: int  # after this arrival
    staleness_events: int
    staleness_versions: int
    aggregated: bool  # whether this arrival changed the global model
    buffer: Sequence[ClientId]  # the clients of the slots, oldest first
    weights: Sequence[float | None]  # of the slots; empty without an aggregation
    norm: float | None = None  # of the update, on a server
    metrics: Mapping[str, float | None] | None = None  # reported by the client's training
    paused: float = 0.0  # seconds that the client was offline while it trained


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord(_Happening):
    """An update that the server refused."""

    kind: ClassVar = "rejected"

    client: ClientId
    start_time: float
    reason: str
    norm: float | None = None
    paused: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord(_Happening):
    """A training whose update never reached the server."""

    kind: ClassVar = "lost"

    client: ClientId
    start_time: float
    reason: str
    paused: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtedRecord(_Happening):
    """A client's updates contradict its label claim, or show a label that it did not claim."""

    kind: ClassVar = "doubted"

    client: ClientId
    label: Label
    claimed: float  # the label's share of the client's data, as the client claims
    presence: float  # the probability that the client holds the label, given its updates


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedRecord(_Happening):
    """A doubt about a label claim is withdrawn."""

    kind: ClassVar = "cleared"

    client: ClientId
    label: Label
    presence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRecord(_Happening):
    """A note for the operator, such as an overdue reply."""

    kind: ClassVar = "note"

    client: ClientId | None = None
    reason: str
    about: NoteTopic | None = None  # for programs, which do not read the reason
    until: float | None = None  # the end of a back-off, in the log's time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresRecord(_Happening):
    """The rarity scores that a change of members changed; None for a site that is not a member."""

    kind: ClassVar = "scores"

    cause: str
    before: Mapping[str, float | None]
    after: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord(_Happening):
    """The evaluation of a global model."""

    kind: ClassVar = "evaluation"

    version: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]  # by label, in percent
    confusion: Mapping[str, Mapping[str, int]] | None = None  # true label, then predicted label
    server_models: float  # memory of the strategy's state, in copies of the model
    # Inferred from updates: "coverage", a number by label, and "holders", clients by rare label.
    inferred: Mapping[str, Mapping[str, Any]] | None = None
    sites: int | None = None  # the number of sites that tested the model
    own: Mapping[str, float | None] | None = None  # the user's own metrics
    own_rare: Mapping[str, float | None] | None = None  # the same, on test samples of rare labels
    # The model with a calibrated output layer: its "metrics", "recall" and "own".
    calibrated: Mapping[str, Mapping[str, float | None]] | None = None
    costs: Mapping[str, float] | None = None  # so far: "hours", "bytes", "joules"
    final: bool = False  # whether no further arrival can change the model

    def __post_init__(self) -> None:
        if self.inferred is None:
            return
        for name, kinds in (("coverage", (int, float)), ("holders", list)):
            if not all(
                isinstance(own, kinds) for own in self.inferred.get(name, {"": None}).values()
            ):
                raise ValueError(f"its inferred {name} is missing or has the wrong type")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedRecord(_Happening):
    """The server continues after a restart."""

    kind: ClassVar = "restarted"

    epoch: float  # as in the start record, for all later records
    gap: float  # seconds for which the server was down
    reasked: Sequence[str]  # the sites that the server asks again
    damaged: Sequence[str] | None = None  # snapshots that could not be read
    events: int | None = None  # the limit from here on, as in the start record; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedRecord(_Happening):
    """Of servers of fedraw 0.2: here their log continued in the next file; no longer written."""

    kind: ClassVar = "continued"

    segment: int  # the number of the next file


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord(_Happening):
    """The last record: the run is complete."""

    kind: ClassVar = "end"

    reason: str | None = None  # the limit that a server has reached, or why a run ended early
    costs: Mapping[str, float] | None = None  # as in an evaluation


Record = (
    StartRecord
    | JoinedRecord
    | LeftRecord
    | DeclaredRecord
    | ArrivalRecord
    | RejectedRecord
    | LostRecord
    | DoubtedRecord
    | ClearedRecord
    | NoteRecord
    | ScoresRecord
    | EvaluationRecord
    | RestartedRecord
    | ContinuedRecord
    | EndRecord
)
KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in get_args(Record)}


def arrival_record(
    event: int,
    time: float,
    client: ClientId,
    handed_out: tuple[int, float, int],
    versions: tuple[int, int],
    contents: tuple[Sequence[ClientId], Sequence[float]],
    **more: Any,
) -> ArrivalRecord:
    """Return the record of an accepted update, the same for simulations and servers.

    Args:
        event: The number of the update.
        time: When it arrived.
        client: Who sent it.
        handed_out: The event, time and model version at which the client received its model.
        versions: The model's version before and after the arrival.
        contents: The clients in the buffer and their weights, after the arrival.
        more: The further fields of the record.

    """
    start_event, start_time, start_version = handed_out
    before, version = versions
    clients, weights = contents
    return ArrivalRecord(
        event=event,
        time=time,
        client=client,
        start_time=start_time,
        start_version=start_version,
        version=version,
        staleness_events=event - start_event,
        staleness_versions=before - start_version,
        aggregated=version > before,
        buffer=_plain(clients),
        weights=_finite(_plain(weights)) if version > before else [],
        **more,
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    """Return the same values, with Python's numbers and texts in place of NumPy's."""
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    if _PLAIN.issuperset(map(type, values)):  # as always, except for a user's strategy
        return list(values)
    return [value.item() if isinstance(value, np.generic) else value for value in values]


_PLAIN = frozenset((int, str, float))


def _finite(weights: Sequence[float]) -> Sequence[float | None]:
    """Return the weights, with None for those that are not finite, which JSON cannot represent."""
    if isfinite(sum(weights)):
        return weights
    return [weight if isfinite(weight) else None for weight in weights]


def finding_record(
    event: int,
    time: float,
    *,
    client: ClientId,
    label: Label,
    presence: float,
    claimed: float | None = None,
) -> DoubtedRecord | ClearedRecord:
    """Return the record of a strategy's finding about a label claim; None as claim clears it."""
    if claimed is None:
        return ClearedRecord(event=event, time=time, client=client, label=label, presence=presence)
    return DoubtedRecord(
        event=event, time=time, client=client, label=label, claimed=claimed, presence=presence
    )


def to_fields(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record.

    >>> to_fields(EndRecord(event=3, time=1.5))
    {'kind': 'end', 'event': 3, 'time': 1.5}
    """
    form = _FORMS[record.kind]
    own = dict(zip(form.names, form.values(record), strict=True))
    for name, default in form.defaults:
        if own[name] == default:
            del own[name]
    return own


def from_fields(own: dict[str, Any]) -> Record:
    """Return the record of a JSON object, whose `kind` is removed; raise ValueError if invalid.

    >>> from_fields({"kind": "end", "event": 3, "time": 1.5})
    EndRecord(event=3, time=1.5, reason=None, costs=None)
    """
    kind = own.pop("kind")
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError(f"its kind {kind[:40]!r} is unknown; {nearest(kind[:40], KINDS)}")
    for name in _RETIRED.get(kind, ()):
        own.pop(name, None)
    if kind == "note":
        _read_prose(own)
    # Most records of a kind have the same fields with values of the same types.
    shape = (*own, *map(type, own.values()))
    if shape not in form.known_shapes:
        form.check(own)
        form.known_shapes.add(shape)
    for name, fits in form.inside:
        value = own.get(name)
        if value is not None and not fits(value):
            raise ValueError(f"its {name} = {value!r:.40} holds a value of the wrong type")
    return form.make(**own)


class _Form:
    """The fields, defaults and types of one kind of record, computed once."""

    def __init__(self, kind: type[Record]) -> None:
        hints = get_type_hints(kind)
        own = fields(kind)
        self.kind: str = kind.kind
        self.make: Callable[..., Record] = kind
        self.names = ("kind", *(field.name for field in own))
        self.values = attrgetter(*self.names)
        # The format is written although it has a default.
        self.defaults = [
            (field.name, field.default)
            for field in own
            if field.default is not MISSING and field.name != "format"
        ]
        self.required = [field.name for field in own if field.default is MISSING]
        self.types = {field.name: _json_types(hints[field.name]) for field in own}
        self.known_shapes: set[tuple[object, ...]] = set()
        # The values inside lists and objects are not part of a shape, so every record is checked.
        checks = ((field.name, _inner_check(hints[field.name])) for field in own)
        self.inside = [(name, fits) for name, fits in checks if fits is not None]

    def check(self, own: Mapping[str, Any]) -> None:
        """Raise a ValueError unless these are valid fields of this kind of record."""
        for name, value in own.items():
            if name not in self.types:
                raise ValueError(f"its field {name[:40]!r} is unknown")
            if type(value) not in self.types[name]:
                raise ValueError(f"its {name} = {value!r:.40} has the wrong type")
        missing = [name for name in self.required if name not in own]
        if missing:
            raise ValueError(f"its kind is {self.kind!r}, but it lacks {', '.join(missing)}")


def _json_types(hint: Any) -> frozenset[type]:
    """Return the types that the values of a field have after reading JSON."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return frozenset().union(*map(_json_types, get_args(hint)))
    if origin is Literal:
        return frozenset(map(type, get_args(hint)))
    by_hint = {float: (float, int), Sequence: (list,), Mapping: (dict,)}
    return frozenset(by_hint.get(origin or hint, (origin or hint,)))


def _inner_check(hint: Any) -> Callable[[Any], bool] | None:
    """Return a check of the values inside a list or object; None if the hint allows any value."""
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        origin = get_origin(option)
        if origin not in (Sequence, Mapping) or get_args(option)[-1] is Any:
            continue
        own = get_args(option)[-1]
        types, deeper = _json_types(own), _inner_check(own)
        values: Callable[[Any], Any] = dict.values if origin is Mapping else iter
        if deeper is None:
            return lambda value: types.issuperset(map(type, values(value)))
        return lambda value: (
            types.issuperset(map(type, values(value))) and all(map(deeper, values(value)))
        )
    return None


_FORMS = {name: _Form(kind) for name, kind in KINDS.items()}
# Fields of logs of fedraw 0.2 that this version does not read.
_RETIRED = {"evaluation": ("serving",), "arrival": ("copy",), "rejected": ("copy",)}


def _read_prose(note: dict[str, Any]) -> None:
    """Add the fields of a note whose topic servers of fedraw 0.2 told in English only.

    >>> note = {"time": 5.0, "reason": "asked again in 30 s: no answer"}
    >>> _read_prose(note)
    >>> note["about"], note["until"]
    ('back-off', 35.0)
    """
    found = None if "about" in note else _PROSE.match(str(note.get("reason")))
    if found is not None:
        note["about"] = "roll-back" if found["back"] else "back-off"
        if found["pause"] and isinstance(note.get("time"), int | float):
            note["until"] = note["time"] + float(found["pause"])


_PROSE = re.compile(r"asked again (?:in (?P<pause>\d+) s|later): |(?P<back>rolled back to )")
