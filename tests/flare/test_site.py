"""A client script with two added lines: the models that it receives and the replies it sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.client import api as client_api
from safetensors.numpy import load_file
from tests.flare.memory import MemoryFlare, MemorySite, ScriptAPI

import fedraw.flare
from fedraw.errors import BadInput
from fedraw.flare.controller import FederationController
from fedraw.flare.site import SiteAPI
from fedraw.server.results import Recall

pytestmark = pytest.mark.slow

START = {"w": np.array([1.0, 2.0], np.float32), "bn.running_mean": np.array([5.0], np.float32)}


def initial_model() -> dict[str, Any]:
    return START


def a_task(kind: str = "train", **fields: Any) -> Shareable:
    told = {"kind": kind, "task": 7, "version": 3, "wants_loss": False, **fields}
    if kind == "summary":
        return DXO(DataKind.METRICS, {}, {"fedraw": told}).to_shareable()
    return DXO(DataKind.WEIGHTS, dict(START), {"fedraw": told}).to_shareable()


def a_site(**join: Any) -> tuple[SiteAPI, ScriptAPI]:
    inner = ScriptAPI()
    return SiteAPI(inner, **join), inner


def told(inner: ScriptAPI) -> Any:
    assert inner.result is not None
    return from_shareable(inner.result).meta["fedraw"]


def test_the_script_sees_only_training_tasks() -> None:
    api, inner = a_site(label_counts={3: np.int64(4), "owl": 1})
    inner.task = a_task("summary")
    assert api.receive() is None
    assert told(inner) == {"task": 7, "counts": {"3": 4, "owl": 1}}
    inner.task = a_task(settings={"lr": 0.1})
    assert api.is_running()
    model = api.receive()
    assert model is not None
    assert model.meta["fedraw"]["settings"] == {"lr": 0.1}
    api.send(FLModel(params={"w": np.zeros(2, np.float32)}, metrics={"accuracy": 0.5}))
    assert told(inner) == {
        "task": 7,
        "version": 3,
        "examples": 5,
        "metrics": {"accuracy": 0.5},
    }


def test_changed_counts_are_sent_until_the_server_asks_again() -> None:
    counts = {"cat": 1}
    api, inner = a_site(label_counts=lambda: counts)
    inner.task = a_task("summary")
    api.receive()
    counts["cat"] = 9
    for _ in range(2):
        inner.task = a_task()
        api.receive()
        api.send(FLModel(params=dict(START)))
        assert told(inner)["counts"] == {"cat": 9}
    inner.task = a_task("summary")
    api.receive()
    inner.task = a_task()
    api.receive()
    api.send(FLModel(params=dict(START)))
    assert "counts" not in told(inner)


def test_an_evaluation_is_answered_without_the_script() -> None:
    api, inner = a_site(
        label_counts={"cat": 1}, evaluate=lambda params: (Recall.of(["a"], ["a"]), {"auc": 1.0})
    )
    inner.task = a_task("evaluate")
    assert api.receive() is None
    assert told(inner) == {
        "task": 7,
        "right": {"a": 1},
        "total": {"a": 1},
        "metrics": {"auc": 1.0},
        "examples": 1,
    }


@pytest.mark.parametrize(
    ("evaluate", "words"),
    [
        (None, "give fedraw.flare.join a function evaluate"),
        (lambda params: 7, "evaluate returns int"),
        (lambda params: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failed_evaluation_is_reported_and_the_script_continues(
    evaluate: Any, words: str
) -> None:
    api, inner = a_site(examples=3, evaluate=evaluate)
    inner.task = a_task("evaluate")
    assert api.receive() is None
    assert words in told(inner)["error"]
    inner.task = a_task()
    assert api.receive() is not None


@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        (a_task(), FLModel(metrics={"accuracy": 1.0}), "flare.send got no params"),
        (a_task(wants_loss=True), FLModel(params=dict(START)), "weighs sites by their loss"),
        (a_task(), FLModel(params=dict(START), metrics={"a": "b"}), "a is 'b', not a number"),
    ],
)
def test_an_invalid_model_is_refused_in_the_script(
    task: Shareable, model: FLModel, words: str
) -> None:
    api, inner = a_site(examples=3)
    inner.task = task
    api.receive()
    with pytest.raises(BadInput, match=words):
        api.send(model)


def test_a_task_of_another_controller_is_refused() -> None:
    api, inner = a_site(examples=3)
    inner.task = DXO(DataKind.WEIGHTS, dict(START), {}).to_shareable()
    with pytest.raises(BadInput, match="is not from fedraw's controller"):
        api.receive()
    with pytest.raises(BadInput, match=r"call flare\.receive before it"):
        a_site(examples=3)[0].send(FLModel(params={}))


def test_join_wraps_flares_api_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        api: Any = ScriptAPI()

    monkeypatch.setattr(client_api, "default_context", Context())
    with pytest.raises(BadInput, match="label_counts or examples"):
        fedraw.flare.join()
    fedraw.flare.join(examples=3)
    with pytest.raises(BadInput, match="join was already called"):
        fedraw.flare.join(examples=3)
    assert client_api.receive() is None


def step(received: FLModel) -> dict[str, Any]:
    """Training by hand: parameters change by 0.5, statistics by 1."""
    return {
        "w": received.params["w"] + 0.5,
        "bn.running_mean": received.params["bn.running_mean"] + 1,
    }


def full(received: FLModel) -> FLModel:
    return FLModel(params=step(received))


def differences(received: FLModel) -> FLModel:
    trained = step(received)
    delta = {name: trained[name] - received.params[name] for name in trained}
    return FLModel(params=delta, params_type=ParamsType.DIFF)


def of_torch(received: FLModel) -> FLModel:
    """FLARE's API converts torch tensors; here the script does it."""
    trained = {name: torch.as_tensor(array) for name, array in step(received).items()}
    return FLModel(params={name: tensor.numpy() for name, tensor in trained.items()})


@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
@pytest.mark.parametrize("train", [full, differences, of_torch])
def test_models_and_differences_lead_to_the_same_model(
    method: str, train: Any, tmp_path: Path
) -> None:
    """After one round of two equal sites, the model of every strategy is the trained model."""
    settings = {"folder": "run", "min_clients": 2, "arrivals": 2, "poll": 0.005}
    extra = {"server_lr": 1.0, "buffer": 2} if method == "fedbuff" else {}
    controller = FederationController(
        f"{__name__}:initial_model", settings, {"name": method, **extra}
    )
    sites = [MemorySite(name, train, {"label_counts": {"cat": 3}}) for name in ("north", "south")]
    MemoryFlare(controller, sites, tmp_path).run()
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert model["w"].tolist() == [1.5, 2.5]
    assert model["bn.running_mean"].tolist() == [6.0]
    log = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(log[0])["engine"].startswith("nvflare 2.9")
