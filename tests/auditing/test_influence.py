from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import (
    CALM,
    expected,
    measured,
    one_by_one,
    slot_law,
    subset_law,
    together,
)
from tests.simulation.scenes import with_rare

from fedraw.auditing.influence import influence
from fedraw.auditing.methods import RULES, Rule
from fedraw.auditing.presence import Groups, presence
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.core.types import Floats
from fedraw.errors import BadInput
from fedraw.simulation.speeds import mean_seconds
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy
from fedraw.strategies.replay import Replay

# The quadrature errs by 1e-6, and so does the sum that all are divided by.
EXACT = 3e-6

# A client's rate and score, as logarithms.
CLIENTS = st.lists(st.tuples(st.floats(-7, 7), st.floats(-7, 7)), min_size=1, max_size=6)
WILD = st.lists(st.tuples(st.floats(-300, 300), st.floats(-30, 30)), min_size=1, max_size=6)
NAMES = st.sampled_from(list(RULES))
# Those who are replayed are never grouped: tests/analysis/test_replay.py.
GROUPED = st.sampled_from([name for name in RULES if "replay" not in name])


def of(clients: list[tuple[float, float]]) -> Groups:
    return one_by_one(*(np.exp(column) for column in zip(*clients, strict=True)))


def drawn_size(data: st.DataObject, clients: int, most: int = 6) -> int:
    return data.draw(st.integers(1, min(clients, most)), "size")


def proportional(score: Floats) -> Callable[[Sequence[int]], Floats]:
    def weigh(slots: Sequence[int]) -> Floats:
        own = score[list(slots)]
        return np.asarray(own / own.sum(), np.float64)

    return weigh


@CALM
@given(CLIENTS, st.data())
def test_rarity_weights_with_one_slot_per_client(
    clients: list[tuple[float, float]], data: st.DataObject
) -> None:
    groups, size = of(clients), drawn_size(data, len(clients))
    law = subset_law(groups.shares, size)
    truth = expected(law, len(clients), proportional(groups.score))
    assert influence(groups, size, RULES["fedraw"]) == pytest.approx(truth, rel=EXACT)


@CALM
@given(CLIENTS, st.integers(1, 4))
def test_rarity_weights_of_slots(clients: list[tuple[float, float]], size: int) -> None:
    groups = of(clients)
    truth = expected(slot_law(groups.shares, size), len(clients), proportional(groups.score))
    assert influence(groups, size, RULES["fedraw-weight-only"]) == pytest.approx(truth, rel=EXACT)


@CALM
@given(CLIENTS, st.data())
def test_uniform_weights(clients: list[tuple[float, float]], data: st.DataObject) -> None:
    groups, size = of(clients), drawn_size(data, len(clients))
    p = groups.shares
    assert influence(groups, size, RULES["fedfa"]) == pytest.approx(p)
    assert influence(groups, size, RULES["fedbuff"]) == pytest.approx(p)
    assert influence(groups, size, RULES["ca2fl"]) == pytest.approx(1 / len(clients))
    assert influence(groups, size, RULES["fedraw-dedup-only"]) == pytest.approx(
        presence(p, size, "dedup") / size
    )


@CALM
@given(WILD, NAMES, st.data())
def test_sums_to_one_however_unequal_the_clients(
    clients: list[tuple[float, float]], name: str, data: st.DataObject
) -> None:
    groups, size = of(clients), drawn_size(data, len(clients))
    found = influence(groups, size, RULES[name])
    assert found.sum() == pytest.approx(1)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


@CALM
@given(CLIENTS, NAMES, st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.data())
def test_only_ratios_of_rates_and_of_scores_matter(
    clients: list[tuple[float, float]], name: str, faster: float, rarer: float, data: st.DataObject
) -> None:
    groups, size = of(clients), drawn_size(data, len(clients))
    scaled = one_by_one(groups.rate * faster, groups.score * rarer)
    assert influence(scaled, size, RULES[name]) == pytest.approx(
        influence(groups, size, RULES[name]), rel=EXACT
    )


@CALM
@given(CLIENTS, st.data())
def test_equal_scores_are_no_weights_at_all(
    clients: list[tuple[float, float]], data: st.DataObject
) -> None:
    groups, size = of([(rate, -1.0) for rate, _ in clients]), drawn_size(data, len(clients))
    for rarity, uniform in (("fedraw", "fedraw-dedup-only"), ("fedraw-weight-only", "fedfa")):
        assert influence(groups, size, RULES[rarity]) == pytest.approx(
            influence(groups, size, RULES[uniform]), rel=EXACT
        )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("clients", "size"), [(1, 1), (8, 1), (8, 3), (8, 7), (8, 8), (900, 40)])
def test_equal_clients_have_equal_influence(name: str, clients: int, size: int) -> None:
    found = influence(one_by_one(np.full(clients, 7.0)), size, RULES[name])
    assert found == pytest.approx(1 / clients)


@CALM
@given(CLIENTS)
def test_with_a_slot_for_everyone_speed_does_not_matter(
    clients: list[tuple[float, float]],
) -> None:
    groups = of(clients)
    found = influence(groups, len(clients), RULES["fedraw"])
    assert found == pytest.approx(groups.score / groups.score.sum(), rel=EXACT)


