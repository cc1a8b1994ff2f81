"""Trackers follow runs as callbacks; MLflow and W&B are read back with what they have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.hand_made import write_run

import fedraw
from fedraw.errors import BadInput
from fedraw.export import MLflow, Tracker, WandB
from fedraw.export.scalars import Scalars

# An environment with mlflow and wandb, which are large; `make trackers` makes it.
TRACKERS = Path(os.environ.get("FEDRAW_TRACKERS", ".trackers"))
SHORT: dict[str, Any] = {
    "partition": fedraw.Coverage(clients=12, clients_per_common_label=6),
    "train": "none",
    "events": 10,
}


class Kept(Tracker):
    """Keeps what a tracker would send, by the name of the run."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.got: dict[str, list[Any]] = {}

    def _begin(self, name: str, settings: Any) -> str:
        self.got[name] = [settings["strategy.name"]]
        return name

    def _log(self, run: str, found: Scalars) -> None:
        self.got[run].append((found.event, found.values["recall/scarce"]))

    def _end(self, run: str, is_finished: bool) -> None:
        self.got[run].append("finished" if is_finished else "interrupted")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs", "fedraw", 7)


def test_a_finished_run_is_sent_by_its_records(run: Path) -> None:
    kept = Kept("mine")
    for seed in fedraw.load(run):
        for record in seed.records():
            kept(record, seed.seed)
    kept.close()  # nothing is left to end
    assert kept.got == {"mine-seed-7": ["fedraw", (1, 20.0), (2, 50.0), "finished"]}


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_seed_has_a_run_of_its_own(jobs: int) -> None:
    kept = Kept()
    fedraw.simulate(**SHORT, strategy="fedfa", seeds=[3, 4], jobs=jobs, callbacks=[kept])
    assert kept.got == {f"fedfa-seed-{seed}": ["fedfa", "finished"] for seed in (3, 4)}


def test_an_interrupted_run_is_ended_by_close() -> None:
    def fail(record: object, seed: int) -> None:
        if getattr(record, "event", 0) == 5:
            raise RuntimeError("at event 5")

    kept = Kept()
    with pytest.raises(RuntimeError, match="at event 5"):
        fedraw.simulate(**SHORT, callbacks=[kept, fail])
    kept.close()
    assert list(kept.got.values()) == [["fedraw", "interrupted"]]


def test_a_run_that_is_resumed_in_the_middle_is_refused(run: Path) -> None:
    (seed,) = fedraw.load(run)
    *_, last = seed.records()
    with pytest.raises(BadInput, match=r"Kept cannot follow seed 7, which is resumed in the mid"):
        Kept()(last, 7)


@pytest.mark.parametrize(("make", "library"), [(MLflow, "mlflow"), (WandB, "wandb")])
def test_a_missing_library_is_named(
    make: Callable[[], Tracker], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(BadInput, match=f"not installed: pip install {library}"):
        make()


READ_MLFLOW = """
import json, sys
import fedraw
from fedraw.export import MLflow
from mlflow import MlflowClient
for run in fedraw.load(sys.argv[1]):
    tracker = MLflow()
    for record in run.records():
        tracker(record, run.seed)
client = MlflowClient()
number = client.get_experiment_by_name("fedraw").experiment_id
(found,) = client.search_runs([number])
history = client.get_metric_history(found.info.run_id, "recall/scarce")
print(json.dumps([found.info.run_name, found.info.status, found.data.params["strategy.name"],
                  [[m.step, m.value] for m in history]]))
"""
SEND_WANDB = """
import sys
import fedraw
from fedraw.export import WandB
for run in fedraw.load(sys.argv[1]):
    tracker = WandB()
    for record in run.records():
        tracker(record, run.seed)
print("[]")
"""
# After the process that sent the values, whose end writes the file to its end.
READ_WANDB = """
import json, struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2
(file,) = Path().rglob("run-*.wandb")
# wandb has no reader in Python any more: blocks of 32 KiB with parts of records, as in LevelDB.
data, at, record, found = file.read_bytes(), 7, b"", []
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack("<IHB", data[at : at + 7])
    record += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind not in (1, 4):  # neither a whole record nor its end
        continue
    parsed, record = wandb_internal_pb2.Record.FromString(record), b""
    if parsed.WhichOneof("record_type") == "history":
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json)
                 for i in parsed.history.item}
        found.append([parsed.history.step.num, items["recall/scarce"]])
print(json.dumps(found))
"""


def in_trackers(code: str, run: Path, cwd: Path) -> list[object]:
    python = TRACKERS / "bin/python"
    if not python.exists():
        pytest.skip(f"no environment with mlflow and wandb at {TRACKERS}: make trackers")
    done = subprocess.run(
        [str(python.absolute()), "-c", code, str(run)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("src")),
            "MLFLOW_TRACKING_URI": f"sqlite:///{cwd}/mlflow.db",
            "WANDB_MODE": "offline",
        },
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_mlflow_reads_all_values(run: Path, tmp_path: Path) -> None:
    assert in_trackers(READ_MLFLOW, run, tmp_path) == [
        "fedraw-seed-7", "FINISHED", "fedraw", [[1, 20.0], [2, 50.0]],
    ]  # fmt: skip


@pytest.mark.slow
def test_wandb_reads_all_values(run: Path, tmp_path: Path) -> None:
    in_trackers(SEND_WANDB, run, tmp_path)
    assert in_trackers(READ_WANDB, run, tmp_path) == [[1, 20.0], [2, 50.0]]
