"""Flower's own mods around a client app: they see training only, and the model before a difference.

Every number is by hand: the model is w = (3, 4) with a running variance of 10 and an integer, and
training adds (6, 8) to w and nothing to the variance, so that the update has norm 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from tests.flower.memory_grid import context_of, identity, over_the_wire

from fedraw.errors import BadInput
from fedraw.flower.client import TrainConfig, client_app
from fedraw.flower.messages import MessageCodec
from fedraw.flower.tensors import Template, record_of
from fedraw.server.evaluation import Recall
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TaskKind,
    TrainReply,
)
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
PLAIN, DELTA = Needs(), Needs(sends="delta")


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    assert list(arrays) == list(MODEL)
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    model["w"] += np.array([6, 8], np.float32)
    model["seen"] += 100
    return model, 8


def an_app(*mods: Any) -> ClientApp:
    return client_app(
        train=train,
        label_counts=lambda context: {"cat": 2},
        evaluate=lambda arrays, context: Recall({"cat": 1}, {"cat": 2}),
        mods=list(mods),
    )


def ask(
    app: ClientApp,
    kind: TaskKind = "train",
    needs: Needs = PLAIN,
    model: ArrayRecord = MODEL,
    **run_config: Any,
) -> Reply:
    template = Template.of(model)
    codec, start = MessageCodec(template, needs), template.read(model)
    context = context_of(site="north")
    context.run_config.update(run_config)
    message = codec.message(Task(5, kind, 7, "north", 100.0, 3, start))
    message.metadata.__dict__["_message_id"] = "message_id"
    return codec.read_reply(over_the_wire(app(over_the_wire(message), context)))


def vector(reply: Reply) -> list[float]:
    assert isinstance(reply, TrainReply), reply
    return [float(number) for number in reply.vector]


@pytest.mark.parametrize(
    "mod",
    [
        fixedclipping_mod,
        LocalDpMod(1.0, 0.0, 1.0, 0.1),
        message_size_mod,
        arrays_size_mod,
    ],
    ids=["fixed", "local", "message-size", "arrays-size"],
)
def test_a_site_with_a_mod_can_join_and_evaluate(mod: Any) -> None:
    assert isinstance(ask(an_app(mod), "summary", clipping_norm=5.0), LabelSummary)
    assert isinstance(ask(an_app(mod), "evaluate", clipping_norm=5.0), EvaluateReply)


def test_a_difference_is_clipped_as_the_model_is() -> None:
    """To norm 5, which is half: (3, 4) of (6, 8)."""
    app = an_app(fixedclipping_mod)
    assert vector(ask(app, clipping_norm=5.0)) == [6, 8, 10]
    assert vector(ask(app, needs=DELTA, clipping_norm=5.0)) == [3, 4, 10]


def test_local_privacy_clips_and_adds_noise_before_the_difference_is_formed() -> None:
    silent = an_app(LocalDpMod(clipping_norm=5.0, sensitivity=0.0, epsilon=1.0, delta=0.1))
    assert vector(ask(silent)) == [6, 8, 10]
    assert vector(ask(silent, needs=DELTA)) == [3, 4, 10]
    noisy = an_app(LocalDpMod(clipping_norm=5.0, sensitivity=0.5, epsilon=1.0, delta=0.1))
    np.random.seed(1)  # noqa: NPY002 (the mod's own generator)
    model = vector(ask(noisy))
    np.random.seed(1)  # noqa: NPY002
    changed = vector(ask(noisy, needs=DELTA))
    assert np.subtract(model, [3, 4, 0]) == pytest.approx(changed, abs=1e-6)
    assert changed != pytest.approx([3, 4, 10], abs=1e-3)


@pytest.mark.parametrize("needs", [PLAIN, DELTA], ids=["model", "delta"])
def test_sizes_are_told_of_a_model_without_statistics(
    needs: Needs, caplog: pytest.LogCaptureFixture
) -> None:
    plain = record_of({"w": np.array([3, 4], np.float32)})

    def add(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
        return {"w": arrays["w"].numpy() + 1}, 8

    app = client_app(train=add, mods=[message_size_mod, arrays_size_mod])
    with caplog.at_level("INFO", "flwr"):
        reply = ask(app, needs=needs, model=plain)
    assert vector(reply) == ([1, 1] if needs.sends == "delta" else [4, 5])


def test_mods_see_training_only_and_in_their_order() -> None:
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


def test_a_mod_that_changes_what_arrives_trains_on_that() -> None:
    def doubled(message: Message, context: Context, call: Any) -> Message:
        message.content["arrays"]["w"] = record_of({"w": np.array([6, 8], np.float32)})["w"]
        reply: Message = call(message, context)
        return reply

    assert vector(ask(an_app(doubled), needs=DELTA)) == [9, 12, 10]


def test_a_norm_that_is_not_set_is_told() -> None:
    with pytest.raises(BadInput, match="a positive number as clipping_norm of the run config"):
        ask(an_app(fixedclipping_mod), "summary", clipping_norm="")
    reply = ask(an_app(LocalDpMod(5.0, 0.0, 1.0, 0.1), fixedclipping_mod), clipping_norm=2.5)
    assert vector(reply) == [4.5, 6, 10]


def test_what_adapts_on_the_server_is_refused_at_the_start() -> None:
    with pytest.raises(BadInput, match=r"adaptiveclipping_mod .* fixedclipping_mod or LocalDpMod"):
        an_app(adaptiveclipping_mod)


def test_a_mod_that_sends_another_model_is_told_at_the_site() -> None:
    def other(message: Message, context: Context, call: Any) -> Message:
        reply: Message = call(message, context)
        reply.content["arrays"] = record_of({"v": np.zeros(2, np.float32)})
        return reply

    with pytest.raises(BadInput, match="a mod gives another model than it was handed"):
        ask(an_app(other))


def test_a_mod_that_refuses_is_heard_by_the_server() -> None:
    def without_arrays(message: Message, context: Context, call: Any) -> Message:
        del message.content["arrays"]
        reply: Message = call(message, context)
        return reply

    reply = ask(an_app(without_arrays, LocalDpMod(5.0, 0.0, 1.0, 0.1)))
    assert isinstance(reply, Failure)
    assert "a mod of its client app refused the message: LocalDpMod expects" in reply.reason
