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

from fedraw.flower.envelope import ARRAYS, COUNTS, FACTS, RIGHT, TOTAL
from fedraw.flower.messages import Post, failure
from fedraw.flower.tensors import Template, record_of
from fedraw.server.orders import Evaluated, Failure, Kind, Order, Summary, Trained
from fedraw.strategies.protocol import Needs

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = record_of({"w": np.array([1, 2], np.float32), "running_var": np.array([3], np.float32)})
TEMPLATE = Template.of(MODEL)
START = TEMPLATE.read(MODEL)
NAN = float("nan")


def order(kind: Kind = "train", node: int = 7) -> Order:
    return Order(5, kind, node, "north", deadline=100.0, version=3, model=START)


def reply(kind: Kind, records: dict[str, Any]) -> Message:
    asked = Post(TEMPLATE, Needs()).message(order(kind))
    asked.metadata.__dict__["_message_id"] = "ticket"
    return over_the_wire(Message(RecordDict(records), reply_to=asked))


def facts(**more: Any) -> ConfigRecord:
    return ConfigRecord({"site": "north", "order": 5, "version": 3, **more})


def test_a_training_is_asked_for_with_all_that_the_strategy_wants() -> None:
    post = Post(TEMPLATE, Needs(sends="delta", loss=True, proximal=0.1))
    message = over_the_wire(post.message(order()))
    metadata = message.metadata
    assert (metadata.message_type, metadata.dst_node_id, metadata.group_id) == ("train", 7, "3")
    assert metadata.ttl == 360.0
    assert dict(message.content[FACTS]) == {
        "order": 5,
        "version": 3,
        "sends": "delta",
        "loss": True,
        "proximal": 0.1,
        "statistics": ["running_var"],
    }
    assert message.content[ARRAYS] == MODEL


def test_a_model_without_statistics_can_be_sent() -> None:
    plain = record_of({"w": np.array([1], np.float32)})
    template = Template.of(plain)
    asked = Order(1, "train", 7, "north", 100.0, 0, template.read(plain))
    facts = over_the_wire(Post(template, Needs()).message(asked)).content[FACTS]
    assert "statistics" not in facts  # an empty list would break Flower's message_size_mod
    assert facts.count_bytes() > 0


@pytest.mark.parametrize(
    "records",
    [
        {FACTS: facts(), COUNTS: ConfigRecord({"x" * 1_100_000: 1})},
        {FACTS: facts(more="x" * 1_100_000), COUNTS: ConfigRecord({"cat": 1})},
        {FACTS: facts(more=[1.0] * 132_000), COUNTS: ConfigRecord({"cat": 1})},
        {FACTS: facts(), "more": MetricRecord({"x": [1.0] * 132_000})},
        {FACTS: facts(), "more": record_of({"w": np.zeros(300_000, np.float32)})},
    ],
    ids=["label", "text", "list", "metrics", "arrays"],
)
@pytest.mark.parametrize("kind", ["summary", "train", "evaluate"])
def test_a_reply_that_is_too_large_is_the_fault_of_its_sender(
    records: dict[str, Any], kind: Kind
) -> None:
    answer = Post(TEMPLATE, Needs()).answer(reply(kind, records))
    assert isinstance(answer, Failure) and answer.to_blame and answer.malformed
    assert "bytes; 104" in answer.reason and len(answer.reason) < 200


def test_more_labels_than_the_server_keeps_are_not_read() -> None:
    many = ConfigRecord({str(i): 1 for i in range(10_001)})
    answer = Post(TEMPLATE, Needs()).answer(reply("summary", {FACTS: facts(), COUNTS: many}))
    assert answer == Failure(
        "unreadable reply: record 'counts' has 10001 labels; 10000 is the most", malformed=True
    )


def test_a_summary_needs_no_model() -> None:
    asked = Order(1, "summary", 7, None, 300.0)
    message = over_the_wire(Post(TEMPLATE, Needs()).message(asked))
    assert message.metadata.message_type == "query"
    assert ARRAYS not in message.content


def test_one_record_goes_to_everyone_who_gets_a_version() -> None:
    post = Post(TEMPLATE, Needs())
    first, second = post.message(order(node=7)), post.message(order("evaluate", node=8))
    assert first.content[ARRAYS] is second.content[ARRAYS]
    newer = Order(6, "train", 7, "north", 100.0, 4, START + 1)
    assert post.message(newer).content[ARRAYS]["w"].numpy().tolist() == [2, 3]


def test_a_trained_model_is_read() -> None:
    counts = ConfigRecord({"cat": 3})
    records = {FACTS: facts(examples=9, loss=0.5), ARRAYS: MODEL, COUNTS: counts}
    answer = Post(TEMPLATE, Needs()).answer(reply("train", records))
    assert isinstance(answer, Trained)
    assert (answer.site, answer.order, answer.version) == ("north", 5, 3)
    assert (answer.examples, answer.loss, answer.counts) == (9, 0.5, {"cat": 3})
    assert answer.vector.tolist() == [1, 2, 3]


def test_loss_and_counts_may_be_absent() -> None:
    answer = Post(TEMPLATE, Needs()).answer(
        reply("train", {FACTS: facts(examples=9), ARRAYS: MODEL})
    )
    assert isinstance(answer, Trained)
    assert (answer.loss, answer.counts) == (None, None)


