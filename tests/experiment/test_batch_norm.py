"""Networks with batch norm, through every strategy.

The first layer normalises the pixels themselves, so what its statistics become does not depend on
any weight. A client that trains one epoch in one mini-batch from the initial (0, 1) ends with

    mean_i = 0.1 · mean(x_i),   var_i = 0.9 + 0.1 · var(x_i)   (torch's momentum is 0.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedraw
from fedraw.core.types import Ints
from fedraw.errors import BadInput
from fedraw.experiment.result import SeedResult
from fedraw.learning.models import build
from fedraw.learning.vectors import layout_of
from fedraw.strategies.catalog import CATALOG

CLIENTS, SAMPLES = 3, 20
# Settings under which three arrivals, one of each client, are one aggregation of three.
SETTINGS: dict[str, dict[str, Any]] = {
    "fedraw": {"buffer": 3},
    "fedfa": {"buffer": 3},
    "fedbuff": {"buffer": 3, "server_lr": 0.5, "staleness": "polynomial"},
    "ca2fl": {"buffer": 3, "server_lr": 0.5},
    "fedraw-replay": {"buffer": 3},
    "fedasync": {"alpha": 0.5, "staleness": "none"},
    "fedavg": {},
    "qfedavg": {"q": 2.0},
}


def settings_for(name: str) -> dict[str, Any]:
    """The settings above; for another method of the catalogue, a buffer of three if it has one."""
    names = {field.name for field in fields(CATALOG[name].factory)}
    return SETTINGS.get(name, {"buffer": 3} if "buffer" in names else {})


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def residual(shape: tuple[int, ...], classes: int) -> nn.Module:
    return build("resnet18", shape, classes, np.random.default_rng(0), stem="cifar")


def two_kinds(shape: tuple[int, ...], samples: int = SAMPLES) -> fedraw.Dataset:
    """Label 1 is lighter by 2; each client's images are lighter than those of the one before."""
    count = CLIENTS * samples
    images = np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)
    labels = np.arange(count) % 2
    images += (2 * labels + np.arange(count) // samples).reshape(-1, *[1] * len(shape))
    return fedraw.from_arrays(images, labels, test_inputs=images, test_labels=labels)


def in_turn(labels: Ints, classes: int, rng: np.random.Generator) -> list[Ints]:
    return list(np.arange(len(labels)).reshape(CLIENTS, -1))


def run(
    name: str,
    data: fedraw.Dataset,
    model: Callable[[tuple[int, ...], int], nn.Module] = normed,
    events: int = CLIENTS,
    **settings: Any,
) -> SeedResult:
    tables = {
        "partition": {"local_test": 0.0},
        "speeds": {"kind": "equal", "arrivals": "fixed"},
        "training": {"epochs": 1, "batch": SAMPLES},
        "strategy": {"name": name, **settings_for(name), **settings},
        "run": {"events": events, "evaluate_every": events, "seeds": [1]},
    }
    spec = fedraw.Spec.from_dict(tables)
    (result,) = fedraw.simulate(spec, data=data, partition=in_turn, model=model)
    return result


def statistics(result: SeedResult) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The running mean, and below it the running variance."""
    return result.model[layout_of(normed((4,), 2)).statistics].reshape(2, 4)


def of_the_clients(data: fedraw.Dataset) -> list[np.ndarray[Any, Any]]:
    own = np.asarray(data.inputs[:], np.float64).reshape(CLIENTS, SAMPLES, 4)
    return [np.stack([0.1 * x.mean(0), 0.9 + 0.1 * x.var(0, ddof=1)]) for x in own]


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"fedasync"}))
def test_statistics_become_the_mean_of_the_clients(name: str) -> None:
    """Equal clients of equal rarity: neither a server rate nor a loss nor a cache counts here."""
    data = two_kinds((4,))
    expected = np.mean(of_the_clients(data), axis=0)
    np.testing.assert_allclose(statistics(run(name, data)), expected, rtol=1e-5)


def test_fedasync_mixes_statistics_as_it_mixes_weights() -> None:
    # Three arrivals, each by half: 1/8 of the initial (0, 1), 1/8, 1/4 and 1/2 of the clients.
    data = two_kinds((4,))
    first, second, third = of_the_clients(data)
    initial = np.stack([np.zeros(4), np.ones(4)])
    expected = initial / 8 + first / 8 + second / 4 + third / 2
    np.testing.assert_allclose(statistics(run("fedasync", data)), expected, rtol=1e-5)


# Where clients send sums, no network has batch norm.
TRAINING = [n for n, m in CATALOG.items() if not m.is_ablation and n != "one-pass"]


@pytest.mark.parametrize("name", TRAINING)
def test_a_longer_run_learns_and_keeps_variances_positive(name: str) -> None:
    data = two_kinds((4,))
    result = run(name, data, events=30)
    mean, variance = statistics(result)
    assert (variance > 0.5).all()
    overall = np.asarray(data.inputs[:]).mean(axis=0)  # towards it the running mean goes
    assert (mean > 0.2 * overall).all()
    assert (mean < 1.2 * overall).all()
    assert not result.summary["rejected"]
    assert result.summary["metrics"]["GlobalAcc"] > 0.75


@pytest.mark.parametrize("name", ["fedraw", "fedbuff"])
def test_a_residual_network_goes_through_a_federation(name: str) -> None:
    data = two_kinds((3, 8, 8), samples=8)
    result = run(name, data, residual, events=4, buffer=2)
    layout = layout_of(residual((3, 8, 8), 2))
    variances = [s for s in layout.segments if s.name.endswith("running_var")]
    assert len(variances) == 20
    assert all((result.model[s.slice] > 0).all() for s in variances)
    assert np.isfinite(result.model).all()
    assert not result.summary["rejected"]


@pytest.mark.parametrize(
    ("samples", "batch", "message"),
    [
        (SAMPLES, 19, "batch = 19 leaves a mini-batch of 1 of a client's 20 samples"),
        (1, 16, "a client has only 1 sample"),
    ],
)
def test_a_client_with_a_lone_sample_is_refused_before_anything_is_trained(
    samples: int, batch: int, message: str
) -> None:
    """Only the last client has one, and it would train last."""
    images = two_kinds((4,)).inputs[:]
    sizes = [2, 2, samples]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    labels = np.arange(sum(sizes)) % 2
    images = images[: len(labels)]
    data = fedraw.from_arrays(images, labels, test_inputs=images, test_labels=labels)
    with pytest.raises(BadInput, match=message):
        fedraw.simulate(
            strategy=fedraw.FedRAW(buffer=2),
            data=data,
            partition=lambda labels, classes, rng: rows,
            speeds=[1.0, 1.0, 1000.0],
            train=fedraw.SGD(epochs=1, batch=batch),
            local_test=0.0,
            model=normed,
            events=4,
            seeds=[1],
        )
