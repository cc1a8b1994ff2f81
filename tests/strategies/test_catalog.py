"""The catalogue: names and settings that everyone records, the demo's methods, server memory."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from benchmarks.method_cost import models_kept
from tests.eventlog.logs import read_objects
from tests.server.engine import Engine

import fedraw
from fedraw.core.settings import keys, meanings
from fedraw.strategies.catalog import CATALOG, Method, settings_of

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


RAW = {"buffer": 10, "cap": "none", "cap_at": 1.0, "labels": "declared"}
REPLAY = {"buffer": 10, "threshold": 2.0, "mass": 0.5, "floor": 0.0, "server_lr": 1.0,
          "labels": "declared", "release": True}  # fmt: skip
# A result is comparable with another only if nobody changes a default.
DEFAULTS: dict[str, dict[str, Any]] = {
    "fedavg": {"weighting": "samples"},
    "qfedavg": {"lr": 1.0, "q": 5.0, "p": "uniform"},
    "fedasync": {
        "alpha": 0.6, "staleness": "polynomial", "exponent": 0.5, "hinge_slope": 10.0,
        "hinge_grace": 4.0, "proximal": 0.0,
    },
    "fedbuff": {
        "buffer": 10, "server_lr": 1.0, "staleness": "none", "exponent": 0.5, "unique": False
    },
    "fedfa": {"buffer": 10},
    "ca2fl": {"buffer": 10, "server_lr": 1.0, "refresh": "round-start"},
    "mifa": {"buffer": 10, "server_lr": 1.0, "wait": False},
    "fedvarp": {"buffer": 1, "server_lr": 0.1, "refresh": "round-start"},
    "ace": {"server_lr": 0.1, "init": "zero"},
    "aced": {"server_lr": 0.1, "tau_algo": "clients", "age": "contact"},
    "aced-start": {"server_lr": 0.1, "tau_algo": "clients", "age": "start"},
    "area": {"buffer": 10},
    "fedau": {"buffer": 10, "server_lr": 1.0, "cutoff": 50},
    "fedstale": {
        "buffer": 10, "server_lr": 1.0, "beta": 0.5, "participation": "estimated",
        "average": "members", "refresh": "round-start", "cutoff": 50,
    },
    "fedstaleweight": {"buffer": 10, "server_lr": 1.0, "offset": 0.0},
    "fadas": {
        "buffer": 10, "server_lr": 0.001, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "tau_c": 1,
        "corrected": False,
    },
    "fedraw-dedup-only": {**RAW, "dedup": True, "weighting": "uniform"},
    "fedraw-weight-only": {**RAW, "dedup": False, "weighting": "rarity"},
    "fedraw-neither": {**RAW, "dedup": False, "weighting": "uniform"},
    "fedraw": {**RAW, "dedup": True, "weighting": "rarity"},
    "fedraw-replay": {**REPLAY, "select": "rarity", "target": "rarity"},
    "fedraw-replay-debt": {**REPLAY, "select": "debt", "target": "mix"},
    "one-pass": {"prior": 1.0, "shrinkage": "auto", "readout": "discriminant", "floor": 1},
}  # fmt: skip


def test_defaults_are_those_of_the_method_pages() -> None:
    made = {name: CATALOG[name].make({"lr": 1.0} if name == "qfedavg" else {}) for name in CATALOG}
    assert {name: settings_of(strategy) for name, strategy in made.items()} == DEFAULTS


@pytest.mark.parametrize("method", CATALOG.values(), ids=CATALOG)
def test_every_setting_has_a_meaning_and_every_meaning_a_setting(method: Method) -> None:
    assert meanings(method.factory).keys() == keys(method.factory).keys()
    assert [t for t in method.setting_meanings.values() if not t.endswith(".")] == []


@pytest.mark.parametrize("name", CATALOG)
def test_a_strategy_cannot_be_changed(name: str) -> None:
    strategy: Any = CATALOG[name].make({"lr": 1.0} if name == "qfedavg" else {})
    with pytest.raises(FrozenInstanceError):
        setattr(strategy, next(iter(DEFAULTS[name])), None)


def test_the_demo_compares_eleven_methods() -> None:
    assert [name for name, method in CATALOG.items() if method.demo] == [
        "fedavg", "qfedavg", "fedasync", "fedbuff", "fedfa", "ca2fl", "fedraw-dedup-only",
        "fedraw-weight-only", "fedraw", "fedraw-replay", "one-pass",
    ]  # fmt: skip


@pytest.mark.parametrize("clients", [30, 34])
@pytest.mark.parametrize("name", [n for n, m in CATALOG.items() if m.memory is not None])
def test_the_memory_of_a_method_is_what_its_state_holds(name: str, clients: int) -> None:
    memory = CATALOG[name].memory
    assert memory is not None
    always, per_slot, per_client = memory
    slots = getattr(CATALOG[name].make(), "buffer", 0)
    assert slots or not per_slot
    if name == "fedraw-replay":
        slots = 6  # it keeps an update of each rare client, and at most K
    models = always + per_slot * slots + per_client * clients
    assert models_kept(name, clients) == pytest.approx(models, rel=1e-3)
