from __future__ import annotations

import hashlib
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.learning.features import backbone
from fedraw.learning.models import build
from fedraw.learning.vectors import layout_of, to_vector
from fedraw.learning.weights import LoadedWeights, load_weights


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normed(classes: int = 3, seed: int = 0, *, kernel: int = 3, channels: int = 1) -> nn.Module:
    """A convolution, batch norm, a head: seven float tensors and a counter."""

    def factory(shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[tuple[str, nn.Module]] = [
            ("conv1", nn.Conv2d(channels, 4, kernel, padding=kernel // 2, bias=False)),
            ("bn1", nn.BatchNorm2d(4)),
            ("pool", nn.AdaptiveAvgPool2d(1)),
            ("flat", nn.Flatten()),
            ("fc", nn.Linear(4, classes)),
        ]
        return nn.Sequential(OrderedDict(layers))

    module = build(factory, (channels, 8, 8), classes, rng(seed))
    module.get_buffer("bn1.running_mean").fill_(seed)
    return module


def file_of(module: nn.Module, path: Path, **changes: torch.Tensor | None) -> Path:
    """Write the module's state with changed or removed tensors; "fc_weight" is fc.weight."""
    state = dict(module.state_dict())
    for key, tensor in changes.items():
        name = key.replace("_", ".", 1)
        state = {k: v for k, v in state.items() if k != name}
        state |= {} if tensor is None else {name: tensor}
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


def part(module: nn.Module, vector: Vector, *names: str) -> list[float]:
    found = [s for s in layout_of(module).segments if s.name.startswith(names)]
    return [float(value) for s in found for value in vector[s.slice]]


def refused(module: nn.Module, path: Path, words: str) -> None:
    """Expect an error with these words, and an unchanged module."""
    before = to_vector(module)
    with pytest.raises(BadInput, match=words):
        load_weights(module, path)
    assert np.array_equal(to_vector(module), before)


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors"])
def test_a_file_of_the_same_model_is_loaded_completely(ending: str, tmp_path: Path) -> None:
    given, module = normed(seed=1), normed(seed=2)
    path = file_of(given, tmp_path / f"given.{ending}")
    loaded = load_weights(module, str(path))
    assert np.array_equal(to_vector(module), to_vector(given))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    counters = ("bn1.num_batches_tracked",)
    assert loaded == LoadedWeights(f"given.{ending}", 7, (), counters, digest)
    assert str(loaded) == f"given.{ending}: 7 tensors loaded"


def test_a_run_can_start_from_the_model_of_another(tmp_path: Path) -> None:
    given, module = normed(seed=1), normed(seed=2)
    vector = to_vector(given)
    tensors = {s.name: vector[s.slice].reshape(s.shape) for s in layout_of(given).segments}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert load_weights(module, tmp_path / "model.safetensors").new == ()
    assert np.array_equal(to_vector(module), vector)


def test_a_head_for_other_classes_is_not_loaded(tmp_path: Path) -> None:
    given, module = normed(classes=9, seed=1), normed(classes=3, seed=2)
    fresh = to_vector(module)
    loaded = load_weights(module, file_of(given, tmp_path / "nine.pth"))
    assert str(loaded) == "nine.pth: 5 tensors loaded; new: fc.weight, fc.bias"
    assert loaded.ignored == ("bn1.num_batches_tracked", "fc.weight", "fc.bias")
    now = to_vector(module)
    assert part(module, now, "fc") == part(module, fresh, "fc")
    assert part(module, now, "conv1", "bn1") == part(given, to_vector(given), "conv1", "bn1")


def test_an_absent_head_is_not_loaded(tmp_path: Path) -> None:
    path = file_of(normed(seed=1), tmp_path / "no_head.pth", fc_weight=None, fc_bias=None)
    loaded = load_weights(normed(), path)
    assert (loaded.loaded, loaded.new) == (5, ("fc.weight", "fc.bias"))


def test_a_backbone_ignores_the_head_of_the_file(tmp_path: Path) -> None:
    whole = build("resnet18", (3, 8, 8), 10, rng(1), stem="cifar")
    module = backbone("resnet18", (3, 8, 8), rng(2), stem="cifar")
    loaded = load_weights(module, file_of(whole, tmp_path / "resnet18.pth"))
    assert (loaded.loaded, loaded.new) == (100, ())
    assert loaded.ignored[-2:] == ("fc.weight", "fc.bias")
    assert torch.equal(module.get_parameter("conv1.weight"), whole.get_parameter("conv1.weight"))


def test_a_training_checkpoint_is_unwrapped(tmp_path: Path) -> None:
    given, module = normed(seed=1), normed(seed=2)
    state = {f"module.{name}": tensor for name, tensor in given.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, tmp_path / "c.pth")
    assert load_weights(module, tmp_path / "c.pth").loaded == 7
    assert np.array_equal(to_vector(module), to_vector(given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_other_precisions_become_float32(dtype: torch.dtype, ending: str, tmp_path: Path) -> None:
    kernel = torch.linspace(-1, 1, 36).reshape(4, 1, 3, 3).to(dtype)
    module = normed()
    load_weights(module, file_of(normed(), tmp_path / f"k.{ending}", conv1_weight=kernel))
    found = module.get_parameter("conv1.weight")
    assert found.dtype == torch.float32
    assert torch.equal(found, kernel.float())


def test_files_without_counters_load_too(tmp_path: Path) -> None:
    path = file_of(normed(seed=1), tmp_path / "c.pth", bn1_num_batches_tracked=None)
    assert load_weights(normed(), path).ignored == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bn1_running_var": None}, r"lacks bn1.running_var; give a file of the same model"),
        ({"fc_bias": None}, "lacks fc.bias"),
        ({"conv2_weight": torch.zeros(2, 2)}, "has conv2.weight, which the model lacks"),
        ({"conv1_weight": torch.zeros(4, 1, 7, 7)}, r"conv1.weight is \(4, 1, 7, 7\) in .*"
         r"but \(4, 1, 3, 3\) in this model; use stem = 'imagenet'"),
        ({"conv1_weight": torch.zeros(4, 3, 3, 3)}, "images with 3 channels, not 1"),
        ({"conv1_weight": torch.zeros(4, 1, 5, 5)}, "the kernels differ"),
        ({"bn1_weight": torch.zeros(5)}, r"bn1.weight is \(5,\) .* \(4,\) in this model; give a"),
        ({"fc_weight": torch.zeros(3, 8)}, r"fc.weight is \(3, 8\) .* \(3, 4\) in this model"),
        ({"fc_weight": torch.zeros(9, 8)}, r"fc.weight is \(9, 8\)"),
        ({"conv1_weight": torch.zeros(4, 1, 3, 3, dtype=torch.int64)}, "lacks conv1.weight"),
        ({"bn1_bias": torch.full((4,), torch.nan)}, "bn1.bias in .* has NaN or infinite values"),
        ({"fc_bias": torch.full((3,), 1e300, dtype=torch.float64)}, "fc.bias in .* infinite"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(
    changes: dict[str, torch.Tensor | None], words: str, tmp_path: Path
) -> None:
    refused(normed(seed=2), file_of(normed(), tmp_path / "c.pth", **changes), words)


def test_a_small_kernel_in_the_file_suggests_the_other_stem(tmp_path: Path) -> None:
    refused(normed(kernel=7), file_of(normed(), tmp_path / "c.pth"), "use stem = 'cifar'")


def test_at_most_five_names_are_listed(tmp_path: Path) -> None:
    extra = {f"x{i}_w": torch.zeros(1) for i in range(7)}
    path = file_of(normed(), tmp_path / "c.pth", **extra)
    refused(normed(), path, r"has x0.w, x1.w, x2.w, x3.w, x4.w and 2 more, which")


def test_a_file_without_any_fitting_tensor_is_refused(tmp_path: Path) -> None:
    given, module = build("linear", (4,), 9, rng()), build("linear", (4,), 3, rng())
    refused(module, file_of(given, tmp_path / "c.pth"), "no tensor that fits this model")


class Hostile:
    """Creates a file if it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_run(zipped: bool, tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    path = tmp_path / "c.pth"
    content = {**normed().state_dict(), "extra": Hostile(mark)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    refused(normed(), path, r"asks to run code .*mkdir.*was refused; save only tensors")
    path.write_bytes(pickle.dumps(Hostile(mark)))
    refused(normed(), path, "c.pth")
    assert not mark.exists()


def test_a_pickled_module_is_refused_with_the_remedy(tmp_path: Path) -> None:
    torch.save(normed(), tmp_path / "c.pth")
    refused(normed(), tmp_path / "c.pth", r"asks to run code.*module.state_dict\(\)")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(ending: str, share: float, tmp_path: Path) -> None:
    path = file_of(normed(), tmp_path / f"c.{ending}")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(normed(), path, "is not a complete checkpoint; get the file again")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_arbitrary_bytes_are_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"c.{ending}"
    for seed in range(20):
        path.write_bytes(rng(seed).bytes(400))
        refused(normed(), path, "is not a complete checkpoint")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "contains a list, not named tensors"),
        (torch.zeros(3), "contains a Tensor"),
        ({}, "has no tensors"),
        ({"model": {"a": torch.zeros(1)}, "epoch": 3}, "not tensors: model, epoch; save"),
    ],
)
def test_a_file_without_tensors_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "c.pth")
    refused(normed(), tmp_path / "c.pth", words)


def test_a_path_that_is_not_a_file_of_weights_is_refused(tmp_path: Path) -> None:
    refused(normed(), tmp_path / "none.pth", r"none.pth cannot be read \(No such file")
    (tmp_path / "folder.pth").mkdir()
    refused(normed(), tmp_path / "folder.pth", r"folder.pth cannot be read \(Is a directory\)")
    refused(normed(), tmp_path / "weights.onnx", r"ends in .pth, .pt or .safetensors")
