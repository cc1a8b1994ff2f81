"""Models, tasks and replies on FLARE as plain values; nothing here needs nvflare."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedraw.flare
from fedraw.errors import BadInput, MissingExtra, RefusedUpdate
from fedraw.flare.messages import Arrays, MessageCodec, Template, read_strategy
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Task,
    TaskKind,
    TrainReply,
)
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedraw import FedRAW

MODEL: Arrays = {
    "w": np.arange(4, dtype=np.float32).reshape(2, 2),
    "bn.running_mean": np.array([7.0], np.float64),
    "bn.num_batches_tracked": np.array(3),
    "b": np.array([8.0, 9.0], np.float16),
}
TRAINED: Arrays = {
    "w": np.ones((2, 2), np.float32),
    "bn.running_mean": np.zeros(1),
    "b": np.zeros(2, "f2"),
}
FIELDS: dict[str, Any] = {"task": 5, "version": 2, "examples": 30}


def codec() -> MessageCodec:
    return MessageCodec(Template.of(MODEL), FedRAW(buffer=1).needs)


def test_a_model_survives_a_round_trip_with_statistics_last() -> None:
    template = Template.of(MODEL)
    vector = template.read(MODEL)
    assert vector.dtype == np.float32
    assert vector.tolist() == [0, 1, 2, 3, 8, 9, 7]
    written = template.write(vector)
    assert list(written) == list(MODEL)
    for name, array in MODEL.items():
        assert written[name].dtype == array.dtype
        np.testing.assert_array_equal(written[name], array)


def test_a_vector_does_not_share_memory_with_a_reply() -> None:
    sent = dict(TRAINED)
    vector = Template.of(MODEL).read(sent)
    sent["w"][:] = 5
    assert vector[:4].tolist() == [1, 1, 1, 1]
    sent["w"][:] = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, "'w' is float32 of shape (2, 3), but the model's is"),
        ({"w": np.zeros((2, 2), np.complex64)}, "'w' is complex64 of shape (2, 2)"),
        ({"w": np.zeros((2, 2), object)}, "'w' is object of shape (2, 2)"),
        ({"w": [[1.0, 2.0], [3.0, 4.0]]}, "'w' is list, not a NumPy array"),
        ({"w": None}, "'w' is missing"),
        ({"x": np.zeros(2)}, "'x' is not part of the model"),
        ({7: np.zeros(2)}, "7 is not part of the model"),
    ],
)
def test_another_model_is_refused_with_the_tensor_that_differs(
    change: dict[Any, Any], words: str
) -> None:
    with pytest.raises(RefusedUpdate) as refusal:
        Template.of(MODEL).read({**TRAINED, **change})
    assert words in str(refusal.value)


def test_another_byte_order_is_read() -> None:
    swapped = TRAINED["w"].astype(">f4")
    assert Template.of(MODEL).read({**TRAINED, "w": swapped})[:4].tolist() == [1, 1, 1, 1]


def test_a_model_without_floats_is_bad_input() -> None:
    with pytest.raises(BadInput, match="nothing to train"):
        Template.of({"n": np.array(3)})
    with pytest.raises(BadInput, match="not list"):
        Template.of([])  # type: ignore[arg-type]


def a_task(kind: TaskKind = "train", start: float = 0.0) -> Task:
    return Task(4, kind, 11, "north", 60.0, 9, np.full(7, start, np.float32), {"lr": 0.1})


def test_a_training_task_has_the_needs_and_the_users_settings() -> None:
    assert MessageCodec(Template.of(MODEL), FedAsync(proximal=0.5).needs).fields(a_task()) == {
        "kind": "train",
        "task": 4,
        "version": 9,
        "wants_loss": False,
        "proximal": 0.5,
        "settings": {"lr": 0.1},
    }
    summary = Task(1, "summary", 11, None, 60.0)
    assert codec().fields(summary) == {"kind": "summary", "task": 1, "version": 0}


def test_sites_that_get_the_same_version_share_its_arrays() -> None:
    own, model = codec(), np.zeros(7, np.float32)
    assert own.arrays(model) is own.arrays(model)
    assert own.arrays(model.copy()) is not own.arrays(model)


def test_replies_are_read() -> None:
    own = codec()
    summary = own.read_reply(a_task("summary"), "north", {}, {"counts": {"cat": 3}})
    assert isinstance(summary, LabelSummary)
    assert (summary.site, summary.counts) == ("north", {"cat": 3})
    trained = own.read_reply(a_task(), "north", TRAINED, {**FIELDS, "metrics": {"loss": 0.5}})
    assert isinstance(trained, TrainReply)
    assert (trained.site, trained.task, trained.version) == ("north", 5, 2)
    assert (trained.examples, trained.loss, trained.counts) == (30, 0.5, None)
    assert trained.is_model
    tested = {"task": 5, "right": {"cat": 1}, "total": {"cat": 2}, "examples": 2}
    evaluated = own.read_reply(a_task("evaluate"), "north", {}, {**tested, "metrics": {"auc": 1}})
    assert isinstance(evaluated, EvaluateReply)
    assert (evaluated.right, evaluated.total) == ({"cat": 1}, {"cat": 2})
    assert (evaluated.metrics, evaluated.examples) == ({"auc": 1}, 2)


def test_a_difference_is_added_to_the_model_of_its_task() -> None:
    trained = codec().read_reply(a_task(start=2.0), "north", TRAINED, FIELDS, is_difference=True)
    assert isinstance(trained, TrainReply)
    assert trained.vector.tolist() == [3, 3, 3, 3, 2, 2, 2]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (None, "does the site's script call fedraw.flare.join?"),
        ({}, "task is missing"),
        ({**FIELDS, "task": "5"}, "task is '5', not a whole number"),
        ({**FIELDS, "examples": True}, "examples is True"),
        ({**FIELDS, "metrics": {"loss": "low"}}, "metric 'loss' is 'low', not a number"),
        ({**FIELDS, "metrics": [1]}, "metrics is [1], not a dictionary of numbers"),
        ({**FIELDS, "counts": [1]}, "counts is [1], not a dictionary of counts"),
        ({**FIELDS, "counts": {"cat": 0.5}}, "not a whole number"),
        ({**FIELDS, "counts": {7: 1}}, "the label 7, which is not a text"),
        ({**FIELDS, "counts": {str(i): 1 for i in range(10_001)}}, "the limit is 10000"),
    ],
)
def test_an_invalid_reply_is_malformed(fields: object, words: str) -> None:
    reply = codec().read_reply(a_task(), "north", TRAINED, fields)
    assert isinstance(reply, Failure)
    assert reply.malformed
    assert reply.site_fault
    assert words in reply.reason


def test_an_error_of_the_script_is_not_malformed() -> None:
    reply = codec().read_reply(
        a_task("evaluate"), "north", {}, {"error": "x" * 999 + "ValueError: no data"}
    )
    assert isinstance(reply, Failure)
    assert reply.reason.endswith("ValueError: no data")
    assert len(reply.reason) < 350
    assert not reply.malformed


def test_a_reply_much_larger_than_the_model_is_refused() -> None:
    large = {**TRAINED, "bn.num_batches_tracked": np.zeros(1 << 18, np.int64)}
    reply = codec().read_reply(a_task(), "north", large, FIELDS)
    assert isinstance(reply, Failure)
    assert "bytes; the limit is 1048" in reply.reason


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(kind=st.sampled_from(["summary", "train", "evaluate"]), arrays=values, fields=values)
def test_reading_a_reply_never_raises(kind: Any, arrays: object, fields: object) -> None:
    reply = codec().read_reply(a_task(kind), "north", arrays, fields)
    assert isinstance(reply, Failure | LabelSummary)


@pytest.mark.skipif(find_spec("nvflare") is not None, reason="nvflare is installed")
def test_without_nvflare_the_remedy_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'fedraw\[flare\]'"):
        _ = fedraw.flare.join
    assert not hasattr(fedraw.flare, "nothing")
    words = [sys.executable, "-m", "fedraw.flare.supervise", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: this needs nvflare: pip install 'fedraw[flare]'\n"


def test_this_module_imports_no_nvflare() -> None:
    code = "import sys, fedraw.flare.messages; print('nvflare' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_strategy_whose_sites_send_sums_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match=r"'one-pass' runs on Flower and in the simulator; FLARE follows.*; choose a method",
    ):
        read_strategy({"name": "one-pass", "prior": 0.5})
    assert read_strategy({"name": "fedraw", "buffer": 3}) == FedRAW(3)
