from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from hypothesis import given
from tests.flower.memory_grid import identity, over_the_wire

from fedraw.flower.messages import (
    ARRAYS,
    COUNTS,
    FIELDS,
    METRICS,
    RIGHT,
    TOTAL,
    FlowerCodec,
    failure,
)
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.server.tasks import EvaluateReply, Failure, LabelSummary, Task, TaskKind, TrainReply
from fedraw.strategies.protocol import Needs

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = record_of({"w": np.array([1, 2], np.float32), "running_var": np.array([3], np.float32)})
TEMPLATE = TensorTemplate.of(MODEL)
START = TEMPLATE.read(MODEL)
NAN = float("nan")


def task(kind: TaskKind = "train", node: int = 7) -> Task:
    return Task(5, kind, node, "north", deadline=100.0, version=3, model=START)


def reply_message(kind: TaskKind, records: dict[str, Any]) -> Message:
    asked = FlowerCodec(TEMPLATE, Needs()).message(task(kind))
    asked.metadata.__dict__["_message_id"] = "message_id"
    return over_the_wire(Message(RecordDict(records), reply_to=asked))


def facts(**more: Any) -> ConfigRecord:
    return ConfigRecord({"site": "north", "task": 5, "version": 3, **more})


def measured(examples: Any = 9, **more: Any) -> MetricRecord:
    return MetricRecord({"num-examples": examples, **more})


def test_a_training_task_has_the_form_of_flowers_own_strategies() -> None:
    codec = FlowerCodec(TEMPLATE, Needs(sends="delta", loss=True, proximal=0.1))
    told = Task(5, "train", 7, "north", 100.0, 3, START, {"lr": 0.5, "optimizer.name": "sgd"})
    message = over_the_wire(codec.message(told))
    metadata = message.metadata
    assert (metadata.message_type, metadata.dst_node_id, metadata.group_id) == ("train", 7, "3")
    assert metadata.ttl == 360.0
    assert list(message.content.config_records) == ["config"]  # Flower's mods want one
    assert dict(message.content["config"]) == {
        "lr": 0.5,
        "optimizer.name": "sgd",
        "server-round": 4,
        "proximal-mu": 0.1,
        "fedraw.task": 5,
        "fedraw.version": 3,
        "fedraw.loss": True,
    }
    assert message.content["config"].count_bytes() > 0  # Flower's message_size_mod does this
    assert message.content[ARRAYS] == MODEL


@pytest.mark.parametrize(
    "records",
    [
        {FIELDS: facts(), COUNTS: ConfigRecord({"x" * 1_100_000: 1})},
        {FIELDS: facts(more="x" * 1_100_000), COUNTS: ConfigRecord({"cat": 1})},
        {FIELDS: facts(more=[1.0] * 132_000), COUNTS: ConfigRecord({"cat": 1})},
        {FIELDS: facts(), "more": MetricRecord({"x": [1.0] * 132_000})},
        {FIELDS: facts(), "more": record_of({"w": np.zeros(300_000, np.float32)})},
    ],
    ids=["label", "text", "list", "metrics", "arrays"],
)
@pytest.mark.parametrize("kind", ["summary", "train", "evaluate"])
def test_a_too_large_reply_is_a_fault_of_the_site(records: dict[str, Any], kind: TaskKind) -> None:
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(reply_message(kind, records))
    assert isinstance(reply, Failure) and reply.site_fault and reply.malformed
    assert "bytes; the limit is 104" in reply.reason and len(reply.reason) < 200


def test_too_many_labels_are_refused() -> None:
    many = ConfigRecord({str(i): 1 for i in range(10_001)})
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(
        reply_message("summary", {FIELDS: facts(), COUNTS: many})
    )
    assert reply == Failure(
        "unreadable reply: record 'counts' has 10001 labels; the limit is 10000", malformed=True
    )


def test_a_summary_needs_no_model() -> None:
    asked = Task(1, "summary", 7, None, 300.0)
    message = over_the_wire(FlowerCodec(TEMPLATE, Needs()).message(asked))
    assert message.metadata.message_type == "query.fedraw"
    assert ARRAYS not in message.content


def test_all_tasks_of_a_version_share_one_record() -> None:
    codec = FlowerCodec(TEMPLATE, Needs())
    first, second = codec.message(task(node=7)), codec.message(task("evaluate", node=8))
    assert first.content[ARRAYS] is second.content[ARRAYS]
    newer = Task(6, "train", 7, "north", 100.0, 4, START + 1)
    assert codec.message(newer).content[ARRAYS]["w"].numpy().tolist() == [2, 3]


