"""Runs with a user's own training function: the same bytes everywhere, and resumed ones too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.experiment.small_runs import same, spec
from torch import nn
from torch.nn import functional

import fedraw
from fedraw.data.arrays import from_arrays
from fedraw.errors import BadInput, Interrupted, TrainingFailed
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec


def scaffold_like(model: Any, data: Any, context: Any) -> dict[str, float]:
    """Adam with noise, its moments kept from one training to the next."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    parameters = list(model.parameters())
    if context.state:
        for number, parameter in enumerate(parameters):
            moments = [torch.from_numpy(context.state[f"{key}{number}"]) for key in "mv"]
            optimizer.state[parameter] = {
                "step": torch.tensor(float(context.state["step"])),
                "exp_avg": moments[0],
                "exp_avg_sq": moments[1],
            }
    first = None
    for x, y in data:
        optimizer.zero_grad()
        noisy = x + 0.1 * torch.randn(x.shape, generator=context.generator)
        loss = functional.cross_entropy(model(noisy), y, label_smoothing=0.1)
        first = loss.item() if first is None else first
        (loss + context.proximal_term(model)).backward()
        optimizer.step()
    for number, parameter in enumerate(parameters):
        kept = optimizer.state[parameter]
        context.state[f"m{number}"], context.state[f"v{number}"] = (
            kept["exp_avg"],
            kept["exp_avg_sq"],
        )
    context.state["step"] = optimizer.state[parameters[0]]["step"]
    return {"loss": float(first or 0), "draw": context.rng.random(), "number": context.training}


OWN = Parts(train=scaffold_like)


def arrivals(folder: Path) -> list[ArrivalRecord]:
    return [r for r in read_log(folder / "events.jsonl") if isinstance(r, ArrivalRecord)]


@pytest.mark.parametrize("name", [pytest.param("fedraw", marks=pytest.mark.slow), "qfedavg"])
def test_the_log_is_the_same_in_processes_and_after_a_resume(name: str, tmp_path: Path) -> None:
    inline, workers, cut = tmp_path / "inline", tmp_path / "workers", tmp_path / "cut"
    wanted = spec(name).with_changes({"training.lr": 0.1})  # q-FedAvg asks for a rate
    run_seed(wanted, 1, inline, OWN)
    run_seed(wanted, 1, workers, OWN, Options("processes", 1))
    assert same(inline, workers)
    events = iter(range(1000))
    with pytest.raises(Interrupted):
        run_seed(wanted, 1, cut, OWN, Options(stop=lambda: next(events) == 40))
    run_seed(wanted, 1, cut, OWN, Options(resume=True))
    assert same(inline, cut)
    found = arrivals(inline)
    assert all(
        r.metrics is not None and set(r.metrics) == {"loss", "draw", "number"} for r in found
    )
    # A second training begins with the moments of the first, so it is not trained anew.
    trainings = [r.metrics["number"] for r in found if r.metrics and r.client == found[0].client]
    assert trainings == list(range(len(trainings)))
    assert len(trainings) > 2


def reads_the_rate(model: Any, data: Any, context: Any) -> dict[str, float]:
    return {"rate": context.lr}


def test_the_default_rate_of_the_built_in_training_is_none_of_a_function() -> None:
    own = {"train": reads_the_rate, "strategy": "fedbuff", "events": 20, "seeds": [1]}
    with pytest.raises(TrainingFailed, match=r"context\.lr: no learning rate is set"):
        fedraw.simulate(**cast(Any, own))
    with pytest.raises(BadInput, match=r"QFedAvg\(lr=\.\.\.\), or set training\.lr"):
        fedraw.simulate(**cast(Any, own | {"strategy": "qfedavg"}))
    chosen = Spec.from_dict({"training": {"lr": 0.1}})  # the same number, but chosen
    result = fedraw.simulate(chosen, **cast(Any, own))
    rates = [r.metrics for r in result[1].records() if isinstance(r, ArrivalRecord)]
    assert rates == [{"rate": 0.1}] * 20


def test_a_strategy_with_a_proximal_term_gets_it(tmp_path: Path) -> None:
    tables = spec("fedasync", 30).to_dict()
    tables["strategy"]["proximal"] = 0.1
    run_seed(Spec.from_dict(tables), 1, tmp_path / "with", OWN)
    with pytest.raises(BadInput, match=r"train = .*ignores.*proximal term \(ρ = 0.1\)|ignores it"):
        run_seed(Spec.from_dict(tables), 1, parts=Parts(train=lambda *_: None))


def test_the_batched_executor_refuses_it_by_name() -> None:
    with pytest.raises(BadInput, match=r"scaffold_like: the batched executor has only its own SGD"):
        run_seed(spec(), 1, parts=OWN, options=Options("batched"))


TROUBLE = [True]


def failing(model: Any, data: Any, context: Any) -> None:
    if TROUBLE and context.event >= 30:
        raise RuntimeError(f"bad luck of client {context.client}")


