from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from tests.flower.memory_grid import context_of, identity, over_the_wire

from fedraw.errors import BadInput
from fedraw.flower.client import TrainConfig, client_app, site_name
from fedraw.flower.messages import FlowerCodec
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.server.results import Recall
from fedraw.server.tasks import EvaluateReply, LabelSummary, Reply, Task, TaskKind, TrainReply
from fedraw.strategies.protocol import Needs

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = record_of(
    {
        "w": np.array([1, 2], np.float32),
        "running_var": np.array([10], np.float32),
        "seen": np.array(4),
    }
)
TEMPLATE = TensorTemplate.of(MODEL)
START = TEMPLATE.read(MODEL)


PLAIN = Needs()


def ask(
    app: ClientApp,
    kind: TaskKind = "train",
    needs: Needs = PLAIN,
    context: Context | None = None,
    config: Mapping[str, Any] | None = None,
) -> Reply:
    """The reply to a query of the server."""
    codec = FlowerCodec(TEMPLATE, needs)
    message = codec.message(Task(5, kind, 7, "north", 100.0, 3, START, config or {}))
    message.metadata.__dict__["_message_id"] = "message_id"
    reply = app(over_the_wire(message), context or context_of(site="north"))
    assert reply.metadata.reply_to_message_id == "message_id"
    return codec.read_reply(over_the_wire(reply))


def doubled(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    return {name: 2 * array.numpy() for name, array in arrays.items()}, 8


def counting(counts: Any) -> Callable[[Context], Any]:
    return lambda context: counts


def test_a_site_declares_its_labels() -> None:
    app = client_app(train=doubled, label_counts=counting({0: np.int64(3), "cat": 2}))
    reply = ask(app, "summary")
    assert isinstance(reply, LabelSummary)
    assert (reply.site, reply.counts) == ("north", {"0": 3, "cat": 2})


def test_a_reply_has_the_complete_model() -> None:
    reply = ask(client_app(train=doubled, label_counts=counting({"cat": 2})))
    assert isinstance(reply, TrainReply)
    assert reply.vector.tolist() == [2, 4, 20] and reply.is_model
    assert (reply.site, reply.task, reply.version) == ("north", 5, 3)
    assert (reply.examples, reply.loss) == (8, None)


def test_training_receives_the_needs_of_the_strategy() -> None:
    told = []

    def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
        told.append((config, context.node_config["site"], list(arrays)))
        return arrays, np.int64(3), np.float32(0.5)

    app = client_app(train=train, label_counts=counting({"cat": 2}))
    reply = ask(app, needs=Needs(loss=True, proximal=0.1))
    assert told == [(TrainConfig(3, 0.1, True), "north", ["w", "running_var", "seen"])]
    assert isinstance(reply, TrainReply)
    assert (reply.examples, reply.loss) == (3, 0.5)


def test_training_receives_settings_and_reports_metrics() -> None:
    told = []

    def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
        told.append(config.settings)
        return arrays, 3, {"auc": np.float32(0.5), "train_loss": 1}

    reply = ask(client_app(train=train), config={"local-epochs": 2, "optimizer.lr": 0.5})
    assert told == [{"local-epochs": 2, "optimizer.lr": 0.5}]
    assert isinstance(reply, TrainReply)
    assert reply.metrics == {"auc": 0.5, "train_loss": 1.0}
    assert reply.loss == 1.0


def test_changed_counts_are_sent_until_the_server_asks_again() -> None:
    counts, context = {"cat": 2}, context_of(site="north")
    app = client_app(train=doubled, label_counts=lambda _: dict(counts))

    def told(kind: TaskKind = "train") -> Any:
        reply = ask(app, kind, context=context)
        assert isinstance(reply, TrainReply | LabelSummary)
        return reply.counts

    assert told("summary") == {"cat": 2}
    assert told() is None
    counts["cat"] = 3
    assert [told(), told()] == [{"cat": 3}, {"cat": 3}]
    counts["cat"] = 2  # back to what the server was told first, but not last
    assert told() == {"cat": 2}
    assert told("summary") == {"cat": 2}
    assert told() is None


def test_a_site_evaluates_on_its_own_data() -> None:
    def evaluate(arrays: ArrayRecord, context: Context) -> Recall:
        assert arrays["w"].numpy().tolist() == [1, 2]
        return Recall({"cat": 1}, {"cat": 2, "owl": 1})

    app = client_app(train=doubled, label_counts=counting({"cat": 2}), evaluate=evaluate)
    reply = ask(app, "evaluate")
    assert isinstance(reply, EvaluateReply)
    assert (reply.site, reply.task) == ("north", 5)
    assert (reply.right, reply.total) == ({"cat": 1}, {"cat": 2, "owl": 1})


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"site": "north", "partition-id": 3}, "north"),
        ({"partition-id": 3}, "site-3"),
        ({}, "node-7"),
    ],
)
def test_the_name_of_a_site(config: dict[str, Any], name: str) -> None:
    assert site_name(context_of(7, **config)) == name


