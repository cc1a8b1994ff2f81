"""A user's own data, partition and speeds in a run, and the one rule for rare labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedraw
from fedraw.core.randomness import Streams
from fedraw.core.types import Ints
from fedraw.errors import BadInput
from fedraw.experiment.clients import Clients, draw_clients
from fedraw.experiment.parts import Parts, digest
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec

# Twelve samples of each of three labels.
LABELS = np.repeat([0, 1, 2], 12)
DATA = (np.arange(36, dtype=np.float32)[:, None] + [0, 100], LABELS)


def spec(**sections: Any) -> Spec:
    base: dict[str, Any] = {
        "speeds": {"kind": "uniform"},
        "strategy": {"name": "fedfa", "buffer": 2},
        "training": {"kind": "none"},
        "run": {"events": 12, "seeds": [1]},
    }
    return Spec.from_dict(base | sections)


def drawn(parts: Parts, **sections: Any) -> Clients:
    return draw_clients(spec(**sections), Streams(1), parts)


def halves(labels: Ints, classes: int, rng: np.random.Generator) -> dict[str, Ints]:
    """All of label 2 is at the first site; the others are spread over all four."""
    rest = np.flatnonzero(labels != 2)
    parts = [rest[first::4] for first in range(4)]
    parts[0] = np.concatenate([parts[0], np.flatnonzero(labels == 2)])
    return dict(zip(["oslo", "paris", "rome", "kyiv"], parts, strict=True))


def test_a_function_may_name_its_clients() -> None:
    clients = drawn(Parts(DATA, halves))
    assert clients.table.clients == ("oslo", "paris", "rome", "kyiv")
    scenario = Scenario.of(spec(), 1, Parts(DATA, halves))
    assert scenario.tables()["partition"] == {"kind": "halves", "clients": 4, "local_test": 0.2}


def test_a_function_that_writes_into_its_labels_divides_a_copy() -> None:
    def careless(labels: Ints, classes: int, rng: np.random.Generator) -> dict[str, Ints]:
        shares = halves(labels, classes, rng)
        labels[:] = 0
        return shares

    own, plain = drawn(Parts(DATA, careless)), drawn(Parts(DATA, halves))
    assert own.table.counts() == plain.table.counts()


@pytest.mark.parametrize("train", ["none", "sgd"])
def test_clients_that_bring_their_own_data_run_under_their_names(
    tmp_path: Path, train: str
) -> None:
    sites = {"oslo": (DATA[0][:20], LABELS[:20]), "rome": (DATA[0][20:], LABELS[20:])}
    training = {"kind": train, "model": "linear"} if train == "sgd" else {"kind": train}
    result = run_seed(spec(training=training), 1, tmp_path / "run", Parts(sites))
    assert result.summary["events"] == 12
    log = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"client":"oslo"' in log.replace(" ", "")
    table = drawn(Parts(sites)).table
    assert table.labels == ("0", "1", "2") and table.counts()["oslo"].keys() == {"0", "1"}


def test_index_lists_leave_samples_of_the_test_set_out() -> None:
    shares = [np.arange(20), np.arange(20, 36)]
    clients = drawn(Parts(DATA, shares), partition={"local_test": 0.0})
    values = [clients.dataset.inputs[:][own, 0] for own in clients.epochs[0].indices]
    assert max(values[0]) < 20 <= min(values[1])
    assert sum(map(len, values)) + len(clients.dataset.test_labels) == 36


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (Parts(DATA, lambda *_: [[0], [0]]), "sample 0 is held by client 0 and again by client 1"),
        (Parts(DATA, lambda *_: [[0], []]), "client 1 of the partition has no samples"),
        (Parts(DATA, [[0], [99]]), "client 1 holds sample 99"),
        (Parts([DATA, DATA], halves), "already say which samples each client has"),
        (Parts([DATA, DATA], [[0], [1]]), "already say which samples each of 2 clients has"),
        (Parts("digit"), "unknown dataset 'digit'; did you mean 'digits'"),
        (Parts(DATA, speeds=[1, 2]), "2 speeds for 30 clients"),
    ],
)
def test_bad_parts_are_refused_by_name(parts: Parts, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        drawn(parts, partition={"kind": "iid"})


def test_data_are_named_or_come_from_a_file(tmp_path: Path) -> None:
    assert drawn(Parts("digits"), partition={"kind": "iid"}).dataset.name == "digits"
    np.savez(tmp_path / "mine.npz", inputs=DATA[0], labels=LABELS)
    mine = drawn(Parts(str(tmp_path / "mine.npz")), partition={"kind": "iid", "clients": 3})
    assert mine.dataset.name == "mine"


SITES = {"a": DATA, "b": DATA, "c": DATA}


@pytest.mark.parametrize(
    ("speeds", "seconds"),
    [
        ([1, 2, 4], [1, 2, 4]),
        (np.array([1.0, 2.0, 4.0]), [1, 2, 4]),
        ({"c": 4, "a": 1, "b": 2}, [1, 2, 4]),
        ({"a": [1, 3], "b": [2], "c": [4.0]}, [2, 2, 4]),
        ([("a", 1), ("b", 2), ("a", 3), ("c", 4)], [2, 2, 4]),
        ({"client": ["a", "b", "a", "c"], "seconds": [1, 2, 3, 4]}, [2, 2, 4]),
    ],
)
def test_speeds_are_seconds_per_client_or_a_trace(speeds: Any, seconds: list[float]) -> None:
    clients = drawn(Parts(SITES, speeds=speeds))
    assert clients.seconds.tolist() == seconds
    assert (clients.trace is None) == (seconds[0] == 1)


def test_a_trace_in_a_file_sets_the_times_of_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,seconds\na,1\nb,10\na,3\nc,100\n")
    run_seed(spec(run={"events": 4, "seeds": [1]}), 1, tmp_path / "run", Parts(SITES, speeds=path))
    log = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    times = [line.split('"time":')[1].split(",")[0] for line in log if '"arrival"' in line]
    assert [float(time) for time in times] == [1, 4, 5, 8]  # a alternates between 1 and 3 seconds


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ({"a": 1, "b": 2}, "speeds have no client 'c'"),
        ({"a": 1, "b": 2, "c": 3, "d": 4}, "speeds have 'd', which is no client"),
        ({"a": [1], "b": [2]}, r"no duration of client 'c' \(1 of 3 clients"),
        ([("a", 1), ("b", 1), ("c", 1), ("d", 1)], "durations of 'd', which is no client"),
        ([1, 2, 0], "client 'c' has 0 seconds; give a number above 0"),
        ([1, 2, float("nan")], "client 'c' has nan seconds"),
        ([1, 2, "slow"], "client 'c' has 'slow' seconds"),
        ([("a", "fast"), ("b", 1), ("c", 1)], "client 'a' has 'fast' seconds"),
        (3, "speeds are 3; give seconds for each client"),
        ("gone.csv", "gone.csv: there is no such file"),
    ],
)
def test_bad_speeds_are_refused_by_client(speeds: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        drawn(Parts(SITES, speeds=speeds))


def test_own_speeds_beside_a_trace_of_the_spec_are_refused() -> None:
    with pytest.raises(BadInput, match="own speeds are given too"):
        drawn(Parts(SITES, speeds=[1, 2, 3]), speeds={"arrivals": "recorded", "trace": "t.csv"})


@pytest.mark.parametrize(
    ("sections", "rare"),
    [
        ({}, (2,)),  # one of four sites holds label 2; the median is four
        ({"metrics": {"rare_labels": []}}, ()),
        ({"metrics": {"rare_labels": [0]}}, (0,)),
        ({"partition": {"rare_labels": [1, 0]}}, (1, 0)),
        ({"metrics": {"rare_labels": ["2"]}, "partition": {"rare_labels": [0]}}, (2,)),
    ],
)
def test_rare_labels_are_named_or_those_of_low_coverage(
    sections: dict[str, Any], rare: tuple[int, ...]
) -> None:
    clients = drawn(Parts(DATA, halves), **sections)
    assert clients.rare_labels == rare
    holders = {0, 1, 2, 3} if 0 in rare or 1 in rare else {0} if rare else set()
    assert clients.rare == holders


@pytest.mark.parametrize("speeds", [{"kind": "correlated"}, {"kind": "ratio", "ratio": 10.0}])
def test_speeds_slow_the_clients_with_rare_labels_by_the_same_rule(speeds: dict[str, Any]) -> None:
    plain = drawn(Parts(DATA, halves)).seconds
    slowed = drawn(Parts(DATA, halves), speeds=speeds).seconds
    assert slowed[0] > max(1.5, plain[0])
    assert slowed[1:].tolist() == plain[1:].tolist()


def test_a_recorded_trace_needs_no_speeds_and_no_rare_labels(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,seconds\n0,1\n1,2\n")
    recorded = {"arrivals": "recorded", "trace": str(tmp_path / "t.csv")}
    clients = drawn(
        Parts(DATA), speeds=recorded, partition={"kind": "iid", "clients": 2, "local_test": 0.0}
    )
    assert (clients.seconds.tolist(), clients.rare_labels) == ([1, 2], ())


def test_without_rare_labels_their_metrics_are_undefined() -> None:
    sections = {"partition": {"kind": "iid", "clients": 2}, "training": {"model": "linear"}}
    metrics = run_seed(spec(**sections), 1, parts=Parts(DATA)).summary["metrics"]
    keys = ("AvgRare", "RareF1", "RareF2", "LocalRare", "BufPres", "RarePart", "RareMeanStale")
    assert {key: metrics[key] for key in keys} == dict.fromkeys(keys)


def net(input_shape: tuple[int, ...], classes: int) -> Any:
    raise AssertionError("no model is made here")


def test_whole_numbers_are_floats_for_the_models_of_the_library_only() -> None:
    tokens = (DATA[0].astype(np.int32), LABELS)
    wanted = {"partition": {"kind": "iid", "clients": 2}}
    assert drawn(Parts(tokens), **wanted).dataset.inputs.dtype == np.float32
    assert drawn(Parts(tokens, model=net), **wanted).dataset.inputs.dtype == np.int64
    trained = spec(**wanted, training={"model": "linear"})
    assert run_seed(trained, 1, parts=Parts(tokens)).summary["events"] == 12


def test_the_audit_and_a_simulation_call_the_same_labels_rare() -> None:
    rare = 0
    for clients, alpha in ((6, 0.05), (12, 0.1), (12, 0.05), (20, 0.3)):
        wanted = {"kind": "dirichlet", "clients": clients, "alpha": alpha}
        found = draw_clients(spec(partition=wanted), Streams(clients))
        names = [found.dataset.label_names[label] for label in found.rare_labels]
        assert sorted(fedraw.audit(found.table, buffer=2).rare_labels) == names
        rare += len(names)
    assert rare > 0


AGES = (DATA[0], np.linspace(0, 1, 36))


@pytest.mark.parametrize("name", ["fedraw", "fedraw-replay", "fedraw-weight-only"])
def test_a_method_that_goes_by_labels_is_refused_without_them(name: str) -> None:
    wanted = spec(strategy={"name": name}, partition={"kind": "iid", "clients": 12})
    with pytest.raises(BadInput, match=r"goes by labels.*no labels.*give whole numbers.*groups"):
        Scenario.of(wanted, 1, Parts(AGES))
    Scenario.of(wanted, 1, Parts((*AGES, ["f", "m"] * 18)))


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fedasync", "fedfa", "fedraw-dedup-only"])
def test_other_methods_need_no_labels(name: str) -> None:
    wanted = spec(strategy={"name": name}, partition={"kind": "iid", "clients": 12})
    scenario = Scenario.of(wanted, 1, Parts(AGES))
    assert scenario.clients.dataset.targets is not None
    assert scenario.clients.rare_labels == ()


def test_data_frames_are_data_and_traces() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    trace = pandas.DataFrame({"client": ["a", "b", "a", "c"], "seconds": [1, 2, 3, 4]})
    frame = pandas.DataFrame({"x": DATA[0][:, 0], "y": DATA[0][:, 1]})
    one = (frame, pandas.Series(LABELS).map({0: "cat", 1: "dog", 2: "owl"}))
    clients = drawn(Parts(dict.fromkeys("abc", one), speeds=trace))
    assert clients.seconds.tolist() == [2, 2, 4]
    assert clients.dataset.label_names == ("cat", "dog", "owl")
    assert clients.dataset.inputs.dtype == np.float32
    by_name = pandas.Series({"c": 4.0, "a": 1.0, "b": 2.0})
    assert drawn(Parts(SITES, speeds=by_name)).seconds.tolist() == [1, 2, 4]


class Holder:
    """An own part that keeps one value."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0.1], [0.0001]),
        ([1, 23], [12, 3]),
        ([[1], 2], [[1, 2]]),
        ((1, None), (1, 2)),
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
        ({1, 2}, {1, 3}),
        (np.float32(0.1), np.float32(0.2)),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (nn.ReLU(), nn.Tanh()),
        ([Holder([1])], [Holder([2])]),
    ],
)
def test_parts_that_differ_in_what_they_keep_have_different_digests(one: Any, other: Any) -> None:
    assert digest(Holder(one)) != digest(Holder(other))

    def closure(value: Any) -> Any:
        return lambda: value

    assert digest(closure(one)) != digest(closure(other))


def test_a_digest_is_the_same_for_equal_sets_and_ends_for_an_object_that_contains_itself() -> None:
    names = [f"site {i}" for i in range(20)]
    backwards = names[::-1]
    assert digest(Holder(set(names))) == digest(Holder(set(backwards)))
    one, two = Holder([]), Holder([])
    for ring in (one, two):
        ring.value.append(ring)
    assert digest(one) == digest(two)
