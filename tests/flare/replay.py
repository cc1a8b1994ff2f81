"""Replays a federation from its log: the strategy alone, with the same order of arrivals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file

from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.flare.messages import Template
from fedraw.strategies.protocol import Arrived, Setup

TASK = Path(__file__).parents[2] / "examples" / "flower-app" / "rarelabels" / "task.py"


def example_task() -> Any:
    spec = importlib.util.spec_from_file_location("task", TASK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    read = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [record for record in read if not kinds or record["kind"] in kinds]


def final_model(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def replayed(folder: Path, strategy: Any) -> dict[str, Any]:
    """The final model of the example's federation, without FLARE and without fedraw.server."""
    task = example_task()
    template = Template.of(task.network().state_dict())
    counts = {r["client"]: r["counts"] for r in records(folder, "joined") if r["event"] == 0}
    start = template.read(template.model)
    table = LabelTable.from_counts(counts)
    state, _ = strategy.start(Setup(start, table, template.layout))
    models: dict[int, Vector] = {0: state.model.copy()}
    for arrival in records(folder, "arrival"):
        network = task.network()
        arrays = template.write(models[arrival["start_version"]])
        network.load_state_dict({k: torch.as_tensor(array) for k, array in arrays.items()})
        seed = arrival["start_version"]
        examples = task.train(network, arrival["client"], seed, epochs=5, rate=0.3)
        trained = template.read(Template.of(network.state_dict()).model)
        update = Update(arrival["client"], arrival["start_version"], trained, examples)
        state, _ = strategy.step(state, Arrived(update))
        assert state.version == arrival["version"]
        models[state.version] = state.model.copy()
    return template.write(state.model)
