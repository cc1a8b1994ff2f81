from __future__ import annotations

import copy
import math
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.models import build
from fedraw.learning.sgd import SGD, Schedule
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector

SAMPLES = 41
SETTINGS = [
    SGD(),
    SGD(epochs=3, batch=16),
    SGD(epochs=2, batch=16, lr=0.05, momentum=0.9),
    SGD(epochs=2, batch=64, weight_decay=0.01),
    SGD(epochs=3, batch=10, momentum=0.5, weight_decay=0.1),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    SGD(clip_norm=0.5, weight_decay=0.01),
    SGD(label_smoothing=0.2),
    SGD(clip_norm=0.5, label_smoothing=0.1, momentum=0.5, nesterov=True),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def samples(n: int = SAMPLES) -> tuple[npt.NDArray[np.float32], Ints]:
    return rng(1).random((n, 1, 8, 8), dtype=np.float32), rng(2).integers(10, size=n)


def mlp() -> nn.Module:
    return build("mlp", (1, 8, 8), 10, rng())


def normed(momentum: float | None = 0.1) -> nn.Module:
    def factory(_: tuple[int, ...], classes: int) -> nn.Module:
        norm = nn.BatchNorm1d(8, momentum=momentum)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, classes))

    return build(factory, (1, 8, 8), 10, rng())


def dropping() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.5))


def plain_loop(module: nn.Module, settings: SGD, seed: int, n: int = SAMPLES) -> Vector:
    """The same training, written with plain torch."""
    images, labels = (torch.from_numpy(array) for array in samples(n))
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )
    generator = rng(seed)
    generator.integers(2**63)  # the seed of the model's own randomness
    for _ in range(settings.epochs):
        for chosen in torch.split(torch.from_numpy(generator.permutation(n)), settings.batch):
            optimizer.zero_grad()
            scores, smoothing = module(images[chosen]), settings.label_smoothing
            loss = functional.cross_entropy(scores, labels[chosen], label_smoothing=smoothing)
            torch.autograd.backward(loss)
            if settings.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), settings.clip_norm)
            optimizer.step()
    return to_vector(module)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_training_equals_torchs_own_sgd(settings: SGD) -> None:
    module = mlp()
    ours = Trainer(module, settings).train(to_vector(module), *samples(), rng(5))
    assert np.abs(ours - to_vector(module)).max() > 1e-3
    np.testing.assert_allclose(ours, plain_loop(module, settings, seed=5), rtol=0, atol=1e-6)


