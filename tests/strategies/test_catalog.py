"""The catalogue: names and settings that everyone records, the demo's methods, server memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.method_cost import models_kept
from tests.eventlog.logs import read_objects
from tests.server.engine import Engine

import fedraw
from fedraw.strategies.catalog import CATALOG

SPEC: dict[str, Any] = {
    "training": {"kind": "none"},
    "speeds": {"kind": "equal"},
    "run": {"events": 10, "seeds": [1]},
}


def of_a_simulation(strategy: dict[str, Any], folder: Path, given: Any = None) -> dict[str, Any]:
    fedraw.simulate(
        fedraw.Spec.from_dict({**SPEC, "strategy": strategy}), out=folder, strategy=given
    )
    return next(iter(read_objects(folder / "seed-1" / "events.jsonl")))


def of_a_server(strategy: Any, folder: Path) -> dict[str, Any]:
    engine = Engine(folder, strategy)
    engine.accept(1)
    engine.coordinator._store.log.close()
    return engine.log("start")[0]


@pytest.mark.parametrize(
    ("name", "table", "strategy"),
    [
        ("fedraw", {}, fedraw.FedRAW(3)),
        ("fedraw-dedup-only", {"weighting": "uniform"}, fedraw.FedRAW(3, weighting="uniform")),
        ("fedraw-weight-only", {"dedup": False}, fedraw.FedRAW(3, dedup=False)),
        (
            "fedraw-neither",
            {"dedup": False, "weighting": "uniform"},
            fedraw.FedRAW(3, dedup=False, weighting="uniform"),
        ),
        ("fedraw-replay", {"name": "fedraw-replay"}, fedraw.Replay(3)),
        ("fedfa", {"name": "fedfa"}, fedraw.FedFa(3)),
        ("fedbuff", {"name": "fedbuff", "unique": True}, fedraw.FedBuff(3, unique=True)),
    ],
)
def test_a_server_records_what_a_simulation_records(
    name: str, table: dict[str, Any], strategy: Any, tmp_path: Path
) -> None:
    named = of_a_simulation({"name": "fedraw", "buffer": 3, **table}, tmp_path / "named")
    given = of_a_simulation({}, tmp_path / "given", strategy)
    served = of_a_server(strategy, tmp_path / "served")
    assert [start["name"] for start in (named, given, served)] == [name] * 3
    settings = named["spec"]["strategy"]
    assert given["spec"]["strategy"] == served["spec"]["strategy"] == settings
    assert fedraw.Spec.from_dict({"strategy": settings}).make_strategy() == strategy


def test_the_demo_compares_ten_methods() -> None:
    assert [name for name, method in CATALOG.items() if method.demo] == [
        "fedavg", "qfedavg", "fedasync", "fedbuff", "fedfa", "ca2fl", "fedraw-dedup-only",
        "fedraw-weight-only", "fedraw", "fedraw-replay",
    ]  # fmt: skip


@pytest.mark.parametrize("clients", [30, 34])
@pytest.mark.parametrize("name", [n for n, m in CATALOG.items() if m.memory is not None])
def test_the_memory_of_a_method_is_what_its_state_holds(name: str, clients: int) -> None:
    memory = CATALOG[name].memory
    assert memory is not None
    always, per_slot, per_client = memory
    slots = getattr(CATALOG[name].make(), "buffer", 0)
    if name == "fedraw-replay":
        slots = 6  # it keeps an update of each rare client, and at most K
    models = always + per_slot * slots + per_client * clients
    assert models_kept(name, clients) == pytest.approx(models, rel=1e-3)
