from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.eventlog.logs import read_objects
from torch import nn

import fedraw
from fedraw import CA2FL, FedAvg, FedBuff, FedFa, FedRAW, LabelTable, QFedAvg
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarity_scores
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.compare import compare
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.metrics import METRICS
from fedraw.eventlog.records import JoinedRecord, Record
from fedraw.eventlog.state import RunState
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.options import Options
from fedraw.experiment.result import SeedResult
from fedraw.experiment.run_folder import RunFolder
from fedraw.experiment.runner import run_seed
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec
from fedraw.report.page import write_report
from fedraw.strategies.catalog import CATALOG


def small(**sections: Any) -> Spec:
    base: dict[str, Any] = {
        "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
        "strategy": {"name": "fedraw", "buffer": 4},
        "training": {"epochs": 1},
        "run": {"events": 40, "evaluate_every": 10, "seeds": [1]},
    }
    return Spec.from_dict({**base, **sections})


def method(name: str) -> Spec:
    return small(strategy={"name": name, **({"buffer": 4} if name == "fedraw" else {})})


@pytest.mark.parametrize("name", [m.name for m in CATALOG.values() if not m.is_ablation])
def test_same_spec_and_seed_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    spec = method(name)
    for folder in ("a", "b"):
        run_seed(spec, 1, tmp_path / folder)
    for file in ("events.jsonl", "summary.json", "spec.toml", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    run_seed(spec, 2, tmp_path / "c")
    log = "events.jsonl"
    assert (tmp_path / "a" / log).read_bytes() != (tmp_path / "c" / log).read_bytes()


def test_all_asynchronous_methods_meet_the_same_arrivals(tmp_path: Path) -> None:
    arrivals = {}
    for name in ("fedraw", "fedfa", "fedbuff", "ca2fl", "fedasync"):
        run_seed(method(name), 1, tmp_path / name)
        records = read_objects(tmp_path / name / "events.jsonl")
        arrivals[name] = [(r["time"], r["client"]) for r in records if r["kind"] == "arrival"]
    first, *others = arrivals.values()
    assert len(first) == 40
    assert all(other == first for other in others)


def test_the_summary_is_what_the_log_comes_to(tmp_path: Path) -> None:
    result = run_seed(small(), 1, tmp_path)
    again = RunState.of(read_log(tmp_path / "events.jsonl")).summary()
    assert again == result.summary
    written = json.loads((tmp_path / "summary.json").read_text())
    assert {key: written[key] for key in result.summary} == result.summary
    assert set(written) - set(result.summary) == {"files", "sha256"}
    assert set(METRICS) <= set(result.summary["metrics"])


@pytest.mark.filterwarnings("ignore:.*the model never changed")
@pytest.mark.filterwarnings("ignore:the test set has labels that no client holds")
def test_files_do_not_grow_with_the_square_of_the_labels(tmp_path: Path) -> None:
    # A dense matrix of 1,500 labels is 4.5 MB of JSON, and ten times that when it is indented.
    labels = np.arange(1500).repeat(2)
    pixels = np.random.default_rng(0).normal(size=(len(labels), 4))
    spec = small(
        partition={"kind": "iid", "clients": 4}, speeds={"kind": "uniform"},
        training={"epochs": 1, "model": "linear"},
        run={"events": 4, "evaluate_every": 2, "seeds": [1]},
    )  # fmt: skip
    summary = simulate(spec, out=tmp_path, data=(pixels, labels)).runs[0].summary
    folder = tmp_path / "seed-1"
    assert (folder / "events.jsonl").stat().st_size < 400_000
    assert (folder / "summary.json").stat().st_size < 1_000_000
    assert sum(sum(row.values()) for row in summary["confusion"].values()) == 1500


def test_a_run_folder_is_whole(tmp_path: Path) -> None:
    (result,) = simulate(small(), out=tmp_path)
    folder = tmp_path / "seed-1"
    records = list(read_objects(folder / "events.jsonl"))
    kinds = [record["kind"] for record in records]
    assert kinds.count("joined") == 8
    assert kinds.count("arrival") == 40
    assert [r["event"] for r in records if r["kind"] == "evaluation"] == [10, 20, 30, 40]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    arrival = next(r for r in records if r["kind"] == "arrival" and r["aggregated"])
    assert set(arrival) == {
        "kind", "event", "time", "client", "start_time",
        "start_version", "version", "staleness_events",
        "staleness_versions", "aggregated", "buffer", "weights",
    }  # fmt: skip
    assert sum(arrival["weights"]) == pytest.approx(1)
    tensors = load_file(folder / "model.safetensors")
    flat = np.concatenate([t.ravel() for t in tensors.values()])
    np.testing.assert_array_equal(np.sort(flat), np.sort(result.model))
    assert Spec.from_file(folder / "spec.toml") == replace(small(), strategy=_filled(small()))
    timing = json.loads((folder / "timing.json").read_text())
    assert timing["cores"] >= 1


def _filled(spec: Spec) -> Any:
    return Spec.from_dict({"strategy": spec.to_dict()["strategy"]}).strategy


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    simulate(small(), out=tmp_path)
    before = (tmp_path / "seed-1" / "events.jsonl").read_bytes()
    with pytest.raises(BadInput, match="already holds a finished run; continue with"):
        simulate(small(run={"events": 5, "seeds": [7, 1]}), out=tmp_path)
    assert (tmp_path / "seed-1" / "events.jsonl").read_bytes() == before
    assert not (tmp_path / "seed-7").exists()
    simulate(small(run={"events": 5, "seeds": [1]}), out=tmp_path, force=True)
    assert (tmp_path / "seed-1" / "events.jsonl").read_bytes() != before


def test_training_free_runs_have_the_same_arrivals_and_buffers(tmp_path: Path) -> None:
    run_seed(small(), 1, tmp_path / "trained")
    run_seed(small(training={"kind": "none"}), 1, tmp_path / "free")
    logs = [
        [r for r in read_objects(tmp_path / kind / "events.jsonl") if r["kind"] == "arrival"]
        for kind in ("trained", "free")
    ]
    assert logs[0] == logs[1]
    summary = json.loads((tmp_path / "free" / "summary.json").read_text())
    assert summary["metrics"]["AvgRare"] is None
    assert summary["metrics"]["BufPres"] > 0
    assert not (tmp_path / "free" / "model.safetensors").exists()


def test_synchronous_methods_finish_the_round_under_way() -> None:
    spec = small(strategy={"name": "fedavg"}, run={"events": 41, "seeds": [1]})
    (result,) = simulate(spec)
    assert result.summary["events"] == 48  # ceil(41 / 8) rounds of 8 clients
    assert result.summary["metrics"]["Aggregations"] == 6


class Fragile(nn.Module):
    """A linear model whose output is NaN where an input is above 1."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_shape[0], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(x)
        return scores + 0 * torch.sqrt(1 - x.amax(dim=1, keepdim=True))


def with_one_failing_client(spec: Spec, out: Path | None = None) -> SeedResult:
    images = np.random.default_rng(0).uniform(-1, 1, size=(80, 3)).astype(np.float32)
    images[:10] = 2  # client 0's
    labels = np.arange(80) % 2
    data = fedraw.from_arrays(images, labels, test_inputs=images[10:], test_labels=labels[10:])
    with pytest.warns(UserWarning, match="updates were refused, most of them from client 0"):
        (result,) = fedraw.simulate(
            spec, out=out, data=data, partition=list(np.arange(80).reshape(8, 10)), model=Fragile
        )
    return result


def test_a_client_that_diverges_is_refused_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    spec = small(partition={}, speeds={"kind": "equal"}, run={"events": 60, "seeds": [1]})
    result = with_one_failing_client(spec, tmp_path)
    log = read_objects(tmp_path / "seed-1" / "events.jsonl")
    rejected = [record for record in log if record["kind"] == "rejected"]
    assert {record["client"] for record in rejected} == {0}
    assert "NaN or infinite" in rejected[0]["reason"]
    assert result.summary["rejected"] == {"0": len(rejected)}
    assert np.isfinite(result.model).all()
    assert result.summary["events"] == 60


@pytest.mark.filterwarnings("ignore:.*the model never changed")
def test_a_round_in_which_someone_always_fails_ends_all_the_same() -> None:
    run = {"events": 10, "seeds": [1]}
    spec = small(partition={}, speeds={"kind": "equal"}, strategy={"name": "fedavg"}, run=run)
    result = with_one_failing_client(spec)
    assert result.summary["metrics"]["Aggregations"] == 0
    assert result.summary["events"] == 10 + 8
    assert list(result.summary["rejected"]) == ["0"]


def test_an_impossible_setting_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="never fills"):
        simulate(small(strategy={"name": "fedraw", "buffer": 9}), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_misreport_raises_the_liars_weight_and_a_cap_limits_it() -> None:
    claim = {"label": 9}
    weights = {}
    for cap, cap_at in (("none", 1.0), ("water-filling", 0.4)):
        strategy = {"name": "fedraw", "buffer": 4, "cap": cap, "cap_at": cap_at}
        spec = small(strategy=strategy, misreport=claim, training={"kind": "none"})
        weights[cap] = simulate(spec).runs[0].summary["metrics"]["AttackerWeightMax"]
    assert weights["none"] > 0.5
    assert weights["water-filling"] == pytest.approx(0.4)


def test_labels_mixed_up_are_trained_with_and_not_told() -> None:
    plain, noisy = (
        draw_clients(small(**sections), Streams(1))
        for sections in ({}, {"label_noise": {"share": 1.0}})
    )
    assert np.array_equal(noisy.claimed.count, plain.claimed.count)
    changed = [
        client
        for client in range(8)
        if not np.array_equal(noisy.epochs[0].labels[client], plain.epochs[0].labels[client])
    ]
    assert set(changed) == set(plain.rare)
    one, other = (simulate(small(**s)).runs[0].model for s in ({}, {"label_noise": {"share": 1.0}}))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("strategy", "models"),
    [
        # The model, a sum in float64 (which counts twice), and what the method keeps.
        ({"name": "fedraw", "buffer": 4}, 1 + 2 + 4),
        ({"name": "fedbuff", "buffer": 4}, 1 + 2),
        ({"name": "fedraw-replay", "buffer": 4}, 1 + 2 + 2),  # two clients hold the rare label
    ],
)
def test_a_log_says_how_many_models_the_server_keeps(
    strategy: dict[str, Any], models: float
) -> None:
    partition = {"clients": 12, "rare_labels": [9], "clients_per_common_label": 10}
    summary = simulate(small(strategy=strategy, partition=partition)).runs[0].summary
    assert summary["server_models"] == pytest.approx(models, abs=0.3)


def test_a_liar_is_named_and_loses_what_it_gained(tmp_path: Path) -> None:
    """The label that it claims never rises in its updates."""
    claim = {"label": 9, "form": "recounted"}
    partition = {"clients": 12, "rare_labels": [9], "clients_per_common_label": 10}
    weight = {}
    for labels in ("declared", "checked"):
        spec = small(
            strategy={"name": "fedraw", "buffer": 4, "labels": labels},
            partition=partition,
            misreport=claim,
            run={"events": 400, "evaluate_every": 200, "seeds": [1]},
        )
        (result,) = simulate(spec, out=tmp_path / labels)
        records = list(read_objects(tmp_path / labels / "seed-1" / "events.jsonl"))
        attacker = records[0]["attacker"]
        last = [r for r in records if r["kind"] == "arrival"][-200:]
        held = [
            w
            for r in last
            for c, w in zip(r["buffer"], r["weights"], strict=False)
            if c == attacker
        ]
        weight[labels] = float(np.mean(held))
    doubts = [(r["client"], r["label"]) for r in records if r["kind"] == "doubted"]
    assert doubts == [(attacker, "9")]
    assert result.summary["doubted"] == {str(attacker): ["9"]}
    assert weight["checked"] < 0.6 * weight["declared"]


def test_what_updates_tell_of_labels_is_in_the_log_the_summary_and_the_page(tmp_path: Path) -> None:
    spec = small(
        strategy={"name": "fedraw", "buffer": 4, "labels": "inferred"},
        partition={"clients": 12, "rare_labels": [9], "clients_per_common_label": 10},
        run={"events": 400, "evaluate_every": 200, "seeds": [1]},
    )
    (result,) = simulate(spec, out=tmp_path)
    truth = draw_clients(spec, Streams(1)).table.counts()
    holders = [client for client, counts in truth.items() if counts.get("9")]
    records = list(read_objects(tmp_path / "seed-1" / "events.jsonl"))
    told = [r["inferred"] for r in records if r["kind"] == "evaluation"]
    assert told[-1] == result.summary["inferred"]
    assert sorted(told[-1]["holders"]["9"]) == sorted(holders)
    assert told[-1]["coverage"]["9"] == pytest.approx(len(holders), abs=0.1)
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"label 9 is held by clients {', '.join(map(str, told[-1]['holders']['9']))}" in page


@pytest.mark.parametrize("form", ["invented", "hidden"])
def test_several_may_lie_together(form: str) -> None:
    label = "unicorn" if form == "invented" else 9
    spec = small(misreport={"label": label, "form": form, "liars": 2})
    clients = draw_clients(spec, Streams(1))
    assert len(clients.attackers) == 2
    scores = rarity_scores(clients.claimed)
    truth = rarity_scores(clients.table)
    raised = set(np.flatnonzero(scores > truth + 0.2).tolist())
    assert raised == (set(clients.attackers) if form == "invented" else set())


def test_a_liar_may_make_its_updates_say_what_it_claims() -> None:
    plain, forged = (
        simulate(small(misreport={"label": 9, **more})).runs[0].model
        for more in ({}, {"support": 0.5})
    )
    assert not np.array_equal(plain, forged)


@pytest.mark.parametrize("labels", ["checked", "inferred"])
@pytest.mark.parametrize("name", ["fedraw", "fedraw-replay"])
def test_a_run_that_reads_updates_is_resumed_to_the_same_bytes(
    name: str, labels: str, tmp_path: Path
) -> None:
    spec = small(strategy={"name": name, "buffer": 4, "labels": labels}, misreport={"label": 9})
    run_seed(spec, 1, tmp_path / "whole")
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run_seed(spec, 1, tmp_path / "cut", options=Options(stop=lambda: next(asked) + 1 >= 17))
    run_seed(spec, 1, tmp_path / "cut", options=Options(resume=True))
    for file in ("events.jsonl", "model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


# A budget at which hardly any bit is flipped.
EXACT = {"mechanism": "randomised-response", "epsilon": 20.0, "unit": "label"}


def test_private_summaries_leave_scores_and_nothing_else() -> None:
    clients = draw_clients(small(summaries=EXACT), Streams(1))
    assert rarity_scores(clients.claimed) == pytest.approx(rarity_scores(clients.table))
    assert not set(clients.claimed.labels) & set(clients.table.labels)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"strategy": {"name": "fedraw", "buffer": 9}}, "never fills .* use at most 8"),
        ({"misreport": {"label": 9, "client": 8}}, "misreport.client = 8 must be 'fastest' or"),
        ({"misreport": {"label": 99}}, "dataset 'digits' has no label number 99"),
        ({"misreport": {"label": 9, "share": 1.5}}, "misreport.share = 1.5"),
        ({"metrics": {"rare_labels": ["nine"]}}, "dataset 'digits' has no label 'nine'"),
        ({"speeds": {"arrivals": "jitter", "jitter": 2}}, "speeds.jitter = 2.0"),
        (
            {"partition": {"kind": "iid", "clients": 8}, "speeds": {"kind": "correlated"}},
            "slows clients with rare labels",
        ),
        ({"data": {"name": "mnist"}}, "mnist"),
        ({"training": {"model": "resnet"}}, "resnet"),
        ({"training": {"batch": 0}}, "batch = 0"),
        ({"run": {"concurrency": 0}}, "run.concurrency = 0 must be at least 1"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_too(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        simulate(small(**sections))


def test_bounded_concurrency_runs_and_repeats(tmp_path: Path) -> None:
    spec = small(run={"events": 30, "seeds": [3], "concurrency": 2})
    simulate(spec, out=tmp_path / "a")
    simulate(spec, out=tmp_path / "b")
    one, two = (tmp_path / x / "seed-3" / "events.jsonl" for x in "ab")
    assert one.read_bytes() == two.read_bytes()
    (row,) = compare([tmp_path / "a"])
    assert row.seeds == (3,)


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    layers = (
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )
    return nn.Sequential(*layers)


@pytest.mark.parametrize("own", [FedBuff(), CA2FL(), QFedAvg(lr=0.1)])
def test_an_own_instance_knows_the_models_statistics(own: Any) -> None:
    name = {FedBuff: "fedbuff", CA2FL: "ca2fl", QFedAvg: "qfedavg"}[type(own)]
    spec = small(strategy={"name": name}, training={"epochs": 1, "batch": 500})
    (named,) = simulate(spec, model=normed)
    (given,) = simulate(spec, model=normed, strategy=own)
    assert given.model.tobytes() == named.model.tobytes()


def test_an_own_instance_is_called_what_it_is() -> None:
    class Mine(FedRAW):
        pass

    free = small(training={"kind": "none"})
    names = [
        simulate(free, strategy=strategy).runs[0].name
        for strategy in (FedRAW(4, weighting="uniform"), FedRAW(4), FedFa(4), Mine(4))
    ]
    assert names == ["fedraw-dedup-only", "fedraw", "fedfa", "mine"]


@dataclass(frozen=True)
class Some:
    """FedAvg on the first clients only."""

    first: int

    @property
    def needs(self) -> Any:
        return FedAvg().needs

    def start(self, setup: Any) -> Any:
        counts = {c: {"a": 1} for c in setup.clients.clients[: self.first]}
        return FedAvg().start(replace(setup, clients=LabelTable.from_counts(counts)))

    def step(self, state: Any, event: Any) -> Any:
        return FedAvg().step(state, event)


def test_a_run_with_idle_clients_ends_with_its_round() -> None:
    spec = small(training={"kind": "none"}, run={"events": 11, "seeds": [1]})
    (result,) = simulate(spec, strategy=Some(5))
    assert result.summary["events"] == 15  # three rounds of five


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.claimed(), pytest.raises(BadInput, match="another process is running"):
        run_seed(small(), 1, tmp_path)


def test_changed_data_cannot_be_resumed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.random((100, 6)).astype(np.float32), np.arange(100) % 4
    npz = tmp_path / "mine.npz"
    spec = small(
        data={"name": "npz", "path": str(npz)},
        partition={"kind": "iid", "clients": 8},
        speeds={"kind": "uniform"},
    )
    np.savez(npz, images=images, labels=labels)
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run_seed(spec, 1, tmp_path / "run", options=Options(stop=lambda: next(asked) == 9))
    np.savez(npz, images=images, labels=labels[::-1])
    with pytest.raises(BadInput, match=r"its data \(.*\) changed since"):
        run_seed(spec, 1, tmp_path / "run", options=Options(resume=True))
    np.savez(npz, images=images, labels=labels)
    assert run_seed(spec, 1, tmp_path / "run", options=Options(resume=True)).summary["events"] == 40


@pytest.mark.parametrize("membership", [None, {"joining": 0.3, "leaving": 0.3, "within": 5.0}])
def test_a_run_without_a_log_has_the_same_summary(membership: dict[str, float] | None) -> None:
    tables: dict[str, Any] = {
        "partition": {"clients": 30, "rare_labels": [8, 9]},
        "strategy": {"buffer": 3},
        "training": {"kind": "none"},
        "run": {"events": 60, "seeds": [1]},
    }
    wanted = Spec.from_dict(tables | ({"membership": membership} if membership else {}))
    records: list[Record] = []
    seen = run_seed(wanted, 1, options=Options(observe=records.append)).summary
    assert sum(isinstance(record, JoinedRecord) for record in records) >= 20
    assert run_seed(wanted, 1).summary == seen
    assert seen["metrics"]["RarePart"] is not None