@CALM
@given(CLIENTS, st.sampled_from(["fedraw", "fedraw-weight-only"]), st.data())
def test_a_quicker_or_rarer_client_has_more_influence(
    clients: list[tuple[float, float]], name: str, data: st.DataObject
) -> None:
    size = drawn_size(data, len(clients))
    rate, score = clients[0]
    before = influence(of(clients), size, RULES[name])[0]
    quicker = influence(of([(rate + 0.5, score), *clients[1:]]), size, RULES[name])[0]
    rarer = influence(of([(rate, score + 0.5), *clients[1:]]), size, RULES[name])[0]
    assert min(quicker, rarer) >= before * (1 - 2 * EXACT)


@CALM
@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.integers(1, 3)), min_size=1, max_size=4
    ),
    GROUPED,
    st.data(),
)
def test_a_group_is_as_many_clients(
    clients: list[tuple[float, float, int]], name: str, data: st.DataObject
) -> None:
    rate, score, many = (list(column) for column in zip(*clients, strict=True))
    counts = [int(count) for count in many]
    groups = together(np.exp(rate), np.exp(score), counts)
    alone = one_by_one(*(np.exp(np.repeat(values, counts)) for values in (rate, score)))
    size = drawn_size(data, sum(counts), 12)
    assert np.repeat(influence(groups, size, RULES[name]), counts) == pytest.approx(
        influence(alone, size, RULES[name]), rel=EXACT
    )


def test_refusals() -> None:
    with pytest.raises(BadInput, match="never fills with 3 clients"):
        influence(one_by_one(np.ones(3)), 4, RULES["fedraw"])
    with pytest.raises(BadInput, match="below 1/2"):
        influence(one_by_one(np.ones(3)), 2, Rule("dedup", "rarity", "water-filling", 0.3))
    # A window may be longer than there are clients.
    found = influence(one_by_one(np.ones(3)), 40, RULES["fedraw-weight-only"])
    assert found == pytest.approx(1 / 3)


# Against the simulator itself.

METHODS: list[tuple[str, Callable[..., Strategy[Any]], dict[str, Any]]] = [
    ("fedfa", FedFa, {}),
    ("fedbuff", FedBuff, {}),
    ("fedraw", FedRAW, {}),
    ("fedraw-dedup-only", FedRAW, {"weighting": "uniform"}),
    ("fedraw-weight-only", FedRAW, {"dedup": False}),
    ("fedraw-replay", Replay, {}),
]


def unlike(clients: int) -> tuple[Floats, LabelTable]:
    """Slow and rare, quick and common, and everything between."""
    rng = np.random.default_rng(clients)
    counts = {i: {"all": 100, f"own {i}": int(rng.integers(1, 400))} for i in range(clients)}
    return 10 ** rng.uniform(0, 1.3, clients), LabelTable.from_counts(counts)


def agrees(
    strategy: Strategy[Any], rule: Rule, size: int, seconds: Floats, table: LabelTable
) -> None:
    run = measured(strategy, seconds, table, 20_000, seed=len(table))
    closed = influence(one_by_one(1 / seconds, rarity_scores(table)), size, rule)
    gap = np.abs(run.influence - closed)
    # Of t with 19 degrees, 30 at a time; and sampled weights are known to a percent.
    sampled = 0.02 * closed if rule.cap != "none" else 0.0
    assert (gap < 4.5 * run.influence_error + sampled).all()
    assert gap.max() < 0.02


@pytest.mark.parametrize(("name", "method", "options"), METHODS, ids=[m[0] for m in METHODS])
@pytest.mark.parametrize(("clients", "size"), [(6, 3), (10, 8), (30, 10)])
def test_the_simulator_agrees(
    name: str,
    method: Callable[..., Strategy[Any]],
    options: dict[str, Any],
    clients: int,
    size: int,
) -> None:
    agrees(method(buffer=size, **options), RULES[name], size, *unlike(clients))


@pytest.mark.parametrize("dedup", [True, False])
@pytest.mark.parametrize("cap", ["naive", "water-filling"])
def test_the_simulator_agrees_on_caps(dedup: bool, cap: Any) -> None:
    rule = Rule("dedup" if dedup else "window", "rarity", cap, 0.15)
    agrees(FedRAW(10, dedup, cap=cap, cap_at=0.15), rule, 10, *unlike(30))


def test_how_much_weight_rare_clients_get_in_the_paper() -> None:
    """Six slow clients of thirty with rare labels; percent, as measured in simulations."""
    table, rare = with_rare(30, 6), np.arange(30) < 6
    found: dict[str, list[float]] = {name: [] for name in RULES}
    for seed in range(30):
        seconds = mean_seconds("correlated", 30, range(6), np.random.default_rng(seed))
        groups = one_by_one(1 / seconds, rarity_scores(table))
        for name, rule in RULES.items():
            found[name].append(100 * influence(groups, 10, rule)[rare].sum())
    expected = {
        "fedfa": 9.5,
        "fedbuff": 9.5,
        "ca2fl": 20.0,
        "fedraw": 27.6,
        "fedraw-replay": 45.2,  # 6 · 0.1647 of 6 · 0.1647 + 24 · 0.05, whatever the speeds
        "fedraw-replay-debt": 32.6,  # halfway to the 6/30 that all clients have of the samples
        "fedraw-dedup-only": 11.8,
        "fedraw-weight-only": 22.4,
    }
    means = {name: float(np.mean(found[name])) for name in expected}
    assert means == pytest.approx(expected, abs=0.8)
