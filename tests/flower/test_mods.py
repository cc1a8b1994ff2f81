"""Flower's own mods apply to training only, and see the model before a difference is computed.

Every number is by hand: the model is w = (3, 4) with a running variance of 10 and an integer, and
training adds (6, 8) to w and nothing to the variance, so that the update has norm 10. Each mod is
tried in three apps: functions in client_app, an existing app in client_app, and an existing app
that knows nothing of fedraw and has the mod at its own @app.train.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from tests.flower.memory_grid import MemoryGrid, context_of, identity, over_the_wire

from fedraw.errors import BadInput
from fedraw.flower.client import TrainConfig, client_app
from fedraw.flower.messages import FlowerCodec
from fedraw.flower.server import server_app
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.server.results import Recall
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TaskKind,
    TrainReply,
)
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Needs

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = record_of(
    {
        "w": np.array([3, 4], np.float32),
        "running_var": np.array([10], np.float32),
        "seen": np.array([4]),
    }
)


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    model["w"] += np.array([6, 8], np.float32)
    if "seen" in model:
        model["seen"] += 100
    return model, 8


def of_functions(*mods: Any) -> ClientApp:
    return client_app(
        train=train,
        label_counts=lambda context: {"cat": 2},
        evaluate=lambda arrays, context: Recall({"cat": 1}, {"cat": 2}),
        mods=list(mods),
    )


def existing(*mods: Any) -> ClientApp:
    app = ClientApp()

    @app.train(mods=list(mods))  # type: ignore[untyped-decorator]
    def on_train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord(dict(message.content["arrays"]))
        arrays["w"] = Array(arrays["w"].numpy() + np.array([6, 8], np.float32))
        metrics = MetricRecord({"num-examples": 8, "train_loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator]
    def on_evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"auc": 0.5, "num-examples": 8})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def wrapped(*mods: Any) -> ClientApp:
    return client_app(existing(), label_counts=lambda context: {"cat": 2}, mods=list(mods))


an_app = of_functions
FORMS = pytest.mark.parametrize("form", [of_functions, wrapped, existing])
# The integer tensor of MODEL counts as a change where Flower runs the mod itself.
FLOATS = ArrayRecord({name: MODEL[name] for name in ("w", "running_var")})


def ask(
    app: ClientApp,
    kind: TaskKind = "train",
    model: ArrayRecord = MODEL,
    **config: Any,
) -> Reply:
    template = TensorTemplate.of(model)
    codec, start = FlowerCodec(template, Needs()), template.read(model)
    context = context_of(site="north")
    message = codec.message(Task(5, kind, 7, "north", 100.0, 3, start, config))
    message.metadata.__dict__["_message_id"] = "message_id"
    return codec.read_reply(over_the_wire(app(over_the_wire(message), context)))


def vector(reply: Reply) -> list[float]:
    assert isinstance(reply, TrainReply), reply
    return [float(number) for number in reply.vector]


MODS = {
    "fixed": fixedclipping_mod,
    "local": LocalDpMod(1.0, 0.0, 1.0, 0.1),
    "message-size": message_size_mod,
    "arrays-size": arrays_size_mod,
}


@FORMS
@pytest.mark.parametrize("mod", MODS.values(), ids=MODS)
def test_a_site_with_a_mod_trains_and_evaluates(mod: Any, form: Any) -> None:
    assert isinstance(ask(form(mod), "train", FLOATS, clipping_norm=5.0), TrainReply)
    assert isinstance(ask(form(mod), "evaluate", FLOATS), EvaluateReply)
    if form is not existing:
        assert isinstance(ask(form(mod), "summary"), LabelSummary)


@FORMS
def test_an_update_is_clipped(form: Any) -> None:
    """The update (6, 8) is clipped to norm 5, which is (3, 4)."""
    assert vector(ask(form(fixedclipping_mod), "train", FLOATS, clipping_norm=5.0)) == [6, 8, 10]


@FORMS
def test_local_privacy_clips_and_adds_noise(form: Any) -> None:
    silent = LocalDpMod(clipping_norm=5.0, sensitivity=0.0, epsilon=1.0, delta=0.1)
    assert vector(ask(form(silent), "train", FLOATS)) == [6, 8, 10]
    noisy = LocalDpMod(clipping_norm=5.0, sensitivity=0.5, epsilon=1.0, delta=0.1)
    told = vector(ask(form(noisy), "train", FLOATS))
    assert told != pytest.approx([6, 8, 10], abs=1e-3)


@pytest.mark.parametrize("form", [of_functions, wrapped])
def test_integer_tensors_do_not_count_in_a_norm(form: Any) -> None:
    silent = LocalDpMod(clipping_norm=5.0, sensitivity=0.0, epsilon=1.0, delta=0.1)
    assert vector(ask(form(silent))) == [6, 8, 10]


@pytest.mark.parametrize("name", [name for name in CATALOG if name != "one-pass"])
def test_with_every_method_the_server_gets_the_clipped_update(name: str, tmp_path: Path) -> None:
    """Both sites change w by (6, 8), clipped to norm 5, for methods on models and differences."""
    app = client_app(
        existing(fixedclipping_mod), label_counts=lambda context: {context.node_config["site"]: 2}
    )
    contexts = {n: context_of(n, site=site) for n, site in ((7, "north"), (8, "south"))}
    settings = {"folder": tmp_path, "min_clients": 2, "arrivals": 4, "poll": 0.001}
    config: dict[str, Any] = {"fedraw.strategy.name": name, "fedraw.train.clipping_norm": 5.0}
    if "buffer" in {field.name for field in fields(CATALOG[name].factory)}:
        config["fedraw.strategy.buffer"] = 2
    if name == "qfedavg":
        config["fedraw.strategy.lr"] = 0.1
    server = server_app(initial_model=lambda: {"w": MODEL["w"]}, settings=settings)
    server(MemoryGrid(app, contexts), Context(1, 1, {}, RecordDict(), config))
    records = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    norms = [record["norm"] for record in records if record["kind"] == "arrival"]
    assert norms == pytest.approx([5.0] * 4)


def test_mods_apply_to_training_only_and_in_order() -> None:
    seen: list[str] = []

    def named(name: str) -> Any:
        def mod(message: Message, context: Context, call: Any) -> Message:
            seen.append(f"{name} {message.metadata.message_type}")
            reply: Message = call(message, context)
            seen.append(f"{name} {sorted(reply.content['arrays'])}")
            return reply

        return mod

    app = an_app(named("outer"), named("inner"))
    for kind in ("summary", "evaluate", "train"):
        ask(app, kind)
    # An integer is no part of what is sent, so it takes no part in a norm either.
    floats = "['running_var', 'w']"
    assert seen == ["outer train", "inner train", f"inner {floats}", f"outer {floats}"]


def test_training_uses_the_model_that_a_mod_changed() -> None:
    def doubled(message: Message, context: Context, call: Any) -> Message:
        message.content["arrays"]["w"] = Array(np.array([6, 8], np.float32))
        reply: Message = call(message, context)
        return reply

    assert vector(ask(an_app(doubled))) == [12, 16, 10]


@FORMS
def test_a_missing_clipping_norm_is_logged_with_a_remedy(form: Any) -> None:
    reply = ask(form(fixedclipping_mod), model=FLOATS)
    assert isinstance(reply, Failure)
    assert reply.reason.endswith("set clipping_norm in the table fedraw.train of the run config")


def test_a_mod_of_the_whole_app_fails_evaluations_with_a_remedy() -> None:
    app = ClientApp(mods=[LocalDpMod(5.0, 0.0, 1.0, 0.1)])
    inner = existing()
    app.train()(inner)
    app.evaluate()(inner)
    assert vector(ask(app, model=FLOATS)) == [6, 8, 10]
    reply = ask(app, "evaluate", FLOATS)
    assert isinstance(reply, Failure)
    assert reply.reason.endswith("give the mod to @app.train(mods=…), not to ClientApp")


@pytest.mark.parametrize(
    ("mod", "words"),
    [
        (adaptiveclipping_mod, r"adaptiveclipping_mod: .* fixedclipping_mod or LocalDpMod"),
        (secaggplus_mod, "secaggplus_mod: secure aggregation needs all sites of a round"),
        (secagg_mod, "secagg_mod: secure aggregation needs all sites of a round"),
    ],
)
def test_incompatible_mods_are_refused_at_the_start(mod: Any, words: str) -> None:
    for app in ({"train": train, "mods": [mod]}, {"app": ClientApp(mods=[mod])}):
        with pytest.raises(BadInput, match=words):
            client_app(**app)


def test_the_server_refuses_incompatible_mods_too() -> None:
    with pytest.raises(KeyError, match="secaggplus_configs"):  # the server gets this as an error
        ask(existing(secaggplus_mod), model=FLOATS)
    reply = ask(existing(adaptiveclipping_mod), model=FLOATS, clipping_norm=5.0)
    assert isinstance(reply, Failure)
    assert "its app uses adaptiveclipping_mod" in reply.reason


def test_a_mod_that_sends_another_model_is_refused_at_the_site() -> None:
    def other(message: Message, context: Context, call: Any) -> Message:
        reply: Message = call(message, context)
        reply.content["arrays"] = record_of({"v": np.zeros(2, np.float32)})
        return reply

    with pytest.raises(BadInput, match="a mod returns a model with other tensors"):
        ask(an_app(other))


def test_the_server_logs_a_mod_that_refuses_a_message() -> None:
    def without_arrays(message: Message, context: Context, call: Any) -> Message:
        del message.content["arrays"]
        reply: Message = call(message, context)
        return reply

    reply = ask(an_app(without_arrays, LocalDpMod(5.0, 0.0, 1.0, 0.1)))
    assert isinstance(reply, Failure)
    assert "a mod of its client app refused the message: LocalDpMod expects" in reply.reason
