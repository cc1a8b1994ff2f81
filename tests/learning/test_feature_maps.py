from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.dead_leaves import contrast_normalised, dead_leaves, whitened_filters
from fedraw.learning.feature_maps import (
    FeatureMap,
    convolutions,
    default_features,
    load_map,
    own_map,
    relu,
    resnet18,
    synthetic_inputs,
)
from fedraw.learning.features import backbone
from fedraw.learning.inputs import IMAGENET
from fedraw.learning.random_features import PatchFilters, RandomReLU

ROOT = math.sqrt(5)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def samples(shape: tuple[int, ...], count: int = 70) -> np.ndarray[Any, Any]:
    return rng(1).random((count, *shape)).astype(np.float32)


def fixed_resnet18(folder: Path, **how: Any) -> FeatureMap:
    module = backbone("resnet18", (3, 8, 8), rng(), "cifar")
    torch.save(module.state_dict(), folder / "weights.pth")
    made, _ = resnet18((3, 8, 8), folder / "weights.pth", stem="cifar", **how)
    return made


MAPS: dict[str, Callable[[Path], FeatureMap]] = {
    "relu": lambda _: relu((5,), width=37, seed=3),
    "convolutions": lambda _: convolutions((1, 8, 8), width=100, seed=3),
    "convolutions of colours": lambda _: convolutions((3, 9, 12), width=90),
    "convolutions of large images": lambda _: convolutions((3, 70, 100), width=90),
    "resnet18": lambda folder: fixed_resnet18(folder, layers=(1, 2), pool="mean+std"),
    "measured resnet18": lambda folder: fixed_resnet18(folder, measured=True),
    "normalised resnet18": lambda folder: fixed_resnet18(folder, normalisation=IMAGENET),
    "own": lambda _: own_map(nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), (1, 8, 8)),
}


@pytest.fixture(params=MAPS, scope="module")
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FeatureMap:
    made: FeatureMap = MAPS[request.param](tmp_path_factory.mktemp("weights"))
    return made


class TestEveryMap:
    def test_gives_rows_of_float32(self, one: FeatureMap) -> None:
        found = one.features(samples(one.input_shape, 3))
        assert found.shape == (3, one.width)
        assert found.dtype == np.float32
        assert one.features(samples(one.input_shape, 0)).shape == (0, one.width)

    def test_gives_a_sample_the_same_bits_in_any_order_and_company(self, one: FeatureMap) -> None:
        inputs = samples(one.input_shape)
        whole, order = one.features(inputs), rng(2).permutation(len(inputs))
        assert one.features(inputs[order]).tobytes() == whole[order].tobytes()
        for row in (0, 31, 45, 69):
            assert one.features(inputs[row : row + 1]).tobytes() == whole[row].tobytes()

    def test_survives_a_file_with_its_digest(self, one: FeatureMap, tmp_path: Path) -> None:
        one.save(tmp_path / "map.safetensors")
        own = nn.Sequential(nn.Flatten(), nn.Linear(64, 7)) if one.kind == "own" else None
        again = load_map(tmp_path / "map.safetensors", own)
        assert again.digest == one.digest
        assert (again.kind, again.width, again.unit) == (one.kind, one.width, one.unit)
        inputs = samples(one.input_shape, 5)
        assert again.features(inputs).tobytes() == one.features(inputs).tobytes()

    def test_knows_when_its_file_was_altered(self, one: FeatureMap, tmp_path: Path) -> None:
        path = tmp_path / "map.safetensors"
        one.save(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tensors["centre"][0] += 1
        path.write_bytes(safetensors.torch.save(tensors, metadata))
        own = nn.Sequential(nn.Flatten(), nn.Linear(64, 7)) if one.kind == "own" else None
        with pytest.raises(BadInput, match=r"has the digest [0-9a-f]{12}, and says .* altered"):
            load_map(path, own)


@pytest.mark.parametrize(
    "kind", ["relu", "convolutions", "convolutions of colours", "measured resnet18", "own"]
)
def test_features_of_synthetic_inputs_are_about_one_in_size(kind: str, tmp_path: Path) -> None:
    one = MAPS[kind](tmp_path)
    found = one.features(synthetic_inputs(one.input_shape)).astype(np.float64)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=2e-3)  # the centre is rounded
    assert found.var(axis=0).mean() == pytest.approx(1, abs=0.005)
    assert np.abs(found).max() < 16


