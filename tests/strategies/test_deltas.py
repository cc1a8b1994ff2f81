"""What a strategy is told of the model that it did not bring itself."""

from __future__ import annotations

from typing import Any

import pytest

from fedraw.core.layout import Layout
from fedraw.strategies.deltas import with_layout
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW

MODELS = Layout.of([("fc.weight", (2, 1))])
OWN = Layout.of([("own.weight", (2, 1))])


def test_what_a_strategy_lacks_is_the_models() -> None:
    assert with_layout(FedBuff(3), MODELS) == FedBuff(3, layout=MODELS)
    told = with_layout(FedRAW(3), MODELS, ["x", "y"])
    assert told == FedRAW(3, layout=MODELS, classes=("x", "y"))


def test_what_it_has_stays() -> None:
    assert with_layout(FedBuff(3, layout=OWN), MODELS).layout is OWN
    own = FedRAW(3, classes=("a", "b"))
    assert with_layout(own, MODELS, ["x", "y"]) == FedRAW(3, layout=MODELS, classes=("a", "b"))


class Plain:
    """A user's strategy that is no dataclass, and so has no fields to fill in."""

    layout: Layout | None = None


@pytest.mark.parametrize("strategy", [FedFa(3), Plain()])
def test_one_without_such_a_field_is_left_alone(strategy: Any) -> None:
    assert with_layout(strategy, MODELS, ["x"]) is strategy
