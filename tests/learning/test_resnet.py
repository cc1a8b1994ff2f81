from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedraw.errors import BadInput
from fedraw.learning.models import build
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import layout_of, to_vector

Tensors = dict[str, torch.Tensor]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def convolved(
    state: Tensors, convolution: str, norm: str, x: torch.Tensor, stride: int = 1
) -> torch.Tensor:
    kernel = state[f"{convolution}.weight"]
    x = functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    mean, var = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
    return functional.batch_norm(x, mean, var, state[f"{norm}.weight"], state[f"{norm}.bias"])


def by_hand(state: Tensors, x: torch.Tensor) -> torch.Tensor:
    """The published network, written independently from its table of tensors."""
    large = state["conv1.weight"].shape[-1] == 7
    x = convolved(state, "conv1", "bn1", x, stride=2 if large else 1).relu()
    x = functional.max_pool2d(x, 3, 2, 1) if large else x
    for block in [f"layer{group}.{part}" for group in (1, 2, 3, 4) for part in (0, 1)]:
        shrinks = f"{block}.downsample.0.weight" in state
        stride = 2 if shrinks else 1
        aside = (
            convolved(state, f"{block}.downsample.0", f"{block}.downsample.1", x, stride)
            if shrinks
            else x
        )
        x = convolved(state, f"{block}.conv1", f"{block}.bn1", x, stride).relu()
        x = (convolved(state, f"{block}.conv2", f"{block}.bn2", x) + aside).relu()
    pooled = functional.adaptive_avg_pool2d(x, 1).flatten(1)
    return functional.linear(pooled, state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(
    ("stem", "shape"), [("imagenet", (3, 40, 33)), ("cifar", (1, 8, 11)), (None, (5, 32, 32))]
)
def test_the_forward_pass_is_the_published_one(stem: str | None, shape: tuple[int, ...]) -> None:
    module = build("resnet18", shape, 7, rng(), stem=stem)
    draws = torch.Generator().manual_seed(1)
    for name, buffer in module.named_buffers():
        if "running" in name:  # fresh statistics of 0 and 1 would hide a mix-up
            buffer.copy_(torch.rand(buffer.shape, generator=draws) + 0.5)
    images = torch.randn(2, *shape, generator=draws)
    with torch.no_grad():
        ours = module.eval()(images)
        torch.testing.assert_close(ours, by_hand(module.state_dict(), images))
    assert ours.shape == (2, 7)


def test_names_and_counts_are_the_published_ones() -> None:
    module = build("resnet18", (3, 32, 32), 1000, rng())
    layout, names = layout_of(module), set(module.state_dict())
    assert layout.parameter_count == 11_689_512
    assert len(names) == 122
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "layer4.1.bn2.running_var"} <= names
    assert "layer1.0.downsample.0.weight" not in names
    assert (layout.head_weight, layout.head_bias) == (layout_of(module).segments[60:62])


def test_kernels_start_as_he_normal_and_norms_as_the_identity() -> None:
    state = build("resnet18", (3, 32, 32), 10, rng()).state_dict()
    kernel = state["layer4.1.conv2.weight"]
    assert kernel.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert kernel.mean().item() == pytest.approx(0, abs=1e-4)
    norm = [state[f"bn1.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
    assert [part.unique().tolist() for part in norm] == [[1], [0], [0], [1]]


def test_it_learns_to_tell_light_from_dark() -> None:
    module = build("resnet18", (1, 8, 8), 2, rng(), stem="cifar")
    images = rng().random((16, 1, 8, 8), dtype=np.float32)
    labels = np.arange(16) % 2
    images[labels == 1] += 1
    trainer = Trainer(module, SGD(epochs=4, batch=8, lr=0.05))
    trained = trainer.train(to_vector(module), images, labels, rng())
    before = trainer.mean_loss(to_vector(module), images, labels)
    assert trainer.mean_loss(trained, images, labels) < before / 2


@pytest.mark.parametrize(
    ("stem", "shape", "words"),
    [
        (None, (3, 31, 64), r"'imagenet'.*32 or more, got \(3, 31, 64\).*stem = 'cifar'"),
        ("cifar", (3, 8, 7), r"'cifar'.*8 or more, got \(3, 8, 7\); enlarge them$"),
        ("cifar", (64,), r"\(channels, height, width\).*got \(64,\)"),
        ("imgnet", (3, 32, 32), "stem = 'imgnet' is unknown; use 'imagenet' or 'cifar'"),
    ],
)
def test_images_that_do_not_fit_are_refused(
    stem: str | None, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        build("resnet18", shape, 3, rng(), stem=stem)
