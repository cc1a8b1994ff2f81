"""The kinds of record in an event log, one frozen dataclass each.

A line of a log is a JSON object: `kind` first, then the fields in the order of the dataclass. A
field that has a default is left out of the line while its value is that default.
`docs/reference/event-log.md` describes every field for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from fedraw.core.types import ClientId, Label
from fedraw.errors import nearest

# Raised by one when a record changes in a way that makes older logs unreadable. A new kind of
# record or a new optional field leaves the format as it is: this version reads what earlier ones
# wrote, and earlier versions refuse what they do not know. Logs of any other format are refused.
FORMAT = 3

Origin = Literal["simulation", "server"]

# How a client's weight in the global model follows from the arrivals; see eventlog.influence.
# slots: a client weighs what its slots weigh in an aggregation.
# cache: every client heard so far weighs 1/N, because its last update is part of every step.
InfluenceRule = Literal["slots", "cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """The first record: what is run, by whom, on which labels."""

    kind: ClassVar = "start"

    format: int = FORMAT
    origin: Origin
    name: str  # of the method, as tables show it
    seed: int | None  # None on a server, where nothing is drawn
    events: int | None  # how many updates are wanted; None: something else ends the run
    labels: Sequence[str]
    rare_labels: Sequence[str]  # those that the metrics call rare
    attacker: ClientId | None = None
    influence: InfluenceRule = "slots"
    notes: Sequence[str] = ()  # caveats that stand beside every table of this run
    data: Mapping[str, Any] | None = None  # numbers of samples, and their SHA-256
    weights: Mapping[str, Any] | None = None  # of the file that the first model was loaded from
    trace: Mapping[str, Any] | None = None  # of the file with recorded durations
    sources: Mapping[str, str] | None = None  # SHA-256 of the source of the user's own parts
    engine: str | None = None  # what carries a server's messages
    # What private label summaries tell: the number of "clients", and the holders by "labels".
    coverage: Mapping[str, Any] | None = None
    spec: Mapping[str, Any]  # every setting; of a server, the sections strategy and server
    epoch: float | None = None  # unix seconds of the log's time 0, on a server

    def __post_init__(self) -> None:
        for name, choices in (("origin", Origin), ("influence", InfluenceRule)):
            value, known = getattr(self, name), get_args(choices)
            if value not in known:
                raise ValueError(f"{name} = {value!r} is not one of {', '.join(known)}")
        for name in ("data", "partition", "strategy", "run", "server"):
            if not isinstance(self.spec.get(name, {}), Mapping):
                raise ValueError(f"its spec.{name} = {self.spec[name]!r:.40} is no table")

    @property
    def is_server(self) -> bool:
        """Whether a real server wrote the log, and not a simulation."""
        return self.origin == "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRecord:
    """A client takes part, with these label counts: from the start, or from now on."""

    kind: ClassVar = "joined"

    event: int
    time: float
    client: ClientId
    counts: Mapping[str, int]
    node: int | None = None  # the engine's number for the site


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRecord:
    """A member is gone."""

    kind: ClassVar = "left"

    event: int
    time: float
    client: ClientId
    reason: str
    until: float | None = None  # a quarantine's end, in the log's time


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecord:
    """A member reports new counts; without counts, the record tells of a false claim."""

    kind: ClassVar = "declared"

    event: int
    time: float
    client: ClientId
    counts: Mapping[str, int] | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRecord:
    """One update that reached the server and was accepted, and what it did."""

    kind: ClassVar = "arrival"

    event: int
    time: float
    client: ClientId
    start_time: float  # when the client was handed its model
    start_version: int
    version: int  # after this arrival
    staleness_events: int
    staleness_versions: int
    aggregated: bool  # whether this arrival changed the global model
    buffer: Sequence[ClientId]  # oldest first; in an aggregation, its members
    weights: Sequence[float | None]  # of the buffer's slots in the aggregation; else empty
    norm: float | None = None  # of the update, as a server measured it
    metrics: Mapping[str, float | None] | None = None  # what the client's own training reports
    paused: float = 0.0  # seconds that the client was offline while it trained
    copy: bool = False  # whether the same update had arrived before


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """An update that was refused."""

    kind: ClassVar = "rejected"

    event: int
    time: float
    client: ClientId
    start_time: float
    reason: str
    norm: float | None = None
    paused: float = 0.0
    copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """A training whose update never reached the server."""

    kind: ClassVar = "lost"

    event: int
    time: float
    client: ClientId
    start_time: float
    reason: str
    paused: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtedRecord:
    """A client's updates contradict its label claim, or show a label that it did not claim."""

    kind: ClassVar = "doubted"

    event: int
    time: float
    client: ClientId
    label: Label
    claimed: float  # the label's share of the client's data, as the client claims
    presence: float  # the probability that the client holds the label, given its updates


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedRecord:
    """A doubt is withdrawn."""

    kind: ClassVar = "cleared"

    event: int
    time: float
    client: ClientId
    label: Label
    presence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRecord:
    """Something else that an operator may want to know, such as an overdue reply."""

    kind: ClassVar = "note"

    event: int
    time: float
    client: ClientId | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresRecord:
    """The rarity scores that a change of members changed; None for a site that is no member."""

    kind: ClassVar = "scores"

    event: int
    time: float
    cause: str
    before: Mapping[str, float | None]
    after: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """What the global model can do."""

    kind: ClassVar = "evaluation"

    event: int
    time: float
    version: int
    metrics: Mapping[str, float | None]
    recall: Mapping[str, float | None]  # by label, in percent
    confusion: Mapping[str, Mapping[str, int]] | None = None  # true label, then predicted label
    server_models: float  # memory of the strategy's state, in copies of the model
    # What the updates show: "coverage", a number by label, and "holders", clients by rare label.
    inferred: Mapping[str, Mapping[str, Any]] | None = None
    sites: int | None = None  # how many sites tested the model
    own: Mapping[str, float | None] | None = None  # the user's own metrics
    own_rare: Mapping[str, float | None] | None = None  # the same, on test samples of rare labels
    # The average that is served: its "metrics", "recall" and "own".
    serving: Mapping[str, Mapping[str, float | None]] | None = None
    # The model with a calibrated output layer: its "metrics", "recall" and "own".
    calibrated: Mapping[str, Mapping[str, float | None]] | None = None
    costs: Mapping[str, float] | None = None  # so far: "hours", "bytes", "joules"

    def __post_init__(self) -> None:
        if self.inferred is None:
            return
        for name, kinds in (("coverage", (int, float)), ("holders", list)):
            if not all(
                isinstance(own, kinds) for own in self.inferred.get(name, {"": None}).values()
            ):
                raise ValueError(f"its inferred {name} is missing or has the wrong type")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedRecord:
    """The server was down and goes on."""

    kind: ClassVar = "restarted"

    event: int
    time: float
    epoch: float  # as in the start record, from here on
    gap: float  # seconds
    reasked: Sequence[str]  # the sites that are asked again
    damaged: Sequence[str] | None = None  # snapshots that could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedRecord:
    """The last record of a file: the log continues in the next one."""

    kind: ClassVar = "continued"

    event: int
    time: float
    segment: int  # the number of the next file


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The last record: the run is complete."""

    kind: ClassVar = "end"

    event: int
    time: float
    reason: str | None = None  # which limit a server has reached, or why a run ended early
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


def finding_record(
    event: int,
    time: float,
    *,
    client: ClientId,
    label: Label,
    presence: float,
    claimed: float | None = None,
) -> DoubtedRecord | ClearedRecord:
    """The record of what a strategy found out about a label claim; without `claimed`, all clear."""
    if claimed is None:
        return ClearedRecord(event=event, time=time, client=client, label=label, presence=presence)
    return DoubtedRecord(
        event=event, time=time, client=client, label=label, claimed=claimed, presence=presence
    )


def to_fields(record: Record) -> dict[str, Any]:
    """The JSON object of a record.

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
    """The record of a JSON object, which loses its `kind`; ValueError if the two do not fit.

    >>> from_fields({"kind": "end", "event": 3, "time": 1.5})
    EndRecord(event=3, time=1.5, reason=None, costs=None)
    """
    kind = own.pop("kind")
    form = _FORMS.get(kind)
    if form is None:
        raise ValueError(f"its kind {kind[:40]!r} is unknown; {nearest(kind[:40], KINDS)}")
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
    """How one kind of record is written and read; worked out once."""

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
        # What lies inside lists and objects is not part of a shape: it is checked in every record.
        checks = ((field.name, _inner_check(hints[field.name])) for field in own)
        self.inside = [(name, fits) for name, fits in checks if fits is not None]

    def check(self, own: Mapping[str, Any]) -> None:
        """Raise a ValueError unless these are the fields of such a record."""
        for name, value in own.items():
            if name not in self.types:
                raise ValueError(f"its field {name[:40]!r} is unknown")
            if type(value) not in self.types[name]:
                raise ValueError(f"its {name} = {value!r:.40} has the wrong type")
        missing = [name for name in self.required if name not in own]
        if missing:
            raise ValueError(f"its kind is {self.kind!r}, and it lacks {', '.join(missing)}")


def _json_types(hint: Any) -> frozenset[type]:
    """The types that `json` gives the values of a field."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return frozenset().union(*map(_json_types, get_args(hint)))
    if origin is Literal:
        return frozenset(map(type, get_args(hint)))
    by_hint = {float: (float, int), Sequence: (list,), Mapping: (dict,)}
    return frozenset(by_hint.get(origin or hint, (origin or hint,)))


def _inner_check(hint: Any) -> Callable[[Any], bool] | None:
    """A test of the values inside a list or an object; None if the hint says nothing of them."""
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
