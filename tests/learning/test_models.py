from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.models import MODELS, ModelFactory, build
from fedraw.learning.vectors import to_vector


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet18", "text"}))
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 4, 5)])
def test_every_model_scores_every_class(name: str, shape: tuple[int, ...]) -> None:
    module = build(name, shape, 7, rng())
    assert module(torch.zeros(2, *shape)).shape == (2, 7)
    assert module.training


def test_model_text_needs_texts() -> None:
    module = build("text", (14,), 25, rng(), whole_numbers=True)
    assert module(torch.full((2, 14), 127)).shape == (2, 25)
    with pytest.raises(BadInput, match="needs texts of one length"):
        build("text", (1, 8, 8), 10, rng())


def test_one_generator_gives_one_initial_model() -> None:
    first, again, other = (to_vector(build("mlp", (4,), 2, rng(seed))) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_global_generator_does_not_change() -> None:
    before = torch.random.get_rng_state()
    build("cnn", (1, 8, 8), 10, rng())
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_initial_model_does_not_depend_on_the_global_generator() -> None:
    first = to_vector(build("mlp", (4,), 2, rng()))
    torch.rand(1)
    assert np.array_equal(first, to_vector(build("mlp", (4,), 2, rng())))


def test_users_bring_their_own_factory() -> None:
    module = build(lambda shape, classes: nn.Linear(shape[0], classes), (6,), 3, rng())
    assert isinstance(module, nn.Linear)


def test_a_lazy_module_gets_its_shape() -> None:
    module = build(lambda _, classes: nn.LazyLinear(classes), (6,), 3, rng())
    assert to_vector(module).shape == (21,)


def test_the_small_network_has_half_the_width_of_the_large_one() -> None:
    shapes = [
        [tuple(p.shape) for p in build(name, (3, 8, 8), 5, rng()).parameters()][::2]
        for name in ("cnn", "cnn-small")
    ]
    assert shapes[0] == [(32, 3, 3, 3), (64, 32, 3, 3), (128, 256), (5, 128)]
    assert shapes[1] == [(16, 3, 3, 3), (32, 16, 3, 3), (64, 128), (5, 64)]


def test_a_linear_head_is_one_matrix() -> None:
    module = build("linear", (512,), 10, rng())
    assert to_vector(module).size == 512 * 10 + 10


def own(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


@pytest.mark.parametrize("model", ["cnn", own])
def test_a_stem_is_refused_for_models_without_one(model: str | ModelFactory) -> None:
    name = model if isinstance(model, str) else "own"
    with pytest.raises(BadInput, match=f"stem = 'cifar', but model '{name}' has no.*'resnet18'"):
        build(model, (1, 8, 8), 3, rng(), stem="cifar")


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        ("mpl", (4,), "unknown model 'mpl'; did you mean 'mlp'"),
        ("cnn", (64,), r"'cnn'.*got \(64,\).*'mlp'"),
        ("cnn", (1, 3, 8), r"4 or more, got \(1, 3, 8\)"),
        ("cnn-small", (64,), r"'cnn-small'.*got \(64,\)"),
        (lambda _, classes: nn.Linear(5, classes), (4,), r"a sample of shape \(4,\)"),
        (lambda shape, _: nn.Linear(shape[0], 9), (4,), r"to shape \(1, 9\), not \(1, 3\)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    model: str | ModelFactory, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        build(model, shape, 3, rng())
