from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.strategies.server import On, Server, begun, bits, fed, sent, vector

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.protocol import Setup
from fedraw.strategies.qfedavg import QFedAvg

TWO = {client: {"x": 1} for client in "ab"}


def test_one_round_by_hand() -> None:
    strategy = QFedAvg(lr=0.5, q=1)
    events = [sent("a", 1, loss=1.0), sent("b", 2, loss=4.0)]
    state = fed(strategy, begun(strategy, TWO, 0), events)
    # L = 2: Δ = 1·2·(-1), 4·2·(-2); h = 2² + 2·1, 4² + 2·4.
    assert state.model.tolist() == pytest.approx([18 / 30])
    assert state.contents.weights == pytest.approx([1 / 5, 4 / 5])


def test_terms_may_weigh_by_samples() -> None:
    strategy = QFedAvg(lr=0.5, q=1, p="samples")
    events = [sent("a", 1, loss=1.0, examples=3), sent("b", 2, loss=4.0)]
    state = fed(strategy, begun(strategy, TWO, 0), events)
    assert state.model.tolist() == pytest.approx([(3 * 2 + 16) / (3 * 6 + 24)])


def test_q_of_zero_is_the_uniform_mean() -> None:
    fair, plain = Server(QFedAvg(lr=0.1, q=0)), Server(FedAvg(weighting="uniform"))
    for model, same in zip(fair.run(60), plain.run(60), strict=True):
        assert model == pytest.approx(same, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("q", "shrink"), [(0, 1), (0.1, 1 / 1.5), (1, 1 / 6), (5, 1 / 26)])
def test_alike_clients_take_fedavgs_step_made_smaller(q: float, shrink: float) -> None:
    """By 1 / (1 + q L ||w - w_k||² / F), here with L = 100, a squared norm of 0.05 and F = 1."""
    strategy = QFedAvg(lr=0.01, q=q)
    trained = (0.1, 0.2)
    events = [sent(client, *trained, loss=1.0) for client in "ab"]
    state = fed(strategy, begun(strategy, TWO, 0, 0), events)
    assert state.model == pytest.approx(np.array(trained) * shrink, rel=1e-6)


def test_the_higher_the_loss_the_harder_the_pull() -> None:
    pulls = []
    for q in (0, 1, 5):
        strategy = QFedAvg(lr=1.0, q=q)
        events = [sent("a", 0.01, 0, loss=2.0), sent("b", 0, 0.01, loss=1.0)]
        state = fed(strategy, begun(strategy, TWO, 0, 0), events)
        pulls.append(float(state.model[0] / state.model[1]))
    assert pulls == pytest.approx([1, 2, 32], rel=1e-4)


def test_a_loss_of_zero_leaves_the_model_finite() -> None:
    strategy = QFedAvg(lr=0.1, q=5)
    events = [sent("a", 1, loss=0.0), sent("b", 2, loss=0.0)]
    state = fed(strategy, begun(strategy, TWO, 0), events)
    assert np.isfinite(state.model).all()


@pytest.mark.parametrize("loss", [0.0, 1e-9, 1e9])
def test_a_loss_whose_power_no_float_holds_is_refused(loss: float) -> None:
    strategy = QFedAvg(lr=0.1, q=40)
    state = begun(strategy, TWO, 0)
    before = bits(state)
    with pytest.raises(
        RefusedUpdate, match=rf"client 'a' sent the loss {loss}, whose power of q = 40"
    ):
        strategy.step(state, sent("a", 1, loss=loss))
    assert bits(state) == before


def test_the_second_round_starts_from_the_first() -> None:
    strategy = QFedAvg(lr=0.5, q=1)
    round_one = [sent("a", 1, loss=1.0), sent("b", 1, loss=1.0)]
    state = fed(strategy, begun(strategy, TWO, 0), round_one)
    assert state.model.tolist() == pytest.approx([1 / 3])
    round_two = [sent(client, 1 / 3, version=1, loss=2.0) for client in "ab"]
    assert fed(strategy, state, round_two).model.tolist() == pytest.approx([1 / 3])


def test_statistics_are_averaged_as_in_fedavg() -> None:
    strategy = On(Layout.of([("w", (1,))], [("mean", (1,))]), QFedAvg(lr=0.5, q=1))
    events = [sent("a", 1, 8, loss=1.0, examples=1), sent("b", 2, 4, loss=4.0, examples=3)]
    state = fed(strategy, begun(strategy, TWO, 0, 0), events)
    assert state.model.tolist() == pytest.approx([18 / 30, 5])


def test_clients_are_asked_for_their_loss() -> None:
    assert QFedAvg(lr=0.1).needs.loss


def test_the_local_learning_rate_is_its_own_or_the_drivers() -> None:
    setup = Setup(vector(0), LabelTable.from_counts(TWO), local_lr=0.2)
    assert QFedAvg().start(setup)[0].lr == 0.2
    assert QFedAvg(lr=0.1).start(setup)[0].lr == 0.1
    with pytest.raises(BadInput, match=r"QFedAvg\(lr=\.\.\.\), or set training"):
        QFedAvg().start(replace(setup, local_lr=None))
