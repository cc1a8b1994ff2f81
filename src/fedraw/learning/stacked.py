"""Local SGD of many clients at once: the algorithm of `Trainer.train`, on stacked vectors.

Each client draws the same mini-batches as there, so results differ by rounding alone. They do not
depend on who else is in the stack: every mini-batch is padded to the same width, with samples that
count for nothing, and each network's products are computed by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import nn

from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.dense import DenseStack, Stacked, dense_layers
from fedraw.learning.inputs import Inputs, Pixels, Scale, pixels
from fedraw.learning.local_sgd import LocalSGD
from fedraw.learning.vectors import layout_of


class Client(NamedTuple):
    """Who trains: from which model, on which rows of the data, with which generator."""

    start: Vector
    rows: slice
    rng: np.random.Generator


@dataclass(frozen=True, eq=False)
class Samples:
    """All clients' samples; `widest` is the number that the largest client has."""

    read: Callable[[Ints], Pixels]  # rows -> images of these rows
    labels: Ints
    input_shape: tuple[int, ...]
    widest: int


class StackedTrainer:
    """Trains many vectors with one module's layers, on the cpu in one thread.

    >>> images, labels = np.array([[-1], [1]], dtype=np.float32), np.array([0, 1])
    >>> samples = Samples(lambda rows: images[rows], labels, (1,), widest=2)
    >>> trainer = StackedTrainer(nn.Linear(1, 2, bias=False), LocalSGD(lr=1.0), samples)
    >>> zero = np.zeros(2, dtype=np.float32)
    >>> both = Client(zero, slice(0, 2), np.random.default_rng(0))
    >>> last = Client(zero, slice(1, 2), np.random.default_rng(0))
    >>> [vector.tolist() for vector in trainer.train([both, last])]
    [[-0.5, 0.5], [-0.5, 0.5]]
    """

    def __init__(
        self,
        module: nn.Module,
        settings: LocalSGD,
        samples: Samples,
        scale: Scale | None = None,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._layout = layout_of(module)
        self._layers = dense_layers(module, self._layout, samples.input_shape)
        self._inputs = Inputs(torch.device("cpu"), scale)
        self._is_scaled = scale is not None
        self._width = min(settings.batch, samples.widest)
        threadpool_limits(1, "blas")  # with more the bits may change, and cells share the cores

    def train(self, clients: Sequence[Client], proximal: float = 0.0) -> list[Vector]:
        """Each client's new vector, in the clients' order; NaN is returned as it is."""
        plans = [_plan(client, self._settings, self._width) for client in clients]
        # Those with the most steps first: whoever still trains is then a prefix of the stack.
        order = sorted(range(len(plans)), key=lambda i: -len(plans[i].rows))
        values = self._stacked([clients[i].start for i in order])
        with np.errstate(all="ignore"):
            self._descend(values, [plans[i] for i in order], proximal)
        trained = dict(zip(order, values, strict=True))
        return [trained[i].copy() for i in range(len(clients))]

    def _stacked(self, starts: Sequence[Vector]) -> Stacked:
        values = np.empty((len(starts), self._layout.size), np.float32)
        for row, start in zip(values, starts, strict=True):
            if start.shape != row.shape:
                raise BadInput(
                    f"a vector of shape {start.shape} does not fit this model of {row.size} "
                    "values; was it trained with another model?"
                )
            row[:] = start
        return values

    def _descend(self, values: Stacked, plans: Sequence[Plan], proximal: float) -> None:
        stack = DenseStack(self._layers, values, np.zeros_like(values))
        start = values.copy() if proximal else values
        velocity = np.zeros_like(values) if self._settings.momentum else stack.gradient
        moved = self._layout.parameters  # what is frozen comes after them
        for steps, count in _stretches(plans):
            rows, shares = _side_by_side(plans[:count], steps)
            some = stack.first(count)
            arrays = (some.values, some.gradient, velocity[:count], start[:count])
            x, gradient, v, first = (array[:, moved] for array in arrays)
            for now, share in zip(rows, shares, strict=True):
                some.differentiate(self._images(now), self._samples.labels.take(now), share)
                self._step(x, gradient, v, first, proximal)

    def _step(
        self, x: Stacked, gradient: Stacked, velocity: Stacked, start: Stacked, proximal: float
    ) -> None:
        wanted = self._settings
        if wanted.weight_decay:
            gradient += wanted.weight_decay * x
        if proximal:
            gradient += proximal * (x - start)
        if wanted.momentum:
            velocity *= wanted.momentum
            velocity += gradient
            x -= wanted.lr * velocity
        else:
            gradient *= wanted.lr
            x -= gradient

    def _images(self, rows: Ints) -> Stacked:
        found = self._samples.read(rows.ravel())
        if self._is_scaled or found.dtype != np.float32:
            found = self._inputs(pixels(found)).numpy()
        return found.reshape(*rows.shape, -1)


class Plan(NamedTuple):
    """A client's mini-batches, one in each line: rows of the data, and what each counts."""

    rows: Ints
    shares: npt.NDArray[np.float32]


def _plan(client: Client, settings: LocalSGD, width: int) -> Plan:
    samples = client.rows.stop - client.rows.start
    if samples < 1:
        raise BadInput("samples = 0 is no way to train; it must be 1 or more")
    client.rng.integers(2**63)  # the seed of a model's own randomness, of which these have none
    places, shares = _epoch(samples, min(settings.batch, samples), width)
    epochs = [client.rng.permutation(samples)[places] for _ in range(settings.epochs)]
    rows = np.concatenate(epochs) + client.rows.start
    return Plan(rows, np.concatenate([shares] * settings.epochs))


@lru_cache(maxsize=1024)
def _epoch(samples: int, batch: int, width: int) -> tuple[Ints, Stacked]:
    """Each mini-batch as places in the shuffled samples, and what each of them counts.

    >>> places, shares = _epoch(samples=5, batch=4, width=4)
    >>> places.tolist(), shares.tolist()
    ([[0, 1, 2, 3], [4, 4, 4, 4]], [[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    """
    places = np.arange(0, samples, batch)[:, None] + np.arange(width)
    size = np.minimum(batch, samples - places[:, :1])
    shares = np.where(places < samples, 1 / size, 0).astype(np.float32)
    # Padding repeats a sample of the same mini-batch: it overflows only where that one does.
    return np.minimum(places, samples - 1), shares


def _stretches(plans: Sequence[Plan]) -> Iterator[tuple[slice, int]]:
    """Steps in which the same number of clients trains; `plans` get shorter."""
    done = 0
    for count in range(len(plans), 0, -1):
        steps = len(plans[count - 1].rows)
        if steps > done:
            yield slice(done, steps), count
            done = steps


def _side_by_side(plans: Sequence[Plan], steps: slice) -> tuple[Ints, Stacked]:
    rows = np.stack([plan.rows[steps] for plan in plans], axis=1)
    return rows, np.stack([plan.shares[steps] for plan in plans], axis=1)