def test_centre_and_unit_are_taken_from_examples_by_hand() -> None:
    """Outputs are x and 3 x at x = 0 and 2: means 1 and 3, variances 1 and 9, unit sqrt(5)."""
    examples = np.array([[0.0], [2.0]], np.float32)
    one = own_map(lambda batch: torch.cat([batch, 3 * batch], dim=1), (1,), examples=examples)
    assert one.unit == pytest.approx(ROOT, rel=1e-3)
    np.testing.assert_allclose(one.centre, np.array([1.0, 3.0]), atol=one.unit / 1000)
    found = one.features(np.array([[1.0], [4.0]], np.float32))
    wanted = np.array([[0, 0], [3 / ROOT, 9 / ROOT]])
    np.testing.assert_allclose(found, wanted, atol=3e-3)


def test_bytes_are_pixels_from_0_to_255() -> None:
    one = convolutions((1, 8, 8), width=20)
    pixels = rng().integers(256, size=(4, 1, 8, 8)).astype(np.uint8)
    assert np.array_equal(one.features(pixels), one.features(pixels / np.float32(255)))


def test_a_resnets_features_are_its_outputs(tmp_path: Path) -> None:
    one = fixed_resnet18(tmp_path, normalisation=IMAGENET)
    images = rng().integers(256, size=(4, 3, 8, 8)).astype(np.uint8)
    mean, sd = (torch.tensor(part).view(3, 1, 1) for part in (IMAGENET.mean, IMAGENET.sd))
    with torch.no_grad():
        plain = one.module((torch.from_numpy(images) / 255 - mean) / sd).numpy()
    np.testing.assert_allclose(one.features(images), plain, rtol=1e-4, atol=1e-5)
    assert one.unit == 1
    assert not one.centre.any()


class TestDigest:
    def test_it_is_the_same_for_the_same_recipe(self) -> None:
        assert relu((4,), 6, seed=2).digest == relu((4,), 6, seed=2).digest

    def test_everything_that_changes_features_changes_it(self, tmp_path: Path) -> None:
        net = nn.Linear(4, 6)
        other = nn.Linear(4, 6)
        maps = [
            relu((4,), 6, seed=2),
            relu((4,), 6, seed=3),
            relu((4,), 7, seed=2),
            relu((2, 2), 6, seed=2),
            convolutions((1, 8, 8), 40, seed=2),
            convolutions((1, 8, 8), 40, seed=3),
            own_map(net, (4,)),
            own_map(other, (4,)),
            own_map(nn.Sequential(net, nn.ReLU()), (4,)),
            own_map(net, (4,), examples=samples((4,))),
            own_map(net, (4,), description="a version"),
            fixed_resnet18(tmp_path),
            fixed_resnet18(tmp_path, normalisation=IMAGENET),
            fixed_resnet18(tmp_path, pool="mean+std"),
        ]
        assert len({one.digest for one in maps}) == len(maps)

    def test_it_does_not_depend_on_torchs_generator(self) -> None:
        torch.manual_seed(1)
        first = convolutions((1, 8, 8), 40).digest
        torch.manual_seed(2)
        assert convolutions((1, 8, 8), 40).digest == first


