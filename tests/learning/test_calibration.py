"""CCVR: exact pooled moments from sums, and an output layer trained on draws from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import nn

from fedraw.data.dataset import Inputs
from fedraw.errors import BadInput
from fedraw.learning.calibration import FeatureSums, Head
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 2**32), st.integers(1, 19))
def test_sums_of_clients_have_the_moments_of_the_pooled_features(seed: int, cut: int) -> None:
    features, labels = rng(seed).normal(3, 2, size=(20, 3)), rng(seed + 1).integers(2, size=20)
    sums = FeatureSums.zeros(2, 3)
    sums.add(features[:cut], labels[:cut])
    sums.add(features[cut:], labels[cut:])
    for label in range(2):
        own = features[labels == label]
        assert sums.counts[label] == len(own)
        if len(own) > 1:
            mean, covariance = sums.moments(label)
            np.testing.assert_allclose(mean, own.mean(0))
            np.testing.assert_allclose(covariance, np.cov(own.T), atol=1e-12)


def test_virtual_features_do_not_depend_on_the_threads_of_numpy() -> None:
    found = set()
    for threads in (1, 2):
        threadpool_limits(threads, "blas")
        Trainer(nn.Linear(2, 2), SGD())  # every calibrated run has one
        sums = FeatureSums.zeros(1, 512)
        sums.add(rng().normal(size=(300, 512)), np.zeros(300, np.int64))
        found.add(sums.draw(np.array([0]), 50, rng(1))[0].tobytes())
    assert len(found) == 1


def test_virtual_features_have_the_pooled_moments() -> None:
    sums = FeatureSums.zeros(2, 2)
    sums.add(np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]]), np.array([1, 1, 1]))
    features, labels = sums.draw(np.array([1]), 4000, rng())
    assert set(labels) == {1}
    assert features[:, 0].mean() == pytest.approx(2, abs=0.1)
    assert features[:, 0].var() == pytest.approx(4, abs=0.3)
    np.testing.assert_allclose(features[:, 1], 5, atol=1e-5)  # this feature never varies
    with pytest.raises(BadInput, match="label 0 has 0 samples"):
        sums.moments(0)


def test_only_rows_of_labels_with_features_are_trained() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    head = Head(Trainer(module, SGD()), 3)
    start = to_vector(module)
    features = head.features(start, Inputs(rng().normal(size=(5, 4)).astype(np.float32)))
    assert features.shape == (5, 3)
    assert (features >= 0).all()
    draws = rng(1).normal(size=(20, 3)).astype(np.float32)
    new = head.retrained(start, draws, np.repeat([0, 2], 10), SGD(epochs=3), rng(2))
    changed = new != start
    assert not changed[:15].any()  # everything below the output layer
    weight, bias = changed[15:24].reshape(3, 3), changed[24:]
    assert bias.tolist() == [True, False, True]
    assert weight.all(1).tolist() == [True, False, True]
    assert not weight[1].any()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Conv1d(1, 1, 1)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 7)),
    ],
)
def test_a_model_without_a_linear_output_layer_is_refused(module: nn.Module) -> None:
    with pytest.raises(BadInput, match=r"does not end in an nn\.Linear of 3 outputs"):
        Head(Trainer(module, SGD()), 3)


def test_a_model_that_changes_the_output_of_its_last_layer_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    head = Head(Trainer(module, SGD()), 3)
    with pytest.raises(BadInput, match=r"is not the output of its last nn\.Linear"):
        head.features(to_vector(module), Inputs(np.ones((2, 4), np.float32)))
