"""The messages between a server and its sites: Flower's records, and the records of fedraw.

A task has the model in the record `arrays` and settings in the record `config`, as Flower's own
strategies send them, so existing client apps understand it. A reply has one ArrayRecord, and one
MetricRecord with the key `num-examples`. An app that `client_app` returns adds the record `fedraw`
with the site's name, and a record with its label counts. Flower's records have no nested tables,
and their keys are strings, so labels are strings. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flower.tensors import TensorTemplate
from fedraw.server.messages import (
    LARGEST_REST,
    LONGEST_REASON,
    Fields,
    check_count_types,
    plain_counts,
    reply_or_failure,
)
from fedraw.server.results import Recall
from fedraw.server.tasks import (
    LATE_FACTOR,
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TrainReply,
)
from fedraw.strategies.protocol import Needs

# The records of a message. A task has `config`; a reply of fedraw's own client app has `fedraw`.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
FIELDS = "fedraw"
COUNTS = "counts"
ANSWER = "answer"
SUMS = "sums"  # the feature map of the sums in a reply
RIGHT = "right"
TOTAL = "total"

# Keys of Flower's own strategies in `config`, and in the metrics of a reply.
ROUND, PROXIMAL = "server-round", "proximal-mu"
EXAMPLES, TRAIN_LOSS, NORM_BIT = "num-examples", "train_loss", "norm_bit"
# Keys of fedraw's in `config`.
TASK, VERSION, WANTS_LOSS = "fedraw.task", "fedraw.version", "fedraw.loss"
LABELS, FLOOR, FEATURE_MAP = "fedraw.labels", "fedraw.floor", "fedraw.feature-map"
REGRESSION = "fedraw.regression"
# The budget of a message of sums: the prefix of its keys, and the keys.
BUDGET = "fedraw.privacy."
BUDGET_KEYS = frozenset({f"{BUDGET}{key}" for key in ("epsilon", "delta", "clip", "group")})
OWN_KEYS = BUDGET_KEYS | {ROUND, PROXIMAL, TASK, VERSION, WANTS_LOSS}
OWN_KEYS |= {LABELS, FLOOR, FEATURE_MAP, REGRESSION}

# The prefix of the keys of a question in `config`.
QUESTION = "fedraw.ask."

# The action under which client_app answers queries; an app's own queries have other names.
ACTION = "fedraw"
# Flower's error message for a client app without such a function.
NO_QUERY = "No query function registered"

MESSAGE_TYPES = {
    "summary": f"{MessageType.QUERY}.{ACTION}",
    "train": MessageType.TRAIN,
    "evaluate": MessageType.EVALUATE,
}

# Flower's error codes that a site causes, and those that it does not cause.
SITE_ERRORS = {
    1: "its client app cannot be loaded",
    2: "its client app raised an exception",
    6: "a mod of its client app refused the message",
    7: "its app bundle is invalid",
    8: "its client app crashed",
}
TRANSPORT_ERRORS = {
    3: "the message or its reply has expired",
    4: "the reply has expired",
    5: "the node is unreachable",
}

# Texts in errors of client apps and mods, and the remedy for each.
HINTS = {
    "secaggplus": "its app uses secure aggregation, which needs all sites of a round at the same "
    "time; an asynchronous server aggregates single updates, so remove the mod",
    "'clipping_norm'": "set clipping_norm in the table fedraw.train of the run config",
    "Invalid message type": "its app has a client_fn; convert it to Flower's message API",
    "expects exactly one ArrayRecord": "give the mod to @app.train(mods=…), not to ClientApp",
}

# Seconds added to a message's time to live, for queues and for clocks that differ.
RESERVE = 60.0


@dataclass
class FlowerCodec:
    """Converts tasks to messages and messages to replies, for one model and one strategy.

    All sites that train the same version share one ArrayRecord, so it is created once, and Flower
    computes its hashes once. Where sites send sums, `sums` tells them of which labels and features.
    """

    template: TensorTemplate
    needs: Needs
    sums: Mapping[str, Any] = field(default_factory=dict)
    _model: Vector | None = field(default=None, init=False, repr=False)
    _record: ArrayRecord = field(default_factory=ArrayRecord, init=False, repr=False)

    def __post_init__(self) -> None:
        payload = self.needs.payload
        self._sent = self.template
        if payload is not None:
            self._sent = TensorTemplate.of_payload(payload, self.template.layout)

    def record(self, model: Vector) -> ArrayRecord:
        """Return the model as Flower's record."""
        if model is not self._model:
            self._record = self.template.write(model)
            self._model = model
        return self._record

    def message(self, task: Task) -> Message:
        """Return the message of a task."""
        # The keys of a question, which asks for a private label summary, have a prefix.
        prefix = QUESTION if task.kind == "summary" else ""
        own = {f"{prefix}{key}": value for key, value in task.config.items()}
        config = ConfigRecord({**own, TASK: task.number, VERSION: task.version})
        content = RecordDict({CONFIG: config})
        if task.model is not None:
            content[ARRAYS] = self.record(task.model)
            config[ROUND] = task.version + 1
        if task.kind != "summary":
            config.update(self.sums)
        if task.kind == "train":
            config[WANTS_LOSS] = self.needs.loss
            config[PROXIMAL] = float(self.needs.proximal)
        return Message(
            content,
            dst_node_id=task.node,
            message_type=MESSAGE_TYPES[task.kind],
            ttl=time_to_live(task.deadline),
            group_id=str(task.version),
        )

    def read_reply(self, message: Message) -> Reply:
        """Return the reply in a message, or a Failure; it never raises, whatever a site sends."""
        return reply_or_failure(lambda: self._read(message))

    def _read(self, message: Message) -> Reply:
        if message.has_error():
            return _read_error(message)
        content, kind = message.content, message.metadata.message_type
        check_size(content, self._sent.nbytes if kind == MessageType.TRAIN else 0)
        own = fields_of(content) if FIELDS in content else None
        site = None if own is None else own.text("site")
        task = None if own is None else own.whole("task")
        if kind == MESSAGE_TYPES["summary"]:
            counts = read_counts(content, COUNTS) if COUNTS in content else {}
            answer = dict(_record(content, ANSWER, ConfigRecord)) if ANSWER in content else {}
            return LabelSummary(fields_of(content).text("site"), counts, answer)
        if kind == MessageType.TRAIN:
            metrics = read_metrics(content)
            return TrainReply(
                site,
                task,
                None if own is None else own.whole("version"),
                self._sent.read(only_arrays(content)[1]),
                read_examples(metrics),
                metrics.get(TRAIN_LOSS),
                read_counts(content, COUNTS) if COUNTS in content else None,
                metrics,
                is_model=True,
                feature_map=_feature_map(content),
            )
        if kind == MessageType.EVALUATE:
            right = read_counts(content, RIGHT) if RIGHT in content else {}
            total = read_counts(content, TOTAL) if TOTAL in content else {}
            metrics = read_metrics(content)
            examples = read_examples(metrics)
            return EvaluateReply(site, task, right, total, metrics, examples)
        raise RefusedUpdate(f"a message of type {kind!r:.60} is unexpected")