class TestPatchFilters:
    def test_the_features_follow_their_definition(self) -> None:
        """One patch covers the image, so every region of the grid has the same answer."""
        module = PatchFilters((1, 4, 4), width=18).drawn(seed=5)
        module.size = 4  # one position, instead of several
        weights = torch.tensor(rng(3).normal(size=(1, 1, 4, 4)), dtype=torch.float32)
        weights -= weights.mean()
        module.weights, module.bias = weights, torch.tensor([0.1])
        image = samples((1, 4, 4), 1)
        patch = contrast_normalised(image.reshape(1, 16).astype(np.float64))[0]
        z = float(patch @ weights.numpy().ravel().astype(np.float64)) + 0.1
        found = module(torch.from_numpy(image)).numpy()
        cells = 9 * [max(0, z - 0.25)] + 9 * [max(0, -z - 0.25)]
        assert z > 0.25 or z < -0.25
        np.testing.assert_allclose(np.sort(found[0]), np.sort(cells), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 13)])
    def test_brightness_and_strong_contrast_matter_little(self, shape: tuple[int, ...]) -> None:
        module = PatchFilters(shape, width=50).drawn(seed=5)
        images = torch.from_numpy(samples(shape, 4)) / 2
        np.testing.assert_allclose(module(images + 0.4), module(images), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        ("shape", "shrink"), [((1, 8, 8), 1), ((3, 32, 40), 1), ((3, 63, 80), 1), ((3, 64, 90), 2)]
    )
    def test_large_images_are_shrunk(self, shape: tuple[int, ...], shrink: int) -> None:
        module = PatchFilters(shape, width=20)
        assert module.shrink == shrink
        assert module(torch.zeros(2, *shape)).shape == (2, 20)

    def test_filters_are_whitened_patches(self) -> None:
        """Answers to patches of the same kind of images are about as large in all directions."""
        made = whitened_filters(400, (1, 16, 16), 3, rng(1))
        images = dead_leaves(500, (1, 16, 16), rng(2))
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
        patches = contrast_normalised(windows.reshape(-1, 9))
        answers = patches @ made.weights.T + made.bias
        assert np.abs(answers.mean(axis=0)).max() < 0.1
        assert 0.5 < answers.std(axis=0).min() <= answers.std(axis=0).max() < 1.5

    def test_dead_leaves_are_images_with_edges_and_flat_areas(self) -> None:
        images = dead_leaves(20, (3, 32, 32), rng())
        assert images.shape == (20, 3, 32, 32)
        assert 0 <= images.min() < 0.1
        assert 0.9 < images.max() <= 1
        steps = np.abs(np.diff(images, axis=3)).max(axis=1)
        assert (steps < 1e-9).mean() > 0.1
        assert (steps > 0.1).mean() > 0.1


def test_random_relus_are_as_documented() -> None:
    module = RandomReLU((2, 3), width=4).drawn(seed=1)
    weights, bias = module.get_buffer("weights"), module.get_buffer("bias")
    np.testing.assert_allclose(weights.norm(dim=1), 2, atol=1e-3)
    inputs = torch.from_numpy(samples((2, 3), 5))
    plain = torch.relu(torch.asinh(inputs.reshape(5, 6)) @ weights.T + bias)
    np.testing.assert_allclose(module(inputs), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 8, 8), "convolutions"),
        ((3, 32, 32), "convolutions"),
        ((3, 200, 150), "convolutions"),
        ((8, 8), "relu"),
        ((30,), "relu"),
        ((1, 1, 20), "relu"),
    ],
)
def test_the_default_goes_by_the_shape(shape: tuple[int, ...], kind: str) -> None:
    found, width = default_features(shape)
    assert found == kind
    assert 100 <= width <= 8192


