"""Buffer dynamics without learning, against the paper and against closed forms.

30 clients, a buffer of 10, 5000 arrivals, slow rare clients. Spreads are standard deviations over
seeds as measured here; a mean over n seeds is held to three of its standard errors and the rounding
of the reference, unless a line says otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.simulation.scenes import correlated, steps, with_rare

from fedraw.core.randomness import Streams
from fedraw.core.types import Floats
from fedraw.simulation.executors import Job, TrainingResult
from fedraw.simulation.speeds import mean_seconds
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy

EVENTS = 5000
SEEDS = 12
WEIGHT_ONLY, DEDUP_ONLY = FedRAW(dedup=False), FedRAW(weighting="uniform")
POLYNOMIAL = FedBuff(staleness="polynomial")


class Told(NamedTuple):
    """What a run says about its rare clients; shares in percent."""

    presence: float  # aggregations with a rare client in the buffer
    slots: float  # of the buffer
    influence: float  # of the weight
    arrivals: float
    mean_staleness: float
    max_staleness: float
    aggregations: float
    rounds: float  # how far the model has drifted: equivalent synchronous rounds


@cache
def told(strategy: Any, seed: int, clients: int, rare: int, share: float, fixed: bool) -> Told:
    table = with_rare(clients, rare, share)
    run = correlated(strategy, seed, clients, rare, table=table, fixed=fixed)
    arrived = steps(run, EVENTS)
    buffers = [step.contents for step in arrived if step.aggregated]
    is_rare = np.array([buffer.clients for buffer in buffers], np.int64) < rare
    weights = np.array([buffer.weights for buffer in buffers], np.float64)
    stale = [step.staleness_events for step in arrived if int(step.client) < rare]
    return Told(
        presence=100 * float(is_rare.any(axis=1).mean()),
        slots=100 * float(is_rare.mean()),
        influence=100 * float((weights * is_rare).sum(axis=1).mean()),
        arrivals=100 * len(stale) / EVENTS,
        mean_staleness=float(np.mean(stale)),
        max_staleness=max(stale),
        aggregations=len(buffers),
        rounds=float(run.state.model[0]),
    )


def over_seeds(
    strategy: Any,
    seeds: int,
    clients: int = 30,
    rare: int = 6,
    share: float = 0.255,
    fixed: bool = False,
) -> Told:
    """The mean over seeds."""
    runs = [told(strategy, seed, clients, rare, share, fixed) for seed in range(seeds)]
    return Told(*np.mean(runs, axis=0).tolist())


@pytest.mark.parametrize(
    ("strategy", "rare", "presence", "spread"),
    [
        pytest.param(FedFa(), 4, 46.6, 3.4, marks=pytest.mark.slow),
        (FedFa(), 6, 62.4, 3.3),
        pytest.param(FedRAW(), 4, 58.4, 3.1, marks=pytest.mark.slow),
        (FedRAW(), 6, 75.0, 3.1),
    ],
)
def test_presence_of_slow_rare_clients(
    strategy: Strategy[Any], rare: int, presence: float, spread: float
) -> None:
    assert over_seeds(strategy, SEEDS, rare=rare).presence == pytest.approx(presence, abs=spread)


@pytest.mark.parametrize(
    ("rare", "gain"), [pytest.param(4, 11.8, marks=pytest.mark.slow), (6, 12.7)]
)
def test_what_one_slot_per_client_gains(rare: int, gain: float) -> None:
    # Of one seed both methods meet the same arrivals: the gain varies less than its parts, by 0.9.
    with_dedup, without = (
        over_seeds(FedRAW(), SEEDS, rare=rare),
        over_seeds(FedFa(), SEEDS, rare=rare),
    )
    assert with_dedup.presence - without.presence == pytest.approx(gain, abs=0.7)


def test_durations_that_never_vary_leave_nothing_to_gain() -> None:
    with_dedup, without = (over_seeds(s, 5, fixed=True) for s in (FedRAW(), FedFa()))
    assert abs(with_dedup.presence - without.presence) < 0.5
    assert without.max_staleness == pytest.approx(85, abs=15)


def rates(seed: int, rare: int) -> Floats:
    """Each client's share of the arrivals."""
    speed = 1 / mean_seconds("correlated", 30, range(rare), Streams(seed).generator("speeds"))
    return np.asarray(speed / speed.sum(), np.float64)