def test_the_learning_rate_of_a_training_replaces_that_of_the_settings() -> None:
    module, start = mlp(), to_vector(mlp())
    usual = Trainer(module, SGD(lr=0.05)).train(start, *samples(), rng(5))
    given = Trainer(module, SGD(lr=0.7)).train(start, *samples(), rng(5), lr=0.05)
    assert given.tobytes() == usual.tobytes()
    stopped = Trainer(module, SGD()).train(start, *samples(), rng(5), lr=0.0)
    assert stopped.tobytes() == start.tobytes()


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.8, 0.8, 0.8, 0.8, 0.8]),
        ("cosine", [0.8, 0.4 * (1 + math.sqrt(0.5)), 0.4, 0.4 * (1 - math.sqrt(0.5)), 0.0]),
        ("step", [0.8, 0.8, 0.08, 0.008, 0.008]),
    ],
)
def test_schedules_have_the_computed_rates(schedule: Schedule, rates: list[float]) -> None:
    settings = SGD(lr=0.8, schedule=schedule)
    assert [settings.rate(now) for now in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(rates)
    assert settings.rate(1.2) == pytest.approx(rates[-1])  # a round that ends after the run


@pytest.mark.parametrize("batch", [10**8, 2**63 - 1])
def test_a_batch_larger_than_the_data_has_all_samples(batch: int) -> None:
    module = mlp()
    whole, huge = (
        Trainer(module, SGD(epochs=2, batch=size)).train(to_vector(module), *samples(), rng(5))
        for size in (SAMPLES, batch)
    )
    assert huge.tobytes() == whole.tobytes()


def test_batch_norm_trains_as_in_torch_including_statistics() -> None:
    module, settings = normed(), SGD(epochs=2, batch=20)
    images, labels = samples(40)
    trainer = Trainer(module, settings)
    ours = trainer.train(to_vector(module), images, labels, rng(5))
    assert (ours != to_vector(module))[trainer.layout.statistics].all()
    np.testing.assert_allclose(ours, plain_loop(module, settings, 5, n=40), rtol=0, atol=1e-6)


@pytest.mark.parametrize("module", [mlp(), normed(), normed(momentum=None), dropping()])
def test_a_training_does_not_depend_on_earlier_ones(module: nn.Module) -> None:
    images, labels = samples(40)
    start, settings = to_vector(module), SGD(epochs=2, batch=16, momentum=0.9)
    fresh = Trainer(module, settings).train(start, images, labels, rng(3))
    used = Trainer(module, settings)
    used.train(fresh, images[::-1], labels, rng(4))
    used.predict(fresh, images)
    torch.rand(3)
    assert fresh.tobytes() == used.train(start, images, labels, rng(3)).tobytes()


def test_dropout_draws_from_the_generator() -> None:
    # One batch of all samples: the order hardly matters, the masks do.
    trainer = Trainer(dropping(), SGD(batch=SAMPLES))
    start = to_vector(dropping())
    first, other = (trainer.train(start, *samples(), rng(seed)) for seed in (0, 1))
    assert np.abs(first - other).max() > 1e-3


def test_torchs_global_generator_does_not_change() -> None:
    before = torch.random.get_rng_state()
    Trainer(dropping(), SGD()).train(to_vector(mlp()), *samples(), rng())
    assert torch.equal(before, torch.random.get_rng_state())


def test_neither_the_start_nor_the_samples_nor_the_module_change() -> None:
    module = mlp()
    start, (images, labels) = to_vector(module), samples()
    for array in (start, images, labels):
        array.setflags(write=False)
    trainer = Trainer(module, SGD())
    first = trainer.train(start, images, labels, rng())
    kept = first.copy()
    trainer.train(start, images, labels, rng(1))
    trainer.predict(start, images)
    trainer.mean_loss(start, images, labels)
    assert np.array_equal(first, kept)
    assert np.array_equal(start, to_vector(module))


def test_frozen_parameters_do_not_change_even_with_weight_decay() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    trainer = Trainer(module, SGD(weight_decay=0.1))
    start = to_vector(module)
    trained = trainer.train(start, *samples(), rng(), proximal=1.0)
    moved = trained != start
    assert moved[trainer.layout.parameters].all()
    assert not moved[trainer.layout.statistics].any()


def test_a_proximal_term_pulls_towards_the_start() -> None:
    # Two weights (w, -w) are the scores of one sample 1 of class 0. From w = 0, a step of lr 1 goes
    # to w = 1/2, and the next adds 1 - σ(1) for the loss and takes away ρ · 1/2 for the distance.
    module = nn.Linear(1, 2, bias=False)
    one, label = np.ones((1, 1), dtype=np.float32), np.array([0])
    start = np.zeros(2, dtype=np.float32)
    trainer = Trainer(module, SGD(epochs=2, batch=1, lr=1.0))

    def after_two_steps(pull: float) -> float:
        return 0.5 + (1 - 1 / (1 + math.exp(-1))) - pull * 0.5

    for pull in (0.0, 0.25, 1.0):
        trained = trainer.train(start, one, label, rng(), proximal=pull)
        assert trained[0] == pytest.approx(after_two_steps(pull), abs=1e-6)
        assert trained[1] == pytest.approx(-trained[0], abs=1e-6)


def test_a_strong_proximal_term_keeps_the_model_near_its_start() -> None:
    trainer, start = Trainer(mlp(), SGD(epochs=20, lr=0.1)), to_vector(mlp())

    def way(pull: float) -> float:
        trained = trainer.train(start, *samples(), rng(), proximal=pull)
        return float(np.linalg.norm(trained - start))

    assert way(5.0) < way(0.5) < way(0.0)


def test_mean_loss_and_prediction_have_the_computed_values() -> None:
    trainer = Trainer(nn.Linear(1, 2), SGD())
    vector = np.array([1, -1, 0, 0], dtype=np.float32)  # scores (x, -x)
    images = np.array([[2], [-1]], dtype=np.float32)
    assert trainer.predict(vector, images).tolist() == [0, 1]
    by_hand = (np.log1p(np.exp(-4)) + np.log1p(np.exp(2))) / 2
    assert trainer.mean_loss(vector, images, np.array([0, 0])) == pytest.approx(by_hand, rel=1e-6)


def test_evaluation_in_chunks_equals_evaluation_at_once() -> None:
    images, labels = samples(1100)
    trainer, vector = Trainer(mlp(), SGD()), to_vector(mlp())
    with torch.no_grad():
        scores = mlp()(torch.from_numpy(images))
    predictions = trainer.predict(vector, images)
    assert predictions.dtype == np.int64
    assert np.array_equal(predictions, scores.argmax(dim=1).numpy())
    loss = functional.cross_entropy(scores, torch.from_numpy(labels)).item()
    assert trainer.mean_loss(vector, images, labels) == pytest.approx(loss, rel=1e-6)


def test_evaluation_uses_batch_norm_statistics_and_no_dropout() -> None:
    images, _ = samples()
    for module in (normed(), dropping()):
        trainer, vector = Trainer(module, SGD()), to_vector(module)
        whole = trainer.predict(vector, images)
        single = [int(trainer.predict(vector, image[None])[0]) for image in images]
        assert whole.tolist() == single


def test_no_images_give_no_predictions() -> None:
    images, _ = samples()
    predictions = Trainer(mlp(), SGD()).predict(to_vector(mlp()), images[:0])
    assert (predictions.shape, predictions.dtype) == ((0,), np.dtype(np.int64))


def test_a_diverging_training_returns_nan() -> None:
    trainer = Trainer(mlp(), SGD(epochs=5, lr=1e30))
    assert np.isnan(trainer.train(to_vector(mlp()), *samples(), rng())).any()


def test_a_fresh_process_gives_the_same_bytes() -> None:
    script = Path(__file__).with_name("one_training.py")
    here = runpy.run_path(str(script))["digest"]()
    there = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_one_thread_only() -> None:
    Trainer(mlp(), SGD())
    assert torch.get_num_threads() == 1


def test_a_trainer_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="create one in the process"):
        pickle.dumps(Trainer(mlp(), SGD()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs = 0"),
        ({"epochs": 1.5}, "epochs = 1.5.*whole number"),
        ({"batch": 0}, "batch = 0"),
        ({"lr": 0}, "lr = 0 must be a positive number"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"momentum": 1.0}, r"momentum = 1\.0 must be from 0 to below 1"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"nesterov": True}, "nesterov = true needs momentum"),
        ({"schedule": "linear"}, "schedule = 'linear' must be 'constant' or 'cosine' or 'step'"),
        ({"lr_decay": 0}, "lr_decay = 0.*above 0"),
        ({"clip_norm": 0}, "clip_norm = 0 must be a positive number"),
        ({"label_smoothing": 1}, "label_smoothing = 1 must be from 0 to below 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        SGD(**settings)


def test_a_client_without_samples_is_refused() -> None:
    images, labels = samples()
    trainer, vector = Trainer(mlp(), SGD()), to_vector(mlp())
    with pytest.raises(BadInput, match="samples = 0"):
        trainer.train(vector, images[:0], labels[:0], rng())
    with pytest.raises(BadInput, match="samples = 0"):
        trainer.mean_loss(vector, images[:0], labels[:0])


def test_batch_norm_on_a_single_sample_is_explained() -> None:
    trainer = Trainer(normed(), SGD(batch=20))
    with pytest.raises(
        BadInput, match=r"of 1 of a client's 41 samples.*use for example batch = 21"
    ):
        trainer.train(to_vector(normed()), *samples(), rng())
    images, labels = samples()
    with pytest.raises(BadInput, match=r"only 1 sample.*give each client 2 or more"):
        trainer.train(to_vector(normed()), images[:1], labels[:1], rng())