@pytest.mark.parametrize(
    "options",
    [Options(), pytest.param(Options("processes", 1), marks=pytest.mark.slow)],
    ids=["inline", "worker"],
)
def test_an_error_names_client_and_training_and_the_run_can_be_resumed(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedraw.experiment.checkpoints.EVERY_SECONDS", 1e-9)
    with pytest.raises(TrainingFailed) as caught:
        run_seed(spec(), 1, tmp_path / "run", Parts(train=failing), options)
    text = str(caught.value)
    assert "failing, client " in text
    assert 'raise RuntimeError(f"bad luck of client {context.client}")' in text
    assert list((tmp_path / "run" / "checkpoint").iterdir())

    monkeypatch.setitem(globals(), "TROUBLE", [])
    run_seed(spec(), 1, tmp_path / "run", Parts(train=failing), Options(resume=True))
    assert len(arrivals(tmp_path / "run")) == 60


def unpicklable() -> Callable[..., None]:
    import threading

    lock = threading.Lock()

    def train(model: Any, data: Any, context: Any) -> None:
        with lock:
            pass

    return train


def test_a_function_that_cannot_travel_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match=r"inline executor"):
        run_seed(spec(), 1, tmp_path / "run", Parts(train=unpicklable()), Options("processes", 1))
    assert not (tmp_path / "run").exists()


# What no label-based training can learn: one number for each sample, in two groups.
def line(model: Any, data: Any, context: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in data:
        optimizer.zero_grad()
        torch.autograd.backward(functional.mse_loss(model(x).squeeze(1), y))
        optimizer.step()


def regression() -> tuple[Spec, Parts]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32) + 3
    groups = np.where(np.arange(400) % 10 == 0, "few", "many")
    data = from_arrays(x, y, groups=groups, rng=draw)
    error = {"MAE": lambda outputs, targets: abs(outputs[:, 0] - targets).mean()}
    tables = {
        "partition": {"clients": 6, "rare_labels": ["few"], "clients_per_common_label": 6},
        "strategy": {"buffer": 4},
        "training": {"model": "linear"},
        "run": {"events": 90, "evaluate_every": 30, "seeds": [1]},
    }
    return Spec.from_dict(tables), Parts(data=data, train=line, metrics=error)


def test_a_regression_is_measured_by_the_users_metric_overall_and_in_rare_groups(
    tmp_path: Path,
) -> None:
    wanted, parts = regression()
    summary = run_seed(wanted, 1, tmp_path / "run", parts).summary
    evaluations = [r for r in read_log(tmp_path / "run" / "events.jsonl") if r.kind == "evaluation"]
    errors = [r.own["MAE"] or 0 for r in evaluations if isinstance(r, EvaluationRecord) and r.own]
    assert errors[0] > 2 * errors[-1]
    assert summary["own"]["MAE"] == errors[-1] < 0.5
    assert summary["own_rare"]["MAE"] < 0.7
    assert summary["metrics"]["GlobalAcc"] is None
    assert summary["recall"] == {"few": None, "many": None}
    assert summary["confusion"] is None


def test_targets_need_a_function_that_learns_and_classes_one_that_measures_them() -> None:
    wanted, parts = regression()
    assert set(run_seed(wanted, 1, parts=replace(parts, metrics={})).summary["own"]) == {
        "MSE",
        "R2",
    }
    with pytest.raises(BadInput, match=r"built-in SGD learns labels; give a training function"):
        run_seed(wanted, 1, parts=replace(parts, train=None))
    classes = replace(parts.data, targets=np.zeros(len(parts.data.labels), np.int64),
                      test_targets=np.zeros(len(parts.data.test_labels), np.int64))  # fmt: skip
    with pytest.raises(BadInput, match=r"metrics = …"):
        run_seed(wanted, 1, parts=replace(parts, data=classes, metrics={}))


class TextModel(nn.Module):
    """The mean of embeddings, and its scores as a Hugging Face model returns them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, classes)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.embedding(input_ids).mean(1))}


def adam(model: Any, data: Any, context: Any) -> dict[str, float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), 0.05), []
    for x, y in data:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x)["logits"], y)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return {"last": losses[-1]}


def test_token_ids_reach_an_embedding_and_logits_are_evaluated() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(2, size=300)
    tokens = draw.integers(10, size=(300, 6)) + 10 * labels[:, None]
    data = from_arrays(tokens.astype(np.int32), labels, rng=draw)
    wanted = Spec.from_dict(
        {
            "partition": {"kind": "iid", "clients": 5},
            "speeds": {"kind": "equal"},
            "strategy": {"buffer": 3},
            "run": {"events": 30, "evaluate_every": 30, "seeds": [1]},
        }
    )
    parts = Parts(data=data, model=lambda _, classes: TextModel(classes), train=adam)
    assert run_seed(wanted, 1, parts=parts).summary["metrics"]["GlobalAcc"] > 95
    built_in = Parts(data=data, model=lambda _, classes: TextModel(classes))
    assert run_seed(wanted, 1, parts=built_in).summary["metrics"]["GlobalAcc"] > 60
