"""Models of servers that run, were killed or have ended, and of finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.cli.command import fedraw
from tests.eventlog.federation_log import STORY, write
from tests.server.engine import COUNTS, LAYOUT, Engine

from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.eventlog.records import StartRecord
from fedraw.export.model import Which, export_model, read_model
from fedraw.server.results import Recall
from fedraw.server.settings import ServerSettings


def scored(values: list[int]) -> Any:
    """An evaluation that recognises so many of ten owls, one value a call, then none."""
    left = list(values)

    def evaluate(_: Vector) -> Recall:
        owls = left.pop(0) if left else 0
        return Recall({"cat": 5, "owl": owls}, {"cat": 10, "owl": 10})

    return evaluate


def exported(folder: Path, which: Which = "current") -> tuple[dict[str, Any], dict[str, Any], str]:
    out = folder.parent / "out" / f"{which}.safetensors"
    card = export_model(folder, out, which)
    with safe_open(out, "numpy") as file:
        facts = json.loads(file.metadata()["fedraw"])
    return dict(load_file(out)), facts, card.read_text()


def flat(tensors: dict[str, Any]) -> list[float]:
    return [float(x) for s in LAYOUT.segments for x in tensors[s.name].ravel()]


def test_models_of_a_running_server_are_exported(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    engine = Engine(
        folder, evaluate=scored([2, 9, 4]), evaluate_every=2, keep_best="AvgRare",
        snapshot_every=0.5,
    )  # fmt: skip
    engine.accept(6)
    engine.wait(1.0)
    event = engine.coordinator._store.state.event
    tensors, facts, card = exported(folder)
    assert set(tensors) == {segment.name for segment in LAYOUT.segments}
    assert flat(tensors) == engine.coordinator._store.strategy_state.model.tolist()
    assert (facts["event"], facts["finished"], facts["rare_labels"]) == (event, False, ["owl"])
    assert facts["metrics"]["AvgRare"] == 40.0
    assert "| AvgRare | 40.00 |" in card
    _, best, words = exported(folder, "best")
    assert (best["event"], best["metrics"]["AvgRare"]) == (4, 90.0)
    assert "the best model so far by AvgRare (90.0) of a federation" in words
    assert best["best_by"] == "AvgRare"

    engine.restart()  # a worse model does not replace the best
    engine.accept(8)
    _, best, words = exported(folder, "best")
    assert (best["event"], best["finished"]) == (4, False)
    assert "The run was not complete." in words
    engine.coordinator.close(engine.now)


def test_the_best_model_of_an_ended_server_is_exported(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    engine = Engine(
        folder, arrivals=4, evaluate=scored([2, 8]), evaluate_every=2, keep_best="AvgRare"
    )
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    _, facts, card = exported(folder, "best")
    assert facts["finished"]
    assert "The run is complete." in card


def test_the_last_model_of_an_ended_server_is_exported(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    engine = Engine(folder, arrivals=5)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    tensors, facts, card = exported(folder)
    assert flat(tensors) == engine.coordinator._store.strategy_state.model.tolist()
    assert facts["finished"]
    assert "This model was not evaluated." in card
    assert (folder / "model.safetensors").stat().st_mode & 0o077 == 0


def test_the_model_of_a_finished_run_is_exported(tmp_path: Path) -> None:
    log = write(tmp_path / "seed-1/events.jsonl", [StartRecord(
        origin="simulation", name="a|b<", seed=1, events=1, labels=["x|y"], rare_labels=[], spec={},
    )])  # fmt: skip
    with pytest.raises(BadInput, match="a simulation writes its model at its end"):
        read_model(log.parent)
    save_file({"w": np.ones(2, np.float32)}, log.parent / "model.safetensors")
    tensors, _, card = exported(log.parent)
    assert tensors["w"].tolist() == [1.0, 1.0]
    assert "a\\|b&lt;" in card
    with pytest.raises(BadInput, match="no calibrated model"):
        read_model(log.parent, "calibrated")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_model(tmp_path / "none")
    for name in ("a", "b"):
        write(tmp_path / f"runs/{name}/events.jsonl", STORY)
    with pytest.raises(BadInput, match="has 2 runs; give the folder of one"):
        read_model(tmp_path / "runs")
    with pytest.raises(BadInput, match="has no snapshot, because training has not started"):
        read_model(tmp_path / "runs/a")
    with pytest.raises(BadInput, match="with its setting keep_best"):
        read_model(tmp_path / "runs/a", "best")
    (tmp_path / "runs/a/events.jsonl").write_bytes(b"")
    with pytest.raises(BadInput, match="is empty, because training has not started"):
        read_model(tmp_path / "runs/a")
    with pytest.raises(BadInput, match="keep_best = 'Avg' is unknown"):
        ServerSettings(arrivals=1, keep_best="Avg")
    with pytest.raises(BadInput, match="has no effect without evaluations"):
        Engine(tmp_path / "server", sites=COUNTS, keep_best="AvgRare")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run with a model."""
    return finished_run(tmp_path / "runs/my/seed-1")


def finished_run(folder: Path) -> Path:
    write(folder / "events.jsonl", [StartRecord(
        origin="simulation", name="fedraw", seed=1, events=1, labels=["x"], rare_labels=[], spec={},
    )])  # fmt: skip
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_does_not_replace_the_model_of_a_run(finished: Path) -> None:
    """Neither the run's own model, with the default --out, nor that of the seed next to it."""
    before = contents(finished)
    done = fedraw("model", "export", ".", cwd=finished)
    assert done.returncode == 2
    assert f"model.safetensors is in {finished}, the folder of a run" in done.stderr
    assert "name a file in another folder with --out" in done.stderr
    other = finished_run(finished.with_name("seed-2"))
    assert fedraw("model", "export", other, "--no-card", cwd=finished).returncode == 2
    assert contents(finished) == before
    assert fedraw("model", "export", finished, cwd=finished.parent).returncode == 0
    assert load_file(finished.parent / "model.safetensors")["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["x.onnx", "x.pt", "x.md"])
def test_a_name_that_promises_another_form_is_refused(
    finished: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "m" / name
    with pytest.raises(BadInput, match=r"as safetensors and in no other .* file x\.safetensors,"):
        export_model(finished, out)
    assert not out.parent.exists()


def test_a_model_may_have_a_name_without_an_end(finished: Path, tmp_path: Path) -> None:
    export_model(finished, tmp_path / "x", card=False)
    assert load_file(tmp_path / "x")["w"].tolist() == [1.0, 1.0]


def test_a_folder_is_not_a_file_for_the_model(finished: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot write \.: it is a folder; name a file in it"):
        export_model(finished, Path())