class Noisy(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + torch.rand_like(batch)


class Shuffled(nn.Module):
    """Depends on the other samples of the batch."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch - batch.mean(dim=0)


def nan_at_large(batch: torch.Tensor) -> torch.Tensor:
    return torch.where(batch > 50, torch.nan, batch)


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: own_map(Noisy(), (4,)), "not deterministic .* two passes .* differ; remove"),
            (lambda: own_map(Shuffled(), (4,)), "depend on the other samples of its batch; use"),
            (lambda: own_map(lambda x: x / 0, (4,)), "sample 0 are NaN or infinite; check"),
            (lambda: own_map(lambda x: x.sum(), (4,)), r"shape \(\), not \(32, features\); flat"),
            (lambda: own_map(nn.Conv2d(1, 2, 3), (1, 8, 8)), r"shape \(32, 2, 6, 6\), not"),
            (lambda: own_map(nn.Linear(5, 2), (4,)), r"a batch of shape \(32, 4\) .* change"),
            (lambda: own_map(lambda x: x * 0 + 1, (4,)), "all 4 features are constant over 256"),
            (lambda: own_map(lambda x: x[:, :0], (4,)), "at least 1"),
            (lambda: own_map(nn.Embedding(9, 2), (4,)), "type float32 .* change the module"),
            (
                lambda: own_map(cast(Any, 3), (4,)),
                "features = 3 is not a feature map; give a torch module",
            ),
            (lambda: own_map(cast(Any, nn.Linear), (4,)), "is not a feature map"),
            (
                lambda: own_map(nn.Linear(4, 2), (4,), examples=samples((5,))),
                r"examples have shape \(5,\), and samples have \(4,\); give both",
            ),
            (lambda: relu((4,), 0), "width = 0 must be a whole number, at least 1"),
            (lambda: relu((4,), 9, seed=-1), "seed = -1 must be a whole number from 0 on"),
            (lambda: relu((0,), 9), r"got shape \(0,\); give at least one column"),
            (lambda: convolutions((8, 8), 9), r"got \(8, 8\); reshape the inputs, or use 'relu'"),
            (lambda: convolutions((1, 3, 8), 9), "each side 4 or more"),
        ],
    )
    def test_of_maps_that_cannot_be(self, make: Callable[[], Any], words: str) -> None:
        with pytest.raises(BadInput, match=words):
            make()

    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            (np.zeros((2, 5), np.float32), r"shape \(5,\), and this feature map is for \(4,\)"),
            (np.full((40, 4), np.nan, np.float32), "features of sample 0 are NaN or infinite"),
            (np.full((40, 4), np.inf, np.float32), "NaN or infinite; check the sample"),
        ],
    )
    def test_of_samples_that_do_not_fit(self, inputs: Any, words: str) -> None:
        with pytest.raises(BadInput, match=words):
            relu((4,), 3).features(inputs)

    def test_names_the_sample_whose_features_are_not_finite(self) -> None:
        inputs = samples((4,))
        inputs[41, 2] = 99
        with pytest.raises(BadInput, match="the features of sample 41 are NaN"):
            own_map(nan_at_large, (4,)).features(inputs)

    def test_one_constant_column_is_no_reason(self) -> None:
        module = nn.Linear(4, 3)
        with torch.no_grad():
            module.weight[1] = 0
        assert np.isfinite(own_map(module, (4,)).features(samples((4,)))).all()

    def test_of_files(self, tmp_path: Path) -> None:
        path = tmp_path / "map.safetensors"
        own_map(nn.Linear(4, 2), (4,)).save(path)
        with pytest.raises(BadInput, match=r"no code; give the module as well: load_map"):
            load_map(path)
        with pytest.raises(BadInput, match="is not a complete feature map"):
            load_map(path, nn.Linear(4, 3))
        for content, words in (
            (path.read_bytes()[:100], "cannot be read as a feature map"),
            (b"", "cannot be read"),
            (safetensors.torch.save({"a": torch.zeros(1)}), "not a feature map of this version"),
        ):
            path.write_bytes(content)
            with pytest.raises(BadInput, match=words):
                load_map(path)
        with pytest.raises(BadInput, match="cannot be read"):
            load_map(tmp_path / "none.safetensors")

    def test_of_a_module_of_another_class(self, tmp_path: Path) -> None:
        path = tmp_path / "map.safetensors"
        own_map(nn.Sequential(nn.Linear(4, 2)), (4,)).save(path)
        other = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        with pytest.raises(BadInput, match="altered, or the module is another one"):
            load_map(path, other)


def test_the_module_of_the_user_is_copied_and_frozen() -> None:
    linear = nn.Linear(4, 3)
    module = nn.Sequential(linear, nn.Dropout(0.5))
    one = own_map(module, (4,))
    before = one.features(samples((4,)))
    assert module.training
    with torch.no_grad():
        linear.weight.zero_()
    assert np.array_equal(one.features(samples((4,))), before)
    assert not any(p.requires_grad for p in one.module.parameters())


def test_a_file_has_its_recipe_in_words(tmp_path: Path) -> None:
    convolutions((1, 8, 8), 40, seed=7).save(tmp_path / "map.safetensors")
    with safe_open(tmp_path / "map.safetensors", "pt") as file:
        recipe = json.loads(file.metadata()["recipe"])
    assert recipe["kind"] == "convolutions"
    assert (recipe["width"], recipe["recipe"], recipe["input_shape"]) == (
        40,
        {"seed": 7},
        [1, 8, 8],
    )


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({}, "head = no tensors is not a linear layer; give its weights and its biases"),
        ({"w": np.zeros((2, 3))}, r"head = w of shape \(2, 3\) is not a linear layer"),
        ({"w": np.zeros((2, 3)), "b": np.zeros(3)}, r"b of shape \(3,\) is not a linear layer"),
        ({"w": np.zeros((2, 4)), "b": np.zeros(2)}, "has weights for 4 features, and this .* 3"),
    ],
)
def test_a_head_must_fit_the_map(head: Mapping[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        relu((5,), 3).with_head(head)
