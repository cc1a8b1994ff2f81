"""Training of many clients in one call: each result equals that of a training alone."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
from torch import nn
from torch.nn.utils import parametrizations

from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.batched import BatchedClient, BatchedTrainer, ClientSamples
from fedraw.learning.inputs import Normalisation
from fedraw.learning.models import ModelFactory, build
from fedraw.learning.sgd import SGD
from fedraw.learning.training import Trainer
from fedraw.learning.vectors import layout_of, to_vector

SIZES = (41, 1, 16, 90, 7, 33)  # of clients, at a batch of 16: none, one and many full ones
SETTINGS = [
    SGD(),
    SGD(epochs=3, batch=16),
    SGD(epochs=2, batch=16, lr=0.05, momentum=0.9),
    SGD(epochs=2, batch=500, weight_decay=0.01),
    SGD(epochs=3, batch=10, momentum=0.5, weight_decay=0.1),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    SGD(clip_norm=0.5, weight_decay=0.01),
    SGD(label_smoothing=0.2),
    SGD(clip_norm=0.5, label_smoothing=0.1, momentum=0.5, nesterov=True),
]


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def deep(_: tuple[int, ...], classes: int) -> nn.Module:
    """Make layers without bias, one ReLU used twice, names and a nested Sequential."""
    relu = nn.ReLU()
    inner = nn.Sequential(nn.Linear(9, 8), relu, nn.Linear(8, 7, bias=False), relu)
    parts = [("flat", nn.Flatten()), ("first", nn.Linear(64, 9)), ("relu", relu), ("rest", inner)]
    return nn.Sequential(OrderedDict([*parts, ("head", nn.Linear(7, classes))]))


def chain(widths: Sequence[int], classes: int) -> nn.Module:
    def factory(_: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise([64, *widths, classes]):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build(factory, (1, 8, 8), classes, rng(0))


MODELS: dict[str, str | ModelFactory] = {"mlp": "mlp", "linear": "linear", "deep": deep}
MODULES = {name: build(model, (1, 8, 8), 10, rng(0)) for name, model in MODELS.items()}


class Federation:
    """Clients of these sizes, to be trained together or one by one."""

    def __init__(
        self,
        module: nn.Module,
        wanted: SGD,
        sizes: Sequence[int] = SIZES,
        images: npt.NDArray[Any] | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        ends = np.cumsum([0, *sizes]).tolist()
        self.rows = [slice(a, b) for a, b in pairwise(ends)]
        self.images = rng(1).random((ends[-1], 1, 8, 8), np.float32) if images is None else images
        classes = layout_of(module).segments[-1].shape[0]
        self.labels: Ints = rng(2).integers(classes, size=ends[-1])
        samples = ClientSamples(self.read, self.labels, self.images.shape[1:], max(sizes))
        self.stacked = BatchedTrainer(module, wanted, samples, normalisation)
        self.alone = Trainer(module, wanted, normalisation=normalisation)
        # Each has a model of its own, as in an asynchronous federation.
        first = to_vector(module)
        noise = [rng(3, i).normal(0, 0.02, first.size) for i in range(len(sizes))]
        self.starts = [(first + part).astype(np.float32) for part in noise]

    def read(self, rows: Ints) -> npt.NDArray[Any]:
        return self.images[rows]

    def together(self, who: Sequence[int], proximal: float = 0.0) -> list[Vector]:
        clients = [BatchedClient(self.starts[i], self.rows[i], rng(4, i)) for i in who]
        return self.stacked.train(clients, proximal)

    def one_by_one(self, who: Sequence[int], proximal: float = 0.0) -> list[Vector]:
        return [
            self.alone.train(
                self.starts[i],
                self.images[self.rows[i]],
                self.labels[self.rows[i]],
                rng(4, i),
                proximal,
            )
            for i in who
        ]


def agree(federation: Federation, proximal: float = 0.0) -> None:
    everyone = range(len(federation.rows))
    ours = federation.together(everyone, proximal)
    theirs = federation.one_by_one(everyone, proximal)
    for start, one, two in zip(federation.starts, ours, theirs, strict=True):
        moved = np.abs(two - start).max()
        assert moved > 1e-4
        assert np.abs(one - two).max() < 1e-5 * max(moved, np.abs(two).max())


@pytest.mark.parametrize("wanted", SETTINGS, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_clients_of_all_sizes_train_as_if_alone(name: str, wanted: SGD) -> None:
    agree(Federation(MODULES[name], wanted))


LARGE = build("linear", (1, 64, 64), 3, rng(0))


def test_large_mini_batches_train_as_if_alone() -> None:
    # 16 images of 4,096 values are the smallest mini-batch that trains without padding.
    images = rng(1).random((sum(SIZES), 1, 64, 64), np.float32)
    agree(Federation(LARGE, SGD(epochs=2, batch=16, lr=0.05), images=images))


def test_large_mini_batches_are_not_padded() -> None:
    images = rng(1).random((23, 1, 64, 64), np.float32)
    read: list[int] = []

    class Counted(Federation):
        def read(self, rows: Ints) -> npt.NDArray[Any]:
            read.append(len(rows))
            return super().read(rows)

    Counted(LARGE, SGD(epochs=1, batch=16, lr=0.05), [20, 3], images).together([0, 1])
    assert read == [16, 4, 3]


def test_embeddings_train_as_if_alone() -> None:
    module = build("text", (6,), 10, rng(0), whole_numbers=True)
    codes = rng(1).integers(97, 123, (sum(SIZES), 6))
    federation = Federation(module, SGD(epochs=2, batch=16, momentum=0.5), images=codes)
    agree(federation)
    # What one client learns does not depend on who is trained beside it.
    alone = federation.together([3])[0]
    assert federation.together(range(len(SIZES)))[3].tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Embedding(9, 2, padding_idx=0), nn.Flatten(), nn.Linear(12, 10)],
        [nn.Embedding(9, 2), nn.Linear(2, 10)],
        [nn.Embedding(9, 2), nn.Flatten(), nn.ReLU(), nn.Linear(12, 10)],
    ],
    ids=["padded", "not flat", "relu of an embedding"],
)
def test_other_uses_of_an_embedding_are_refused(layers: list[nn.Module]) -> None:
    codes = np.zeros((sum(SIZES), 6), np.int64)
    with pytest.raises(BadInput, match="batched executor cannot train"):
        Federation(nn.Sequential(*layers), SGD(), images=codes)


def test_a_proximal_term_pulls_each_client_towards_its_start() -> None:
    federation = Federation(MODULES["mlp"], SGD(epochs=4, momentum=0.5))
    agree(federation, proximal=0.5)
    free, held = federation.together([0]), federation.together([0], proximal=5.0)
    way = [np.linalg.norm(v[0] - federation.starts[0]) for v in (free, held)]
    assert way[1] < way[0]


@pytest.mark.parametrize("batch", [10**8, 2**63 - 1])
def test_a_batch_larger_than_every_client_costs_no_more(batch: int) -> None:
    def trained(size: int) -> tuple[list[bytes], int]:
        federation = Federation(MODULES["mlp"], SGD(epochs=2, batch=size))
        tracemalloc.start()
        vectors = federation.together(range(len(SIZES)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return [vector.tobytes() for vector in vectors], peak

    vectors, peak = trained(max(SIZES))
    huge, peak_of_huge = trained(batch)
    assert huge == vectors
    assert peak_of_huge < 2 * peak


def test_bytes_are_scaled_and_channels_normalised() -> None:
    images = rng(1).integers(256, size=(sum(SIZES), 3, 4, 4), dtype=np.uint8)
    module = build("mlp", (3, 4, 4), 10, rng(0))
    wanted = SGD(epochs=2, batch=16)
    agree(Federation(module, wanted, images=images))
    normalisation = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    agree(Federation(module, wanted, images=images, normalisation=normalisation))
    floats = (images / 255).astype(np.float32)
    agree(Federation(module, wanted, images=floats, normalisation=normalisation))


def test_frozen_layers_do_not_change() -> None:
    module = build(deep, (1, 8, 8), 10, rng(0))
    module.get_submodule("first").requires_grad_(False)
    federation = Federation(module, SGD(epochs=2, weight_decay=0.1))
    agree(federation, proximal=0.1)
    still = layout_of(module).statistics
    assert still.stop - still.start == 64 * 9 + 9
    (trained,) = federation.together([0])
    assert np.array_equal(trained[still], federation.starts[0][still])


def test_each_client_has_the_rate_of_its_schedule() -> None:
    federation = Federation(MODULES["mlp"], SGD(schedule="cosine"))
    rates = [0.1 / (1 + i) for i in range(len(SIZES))]
    clients = [
        BatchedClient(federation.starts[i], federation.rows[i], rng(4, i), rate)
        for i, rate in enumerate(rates)
    ]
    for i, trained in enumerate(federation.stacked.train(clients)):
        rows, start = federation.rows[i], federation.starts[i]
        images, labels = federation.images[rows], federation.labels[rows]
        alone = federation.alone.train(start, images, labels, rng(4, i), lr=rates[i])
        assert np.abs(alone - start).max() > 1e-4
        np.testing.assert_allclose(trained, alone, rtol=0, atol=1e-6)


def test_one_step_has_the_computed_values() -> None:
    # Scores (w, v) · x, from zero: both classes have 1/2, so a sample x of class 0 has the gradient
    # (-x/2, x/2). The first client's mean over x = 2 and 4 is 3, the second's one sample is 10.
    module = nn.Linear(1, 2, bias=False)
    images = np.array([[2], [4], [10]], dtype=np.float32)
    samples = ClientSamples(lambda rows: images[rows], np.array([0, 0, 1]), (1,), largest=2)
    trainer = BatchedTrainer(module, SGD(epochs=1, batch=2, lr=0.1), samples)
    zero = np.zeros(2, dtype=np.float32)
    clients = [BatchedClient(zero, slice(0, 2), rng(0)), BatchedClient(zero, slice(2, 3), rng(0))]
    first, second = trainer.train(clients)
    np.testing.assert_allclose(first, [0.15, -0.15], rtol=1e-6)
    np.testing.assert_allclose(second, [-0.5, 0.5], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=2, max_size=9),
    widths=st.lists(st.integers(1, 40), max_size=2),
    classes=st.integers(2, 12),
    wanted=st.builds(
        SGD,
        epochs=st.integers(1, 3),
        batch=st.integers(1, 33),
        momentum=st.sampled_from([0.0, 0.9]),
        weight_decay=st.sampled_from([0.0, 0.1]),
    ),
    proximal=st.sampled_from([0.0, 0.1]),
    data=st.data(),
)
def test_other_clients_of_the_stack_change_no_bit(
    sizes: list[int],
    widths: list[int],
    classes: int,
    wanted: SGD,
    proximal: float,
    data: st.DataObject,
) -> None:
    federation = Federation(chain(widths, classes), wanted, sizes)
    everyone = range(len(sizes))
    whole = federation.together(everyone, proximal)
    alone = [federation.together([i], proximal)[0] for i in everyone]
    some = data.draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=20))
    mixed = federation.together(some, proximal)
    assert [v.tobytes() for v in whole] == [v.tobytes() for v in alone]
    assert [v.tobytes() for v in mixed] == [alone[i].tobytes() for i in some]


def test_a_diverging_client_does_not_affect_others() -> None:
    federation = Federation(MODULES["mlp"], SGD(epochs=3, batch=16))
    before = federation.together([0, 2])
    federation.starts[1] = federation.starts[1] * np.float32(1e38)
    first, broken, third = federation.together([0, 1, 2])
    assert not np.isfinite(broken).all()
    assert [first.tobytes(), third.tobytes()] == [v.tobytes() for v in before]


def test_neither_starts_nor_samples_nor_torchs_generator_change() -> None:
    federation = Federation(MODULES["mlp"], SGD())
    for array in (*federation.starts, federation.images, federation.labels):
        array.setflags(write=False)
    before = torch.random.get_rng_state()
    first = federation.together([0, 1])
    kept = [vector.copy() for vector in first]
    federation.together([1, 2, 3])
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))
    assert all(vector.base is None for vector in first)  # a view would keep the whole stack alive
    assert torch.equal(before, torch.random.get_rng_state())


def test_one_thread_only() -> None:
    Federation(MODULES["mlp"], SGD())
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    assert {library["num_threads"] for library in blas} <= {1}


def tied() -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, second)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.register_forward_hook(lambda *_: None)
    return module


class Own(nn.Sequential):
    """Its forward could do anything."""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), "'2', BatchNorm1d"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Dropout()), "'2', Dropout"),
        (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 4), nn.GELU())), r"'1\.1', GELU"),
        (nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(64, 4)), "'0', Linear"),
        (nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 4)), "'1', ReLU"),
        (nn.Sequential(nn.Flatten(), Own(nn.Linear(64, 4))), "'1', Own"),
        (build("cnn", (1, 8, 8), 10, rng(0)), "layer '0', Conv2d"),
        (build("resnet18", (1, 8, 8), 10, rng(0), stem="cifar"), "a model of type ResNet"),
        (tied(), "'2', Linear.*its weight is not a parameter of its own"),
        (hooked(), r"a model of type Sequential \(it has hooks\)"),
        (
            nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 4))),
            "'1', Parametrized",
        ),
    ],
)
def test_unsupported_layers_are_refused_by_name(module: nn.Module, words: str) -> None:
    samples = ClientSamples(lambda rows: rows, np.zeros(1, np.int64), (1, 8, 8), largest=1)
    with pytest.raises(BadInput, match=rf"cannot train .*{words}.*use executor='inline'"):
        BatchedTrainer(module, SGD(), samples)


def test_a_client_without_samples_and_a_vector_of_another_size_are_refused() -> None:
    federation = Federation(MODULES["mlp"], SGD())
    nothing = BatchedClient(federation.starts[0], slice(3, 3), rng(0))
    with pytest.raises(BadInput, match="samples = 0"):
        federation.stacked.train([nothing])
    federation.starts[1] = federation.starts[1][:-1]
    with pytest.raises(BadInput, match=r"shape \(4809,\) does not fit this model of 4810"):
        federation.together([0, 1])