def test_flower_handles_an_exception_of_the_user() -> None:
    def train(*_: Any) -> Any:
        raise ZeroDivisionError("no data")

    with pytest.raises(ZeroDivisionError, match="no data"):
        ask(client_app(train=train, label_counts=counting({"cat": 2})))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "train returns NoneType; it must return (model, examples)"),
        ((MODEL,), "train returns tuple; it must return (model, examples)"),
        ((MODEL, 2.5), "train returns 2.5 examples; it must be a whole number"),
        (([1], 2), "a model is a state_dict"),
        (
            ({"w": np.ones(2, np.float32)}, 2),
            "train returns a model with other tensors than it received: tensor",
        ),
    ],
)
def test_an_invalid_result_of_train_is_refused_at_the_site(result: Any, words: str) -> None:
    app = client_app(train=lambda *_: result, label_counts=counting({"cat": 2}))
    with pytest.raises(BadInput) as error:
        ask(app)
    assert str(error.value).startswith(words)


def test_a_missing_loss_is_refused_if_the_strategy_needs_it() -> None:
    app = client_app(train=doubled, label_counts=counting({"cat": 2}))
    with pytest.raises(BadInput, match="weighs sites by their loss"):
        ask(app, needs=Needs(loss=True))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([1, 2], "label_counts is list"),
        ({"cat": 1.5}, "label_counts has 1.5 for label 'cat'"),
        ({1: 2, "1": 3}, "label_counts has label '1' twice"),
    ],
)
def test_invalid_label_counts_are_refused_at_the_site(counts: Any, words: str) -> None:
    app = client_app(train=doubled, label_counts=counting(counts))
    with pytest.raises(BadInput) as error:
        ask(app, "summary")
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("found", "right", "metrics", "examples"),
    [
        ({"auc": 0.5, "num-examples": 9}, {}, {"auc": 0.5}, 9),
        ((Recall({"cat": 1}, {"cat": 2}), {"dice": 1}), {"cat": 1}, {"dice": 1.0}, 2),
    ],
)
def test_an_evaluation_may_return_any_metrics(
    found: Any, right: Any, metrics: Any, examples: int
) -> None:
    app = client_app(train=doubled, evaluate=lambda arrays, context: found)
    reply = ask(app, "evaluate")
    assert isinstance(reply, EvaluateReply)
    assert (reply.right, reply.metrics, reply.examples) == (right, metrics, examples)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (0.9, "evaluate returns float; it must return a Recall, a mapping"),
        ({"auc": "high"}, "evaluate: auc is 'high', not a number"),
        ({"auc": 0.9}, "evaluate returns metrics without num-examples"),
        ({"GlobalAcc": 0.9, "num-examples": 3}, "'GlobalAcc' is a metric of fedraw"),
    ],
)
def test_an_invalid_result_of_evaluate_is_refused_at_the_site(found: Any, words: str) -> None:
    app = client_app(train=doubled, evaluate=lambda arrays, context: found)
    with pytest.raises(BadInput, match=words):
        ask(app, "evaluate")


def test_client_app_takes_an_app_or_functions() -> None:
    for wrong in (
        {},
        {"app": ClientApp(), "train": doubled},
        {"app": ClientApp(), "evaluate": lambda *_: None},
    ):
        with pytest.raises(BadInput, match="client_app takes either an existing app, or train"):
            client_app(**wrong)
