"""An unchanged app in the form of Flower's quickstarts, with local differential privacy."""

from __future__ import annotations

import difflib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from tests.flower.deployment import Deployment
from tests.flower.memory_grid import MemoryGrid, context_of, identity

from fedraw.flower import server_app

pytestmark = pytest.mark.usefixtures("identity")
assert identity

ROOT = Path(__file__).parents[2] / "examples" / "flower-quickstart"
BEFORE, AFTER = ROOT / "fedavg", ROOT / "fedraw"
SITES = ("north", "south", "east", "west")
ARRIVALS = 8


def client_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ClientApp:
    monkeypatch.syspath_prepend(str(BEFORE))
    path = folder / "quickstart" / "client_app.py"
    spec = importlib.util.spec_from_file_location(f"quickstart_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.app
    assert isinstance(app, ClientApp)
    return app


def lead(app: ClientApp, folder: Path, **config: Any) -> list[dict[str, Any]]:
    """Run a server on the app's sites until it ends, and return its log."""
    contexts = {
        i: context_of(i, site=name, **{"partition-id": i, "num-partitions": len(SITES)})
        for i, name in enumerate(SITES)
    }
    for context in contexts.values():
        context.run_config["local-epochs"] = 1
    run = {
        "fedraw.folder": str(folder),
        "fedraw.min-clients": 4,
        "fedraw.arrivals": ARRIVALS,
        "fedraw.strategy.name": "fedraw-replay-debt",
        "fedraw.strategy.buffer": 2,
        "fedraw.federated-evaluation": True,
        "fedraw.train.lr": 0.5,
        "fedraw.poll": 0.01,
        **config,
    }
    task = sys.modules["quickstart.task"]
    server = server_app(initial_model=lambda: task.net().state_dict())
    server(MemoryGrid(app, contexts), Context(1, 99, {}, RecordDict(), run))
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_conversion_writes_at_most_ten_lines() -> None:
    added = []
    for path in sorted(p for p in AFTER.rglob("*") if p.suffix in (".py", ".toml")):
        old = (BEFORE / path.relative_to(AFTER)).read_text().splitlines()
        new = path.read_text().splitlines()
        lines = difflib.unified_diff(old, new, lineterm="", n=0)
        added += [line for line in lines if line[0] == "+" and line[1:3] not in ("++", '""', "")]
    assert 0 < len(added) <= 10, added


def test_one_line_for_labels_puts_its_metrics_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lead(client_of(AFTER, monkeypatch), tmp_path)
    joined = {r["client"]: r["counts"] for r in records if r["kind"] == "joined"}
    assert set(joined) == set(SITES)
    assert [site for site in SITES if "8" in joined[site]] == ["west"]
    arrivals = [r for r in records if r["kind"] == "arrival"]
    assert len(arrivals) == ARRIVALS
    assert all(set(r["metrics"]) == {"train_loss"} for r in arrivals)
    (last,) = [r for r in records if r["kind"] == "evaluation"]
    assert set(last["own"]) == {"eval_loss", "eval_acc"}
    assert last["sites"] == 4


def test_with_inferred_labels_it_needs_no_line_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lead(
        client_of(BEFORE, monkeypatch), tmp_path, **{"fedraw.strategy.labels": "inferred"}
    )
    sites = {r["client"] for r in records if r["kind"] == "joined"}
    assert sites == {f"node-{i}" for i in range(4)}
    assert sum(r["kind"] == "arrival" for r in records) == ARRIVALS
    (last,) = [r for r in records if r["kind"] == "evaluation"]
    assert set(last["own"]) == {"eval_loss", "eval_acc"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_both_apps_in_real_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same twenty updates with Flower's FedAvg and with debt replay, with the app's privacy."""
    parts: dict[str, dict[str, Any]] = {
        name: {"partition-id": i, "num-partitions": len(SITES)} for i, name in enumerate(SITES)
    }
    with Deployment(tmp_path, parts) as deployment:
        flower = deployment.run_app(BEFORE)
        assert flower.wait(1800) == "finished:completed", flower.log()
        told = flower.log()
        fedraw = deployment.run_app(AFTER)
        assert fedraw.wait(1800) == "finished:completed", fedraw.log()
    (log,) = tmp_path.rglob("events.jsonl")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    arrivals = [r for r in records if r["kind"] == "arrival"]
    (last,) = [r for r in records if r["kind"] == "evaluation"]
    with capsys.disabled():
        print("\nFlower's FedAvg:")
        print("\n".join(line for line in told.splitlines() if "'eval_acc': '" in line))
        print("fedraw:", *(json.dumps(r) for r in (arrivals[-1], last)), sep="\n")
    assert len(arrivals) == 20
    assert all("train_loss" in r["metrics"] for r in arrivals)
    assert last["own"]["eval_acc"] > 0.6