@pytest.mark.parametrize("rare", [pytest.param(4, marks=pytest.mark.slow), 6])
def test_presence_in_a_window_has_a_closed_form(rare: int) -> None:
    chance = np.array([rates(seed, rare)[:rare].sum() for seed in range(SEEDS)])
    closed = 100 * np.mean(1 - (1 - chance) ** 10)
    # A run of 5000 arrivals is 500 windows: its presence is known to 2 points, that of 12 to 0.6.
    assert over_seeds(FedFa(), SEEDS, rare=rare).presence == pytest.approx(closed, abs=1.2)


def test_slots_in_a_deduplicated_buffer_have_one_too() -> None:
    expected = []
    for seed in range(SEEDS):
        p, low, high = rates(seed, 6), 0.0, 1e4
        for _ in range(60):  # T with sum of p T / (1 + p T) = 10, by halving
            middle = (low + high) / 2
            full = (p * middle / (1 + p * middle)).sum() > 10
            low, high = (low, middle) if full else (middle, high)
        expected.append(10 * (p * low / (1 + p * low))[:6].sum())
    assert over_seeds(FedRAW(), SEEDS).slots == pytest.approx(np.mean(expected), abs=0.4)


def test_how_often_and_how_stale_rare_clients_arrive() -> None:
    rare = over_seeds(FedFa(), SEEDS)
    assert rare.arrivals == pytest.approx(9.4, abs=0.8)
    assert rare.mean_staleness == pytest.approx(63.6, abs=5.3)
    assert rare.max_staleness == pytest.approx(439, abs=76)
    assert rare.mean_staleness == pytest.approx(600 / rare.arrivals, rel=0.03)


def test_aggregations_in_five_thousand_arrivals() -> None:
    assert over_seeds(FedFa(), SEEDS).aggregations == 4991
    assert over_seeds(FedRAW(), SEEDS).aggregations == pytest.approx(4989, abs=1.5)


@pytest.mark.parametrize(
    ("strategy", "few", "many", "margin"),
    [
        (FedFa(), 146, 93, 1.0),  # spread 0.3
        (WEIGHT_ONLY, 124, 80, 3.3),  # 2.1
        (DEDUP_ONLY, 123, 83, 1.9),  # 1.1
        (FedRAW(), 105, 72, 3.7),  # 2.4
        (FedBuff(), 500, 500, 0.0),
        (POLYNOMIAL, 313, 270, 2.5),  # 1.5
        (CA2FL(), 499, 499, 1.2),  # 0.5
    ],
)
def test_how_far_a_constant_drift_gets(
    strategy: Strategy[Any], few: float, many: float, margin: float
) -> None:
    assert over_seeds(strategy, 5).rounds == pytest.approx(few, abs=margin)
    # With 50 clients rare ones hold more of their label: a score of 0.215.
    larger = over_seeds(strategy, 5, clients=50, share=0.3667)
    assert larger.rounds == pytest.approx(many, abs=margin)


@pytest.mark.parametrize(("clients", "rounds"), [(30, 167), (50, 101)])
def test_a_synchronous_round_takes_one_update_from_everyone(clients: int, rounds: int) -> None:
    run = correlated(FedAvg(), 0, clients)
    steps(run, clients * rounds - 1)
    assert run.state.version == rounds - 1
    run.step()
    assert (run.state.version, run.state.model.tolist()) == (rounds, [rounds])


@pytest.mark.parametrize(
    ("strategy", "influence", "margin"),
    [
        (FedFa(), 9.5, 1.2),  # spread 0.9
        (WEIGHT_ONLY, 22.4, 2.6),  # 1.9
        (DEDUP_ONLY, 11.8, 1.2),  # 0.9
        (FedRAW(), 27.6, 2.6),  # 1.9
        (FedBuff(), 9.5, 1.2),  # 0.9
    ],
)
def test_how_much_weight_rare_clients_get(
    strategy: Strategy[Any], influence: float, margin: float
) -> None:
    assert over_seeds(strategy, 5).influence == pytest.approx(influence, abs=margin)


@pytest.mark.parametrize(
    ("strategy", "influence", "margin"), [(CA2FL(), 20.0, 0.3), (FedBuff(), 9.5, 1.2)]
)
def test_a_cache_gives_every_client_the_same_say(
    strategy: Strategy[Any], influence: float, margin: float
) -> None:
    def train(job: Job) -> TrainingResult:
        drift = np.array([1, 0] if job.position < 6 else [0, 1], np.float32)
        return TrainingResult(job.model + drift, 1)

    drifts = []
    for seed in range(5):
        run = correlated(strategy, seed, train=train, model=np.zeros(2, np.float32))
        steps(run, EVENTS)
        drifts.append(run.state.model / run.state.model.sum())
    # Six of thirty clients are 20 %; their arrivals are fewer.
    assert 100 * np.mean(drifts, axis=0)[0] == pytest.approx(influence, abs=margin)
