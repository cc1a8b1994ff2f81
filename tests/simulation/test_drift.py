"""Samples that move, and labels that appear."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventlog.logs import read_objects

from fedraw.core.randomness import Streams
from fedraw.errors import BadInput, Interrupted
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of
from fedraw.simulation.executors import Job
from fedraw.simulation.perturbations.drift import moved, without

PARTITION = {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5}


@given(st.lists(st.integers(0, 2), min_size=6, max_size=40), st.integers(0, 99))
def test_moving_keeps_every_sample_and_moves_only_the_label(labels: list[int], seed: int) -> None:
    truth = np.array(labels)
    clients = np.array_split(np.random.default_rng(seed).permutation(truth.size), 4)
    holders = [i for i in range(4) if (truth[clients[i]] == 2).any()]
    after = moved(clients, truth, 2, [0] * len(holders))
    assert sorted(np.concatenate(after).tolist()) == list(range(truth.size))
    assert not any((truth[own] == 2).any() for own in after[1:])
    for before, own in zip(without(clients, truth, 2), without(after, truth, 2), strict=True):
        assert sorted(before.tolist()) == sorted(own.tolist())


def spec(**drift: object) -> Spec:
    return Spec.from_dict(
        {
            "partition": PARTITION,
            "strategy": {"name": "fedraw", "buffer": 4},
            "training": {"epochs": 1},
            "run": {"events": 40, "evaluate_every": 10, "seeds": [1]},
            "drift": {"label": 9, **drift},
        }
    )


def holders(table: object, label: str) -> set[int]:
    return {c for c, own in table.counts().items() if label in own}  # type: ignore[attr-defined]


def test_a_label_moves_to_clients_without_rare_ones() -> None:
    clients = draw_clients(spec(kind="move"), Streams(1))
    before, after = (holders(epoch.table, "9") for epoch in clients.epochs)
    assert before == set(clients.rare) and len(after) == len(before)
    assert not before & after


def test_a_new_label_is_nobodys_at_first() -> None:
    clients = draw_clients(spec(kind="new"), Streams(1))
    before, after = (holders(epoch.table, "9") for epoch in clients.epochs)
    assert before == set() and after == set(clients.rare)


def test_who_is_handed_the_model_before_the_drift_still_trains_on_the_old_data(
    tmp_path: Path,
) -> None:
    """The first half of a run is that of one without drift, to the bit."""
    plain = Spec.from_dict({k: v for k, v in spec(kind="move").to_dict().items() if k != "drift"})
    drifting = spec(kind="move", declared="again")
    run_seed(plain, 1, tmp_path / "plain")
    run_seed(drifting, 1, tmp_path / "drift")
    one, other = (
        [r for r in read_objects(tmp_path / name / "events.jsonl") if r["kind"] != "start"]
        for name in ("plain", "drift")
    )
    half = next(i for i, r in enumerate(other) if r["kind"] == "note")
    assert one[:half] == other[:half] and other[half]["event"] == 20
    assert [r["kind"] for r in other[half : half + 5]] == ["note"] + ["declared"] * 4
    assert one[half:] != other[half:]


def test_an_interrupted_run_goes_on_to_the_same_bytes_through_the_drift(tmp_path: Path) -> None:
    wanted = spec(kind="move", declared="again")
    run_seed(wanted, 1, tmp_path / "whole")
    for at in (20, 22):
        asked = count()
        options = Options(stop=lambda asked=asked, at=at: next(asked) + 1 >= at)  # type: ignore[misc]
        with pytest.raises(Interrupted):
            run_seed(wanted, 1, tmp_path / f"cut {at}", options=options)
        run_seed(wanted, 1, tmp_path / f"cut {at}", options=Options(resume=True))
        for file in ("events.jsonl", "model.safetensors"):
            whole = (tmp_path / "whole" / file).read_bytes()
            assert (tmp_path / f"cut {at}" / file).read_bytes() == whole


def training_free(declared: str = "again") -> Spec:
    drift = {"label": 0, "kind": "move", "declared": declared}
    few = {"clients": 8, "rare_labels": [0], "clients_per_common_label": 5}
    return Spec.from_dict(
        {
            "data": {"name": "cifar10-labels"},
            "partition": few,
            "strategy": {"name": "fedraw", "buffer": 4},
            "training": {"kind": "none"},
            "run": {"events": 60, "evaluate_every": 10, "seeds": [1]},
            "drift": drift,
        }
    )


def test_without_training_everyone_reports_the_samples_it_has_after_the_drift() -> None:
    scenario = Scenario.of(training_free(), 1)
    totals = [epoch.table.totals() for epoch in scenario.clients.epochs]
    assert (totals[0] != totals[1]).any()
    with executor_of(scenario, Options()) as executor:
        for client in range(len(totals[0])):
            for epoch, samples in enumerate(totals):
                executor.submit(Job(client, client, 0, scenario.setup.model, due=0.0, epoch=epoch))
                assert executor.collect(client).examples == samples[client]


def test_a_training_free_run_drifts_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    run_seed(training_free(), 1, tmp_path / "whole")
    records = list(read_objects(tmp_path / "whole" / "events.jsonl"))
    assert [r["event"] for r in records if r["kind"] == "note"] == [30]
    assert records[-1]["kind"] == "end" and records[-1]["event"] == 60
    asked = count(1)
    with pytest.raises(Interrupted):
        run_seed(
            training_free(), 1, tmp_path / "cut", options=Options(stop=lambda: next(asked) == 40)
        )
    run_seed(training_free(), 1, tmp_path / "cut", options=Options(resume=True))
    log = (tmp_path / "cut" / "events.jsonl").read_bytes()
    assert log == (tmp_path / "whole" / "events.jsonl").read_bytes()


def test_the_drift_of_a_scenario_is_computed_once() -> None:
    scenario = Scenario.of(training_free(), 1)
    assert scenario.drift is not None and scenario.drift is scenario.drift


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        ({"kind": "move", "at": 1.0}, "drift.at = 1.0 must be between 0 and 1"),
        ({"kind": "vanish"}, "drift.kind = 'vanish' must be 'move' or 'new'"),
    ],
)
def test_impossible_drifts_are_refused(drift: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        spec(**drift)