def test_summaries_and_evaluations_are_read() -> None:
    post = Post(TEMPLATE, Needs())
    counts = ConfigRecord({"cat": 3, "owl": -1})  # whether that can be is for the server to say
    summary = post.answer(reply("summary", {FACTS: facts(), COUNTS: counts}))
    assert isinstance(summary, Summary)
    assert (summary.site, summary.counts) == ("north", {"cat": 3, "owl": -1})
    right, total = ConfigRecord({"cat": 1}), ConfigRecord({"cat": 2})
    evaluated = post.answer(reply("evaluate", {FACTS: facts(), RIGHT: right, TOTAL: total}))
    assert isinstance(evaluated, Evaluated)
    assert (evaluated.order, evaluated.right, evaluated.total) == (5, {"cat": 1}, {"cat": 2})


BAD: list[tuple[Kind, dict[str, Any], str]] = [
    ("train", {}, "record 'fedraw' is missing"),
    ("train", {FACTS: MetricRecord({"a": 1})}, "record 'fedraw' is of type MetricRecord"),
    ("train", {FACTS: ConfigRecord({"site": 3})}, "site is 3, not a text"),
    ("train", {FACTS: ConfigRecord({"site": "a"})}, "order is missing"),
    ("train", {FACTS: facts(), ARRAYS: MODEL}, "examples is missing"),
    ("train", {FACTS: facts(examples=2.0), ARRAYS: MODEL}, "examples is 2.0, not a whole number"),
    ("train", {FACTS: facts(examples=True), ARRAYS: MODEL}, "examples is True, not a whole number"),
    ("train", {FACTS: facts(examples=2)}, "record 'arrays' is missing"),
    ("train", {FACTS: facts(examples=2), ARRAYS: ArrayRecord()}, "tensor 'w' is missing"),
    ("train", {FACTS: facts(examples=2, loss="x"), ARRAYS: MODEL}, "loss is 'x', not a number"),
    (
        "summary",
        {FACTS: facts(), COUNTS: ConfigRecord({"cat": 2.5})},
        "counts of label 'cat' is 2.5, no whole number",
    ),
    ("evaluate", {FACTS: facts(), RIGHT: ConfigRecord()}, "record 'total' is missing"),
]


@pytest.mark.parametrize(("kind", "records", "words"), BAD)
def test_an_unreadable_reply_is_a_failure(kind: Kind, records: dict[str, Any], words: str) -> None:
    answer = Post(TEMPLATE, Needs()).answer(reply(kind, records))
    assert isinstance(answer, Failure)
    assert answer.reason.startswith(f"unreadable reply: {words}")
    assert answer.to_blame


def test_nan_is_read_for_the_server_to_refuse() -> None:
    sent = TEMPLATE.write(np.array([NAN, 1, 2], np.float32))
    answer = Post(TEMPLATE, Needs()).answer(
        reply("train", {FACTS: facts(examples=2), ARRAYS: sent})
    )
    assert isinstance(answer, Trained)
    assert np.isnan(answer.vector[0])


SCALARS = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.binary(max_size=5),
    st.lists(st.integers(0, 9), max_size=3),
)
NAMES = st.sampled_from(["site", "order", "version", "examples", "loss", "other"])
CONFIGS = st.dictionaries(NAMES, SCALARS).map(ConfigRecord)
TENSORS = st.builds(
    Array,
    dtype=st.text(max_size=5),
    shape=st.lists(st.integers(-1, 3), max_size=3).map(tuple),
    stype=st.sampled_from(["numpy.ndarray", "other"]),
    data=st.binary(max_size=80).map(lambda junk: MODEL["w"].data[:99] + junk),
)
RECORDS = st.one_of(
    CONFIGS, st.dictionaries(st.sampled_from(["w", "running_var"]), TENSORS).map(ArrayRecord)
)


@given(
    st.sampled_from(["summary", "train", "evaluate"]),
    st.dictionaries(st.sampled_from([FACTS, ARRAYS, COUNTS, RIGHT, TOTAL]), RECORDS),
)
def test_whatever_a_site_sends_nothing_is_raised(kind: Any, records: dict[str, Any]) -> None:
    asked = Message(RecordDict(), dst_node_id=7, message_type=_TYPES[kind])
    answer = Post(TEMPLATE, Needs()).answer(Message(RecordDict(records), reply_to=asked))
    assert isinstance(answer, Failure | Summary | Trained | Evaluated)


_TYPES = {"summary": "query", "train": "train", "evaluate": "evaluate"}


@pytest.mark.parametrize(
    ("code", "reason", "words", "to_blame"),
    [
        (1, "no module", "its client app cannot be loaded: no module", True),
        (
            2,
            "Traceback\n  x\nKeyError: 1\n",
            "its client app raised an exception: KeyError: 1",
            True,
        ),
        (3, "TTL", "the message or its reply has expired", False),
        (5, "Node Unavailable - …", "the node is out of reach", False),
        (8, None, "its client app crashed", True),
        (99, "new", "Flower's error 99: new", True),
    ],
)
def test_errors_are_told_by_their_code(
    code: int, reason: str | None, words: str, to_blame: bool
) -> None:
    assert failure(Error(code, reason)) == Failure(words, to_blame)


def test_an_error_reply_is_a_failure_and_a_long_reason_is_cut() -> None:
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    answer = Post(TEMPLATE, Needs()).answer(Message(Error(2, "x" * 9999), reply_to=asked))
    assert isinstance(answer, Failure)
    assert len(answer.reason) < 400
