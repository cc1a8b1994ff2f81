"""Runs on natural partitions, on long tails, and on texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedraw
from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec


def sites() -> fedraw.Dataset:
    rng = np.random.default_rng(0)
    return fedraw.from_arrays(
        rng.random((60, 4), np.float32),
        np.arange(60) % 3,
        test_inputs=rng.random((9, 4), np.float32),
        test_labels=np.arange(9) % 3,
        columns={"site": np.repeat(["oslo", "paris", "rome"], (30, 20, 10))},
    )


def test_a_run_by_a_column_has_a_client_for_each_value() -> None:
    result = fedraw.simulate(
        strategy=fedraw.FedRAW(buffer=2),
        data=sites(),
        partition=fedraw.ByColumn("site", least_samples=15),
        train="none",
        events=5,
        seeds=[1],
        progress=False,
    )
    assert set(result.arrivals()["client"]) <= {"oslo", "paris"}


def test_spec_and_python_mean_the_same() -> None:
    partition = fedraw.ByColumn("site", clients=2)
    spec = Spec.from_dict({"partition": partition.to_dict()})
    assert (spec.partition.clients, spec.partition.least_samples) == (2, 2)
    assert Spec.from_dict(spec.to_dict()).partition == spec.partition
    assert Spec.from_dict({"partition": {"kind": "iid"}}).partition.clients == 30


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ({"kind": "column"}, "partition.column is missing"),
        ({"column": "site"}, "partition.column = .* goes with kind = 'column'"),
        ({"least_samples": 3}, "partition.least_samples = 3 goes with kind = 'column'"),
        ({"kind": "column", "column": "x", "least_samples": 0}, "must be at least 1"),
    ],
)
def test_keys_of_a_column_go_with_its_kind(partition: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Spec.from_dict({"partition": partition})


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    for data, says in ((sites(), "did you mean 'site'"), ("digits", "it has none")):
        with pytest.raises(BadInput, match=says):
            fedraw.simulate(
                data=data, partition=fedraw.ByColumn("sites"), train="none", events=1, seeds=[1]
            )


def test_a_long_tail_keeps_fewer_samples_of_later_labels() -> None:
    spec = Spec.from_dict({"partition": {"kind": "iid"}})
    sizes = np.bincount(draw_clients(spec, Streams(1)).dataset.labels)
    dataset = draw_clients(spec.with_changes({"data.imbalance": 10.0}), Streams(1)).dataset
    wanted = np.rint(sizes.max() * 10 ** -(np.arange(10) / 9))
    assert np.bincount(dataset.labels).tolist() == np.minimum(sizes, wanted).tolist()
    assert "long tail" in dataset.notes[0]
    with pytest.raises(BadInput, match=r"data\.imbalance = 0\.5"):
        Spec.from_dict({"data": {"imbalance": 0.5}})


def texts(codes: int = 90) -> fedraw.Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.integers(97, codes + 20, (120, 5))
    return fedraw.from_arrays(inputs, np.arange(120) % 3, rng=rng, columns={"w": inputs[:, 0]})


def test_texts_give_the_same_log_in_every_executor(tmp_path: Path) -> None:
    logs = {}
    for executor in ("inline", "batched"):
        out = tmp_path / executor
        fedraw.simulate(
            strategy=fedraw.FedRAW(buffer=3),
            data=texts(),
            partition=fedraw.IID(clients=6),
            model="text",
            executor=executor,
            events=20,
            seeds=[1],
            out=out,
            progress=False,
        )
        logs[executor] = (out / "seed-1" / "events.jsonl").read_bytes()
    assert logs["inline"] == logs["batched"]


def test_codes_beyond_ascii_are_refused() -> None:
    with pytest.raises(BadInput, match="reads ASCII codes from 0 to 127"):
        fedraw.simulate(data=texts(200), partition=fedraw.IID(clients=3), model="text", events=1)
