"""Which setting is recommended: small grids of settings, made by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedraw.auditing.what_if import Recommendation, ServerSetting, recommend
from fedraw.auditing.words import TIED
from fedraw.strategies.catalog import find_method, settings_of

LABELS = ("common", "odd")


def grid(**odd: float) -> list[ServerSetting]:
    """Settings by name: `fedraw_20_capped=0.9` is FedRAW, K = 20, with a cap, odd at 0.9."""
    usual = {"fedfa_10": 0.05, "fedraw_10": 0.08, "fedraw_20": 0.08, "fedbuff_10": 0.02}
    usual |= {"ca2fl_10": 0.02, "fedfa_20": 0.05, "fedbuff_20": 0.02, "ca2fl_20": 0.02}
    settings = []
    for name, share in (usual | odd).items():
        method, size, *capped = name.split("_")
        cap = 0.3 if capped else None
        both = np.array([1.1, share]), np.array([1.0, share])
        settings.append(ServerSetting(method, int(size), cap, *both, None))
    return settings


def recommended(settings: Sequence[ServerSetting], cap: float | None = None) -> Recommendation:
    return recommend(LABELS, settings, 10, cap, clients=30)


def test_a_buffer_with_a_slot_for_every_client_is_recommended_with_a_note() -> None:
    settings = grid(fedraw_10=0.9)
    assert "smaller buffer" in recommend(LABELS, settings, 10, None, clients=10).reason
    assert "smaller buffer" not in recommend(LABELS, settings, 10, None, clients=11).reason
    shared = grid(fedbuff_10=0.5)  # a client can fill several slots of FedBuff
    assert "smaller buffer" not in recommend(LABELS, shared, 10, None, clients=10).reason


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"fedfa_10": 0.9, "fedraw_10": 2.0}, ("fedfa", 10, None)),
        ({"fedraw_10": 0.9}, ("fedraw", 10, None)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.89}, ("fedraw", 10, 0.3)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.82}, ("fedraw", 10, None)),
        ({"fedraw_20": 0.9, "fedbuff_10": 0.5}, ("fedraw", 20, None)),
        ({"fedbuff_10": 0.5, "ca2fl_10": 0.5}, ("fedbuff", 10, None)),
        ({"ca2fl_10": 0.4}, ("ca2fl", 10, None)),
        ({"fedraw-replay_10": 0.4, "ca2fl_10": 0.4}, ("fedraw-replay", 10, None)),
        ({"fedraw-replay_10": 0.4, "fedbuff_10": 0.5}, ("fedbuff", 10, None)),
        ({"fedraw-replay_10": 0.1, "ca2fl_10": 0.05}, ("fedraw-replay", 10, None)),
        # Replay by debt stores as much, and comes before replay by its merit.
        ({"fedraw-replay-debt_10": 0.4, "ca2fl_10": 0.4}, ("fedraw-replay-debt", 10, None)),
        ({"fedraw-replay-debt_10": 0.4, "fedraw-replay_10": 0.4}, ("fedraw-replay-debt", 10, None)),
        # MIFA comes after CA2FL by its merit, and AREA asks too much of clients.
        ({"mifa_10": 0.9, "area_10": 0.9, "ca2fl_10": 0.4}, ("ca2fl", 10, None)),
        # FedStaleWeight stores as little as replay, and its merit is lower.
        ({"fedstaleweight_10": 0.4, "ca2fl_10": 0.4}, ("fedstaleweight", 10, None)),
        (
            {"fedstaleweight_10": 0.4, "fedraw-replay-debt_10": 0.4},
            ("fedraw-replay-debt", 10, None),
        ),
        # With the standing FedBuff has it is FedBuff.
        ({"fedraw-replay_10": 0.12, "fedbuff_10": 0.12}, ("fedbuff", 10, None)),
        # Nothing keeps it: 0.2 of the 0.3 that FedRAW needs is more than 0.05 of CA2FL's 0.13.
        ({"fedraw_20": 0.2, "ca2fl_10": 0.05}, ("fedraw", 20, None)),
        ({"fedraw_20": 0.2, "ca2fl_10": 0.12}, ("ca2fl", 10, None)),
        # Nothing is better than what there is.
        ({"fedfa_10": 0.09}, ("fedfa", 10, None)),
    ],
)
def test_the_least_change_that_keeps_every_label(
    odd: dict[str, float], expected: tuple[str, int, float | None]
) -> None:
    found = recommended(grid(**odd))
    assert (found.method, found.buffer, found.cap) == expected
    assert found.label == "odd"


def test_the_words_name_the_label_and_both_standings() -> None:
    found = recommended(grid(fedraw_10=1.18, fedraw_10_capped=1.18))
    assert str(found).replace(TIED, " ") == (
        "FedRAW, K=10, cap 0.3: label odd goes from a standing of 5.0 % (lost under FedFa) to "
        "118 %; no label is at risk then"
    )
    assert (found.before, found.after, found.verdict) == (0.05, 1.18, "kept")


def test_the_words_say_what_replay_costs() -> None:
    found = recommended(grid(**{"fedraw-replay_10": 1.1}))
    assert str(found).replace(TIED, " ") == (
        "Replay, K=10: label odd goes from a standing of 5.0 % (lost under FedFa) to 110 %; no "
        "label is at risk then; clients send differences, and the server stores at most K updates "
        "of rare clients"
    )


def test_where_nothing_helps_it_says_so() -> None:
    found = recommended(grid())
    words = str(found).replace(TIED, " ")
    assert "but label odd is still lost, with a standing of 8.0 %; it needs more samples" in words
    assert found.verdict == "lost"


@pytest.mark.parametrize(
    ("odd", "keys"),
    [
        ({"fedraw-replay_10": 0.4}, {"name": "fedraw-replay", "buffer": 10}),
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
    settings = grid(fedraw_10=0.9, fedraw_10_capped=0.2, fedraw_20=2.0, fedraw_20_capped=0.35)
    assert recommended(settings, 0.3).cap == 0.3
    assert recommended(settings, 0.3).buffer == 20
    assert recommended(settings).cap is None
