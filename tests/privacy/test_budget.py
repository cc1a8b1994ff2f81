from __future__ import annotations

import math
from typing import Any

import pytest

from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy


def test_the_unit_client_splits_the_budget_among_labels() -> None:
    whole = Privacy("randomised-response", epsilon=5, unit="client", score_epsilon=2)
    single = Privacy("randomised-response", epsilon=5, unit="label", score_epsilon=2)
    assert (whole.epsilon_per_bit(10), single.epsilon_per_bit(10)) == (0.5, 5.0)
    assert (whole.client_epsilon(10), single.client_epsilon(10)) == (7.0, 52.0)


def test_a_score_without_noise_has_an_infinite_budget() -> None:
    assert Privacy("randomised-response", epsilon=1).client_epsilon(10) == math.inf


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, True, "2"])
def test_an_invalid_budget_is_refused_with_its_value(epsilon: Any) -> None:
    with pytest.raises(BadInput, match=r"^epsilon = "):
        Privacy("randomised-response", epsilon=epsilon)
    with pytest.raises(BadInput, match=r"^score_epsilon = "):
        Privacy("randomised-response", 2, score_epsilon=epsilon)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mechanism": "secure-sums"}, "must be 'randomised-response'"),
        ({"mechanism": "randomised-response"}, "epsilon is missing"),
        ({"mechanism": "randomised-response", "unit": "lable"}, "must be 'client' or 'label'"),
        (
            {"mechanism": "randomised-response", "epsilon": 2, "score_epsilon": 21},
            "from 1e-06 to 20",
        ),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        Privacy(**settings)
    assert message in str(refused.value)


def test_the_budget_of_one_bit_has_limits() -> None:
    assert Privacy("randomised-response", epsilon=40).epsilon_per_bit(2) == 20
    with pytest.raises(BadInput, match="epsilon = 40 is 40 for each of 1 labels"):
        Privacy("randomised-response", epsilon=40).epsilon_per_bit(1)
    with pytest.raises(BadInput, match="that must be from"):
        Privacy("randomised-response", epsilon=1e-4).epsilon_per_bit(1000)
