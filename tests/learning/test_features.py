from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.features import Features, Statistics, backbone, features, pooled_layers
from fedraw.learning.inputs import IMAGENET, ImageSequence, Normalisation, Pixels
from fedraw.learning.vectors import to_vector


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pictures(count: int, shape: tuple[int, ...] = (3, 8, 8)) -> Pixels:
    return rng(1).integers(256, size=(count, *shape)).astype(np.uint8)


def small() -> nn.Module:
    return backbone("resnet18", (3, 8, 8), rng(), stem="cifar")


def together(module: nn.Module, images: ImageSequence, **how: Any) -> Features:
    return np.concatenate(list(features(module, images, **how)))


class Norm(nn.Module):
    """Batch norm alone, whose output shows its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1, eps=1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(x).flatten(1)
        return found


def test_features_are_the_modules_output_in_evaluation_mode() -> None:
    module, images = small(), pictures(40)
    chunks = list(features(module, images, normalisation=IMAGENET))
    assert [chunk.shape for chunk in chunks] == [(32, 512), (8, 512)]
    assert chunks[0].dtype == np.float32
    mean, sd = (torch.tensor(part).view(3, 1, 1) for part in (IMAGENET.mean, IMAGENET.sd))
    with torch.no_grad():
        plain = module.eval()((torch.from_numpy(images) / 255 - mean) / sd).numpy()
    np.testing.assert_allclose(np.concatenate(chunks), plain, rtol=1e-4, atol=1e-5)


def test_the_bits_do_not_depend_on_how_many_images_there_are() -> None:
    module, images = small(), pictures(40)
    whole = together(module, images)
    assert together(module, images[:35]).tobytes() == whole[:35].tobytes()
    assert together(module, images[:1]).tobytes() == whole[:1].tobytes()


def test_the_bits_do_not_depend_on_the_state_of_torch() -> None:
    module, images = small(), pictures(4)
    first = together(module, images, statistics="estimated")
    torch.set_num_threads(2)
    torch.rand(1)
    module.train()
    assert together(module, images, statistics="estimated").tobytes() == first.tobytes()
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("statistics", ["stored", "estimated"])
def test_the_module_does_not_change(statistics: Statistics) -> None:
    module = small()
    before = to_vector(module)
    together(module, pictures(4), statistics=statistics)
    assert np.array_equal(to_vector(module), before)
    assert module.training
    assert module.get_buffer("bn1.num_batches_tracked").item() == 0


def test_stored_statistics_are_used_unchanged() -> None:
    module = Norm()
    module.norm.running_mean.fill_(0.5)  # type: ignore[union-attr]
    module.norm.running_var.fill_(0.25)  # type: ignore[union-attr]
    light = np.full((1, 1, 1, 1), 255, np.uint8)
    assert together(module, light).tolist() == [[1.0]]


def test_estimated_statistics_are_those_of_the_images() -> None:
    # Mean 2 and variance ((-2)² + 2²) / (2 - 1) = 8: the rest is (x - 2) / √8.
    images = np.array([0, 4], np.float32).reshape(2, 1, 1, 1)
    found = together(Norm(), images, statistics="estimated")
    np.testing.assert_allclose(found.ravel(), [-2 / np.sqrt(8), 2 / np.sqrt(8)], rtol=1e-6)


def test_images_sorted_by_label_give_the_statistics_of_all() -> None:
    # 2,048 images are four batches. In order, each would be of one kind, without any variance.
    images = np.repeat(np.arange(4, dtype=np.float32), 512).reshape(2048, 1, 1, 1)
    found = together(Norm(), images, statistics="estimated")
    expected = (images - 1.5) / np.sqrt(1.25 * 512 / 511)
    np.testing.assert_allclose(found, expected.reshape(-1, 1), rtol=1e-5)


def test_a_large_set_is_sampled_evenly() -> None:
    seen: list[int] = []

    class Counted:
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, part: slice, /) -> Pixels:
            start, stop, _ = part.indices(10_000)
            seen.append(start) if stop - start == 1 else None
            return np.arange(start, stop, dtype=np.float32).reshape(-1, 1, 1, 1)

    next(features(Norm(), Counted(), statistics="estimated"))
    rows = np.sort(seen[1:])  # the first look was at the shape
    assert len(rows) == 4096
    assert set(np.diff(rows)) == {2, 3}


def test_the_last_layers_means_are_the_backbones_output() -> None:
    module, images = small(), pictures(3)
    pooled = pooled_layers(module, [4], "mean")
    assert together(pooled, images).tobytes() == together(module, images).tobytes()
    estimated = together(module, images, statistics="estimated")
    assert together(pooled, images, statistics="estimated").tobytes() == estimated.tobytes()


def test_chosen_layers_are_pooled_to_means_and_deviations() -> None:
    module, images = small(), pictures(2)
    found = together(pooled_layers(module, [2, 3], "mean+std"), images)
    with torch.no_grad():
        x = torch.relu(module.eval().bn1(module.conv1(torch.from_numpy(images) / 255)))  # type: ignore[operator]
        second = module.layer2(module.layer1(x))  # type: ignore[operator]
        third = module.layer3(second)  # type: ignore[operator]
    parts = [part for x in (second, third) for part in (x.mean((2, 3)), x.flatten(2).std(2, False))]
    np.testing.assert_allclose(found, torch.cat(parts, 1).numpy(), rtol=1e-4, atol=1e-5)
    assert found.shape == (2, 2 * (128 + 256))


def test_layers_after_the_last_chosen_one_are_not_computed() -> None:
    pooled = pooled_layers(small(), [1], "mean")
    assert [tuple(p.shape) for p in pooled.parameters()][-1] == (64,)
    assert sum(p.numel() for p in pooled.parameters()) < 200_000


def test_layers_of_another_network_cannot_be_chosen() -> None:
    with pytest.raises(
        BadInput, match="layers cannot be chosen in a Norm; use the backbone 'resnet18'"
    ):
        pooled_layers(Norm(), [2], "mean")


def test_no_images_give_no_features() -> None:
    assert list(features(small(), pictures(0))) == []


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet50"])
def test_only_a_residual_network_gives_features(name: str) -> None:
    with pytest.raises(BadInput, match=f"model '{name}'; use 'resnet18'"):
        backbone(name, (3, 32, 32), rng())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"statistics": "fresh"}, "statistics = 'fresh' is unknown; use 'stored' or 'estimated'"),
        ({"statistics": "estimated"}, "needs 2 or more images, got 1; use 'stored'"),
        ({"device": "gpu"}, "device = 'gpu'"),
        (
            {"normalisation": Normalisation((0.5,), (1.0,))},
            r"\(3, 8, 8\) cannot be normalised with 1 means",
        ),
    ],
)
def test_impossible_settings_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        together(small(), pictures(1), **how)
