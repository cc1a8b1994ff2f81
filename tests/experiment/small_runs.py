"""A small run that every executor can make, and a comparison of what two runs have written."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedraw.experiment.spec import Spec

FILES = ("events.jsonl", "summary.json", "model.safetensors")

SPEC = """
[partition]
clients = 10
rare_labels = [9]
clients_per_common_label = 6
[strategy]
name = "{name}"
[training]
epochs = 3
[run]
events = {events}
evaluate_every = 100
seeds = [1]
"""


def spec(name: str = "fedraw", events: int = 60) -> Spec:
    return Spec.from_dict(tomllib.loads(SPEC.format(name=name, events=events)))


def same(one: Path, two: Path) -> bool:
    return all((one / file).read_bytes() == (two / file).read_bytes() for file in FILES)