def _feature_map(content: RecordDict) -> str:
    """Return the digest of the feature map of the sums in a reply; empty without sums."""
    return Fields(_record(content, SUMS, ConfigRecord)).text(FEATURE_MAP) if SUMS in content else ""


def question_of(content: RecordDict) -> dict[str, Any]:
    """Return the question of a private label summary; empty if the server asks for counts."""
    config = _record(content, CONFIG, ConfigRecord).items()
    return {key.removeprefix(QUESTION): n for key, n in config if key.startswith(QUESTION)}


def _read_error(message: Message) -> Reply:
    """Read an error; a client app without fedraw's query does not declare its labels."""
    if message.metadata.message_type == MESSAGE_TYPES["summary"] and NO_QUERY in (
        message.error.reason or ""
    ):
        return LabelSummary(f"node-{message.metadata.src_node_id}", {})
    return failure(message.error)


def time_to_live(deadline: float) -> float:
    """Return a message's time to live: as long as the server accepts a reply, plus RESERVE.

    >>> time_to_live(100.0)
    360.0
    """
    return LATE_FACTOR * deadline + RESERVE


def failure(error: Error) -> Failure:
    r"""Describe an error of Flower in a sentence.

    >>> failure(Error(2, "Traceback (most recent call last):\n ...\nValueError: no data\n")).reason
    'its client app raised an exception: ValueError: no data'
    """
    code = error.code
    what = SITE_ERRORS.get(code) or TRANSPORT_ERRORS.get(code) or f"Flower's error {code}"
    lines = [line.strip() for line in (error.reason or "").splitlines() if line.strip()]
    # The text of a transport error adds nothing to its code; of an exception, the end matters most.
    if lines and code not in TRANSPORT_ERRORS:
        what += f": {lines[-1][-LONGEST_REASON:]}"
        what += "".join(f"; {hint}" for words, hint in HINTS.items() if words in lines[-1])
    return Failure(what, site_fault=code not in TRANSPORT_ERRORS)


