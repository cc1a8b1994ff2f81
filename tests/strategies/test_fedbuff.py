from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.strategies.server import COUNTS, On, begun, fed, sent

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.errors import BadInput
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.protocol import Setup

NORMED = Layout.of([("w", (1,))], [("mean", (1,))])


def test_k_differences_make_one_step() -> None:
    strategy = FedBuff(2)
    state = fed(strategy, begun(strategy, COUNTS, 10), [sent(0, 2), sent(1, 4)])
    assert (state.version, state.model.tolist()) == (1, [13])
    assert state.contents == ([0, 1], [1 / 2, 1 / 2])


def test_the_server_rate_scales_the_step() -> None:
    strategy = FedBuff(2, server_lr=0.5)
    state = fed(strategy, begun(strategy, COUNTS, 10), [sent(0, 2), sent(1, 4)])
    assert state.model.tolist() == [11.5]


def test_a_step_empties_the_buffer() -> None:
    strategy = FedBuff(2)
    events = [sent(0, 2), sent(1, 4), sent(0, 100)]
    state = fed(strategy, begun(strategy, COUNTS, 10), events)
    assert state.contents == ([0], [])
    state = fed(strategy, state, [sent(2, 200)])
    assert state.model.tolist() == [163]


def test_a_partial_buffer_is_never_applied() -> None:
    strategy = FedBuff(3)
    state = fed(strategy, begun(strategy, COUNTS, 10), [sent(0, 2), sent(1, 4)])
    assert (state.version, state.model.tolist()) == (0, [10])


def test_a_client_may_fill_several_places() -> None:
    strategy = FedBuff(3)
    state = fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 1), sent(0, 2), sent(1, 6)])
    assert (state.model.tolist(), state.contents.clients) == ([3], [0, 0, 1])


def after_three_versions(strategy: FedBuff) -> Any:
    return fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 0, version=v // 2) for v in range(6)])


def test_a_difference_three_versions_old_counts_half() -> None:
    strategy = FedBuff(2, staleness="polynomial")
    state = after_three_versions(strategy)
    assert state.version == 3
    state = fed(strategy, state, [sent(1, 8, version=3), sent(2, 8, version=0)])
    # The divisor stays K: (8 + 8/sqrt(1 + 3)) / 2.
    assert state.model.tolist() == [6]
    assert state.contents.weights == pytest.approx([2 / 3, 1 / 3])


def test_the_discount_has_an_exponent() -> None:
    strategy = FedBuff(2, staleness="polynomial", exponent=1)
    state = after_three_versions(strategy)
    state = fed(strategy, state, [sent(1, 8, version=3), sent(2, 8, version=0)])
    assert state.model.tolist() == [5]


def test_staleness_is_measured_on_arrival_not_on_aggregation() -> None:
    strategy = FedBuff(2, staleness="polynomial")
    state = fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 4), sent(1, 4)])
    assert state.model.tolist() == [4]


def test_unique_keeps_a_clients_latest_difference() -> None:
    strategy = On(NORMED, FedBuff(2, unique=True))
    events = [sent(0, 2, 1), sent(0, 6, 3), sent(0, 8, 5)]
    state = fed(strategy, begun(strategy, COUNTS, 10, 0), events)
    assert (state.version, state.contents.clients) == (0, [0])
    state = fed(strategy, state, [sent(1, 4, 7)])
    assert state.model.tolist() == [16, 6]
    state = fed(strategy, state, [sent(1, 1, 1), sent(0, 3, 3)])
    assert state.model.tolist() == [18, 2]


def test_unique_replaces_the_discount_too() -> None:
    strategy = FedBuff(2, unique=True, staleness="polynomial")
    state = fed(
        strategy, begun(strategy, COUNTS, 0), [sent(v % 2, 0, version=v // 2) for v in range(6)]
    )
    events = [sent(1, 8, version=0), sent(1, 8, version=3), sent(2, 4, version=0)]
    state = fed(strategy, state, events)
    assert state.model.tolist() == [5]
    assert state.contents.weights == pytest.approx([2 / 3, 1 / 3])


def test_unique_needs_as_many_clients_as_places() -> None:
    with pytest.raises(BadInput, match=r"buffer = 7 never fills.*6 clients; use at most 6, or uni"):
        FedBuff(7, unique=True).start(
            Setup(np.zeros(1, np.float32), LabelTable.from_counts(COUNTS))
        )
    assert begun(FedBuff(7), COUNTS, 0).version == 0
    assert begun(FedBuff(6, unique=True), COUNTS, 0).version == 0


def test_statistics_are_the_plain_mean_without_rate_or_discount() -> None:
    strategy = On(NORMED, FedBuff(2, server_lr=0.5, staleness="polynomial"))
    state = begun(strategy, COUNTS, 0, 50)
    state = fed(strategy, state, [sent(0, 0, 0, version=v // 2) for v in range(6)])
    state = fed(strategy, state, [sent(1, 8, 2, version=3), sent(2, 8, 4, version=0)])
    assert state.model.tolist() == [3, 3]
