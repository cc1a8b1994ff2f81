"""Which setting is recommended: small grids of settings, made by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedraw.auditing.methods import Verdict
from fedraw.auditing.what_if import Recommendation, ServerSetting, recommend, sizes_for
from fedraw.auditing.words import TIED
from fedraw.strategies.catalog import find_method, settings_of

LABELS = ("common", "odd")


def grid(**odd: float) -> list[ServerSetting]:
    """Settings by name: `fedraw_20_capped=0.9` is FedRAW, K = 20, capped, with a recall of 0.9."""
    usual = {"fedavg_10": 0.3, "fedfa_10": 0.1, "fedraw_10": 0.2, "fedbuff_10": 0.15}
    usual |= {"ca2fl_10": 0.15, "fedfa_20": 0.1, "fedbuff_20": 0.15, "ca2fl_20": 0.15}
    settings = []
    for name, recall in (usual | {"fedraw_20": 0.2} | odd).items():
        method, size, *capped = name.split("_")
        cap = 0.3 if capped else None
        both = np.array([1.0, recall])
        verdict: Verdict = "kept" if recall >= 0.5 else "lost"
        settings.append(
            ServerSetting(method, int(size), cap, both, both, None, both, ("kept", verdict))
        )
    return settings


def recommended(
    settings: Sequence[ServerSetting],
    cap: float | None = None,
    size: int = 10,
    clients: int = 30,
    baseline: str = "fedavg",
) -> Recommendation:
    return recommend(LABELS, settings, size, cap, clients, baseline)


def test_a_buffer_with_a_slot_for_every_client_is_recommended_with_a_note() -> None:
    settings = grid(fedraw_10=0.9, fedraw_5=0.1)
    assert "smaller buffer" in recommended(settings, clients=10).reason
    assert "smaller buffer" not in recommended(settings, clients=11).reason
    shared = grid(fedbuff_10=0.9)  # a client can fill several slots of FedBuff
    assert "smaller buffer" not in recommended(shared, clients=10).reason


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        # What runs today stays unless something else promises more than five points.
        ({"fedavg_10": 0.9, "fedraw-replay_10": 0.94}, ("fedavg", 10, None)),
        ({"fedavg_10": 0.9, "fedraw-replay_10": 0.96}, ("fedraw-replay", 10, None)),
        ({"fedfa_10": 0.9}, ("fedfa", 10, None)),
        ({"fedraw_10": 0.9}, ("fedraw", 10, None)),
        ({"fedraw_20": 0.9, "fedraw_10": 0.7}, ("fedraw", 20, None)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.87}, ("fedraw", 10, 0.3)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.82}, ("fedraw", 10, None)),
        # Merit decides between settings that promise the same.
        ({"fedraw_10": 0.9, "fedraw-replay_10": 0.87}, ("fedraw-replay", 10, None)),
        ({"fedraw-replay-debt_10": 0.9, "fedraw-replay_10": 0.9}, ("fedraw-replay-debt", 10, None)),
        ({"fedraw-replay_10": 0.9, "fedstaleweight_10": 0.9}, ("fedraw-replay", 10, None)),
        # A server that stores an update of every client needs to promise more.
        ({"fedstaleweight_10": 0.9, "ca2fl_10": 0.92}, ("fedstaleweight", 10, None)),
        ({"fedbuff_10": 0.8, "ca2fl_10": 0.9}, ("ca2fl", 10, None)),
        # MIFA comes after CA2FL by its merit, and so does AREA.
        ({"mifa_10": 0.9, "area_10": 0.9, "ca2fl_10": 0.88}, ("ca2fl", 10, None)),
        # With the standing FedBuff has it is FedBuff.
        ({"fedraw-replay_10": 0.9, "fedbuff_10": 0.9}, ("fedbuff", 10, None)),
        # Nothing is better than what there is.
        ({}, ("fedavg", 10, None)),
    ],
)
def test_the_largest_effect_relative_to_today(
    odd: dict[str, float], expected: tuple[str, int, float | None]
) -> None:
    found = recommended(grid(**odd))
    assert (found.method, found.buffer, found.cap) == expected
    assert (found.label, found.baseline) == ("odd", "fedavg")


@pytest.mark.parametrize("baseline", ["fedfa", "fedbuff"])
def test_waiting_for_all_sites_is_not_recommended(baseline: str) -> None:
    found = recommended(grid(fedavg_10=0.99, fedraw_10=0.9), baseline=baseline)
    assert (found.method, found.baseline) == ("fedraw", baseline)


def test_few_sites_may_have_half_as_many_slots() -> None:
    sizes = grid(**{"fedavg_6": 0.3, "fedraw_6": 0.2, "fedbuff_6": 0.1})
    sizes += grid(**{"fedraw-replay-debt_3": 0.9, "fedraw-replay-debt_6": 0.6})
    assert recommended(sizes, size=6, clients=6).setting == "Debt replay, K=3"
    assert 6 in sizes_for(12, 10) and 3 in sizes_for(6, 6) and 2 in sizes_for(3, 3)
    assert sizes_for(13, 10) == [3, 5, 10]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (
            {"fedraw_10": 0.9, "fedraw_10_capped": 0.9},
            "FedRAW, K=10, cap 0.3: the expected recall of label odd goes from about 30 % (lost "
            "under FedAvg) to about 90 %; no label is at risk then",
        ),
        (
            {"fedraw-replay_10": 0.99},
            "Replay, K=10: the expected recall of label odd goes from about 30 % (lost under "
            "FedAvg) to above 95 %; no label is at risk then; clients send differences, and the "
            "server stores at most K updates of rare clients",
        ),
        (
            {"ca2fl_10": 0.9},
            "CA2FL, K=10: the expected recall of label odd goes from about 30 % (lost under "
            "FedAvg) to about 90 %; no label is at risk then; clients send differences, and the "
            "server stores an update of every client",
        ),
        (
            {"fedavg_10": 0.9, "fedraw_10": 0.9},
            "FedAvg: no label is at risk; FedRAW, K=10 promises as much without waiting for all "
            "sites",
        ),
        (
            {},
            "FedAvg: no setting promises more, but label odd is still lost; it needs more "
            "samples, more holders or faster holders",
        ),
        (
            {"fedraw_10": 0.4},
            "FedRAW, K=10: the expected recall of label odd goes from about 30 % (lost under "
            "FedAvg) to about 40 %; label odd is still lost; it needs more samples, more holders "
            "or faster holders",
        ),
    ],
)
def test_the_words_name_the_label_the_effect_and_the_costs(
    odd: dict[str, float], words: str
) -> None:
    found = recommended(grid(**odd))
    assert str(found).replace(TIED, " ") == words
    assert (found.before, found.recall_before) == (odd.get("fedavg_10", 0.3),) * 2
    assert found.recall_after == max(0.3, *odd.values(), 0)


def test_the_better_verdict_decides_between_settings_that_promise_the_same() -> None:
    settings = grid(fedavg_10=0.9, fedraw_10=0.88)
    assert recommended(settings).method == "fedavg"
    risky = [
        replace(s, verdicts=("kept", "at risk")) if s.method == "fedavg" else s for s in settings
    ]
    assert recommended(risky).setting == "FedRAW, K=10"


def test_a_label_that_is_late_needs_more_arrivals() -> None:
    settings = [replace(s, verdicts=("kept", "late")) for s in grid(fedraw_10=0.4)]
    found = recommended(settings)
    assert found.reason.endswith("; label odd is still late; it needs more arrivals")
    assert found.verdict == "late"


@pytest.mark.parametrize(
    ("odd", "keys"),
    [
        ({"fedraw-replay_10": 0.9}, {"name": "fedraw-replay", "buffer": 10}),
        (
            {"fedraw_10": 0.9, "fedraw_10_capped": 0.89},
            {"name": "fedraw", "buffer": 10, "cap": "water-filling", "cap_at": 0.3},
        ),
    ],
)
def test_the_settings_make_the_strategy_that_is_recommended(
    odd: dict[str, float], keys: dict[str, object]
) -> None:
    found = recommended(grid(**odd))
    strategy = tomllib.loads(found.toml)["strategy"]
    assert strategy == keys
    assert {f"strategy.{key}": value for key, value in keys.items()} == found.keys
    made = find_method(strategy.pop("name")).make(strategy)
    assert settings_of(made).items() >= strategy.items()


def test_a_method_without_a_buffer_has_no_such_setting() -> None:
    found = replace(recommended(grid()), method="ace", cap=None)
    assert found.keys == {"strategy.name": "ace"}
    assert found.setting == "ACE"


def test_a_cap_that_is_asked_for_stays() -> None:
    capped = {"fedraw_10_capped": 0.2, "fedraw_20_capped": 0.6}
    settings = grid(fedraw_10=0.7, fedraw_20=0.9, **capped)
    assert recommended(settings, 0.3).cap == 0.3
    assert recommended(settings, 0.3).buffer == 20
    assert recommended(settings).cap is None
