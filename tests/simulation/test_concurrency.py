from __future__ import annotations

from collections import Counter, defaultdict
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.simulation.scenes import flat, simulation, steps

import fedraw
from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import Fixed, poisson
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.protocol import Strategy


def bounded(strategy: Strategy[Any], clients: int, concurrency: int, seed: int = 0) -> Simulation:
    streams = Streams(seed)
    return simulation(
        strategy,
        flat(clients),
        poisson(np.ones(clients), streams),
        concurrency=concurrency,
        rng=streams.generator("receivers"),
    )


@pytest.mark.parametrize("strategy", [FedFa(3), FedBuff(3), FedAvg()])
@pytest.mark.parametrize("concurrency", [1, 4, 9])
def test_never_more_train_than_allowed(strategy: Strategy[Any], concurrency: int) -> None:
    run = bounded(strategy, 10, concurrency)
    for _ in range(200):
        run.step()
        training = len(run.timeline.in_flight)
        # A round that ends leaves fewer to train.
        assert training == concurrency or (strategy == FedAvg() and 0 < training < concurrency)
        assert len(run.timeline.due) == training


def test_an_idle_client_is_drawn_uniformly() -> None:
    senders = [int(step.client) for step in steps(bounded(FedFa(1), 5, 1), 10_000)]
    counts = Counter(senders)
    # Chi-square with 4 degrees of freedom exceeds 18.5 once in a thousand.
    assert sum((counts[i] - 2000) ** 2 / 2000 for i in range(5)) < 18.5
    again = sum(a == b for a, b in pairwise(senders))
    assert again == pytest.approx(2000, abs=160)  # four standard deviations


def test_who_is_drawn_depends_on_the_stream_of_receivers_only() -> None:
    runs = [bounded(FedFa(1), 5, 2, 0), bounded(FedBuff(2), 5, 2, 0), bounded(FedFa(1), 5, 2, 1)]
    met = [[(s.time, s.client) for s in steps(run, 200)] for run in runs]
    assert met[0] == met[1] != met[2]


@pytest.mark.parametrize("concurrency", [1, 3, 7, 12])
def test_a_round_hands_everyone_the_same_version_however_few_train_at_once(
    concurrency: int,
) -> None:
    by_version = defaultdict(list)
    run = bounded(FedAvg(), 7, concurrency)
    for step in steps(run, 70):
        assert step.staleness_versions == 0
        by_version[step.start_version].append(step.client)
    assert len(by_version) == 10
    assert all(sorted(clients) == list(range(7)) for clients in by_version.values())
    assert run.state.model.tolist() == [10]


def test_as_many_as_there_are_clients_is_everyone() -> None:
    law = Fixed(np.arange(1.0, 5))
    default, four, nine = (
        steps(simulation(FedFa(2), flat(4), law, concurrency=n), 50) for n in (None, 4, 9)
    )
    assert default == four == nine


@pytest.mark.parametrize("strategy", [FedFa(3), FedBuff(3), FedAvg()])
@pytest.mark.parametrize("concurrency", [2, 7])
def test_a_restored_simulation_goes_on_as_if_nothing_had_been(
    strategy: Strategy[Any], concurrency: int
) -> None:
    run, again = bounded(strategy, 7, concurrency), bounded(strategy, 7, concurrency)
    steps(run, 45)
    again.restore(deepcopy(run.save()))
    assert steps(again, 100) == steps(run, 100)
    assert np.array_equal(again.state.model, run.state.model)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_somebody_has_to_train(concurrency: int) -> None:
    with pytest.raises(BadInput, match=f"concurrency = {concurrency} must be at least 1"):
        bounded(FedFa(1), 3, concurrency)


def test_those_who_go_first_are_handed_the_model_before_all_others() -> None:
    streams = Streams(0)
    run = simulation(
        FedFa(1),
        flat(10),
        poisson(np.ones(10), streams),
        concurrency=3,
        rng=streams.generator("receivers"),
        first=[8, 9],
    )
    senders = [step.client for step in steps(run, 600)]
    # Two of the three in training are always 8 and 9, so two arrivals in three are theirs.
    counts = Counter(senders)
    assert counts[8] + counts[9] == pytest.approx(400, abs=46)  # four standard deviations
    assert all(counts[client] for client in range(8))
    assert not run.timeline.waiting_first


def test_without_anyone_to_go_first_nothing_changes() -> None:
    one, other = bounded(FedFa(1), 6, 2), bounded(FedFa(1), 6, 2)
    assert [s.client for s in steps(one, 100)] == [s.client for s in steps(other, 100)]


def test_rare_first_reads_off_the_label_counts_who_is_rare() -> None:
    tables: dict[str, Any] = {
        "partition": {"clients": 10, "rare_labels": [8, 9], "clients_per_rare_label": 1,
                      "clients_per_common_label": 8},
        "training": {"kind": "none"},
        "run": {"events": 300, "seeds": [1], "concurrency": 3},
    }  # fmt: skip
    shares = []
    for receivers in ("uniform", "rare-first"):
        tables["run"]["receivers"] = receivers
        (result,) = fedraw.simulate(fedraw.Spec.from_dict(tables))
        shares.append(result.summary["metrics"]["RarePart"])
    assert shares[1] > 1.5 * shares[0]


def test_rare_first_needs_a_bound() -> None:
    with pytest.raises(BadInput, match=r"set run\.concurrency below"):
        fedraw.Spec.from_dict({"run": {"receivers": "rare-first"}})