def fields_of(content: RecordDict) -> Fields:
    """Return the fields that fedraw's client app adds to a reply."""
    return Fields(_record(content, FIELDS, ConfigRecord))


def config_of(content: RecordDict) -> Fields:
    """Return the settings of a task."""
    return Fields(_record(content, CONFIG, ConfigRecord))


def pack_counts(counts: Mapping[Any, Any], what: str) -> ConfigRecord:
    """Return counts by label as a record; labels may have any type, counts may be NumPy integers.

    `what` names the counts in messages.
    """
    return ConfigRecord(plain_counts(counts, what))


def read_counts(content: RecordDict, name: str) -> dict[str, int]:
    """Return the counts of a record after checking their types; the server checks their values."""
    return check_count_types(_record(content, name, ConfigRecord), name)


def recall_records(recall: Recall) -> dict[str, ConfigRecord]:
    """Return the recall of each label as records for an app's reply to an evaluation.

    >>> recall_records(Recall.of(["cat", "owl"], ["cat", "cat"]))
    {'right': {'cat': 1}, 'total': {'cat': 1, 'owl': 1}}
    """
    return {RIGHT: pack_counts(recall.right, RIGHT), TOTAL: pack_counts(recall.total, TOTAL)}


def pack_metrics(metrics: Mapping[str, Any], examples: int) -> MetricRecord:
    """Return a user's own metrics as a record; their values may be NumPy numbers."""
    try:
        own = {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        raise BadInput(f"metrics are {dict(metrics)!r:.80}; each must be a number") from None
    return MetricRecord({**own, EXAMPLES: examples})


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return all metrics of a reply; each item of a list becomes a separate metric.

    >>> read_metrics(RecordDict({"metrics": MetricRecord({"auc": 0.75, "dice": [0.5, 1.0]})}))
    {'auc': 0.75, 'dice.0': 0.5, 'dice.1': 1.0}
    """
    found: dict[str, float] = {}
    for record in content.metric_records.values():
        for name, value in record.items():
            items = value if isinstance(value, list) else [value]
            names = [f"{name}.{i}" for i in range(len(items))] if items is value else [name]
            found.update(zip(names, items, strict=True))
    if NORM_BIT in found:
        raise RefusedUpdate(
            "its app uses adaptiveclipping_mod, which needs a server that adapts the norm; use "
            "fixedclipping_mod or LocalDpMod"
        )
    return found


def read_examples(metrics: dict[str, float]) -> int:
    """Remove and return the number of examples in a reply's metrics."""
    examples = metrics.pop(EXAMPLES, None)
    if examples is None or not float(examples).is_integer():
        found = "missing" if examples is None else f"{examples!r:.40}"
        raise RefusedUpdate(f"{EXAMPLES} is {found}; a reply's MetricRecord needs it as an integer")
    return int(examples)


def read_arrays(content: RecordDict) -> ArrayRecord:
    """Return the model of a task."""
    record: ArrayRecord = _record(content, ARRAYS, ArrayRecord)
    return record


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the only ArrayRecord of a reply, and its name."""
    found = list(content.array_records.items())
    if len(found) != 1:
        raise RefusedUpdate(f"a reply must have one ArrayRecord; this one has {len(found)}")
    name, record = found[0]
    return name, record


def check_size(content: RecordDict, model_bytes: int) -> None:
    """Refuse a reply that is much larger than the model."""
    size, most = sum(map(_size, content.values())), 2 * model_bytes + LARGEST_REST
    if size > most:
        raise RefusedUpdate(f"the reply has {size} bytes; the limit is {most}")


def _size(record: Any) -> int:
    """Return the bytes of names and values; Flower's own function fails on an empty list."""
    names = sum(map(len, record))
    if isinstance(record, ArrayRecord):
        return names + sum(len(array.data) for array in record.values())
    lists = [value if isinstance(value, list) else [value] for value in record.values()]
    items = (item for values in lists for item in values)
    return names + sum(len(item) if isinstance(item, str | bytes) else 8 for item in items)


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    record = content.get(name)
    if not isinstance(record, kind):
        found = "missing" if record is None else f"of type {type(record).__name__}"
        raise RefusedUpdate(f"record {name!r} is {found}; do both sides use fedraw?")
    return record