def test_a_trained_model_is_read() -> None:
    counts = ConfigRecord({"cat": 3})
    metrics = measured(9, train_loss=0.5, dice=[0.5, 1.0])
    records = {FIELDS: facts(), ARRAYS: MODEL, METRICS: metrics, COUNTS: counts}
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(reply_message("train", records))
    assert isinstance(reply, TrainReply)
    assert (reply.site, reply.task, reply.version) == ("north", 5, 3)
    assert (reply.examples, reply.loss, reply.counts) == (9, 0.5, {"cat": 3})
    assert reply.metrics == {"train_loss": 0.5, "dice.0": 0.5, "dice.1": 1.0}
    assert reply.vector.tolist() == [1, 2, 3] and reply.is_model


def test_the_reply_of_an_app_that_does_not_know_fedraw_is_read() -> None:
    codec = FlowerCodec(TEMPLATE, Needs())
    reply = codec.read_reply(reply_message("train", {"mine": MODEL, "told": measured(9)}))
    assert isinstance(reply, TrainReply)
    assert (reply.site, reply.task, reply.version, reply.examples) == (None, None, None, 9)
    reply = codec.read_reply(reply_message("evaluate", {"told": measured(9, auc=0.5)}))
    assert isinstance(reply, EvaluateReply)
    assert (reply.site, reply.metrics, reply.examples) == (None, {"auc": 0.5}, 9)
    asked = codec.message(Task(5, "summary", 7, None, 300.0))
    asked.metadata.__dict__["_message_id"] = "message_id"
    words = "<class 'ValueError'>:<'No query function registered with name 'fedraw''>"
    reply = codec.read_reply(Message(Error(2, words), reply_to=asked))
    assert isinstance(reply, LabelSummary)
    assert (reply.site, reply.counts) == ("node-7", {})


def test_loss_and_counts_may_be_absent() -> None:
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(
        reply_message("train", {FIELDS: facts(), METRICS: measured(), ARRAYS: MODEL})
    )
    assert isinstance(reply, TrainReply)
    assert (reply.loss, reply.counts) == (None, None)


def test_summaries_and_evaluations_are_read() -> None:
    codec = FlowerCodec(TEMPLATE, Needs())
    counts = ConfigRecord({"cat": 3, "owl": -1})  # whether that can be is for the server to say
    summary = codec.read_reply(reply_message("summary", {FIELDS: facts(), COUNTS: counts}))
    assert isinstance(summary, LabelSummary)
    assert (summary.site, summary.counts) == ("north", {"cat": 3, "owl": -1})
    right, total = ConfigRecord({"cat": 1}), ConfigRecord({"cat": 2})
    evaluated = codec.read_reply(
        reply_message(
            "evaluate", {FIELDS: facts(), METRICS: measured(2), RIGHT: right, TOTAL: total}
        )
    )
    assert isinstance(evaluated, EvaluateReply)
    assert (evaluated.task, evaluated.right, evaluated.total) == (5, {"cat": 1}, {"cat": 2})


BAD: list[tuple[TaskKind, dict[str, Any], str]] = [
    ("train", {}, "a reply must have one ArrayRecord; this one has 0"),
    (
        "train",
        {ARRAYS: MODEL, "more": MODEL, METRICS: measured()},
        "a reply must have one ArrayRecord",
    ),
    ("train", {FIELDS: MetricRecord({"a": 1})}, "record 'fedraw' is of type MetricRecord"),
    ("train", {FIELDS: ConfigRecord({"site": 3})}, "site is 3, not a text"),
    ("train", {FIELDS: ConfigRecord({"site": "a"})}, "task is missing"),
    ("train", {ARRAYS: MODEL}, "num-examples is missing"),
    ("train", {ARRAYS: MODEL, METRICS: measured(2.5)}, "num-examples is 2.5"),
    ("train", {ARRAYS: MODEL, METRICS: measured(NAN)}, "num-examples is nan"),
    ("train", {ARRAYS: ArrayRecord(), METRICS: measured()}, "tensor 'w' is missing"),
    ("train", {ARRAYS: MODEL, METRICS: measured(norm_bit=1)}, "its app uses adaptiveclipping_mod"),
    ("summary", {}, "record 'fedraw' is missing"),
    (
        "summary",
        {FIELDS: facts(), COUNTS: ConfigRecord({"cat": 2.5})},
        "counts of label 'cat' is 2.5, not a whole number",
    ),
    ("evaluate", {RIGHT: ConfigRecord(), TOTAL: ConfigRecord()}, "num-examples is missing"),
]


