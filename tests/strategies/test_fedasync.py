from __future__ import annotations

import pytest
from tests.strategies.server import COUNTS, begun, fed, sent

from fedraw.strategies.fedasync import FedAsync


def test_each_arrival_is_mixed_in_at_once() -> None:
    strategy = FedAsync(alpha=0.5, staleness="none")
    state = fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 4), sent(1, 4)])
    assert (state.version, state.model.tolist()) == (2, [3])
    assert state.contents == ([1], [1.0])


def test_an_update_three_versions_old_moves_the_model_half_as_far() -> None:
    strategy = FedAsync(alpha=0.5)
    state = fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 0, version=v) for v in range(3)])
    state = fed(strategy, state, [sent(1, 8, version=0)])
    assert state.model.tolist() == [8 * 0.5 / 2]


@pytest.mark.parametrize(("version", "model"), [(1, 4.0), (0, 8 * 0.5 / 11)])
def test_a_hinge_leaves_the_fresh_alone(version: int, model: float) -> None:
    strategy = FedAsync(alpha=0.5, staleness="hinge", hinge_slope=10, hinge_grace=4)
    state = fed(strategy, begun(strategy, COUNTS, 0), [sent(0, 0, version=v) for v in range(5)])
    state = fed(strategy, state, [sent(1, 8, version=version)])
    assert state.model.tolist() == pytest.approx([model])


def test_clients_are_asked_for_the_proximal_term() -> None:
    assert FedAsync(proximal=0.005).needs.proximal == 0.005
    assert FedAsync().needs.sends == "model"
