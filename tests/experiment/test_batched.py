"""Runs whose clients train together: the same bytes as if they trained one by one."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from tests.cli.command import fedraw

from fedraw.errors import BadInput, Interrupted
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec, to_toml
from fedraw.strategies.catalog import CATALOG

FILES = ("events.jsonl", "summary.json", "model.safetensors")


def spec(name: str = "fedfa", training: dict[str, Any] | None = None, events: int = 60) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 10, "rare_labels": [9], "clients_per_common_label": 6},
            "strategy": {"name": name},
            "training": training or {"epochs": 2},
            "run": {"events": events, "evaluate_every": 100, "seeds": [1]},
        }
    )


def stopped_at(event: int, wanted: Spec, folder: Path, executor: ExecutorKind) -> None:
    asked = iter(range(10**9))
    options = Options(executor, stop=lambda: next(asked) + 1 >= event)
    with pytest.raises(Interrupted):
        run_seed(wanted, 1, folder, options=options)


def same(one: Path, two: Path) -> bool:
    return all((one / file).read_bytes() == (two / file).read_bytes() for file in FILES)


# Executors know a method by its needs alone, so one method for each is enough.
BY_NEEDS = {m.make().needs: name for name, m in CATALOG.items() if not m.is_ablation}


@pytest.mark.parametrize("name", BY_NEEDS.values())
def test_every_strategy_comes_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    run_seed(spec(name), 1, tmp_path / "inline")
    run_seed(spec(name), 1, tmp_path / "batched", options=Options("batched"))
    assert same(tmp_path / "inline", tmp_path / "batched")


def test_a_run_goes_on_with_another_executor(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    stopped_at(20, spec(), tmp_path / "cut", "batched")
    run_seed(spec(), 1, tmp_path / "cut", options=Options("processes", 1, resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", ["fedraw", "qfedavg"])
def test_a_run_is_repeatable_also_when_it_was_interrupted(name: str, tmp_path: Path) -> None:
    run_seed(spec(name), 1, tmp_path / "whole", options=Options("batched"))
    for event in (1, 14, 15, 43):  # the groups that train together are others after each
        folder = tmp_path / str(event)
        stopped_at(event, spec(name), folder, "batched")
        run_seed(spec(name), 1, folder, options=Options("batched", resume=True))
        assert same(tmp_path / "whole", folder)


def test_bytes_and_a_large_batch() -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(256, size=(400, 3, 4, 4), dtype=np.uint8), np.arange(400) % 10
    wanted = spec("fedfa", {"epochs": 2, "batch": 1000, "momentum": 0.9, "lr": 0.01})
    (inline,) = simulate(wanted, data=data)
    (batched,) = simulate(wanted, data=data, executor="batched")
    assert np.array_equal(inline.model, batched.model)


def test_a_model_it_does_not_know_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"layer '0', Conv2d.*use executor='inline'"):
        run_seed(spec(training={"model": "cnn"}), 1, tmp_path / "run", options=Options("batched"))
    assert not (tmp_path / "run").exists()


def run(folder: Path, *options: str) -> CompletedProcess[str]:
    return fedraw("run", "spec.toml", "--out", "out", *options, cwd=folder)


def test_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(to_toml(spec("fedraw").to_dict()))
    done = run(tmp_path, "--executor", "batched", "--seeds", "1,2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["seeds"] == [1, 2]
    run_seed(spec("fedraw"), 1, tmp_path / "here", options=Options("batched"))
    assert same(tmp_path / "here", tmp_path / "out" / "seed-1")


def test_a_dry_run_finds_what_it_cannot_train(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(to_toml(spec().to_dict()))
    model = ("--set", "training.model=cnn")
    refused = run(tmp_path, "--executor", "batched", "--dry-run", *model)
    assert refused.returncode == 2
    assert "Conv2d" in refused.stderr