@pytest.mark.parametrize(("kind", "records", "words"), BAD)
def test_an_unreadable_reply_is_a_failure(
    kind: TaskKind, records: dict[str, Any], words: str
) -> None:
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(reply_message(kind, records))
    assert isinstance(reply, Failure)
    assert reply.reason.startswith(f"unreadable reply: {words}")
    assert reply.site_fault


def test_nan_is_read_and_left_to_the_server_to_refuse() -> None:
    sent = TEMPLATE.write(np.array([NAN, 1, 2], np.float32))
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(
        reply_message("train", {METRICS: measured(), ARRAYS: sent})
    )
    assert isinstance(reply, TrainReply)
    assert np.isnan(reply.vector[0])


SCALARS = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.binary(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)
NAMES = st.sampled_from(["site", "task", "version", "other"])
CONFIGS = st.dictionaries(NAMES, SCALARS).map(ConfigRecord)
NUMBERS = st.one_of(st.integers(-(2**62), 2**62), st.floats(), st.lists(st.floats(), max_size=3))
MEASURED = st.dictionaries(st.sampled_from(["num-examples", "x"]), NUMBERS).map(MetricRecord)
TENSORS = st.builds(
    Array,
    dtype=st.text(max_size=5),
    shape=st.lists(st.integers(-1, 3), max_size=3).map(tuple),
    stype=st.sampled_from(["numpy.ndarray", "other"]),
    data=st.binary(max_size=80).map(lambda junk: MODEL["w"].data[:99] + junk),
)
RECORDS = st.one_of(
    CONFIGS,
    MEASURED,
    st.dictionaries(st.sampled_from(["w", "running_var"]), TENSORS).map(ArrayRecord),
)


@given(
    st.sampled_from(["summary", "train", "evaluate"]),
    st.dictionaries(st.sampled_from([FIELDS, ARRAYS, METRICS, COUNTS, RIGHT, TOTAL]), RECORDS),
)
def test_reading_a_reply_never_raises(kind: Any, records: dict[str, Any]) -> None:
    asked = Message(RecordDict(), dst_node_id=7, message_type=_TYPES[kind])
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(Message(RecordDict(records), reply_to=asked))
    assert isinstance(reply, Failure | LabelSummary | TrainReply | EvaluateReply)


_TYPES = {"summary": "query.fedraw", "train": "train", "evaluate": "evaluate"}


@pytest.mark.parametrize(
    ("code", "reason", "words", "site_fault"),
    [
        (1, "no module", "its client app cannot be loaded: no module", True),
        (
            2,
            "Traceback\n  x\nKeyError: 1\n",
            "its client app raised an exception: KeyError: 1",
            True,
        ),
        (3, "TTL", "the message or its reply has expired", False),
        (5, "Node Unavailable - …", "the node is unreachable", False),
        (8, None, "its client app crashed", True),
        (99, "new", "Flower's error 99: new", True),
        (
            2,
            "<class 'ValueError'>:<'Invalid message type: query.fedraw'>",
            "its client app raised an exception: <class 'ValueError'>:<'Invalid message type: "
            "query.fedraw'>; its app has a client_fn; convert it to Flower's message API",
            True,
        ),
        (
            2,
            "KeyError: 'secaggplus_configs'",
            "its client app raised an exception: KeyError: 'secaggplus_configs'; its app uses "
            "secure aggregation, which needs all sites of a round at the same time; an "
            "asynchronous server aggregates single updates, so remove the mod",
            True,
        ),
    ],
)
def test_errors_are_described_by_their_code(
    code: int, reason: str | None, words: str, site_fault: bool
) -> None:
    assert failure(Error(code, reason)) == Failure(words, site_fault)


def test_an_error_reply_is_a_failure_with_a_truncated_reason() -> None:
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    reply = FlowerCodec(TEMPLATE, Needs()).read_reply(Message(Error(2, "x" * 9999), reply_to=asked))
    assert isinstance(reply, Failure)
    assert len(reply.reason) < 400
