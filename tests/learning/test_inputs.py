from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedraw.errors import BadInput
from fedraw.learning.inputs import IMAGENET, Normalisation, Pixels, Preprocessor, chunk_size
from fedraw.learning.models import build
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import to_vector

CPU = torch.device("cpu")
BYTES = np.random.default_rng(0).integers(256, size=(41, 3, 8, 8)).astype(np.uint8)
LABELS = np.arange(41) % 5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cnn() -> nn.Module:
    return build("cnn-small", (3, 8, 8), 5, rng())


class Lazy:
    """Images that exist only when a slice of them is read."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self.largest = 0

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, part: slice, /) -> Pixels:
        found = self._pixels[part].copy()
        self.largest = max(self.largest, len(found))
        return found


def outcomes(trainer: Trainer, images: Pixels) -> list[float]:
    """Return a trained vector, its predictions and its loss."""
    trained = trainer.train(to_vector(cnn()), images, LABELS, rng(3))
    predicted = trainer.predict(trained, images)
    return [*trained, *predicted, trainer.mean_loss(trained, images, LABELS)]


def same(one: list[float], other: list[float]) -> None:
    """Compare up to the order of sums, because the memory format of images may differ."""
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_bytes_become_fractions_of_255() -> None:
    values = np.arange(256, dtype=np.uint8)
    found = Preprocessor(CPU)(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(found, values.astype(np.float32) / np.float32(255))


def test_bytes_train_like_the_floats_that_they_represent() -> None:
    trainer = Trainer(cnn(), SGD(epochs=2, batch=16, momentum=0.9))
    floats = BYTES.astype(np.float32) / np.float32(255)
    same(outcomes(trainer, BYTES), outcomes(trainer, floats))


def test_normalisation_equals_normalised_images() -> None:
    settings = SGD(epochs=2, batch=16)
    mean, sd = (
        np.array(part, np.float32).reshape(3, 1, 1) for part in (IMAGENET.mean, IMAGENET.sd)
    )
    scaled = (BYTES.astype(np.float32) / np.float32(255) - mean) / sd
    by_trainer = outcomes(Trainer(cnn(), settings, normalisation=IMAGENET), BYTES)
    same(by_trainer, outcomes(Trainer(cnn(), settings), scaled))


def test_floats_are_normalised_but_not_divided_by_255() -> None:
    inputs = Preprocessor(CPU, Normalisation((1.0, 2.0), (1.0, 4.0)))
    assert inputs(torch.tensor([[3.0, 4.0]])).tolist() == [[2.0, 0.5]]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_are_stored_channels_last(channels: int, dtype: torch.dtype) -> None:
    images = torch.ones(5, channels, 8, 8, dtype=dtype)
    parts = list(Preprocessor(CPU).batches(images, 2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert {part.stride() for part in parts} == {(64 * channels, 1, 8 * channels, channels)}


def test_the_stored_images_are_not_changed() -> None:
    for images in (BYTES.copy(), BYTES.astype(np.float32)):
        before = images.copy()
        outcomes(Trainer(cnn(), SGD(), normalisation=IMAGENET), images)
        assert np.array_equal(images, before)


def test_images_may_be_read_slice_by_slice() -> None:
    images = rng().integers(256, size=(1100, 3, 8, 8)).astype(np.uint8)
    labels, lazy = np.arange(1100) % 5, Lazy(images)
    trainer, vector = Trainer(cnn(), SGD()), to_vector(cnn())
    assert np.array_equal(trainer.predict(vector, lazy), trainer.predict(vector, images))
    loss = trainer.mean_loss(vector, images, labels)
    assert trainer.mean_loss(vector, lazy, labels) == loss
    assert lazy.largest == 512


@pytest.mark.parametrize(
    ("shape", "images"),
    [((512,), 512), ((8, 8), 512), ((3, 32, 32), 512), ((1, 45, 45), 258), ((1, 4096, 4096), 1)],
)
def test_a_chunk_of_large_images_is_smaller(shape: tuple[int, ...], images: int) -> None:
    assert chunk_size(shape) == images


def test_large_images_are_evaluated_few_at_a_time() -> None:
    lazy = Lazy(np.zeros((20, 1, 256, 256), np.uint8))
    trainer = Trainer(build("linear", (1, 256, 256), 2, rng()), SGD())
    assert trainer.predict(np.zeros(trainer.layout.size, np.float32), lazy).tolist() == [0] * 20
    assert lazy.largest == 8


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (((0.5, 0.5), (1.0,)), r"\(0.5, 0.5\) and sd = \(1.0,\) must have one number for each"),
        (((), ()), "one number for each channel"),
        (((0.5,), (0.0,)), r"sd = \(0.0,\).*above 0"),
        (((0.5,), (math.nan,)), "sd = .*above 0"),
        (((math.inf,), (1.0,)), "mean = .*finite"),
    ],
)
def test_an_impossible_normalisation_is_refused(scale: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Normalisation(*scale)


def test_a_normalisation_for_other_channels_is_refused() -> None:
    grey = build("mlp", (1, 8, 8), 5, rng())
    # With this batch size one sample is left over: the other thing that can be wrong.
    trainer, vector = Trainer(grey, SGD(batch=20), normalisation=IMAGENET), to_vector(grey)
    words = r"shape \(1, 8, 8\) cannot be normalised with 3 means.*load them with 3 channels"
    with pytest.raises(BadInput, match=words):
        trainer.train(vector, BYTES[:, :1], LABELS, rng())
    with pytest.raises(BadInput, match=words):
        trainer.predict(vector, BYTES[:, :1])
