"""Runs in which clients send sums: they end when everyone was heard, and order does not matter."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.eventlog.logs import read_objects

import fedraw
from fedraw.core.sums import digest
from fedraw.errors import BadInput
from fedraw.eventlog.compare import paired
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.goals import Goal
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.training import executor_of
from fedraw.export.model import export_model
from fedraw.report import figures

MAP = {"backbone": "relu", "width": 48}
TOY: dict[str, Any] = {
    "data": {"name": "digits"},
    "features": MAP,
    "partition": {"clients": 12, "rare_labels": [8, 9], "clients_per_common_label": 8},
    "strategy": {"name": "one-pass"},
    "run": {"events": 600, "evaluate_every": 100, "seeds": [7]},
}


def spec(**sections: Any) -> fedraw.Spec:
    return fedraw.Spec.from_dict({**TOY, **sections})


def totals(wanted: fedraw.Spec, executor: str = "inline") -> str:
    """The digest of the totals after a run."""
    options = Options(executor=executor, workers=2)  # type: ignore[arg-type]
    scenario = Scenario.of(wanted, 7, options=options)
    with executor_of(scenario, options) as running:
        simulation = scenario.simulation(running)
        while simulation.finished is None:
            simulation.step()
        return digest(simulation.state.totals)  # type: ignore[attr-defined]


def test_the_run_ends_when_every_client_was_heard(tmp_path: Path) -> None:
    result = run_seed(spec(), 7, tmp_path)
    summary = result.summary
    assert summary["events"] == 12
    assert summary["final"] == "every member was heard"
    assert "ended" not in summary
    assert summary["rejected"] == {}
    follower = LogFollower(tmp_path / "events.jsonl")
    follower.poll()
    shown = follower.status(0.0)
    assert (shown.event, shown.events, shown.state) == (12, 12, "finished")
    evaluations = [r for r in read_objects(tmp_path / "events.jsonl") if r["kind"] == "evaluation"]
    assert [own["event"] for own in evaluations] == list(range(1, 13))  # after each message
    assert [own.get("final", False) for own in evaluations] == [False] * 11 + [True]
    assert summary["tail"]["AvgRare"] == summary["metrics"]["AvgRare"] > 60
    assert any("do not train" in note for note in summary["notes"])


def test_its_value_for_a_longer_horizon_is_its_final_value() -> None:
    runs = [run_seed(spec(run={**TOY["run"], "events": n}), 7) for n in (600, 60_000)]
    one, other = (run.summary for run in runs)
    assert one["tail"] == other["tail"]
    assert one["reached"] == other["reached"]
    rows = fedraw.compare({"short": runs[0], "long": runs[1]}).rows
    assert [row.events for row in rows] == [(600,), (60_000,)]
    reached = [row.reached[Goal.parse("AvgRare>=50")] for row in rows]
    assert [own.within for own in reached] == [(600,), (60_000,)]
    assert reached[0].median("arrivals") == reached[1].median("arrivals") == 5


def test_runs_on_the_same_samples_can_be_compared(tmp_path: Path) -> None:
    """The default map belongs to the method, and the map of [features] to the data."""
    short = {**TOY["run"], "events": 40, "evaluate_every": 5}
    for name, features in (("without", None), ("with", MAP)):
        tables = {**TOY, "run": short} | ({} if features else {"partition": TOY["partition"]})
        tables.pop("features")
        tables |= {"features": features} if features else {}
        folder = tmp_path / name
        run_seed(fedraw.Spec.from_dict(tables), 7, folder / "one" / "seed-7")
        trained = tables | {"strategy": {"name": "fedraw", "buffer": 4}}
        run_seed(fedraw.Spec.from_dict(trained), 7, folder / "other" / "seed-7")
        found = fedraw.compare([folder / "one", folder / "other"])
        assert len(set(found.rows[0].data) | set(found.rows[1].data)) == 1
        assert paired(found.rows[0], found.rows[1], "AvgRare").mean > 0
        assert not any("different data" in note for note in found.notes)
        assert any(note.startswith("one-pass: clients send sums") for note in found.notes)
        data = read_objects(folder / "one" / "seed-7" / "events.jsonl")[0]["data"]
        assert ("map" in data) == (name == "without")


def test_a_final_model_is_drawn_to_the_end_of_the_others() -> None:
    short = {**TOY["run"], "events": 40, "evaluate_every": 5}
    runs = [run_seed(spec(run=short, strategy=own), 7, options=Options(keep_log=True))
            for own in ({"name": "one-pass"}, {"name": "fedraw", "buffer": 4})]  # fmt: skip
    drawing = figures.accuracy({run.name: [run.evaluations] for run in runs})
    assert drawing is not None
    lines = drawing.draw().axes[0].get_lines()
    ends = [tuple(np.asarray(line.get_xydata())[-1].tolist()) for line in lines]
    assert (40.0, runs[0].evaluations[-1].metrics["GlobalAcc"]) in ends


def test_a_scaled_network_does_not_change_the_data(tmp_path: Path) -> None:
    import torch

    from fedraw.learning.features import backbone

    network = backbone("resnet18", (1, 8, 8), np.random.default_rng(0), "cifar")
    torch.save(network.state_dict(), tmp_path / "w.pth")
    features = {"weights": str(tmp_path / "w.pth"), "stem": "cifar"}
    found = []
    for strategy in ({"name": "one-pass"}, {"name": "fedraw", "buffer": 4}):
        tables = {**TOY, "features": features, "strategy": strategy}
        tables["data"] = {"name": "digits", "per_label": 20}
        found.append(Scenario.of(fedraw.Spec.from_dict(tables), 7).clients.dataset)
    one, other = found
    assert one.origin == other.sha256()
    assert other.origin is None
    assert not np.array_equal(one.inputs[:], other.inputs[:])
    assert abs(float(one.inputs[:].std()) - 1) < 1


def test_features_and_head_are_one_module(tmp_path: Path) -> None:
    import torch

    from fedraw.learning.feature_maps import default_map, relu

    rng = np.random.default_rng(0)
    images = (255 * rng.random((200, 1, 8, 8))).astype(np.uint8)
    labels = rng.integers(0, 3, 200)
    images[np.arange(200), 0, :, 2 * labels] = 255
    data: dict[str, Any] = {
        "data": (images[:150], labels[:150]),
        "test": (images[150:], labels[150:]),
    }
    result = fedraw.simulate(strategy="one-pass", **data, out=tmp_path, seeds=[1],
                             partition=fedraw.IID(clients=3), progress=False)  # fmt: skip
    card = export_model(tmp_path / "seed-1", tmp_path / "exported.safetensors").read_text()
    assert "- Inputs: the features of the feature map convolutions, 540 features, digest" in card
    found = fedraw.load(tmp_path)[1].classifier(default_map((1, 8, 8)))
    again = default_map((1, 8, 8)).with_head(load_file(tmp_path / "exported.safetensors"))
    assert torch.equal(again.head.weight, found.head.weight)
    with torch.no_grad():
        scores = found(torch.from_numpy(images[150:]))
        floats = found(torch.from_numpy(images[150:].astype(np.float32) / 255))
    right = 100 * np.mean(scores.argmax(1).numpy() == labels[150:])
    assert right > 80
    assert right == pytest.approx(result[1].summary["metrics"]["GlobalAcc"])
    torch.testing.assert_close(scores, floats)
    torch.save(found, tmp_path / "classifier.pt")
    same = torch.load(tmp_path / "classifier.pt", weights_only=False)
    assert torch.equal(same(torch.from_numpy(images[:9])), found(torch.from_numpy(images[:9])))
    batch = {0: torch.export.Dim("batch", max=32)}
    graph = torch.export.export(found, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=(batch,))
    few = torch.from_numpy(images[150:180].astype(np.float32) / 255)
    torch.testing.assert_close(graph.module()(few), scores[:30])
    with pytest.raises(
        BadInput, match=r"seed 1, has the feature map convolutions, .*; give the map"
    ):
        result[1].classifier(relu((1, 8, 8), 540))
    trained = fedraw.simulate(data="digits", events=20, seeds=[1], progress=False)
    with pytest.raises(BadInput, match="seed 1, has no feature map, and"):
        trained[1].classifier(default_map((1, 8, 8)))


def test_with_fewer_events_than_clients_the_run_has_an_ordinary_end() -> None:
    summary = run_seed(spec(run={**TOY["run"], "events": 5}), 7).summary
    assert summary["events"] == 5
    assert "final" not in summary


SPEEDS: list[dict[str, Any]] = [
    {"speeds": {"kind": "equal"}},
    {"speeds": {"kind": "ratio", "ratio": 20.0}},
    {"speeds": {"kind": "correlated", "arrivals": "fixed"}},
    {"run": {**TOY["run"], "concurrency": 1}},
    {"run": {**TOY["run"], "concurrency": 3, "receivers": "rare-first"}},
    {"losses": {"lost": 0.3}},
]


@pytest.mark.parametrize("change", SPEEDS)
def test_speeds_and_losses_do_not_change_the_totals(change: dict[str, Any]) -> None:
    assert totals(spec(**change)) == totals(spec())


@pytest.mark.parametrize("executor", ["batched", "processes"])
def test_executors_do_not_change_a_byte(executor: str, tmp_path: Path) -> None:
    run_seed(spec(), 7, tmp_path / "inline")
    options = Options(executor=executor, workers=2)  # type: ignore[arg-type]
    run_seed(spec(), 7, tmp_path / "other", options=options)
    one, other = (tmp_path / name / "events.jsonl" for name in ("inline", "other"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_large_messages_are_kept_in_a_file(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again = spec(drift={"label": 8, "kind": "move", "at": 0.01, "declared": "again"})
    plain = totals(again, executor)
    monkeypatch.setattr("fedraw.experiment.training.MOST_IN_MEMORY", 0)
    monkeypatch.setattr("fedraw.simulation.executors.spilled._PART", 2**15)
    assert totals(again, executor) == plain
    options = Options()
    scenario = Scenario.of(spec(), 7)
    with executor_of(scenario, options) as running:
        simulation = scenario.simulation(running)
        simulation.step()
        (message,) = simulation.state.messages.values()  # type: ignore[attr-defined]
        assert not message.flags.owndata
        assert not message.flags.writeable


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraw.experiment.training.MOST_IN_MEMORY", 0)

    def full(self: Any, part: Any) -> int:
        raise OSError(28, "No space left on device")

    class File(io.FileIO):
        write = full

    def opened(buffering: int) -> Any:
        return File(os.devnull, "w")

    monkeypatch.setattr("fedraw.simulation.executors.spilled.Spilled._extend",
                        lambda self: self._free.append(0))  # fmt: skip
    monkeypatch.setattr("tempfile.TemporaryFile", opened)
    with pytest.raises(BadInput, match=r"No space left on device.*; set TMPDIR to a folder with"):
        run_seed(spec(), 7)


def test_a_stopped_run_starts_again_and_ends_the_same(tmp_path: Path) -> None:
    calls = iter([False] * 5)
    with pytest.raises(fedraw.Interrupted):
        run_seed(spec(), 7, tmp_path / "cut", options=Options(stop=lambda: next(calls, True)))
    run_seed(spec(), 7, tmp_path / "cut", options=Options(resume=True))
    run_seed(spec(), 7, tmp_path / "whole")
    one, other = (tmp_path / name / "events.jsonl" for name in ("cut", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_who_joins_later_is_waited_for_and_asked() -> None:
    assert totals(spec(membership={"joining": 0.4, "within": 50.0})) == totals(spec())


def test_who_was_heard_stays_when_it_leaves() -> None:
    """All leave long after they were heard."""
    assert totals(spec(membership={"leaving": 1.0, "within": 1e6})) == totals(spec())


def test_clients_whose_data_change_are_asked_again() -> None:
    drifting = spec(drift={"label": 8, "kind": "move", "at": 0.01, "declared": "again"})
    assert totals(drifting) == totals(spec())  # the same samples, at other clients


def test_messages_count_in_the_costs() -> None:
    summary = run_seed(spec(costs={"upload_mbit": 8.0}), 7).summary
    labels, width = 10, 48
    message = 8 * (labels + labels * width + width * (width + 1) // 2)
    model = 4 * labels * (width + 1)
    assert summary["costs"]["bytes"] == 12 * (message + model)


CLAIM = {"label": 8, "share": 0.5, "form": "recounted"}


def test_a_client_that_claims_other_counts_is_refused(tmp_path: Path) -> None:
    wanted = spec(misreport=CLAIM, run={**TOY["run"], "events": 40})
    summary = run_seed(wanted, 7, tmp_path).summary
    assert len(summary["rejected"]) == 1
    reasons = [r["reason"] for r in read_objects(tmp_path / "events.jsonl")
               if r["kind"] == "rejected"]  # fmt: skip
    assert "declare the counts of the samples that are summed" in reasons[0]


SECRET = {"mechanism": "randomised-response", "epsilon": 2.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"training": {"kind": "none"}}, "training.kind = 'none' does not go with strategy 'one-pass'"),
    ({"calibration": {}}, ".calibration. does not go with strategy 'one-pass': its output layer"),
    ({"summaries": SECRET}, ".summaries. does not go with strategy"),
    ({"strategy": {"name": "one-pass", "floor": 5000}}, "strategy.floor = 5000: no client has so"),
    ({"features": {"backbone": "relu", "width": 9000}}, "features.width = 9000 must be from 1 to"),
    ({"training": {"model": "text"}, "features": None},
     "samples of dataset 'digits' are texts, for which there is no default feature map"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_has_no_meaning_without_training_is_refused(
    change: dict[str, Any], words: str
) -> None:
    tables = {key: value for key, value in {**TOY, **change}.items() if value is not None}
    with pytest.raises(BadInput, match=words):
        run_seed(fedraw.Spec.from_dict(tables), 7)


def blobs(columns: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 600)
    means = 2 * rng.normal(size=(5, columns))
    return (means[labels] + rng.normal(size=(600, columns))).astype(np.float32), labels


def accuracy(inputs: Any, labels: Any) -> Any:
    return fedraw.simulate(strategy="one-pass", data=(inputs, labels), seeds=[1], progress=False,
                           partition=fedraw.IID(clients=5))  # fmt: skip


def test_columns_of_any_scale_need_no_preparation() -> None:
    inputs, labels = blobs()
    rows: dict[str, Any] = {
        "unit": np.ones(6), "large": np.full(6, 100.0), "huge": np.full(6, 1e6),
        "mixed": np.array([1, 1, 10, 100, 1e3, 1e4])
    }  # fmt: skip
    found = {n: accuracy(inputs * own, labels).summaries[0] for n, own in rows.items()}
    assert min(own["metrics"]["GlobalAcc"] for own in found.values()) > 75
    assert not any("column" in note for own in found.values() for note in own["notes"])


def test_a_column_that_hardly_varies_is_named() -> None:
    inputs, labels = blobs()
    flat = np.hstack([inputs, 1990 + inputs[:, :1], inputs[:, 1:2] / 1e3, np.ones((600, 1))])
    notes = accuracy(flat, labels).summaries[0]["notes"]
    assert any(re.match(r"columns 6, 7 of the inputs vary too little", note) for note in notes)


def test_images_without_channels_are_named() -> None:
    images = (255 * np.random.default_rng(0).random((60, 9, 8))).astype(np.uint8)
    notes = accuracy(images, np.arange(60) % 3).summaries[0]["notes"]
    assert any("shape (9, 8) are read as rows of a table" in note for note in notes)


CAUTIONS: list[tuple[dict[str, Any], str]] = [
    ({"run": {**TOY["run"], "events": 5}}, "run.events = 5 is less than the 12 clients"),
]


@pytest.mark.parametrize(("change", "words"), CAUTIONS)
def test_what_makes_sums_useless_is_said(change: dict[str, Any], words: str) -> None:
    cautions = Scenario.of(spec(**change), 7).cautions
    assert any(words in caution for caution in cautions), cautions


def test_constant_features_are_said() -> None:
    inputs, labels = blobs()
    with pytest.warns(match="the features of all samples are the same"):
        accuracy(np.ones_like(inputs), labels)


def test_sums_of_values_out_of_range_are_refused() -> None:
    inputs, labels = blobs()
    with pytest.raises(BadInput, match=r"client .* of the features are beyond ±16.*; divide the"):
        fedraw.simulate(strategy="one-pass", data=(100 * inputs, labels), seeds=[1],
                        progress=False, features=own_features(1.0))  # fmt: skip


def own_features(scale: float) -> Any:
    def features(batch: Any) -> Any:
        return batch.reshape(len(batch), -1) * scale

    return features


RNG = np.random.default_rng(5)
COLUMNS = RNG.normal(size=(600, 3)).astype(np.float32)
RENTS = COLUMNS @ [1.0, -2.0, 0.5] + 3 + RNG.normal(scale=0.5, size=600)
PLACES = np.where(np.arange(600) % 10 == 0, "island", "mainland")


def regression(data: Any = (COLUMNS, RENTS, PLACES), **more: Any) -> Any:
    more = {"strategy": fedraw.OnePass(readout="regression"), "seeds": [1], **more}
    return fedraw.simulate(data=data, partition=fedraw.IID(clients=6), progress=False, **more)


def identity() -> Any:
    import torch

    from fedraw.learning.feature_maps import own_map

    return own_map(torch.nn.Identity(), (3,))


def test_a_regression_is_that_of_all_training_samples() -> None:
    """Errors of deviation 0.5 have the mean square 0.25."""
    import torch

    own, test = (tuple(part[rows] for part in (COLUMNS, RENTS, PLACES))
                 for rows in (slice(500), slice(500, None)))  # fmt: skip
    result = regression(own, test=test, features=identity())
    summary = result.summaries[0]
    assert (summary["events"], summary["final"]) == (6, "every member was heard")
    assert summary["rejected"] == {}
    with torch.no_grad():
        found = result[1].classifier(identity())(torch.from_numpy(test[0]))[:, 0].numpy()
    error = np.mean((found - test[1]) ** 2)
    assert 0.15 < error < 0.35
    assert summary["own"]["MSE"] == pytest.approx(error, rel=1e-4)
    assert summary["own"]["R2"] == pytest.approx(1 - error / test[1].var(), rel=1e-4)


def test_a_regression_reports_the_rare_group_and_the_users_metrics() -> None:
    result = regression(
        rare_labels=["island"], metrics={"MAE": lambda o, t: abs(o[:, 0] - t).mean()}
    )
    (summary,) = result.summaries
    assert set(summary["own"]) == set(summary["own_rare"]) == {"MAE"}
    assert summary["own"]["MAE"] < 0.6


def test_a_regression_has_several_outputs_no_groups_and_exports_its_layer(tmp_path: Path) -> None:
    both = np.stack([RENTS, COLUMNS[:, 0] / 2], axis=1)
    result = regression((COLUMNS, both), out=tmp_path, features=identity())
    export_model(tmp_path / "seed-1", tmp_path / "exported.safetensors")
    weight = load_file(tmp_path / "exported.safetensors")["1.weight"]
    assert weight.shape == (2, 3)
    assert weight[1, 1:] == pytest.approx([0, 0], abs=2e-3)
    assert result.summaries[0]["own"]["R2"] > 0.9


@pytest.mark.parametrize("change", [{"executor": "processes", "jobs": 2},
                                    {"speeds": fedraw.Uniform()}])  # fmt: skip
def test_executors_and_speeds_do_not_change_a_regression(change: dict[str, Any]) -> None:
    one, other = (regression(**more).state_dict() for more in ({}, change))
    assert all(np.array_equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def test_a_regression_runs_from_a_spec(tmp_path: Path) -> None:
    np.savez(tmp_path / "rents.npz", inputs=COLUMNS, labels=RENTS, groups=PLACES)
    tables = {**TOY, "data": {"name": "npz", "path": str(tmp_path / "rents.npz")},
              "strategy": {"name": "one-pass", "readout": "regression"},
              "partition": {"kind": "iid", "clients": 6},
              "metrics": {"rare_labels": ["island"]}}  # fmt: skip
    summary = run_seed(fedraw.Spec.from_dict(tables), 7, tmp_path / "run").summary
    assert summary["own"]["R2"] > 0.8
    assert set(summary["own_rare"]) == {"MSE", "R2"}


NOT_FOR_SUMS: list[tuple[Any, dict[str, Any], str]] = [
    ((COLUMNS, RENTS), {"strategy": "one-pass"}, "set strategy.readout = 'regression', or convert"),
    ((COLUMNS, np.arange(600) % 3), {}, "'regression', and dataset 'arrays' has labels; give targ"),
    ((COLUMNS, np.arange(600) % 3, PLACES), {}, "has groups, and targets that are whole numbers"),
    ((COLUMNS, 1000 * RENTS), {}, "of the targets are beyond ±16.*; divide the targets by const"),
    ((COLUMNS, RENTS), {"strategy": fedraw.OnePass(readout="regression", floor=5000)},
     "strategy.floor = 5000: no client has so many samples, so nobody would send"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "more", "words"), NOT_FOR_SUMS)
def test_targets_and_labels_that_cannot_be_summed_are_refused(
    data: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        regression(data, **more)


def test_labels_below_the_floor_are_named() -> None:
    counts = Scenario.of(spec(), 7).clients.table.counts().values()
    floor = max(own.get("8", 0) for own in counts) + 1
    summary = run_seed(spec(strategy={"name": "one-pass", "floor": floor}), 7).summary
    assert any(f"no client has {floor} samples of some" in note for note in summary["notes"])
    assert summary["recall"]["8"] == 0


def test_the_log_names_the_default_map() -> None:
    tables = {key: value for key, value in TOY.items() if key != "features"}
    summary = run_seed(fedraw.Spec.from_dict(tables), 7).summary
    assert any("feature map convolutions" in note for note in summary["notes"])
    assert summary["metrics"]["AvgRare"] > 90


NOISY = {"name": "one-pass", "epsilon": 20.0}


def test_noise_repeats_and_does_not_depend_on_speeds() -> None:
    assert totals(spec(strategy=NOISY)) == totals(spec(strategy=NOISY))
    assert totals(spec(strategy=NOISY)) != totals(spec())
    fast = spec(strategy=NOISY, speeds={"kind": "equal"}, losses={"lost": 0.3})
    assert totals(fast) == totals(spec(strategy=NOISY))


def test_workers_draw_the_same_noise() -> None:
    assert totals(spec(strategy=NOISY), "processes") == totals(spec(strategy=NOISY))


def test_noise_costs_accuracy_and_little_noise_little() -> None:
    found = [
        run_seed(spec(strategy={"name": "one-pass", "epsilon": own}), 7).summary["metrics"]
        for own in (0.5, 3.0, 100.0)
    ]
    accuracies = [own["GlobalAcc"] for own in found]
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 50
    assert accuracies[2] > 80
