"""Local SGD of many clients at once, for small fully connected networks and embeddings.

For networks this small, a call into torch costs more than its arithmetic. One NumPy call here
serves all networks of a stack, and gradients are computed in closed form.

The algorithm is that of `Trainer.train`, and each client draws the same mini-batches, so results
differ by rounding only. They do not depend on the other clients of the stack: every mini-batch is
padded to the same width with samples of weight 0, and each network's products are computed
separately. If mini-batches are so large that their arithmetic takes longer than the calls, networks
train one after the other, and nothing is padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraw.core.layout import Layout, Segment
from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput
from fedraw.learning.device import make_repeatable
from fedraw.learning.inputs import Normalisation, Pixels, Preprocessor, input_tensor
from fedraw.learning.sgd import SGD
from fedraw.learning.training import require_samples
from fedraw.learning.vectors import check_size, layout_of

# The first axis counts networks, and in a mini-batch the second counts samples.
Stacked = npt.NDArray[np.float32]
# From this number of input values in a mini-batch on, padding costs more than calls.
LARGE_BATCH = 2**16


class BatchedClient(NamedTuple):
    """One training of a client: the start model, the client's rows of the data, its generator.

    `lr` is the learning rate of this training, if the settings have a schedule. `shift` is added to
    the scores of the labels before the cross-entropy; see `SGD.shift`.
    """

    start: Vector
    rows: slice
    rng: np.random.Generator
    lr: float | None = None
    shift: Vector | None = None


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """The samples of all clients.

    `read` returns the images of the given rows; it may reuse the memory of its last result.
    `largest` is the number of samples of the largest client.
    """

    read: Callable[[Ints], Pixels]
    labels: Ints
    input_shape: tuple[int, ...]
    largest: int


class RowReader:
    """Reads rows of an array into memory that it reuses, because fresh memory is slow to write.

    >>> read = RowReader(np.array([[1], [2], [3]]))
    >>> read(np.array([2, 0])).tolist()
    [[3], [1]]
    """

    def __init__(self, array: Pixels) -> None:
        self._array = array
        self._memory = array[:0].copy()

    def __call__(self, rows: Ints) -> Pixels:
        if len(rows) > len(self._memory):
            self._memory = np.empty((len(rows), *self._array.shape[1:]), self._array.dtype)
        # The mode "clip" writes to the memory directly; the default mode uses a copy.
        return self._array.take(rows, 0, self._memory[: len(rows)], "clip")


class BatchedTrainer:
    """Trains many model vectors at once with the layers of one module, on one CPU thread.

    >>> images, labels = np.array([[-1], [1]], dtype=np.float32), np.array([0, 1])
    >>> samples = ClientSamples(lambda rows: images[rows], labels, (1,), largest=2)
    >>> trainer = BatchedTrainer(nn.Linear(1, 2, bias=False), SGD(1, lr=1.0), samples)
    >>> zero = np.zeros(2, dtype=np.float32)
    >>> both = BatchedClient(zero, slice(0, 2), np.random.default_rng(0))
    >>> last = BatchedClient(zero, slice(1, 2), np.random.default_rng(0))
    >>> [vector.tolist() for vector in trainer.train([both, last])]
    [[-0.5, 0.5], [-0.5, 0.5]]
    """

    def __init__(
        self,
        module: nn.Module,
        settings: SGD,
        samples: ClientSamples,
        normalisation: Normalisation | None = None,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._layout = layout_of(module)
        self._layers = dense_layers(module, self._layout, samples.input_shape)
        cpu = torch.device("cpu")
        make_repeatable(cpu)
        self._preprocess = Preprocessor(cpu, normalisation)
        self._is_normalised = normalisation is not None
        self._width = min(settings.batch, samples.largest)
        self._one_by_one = self._width * math.prod(samples.input_shape) >= LARGE_BATCH

    def train(self, clients: Sequence[BatchedClient], proximal: float = 0.0) -> list[Vector]:
        """Return each client's trained vector, in the order of the clients.

        `proximal` = ρ adds ρ/2 · |x − start|² to each loss. A training that diverges returns NaN.
        """
        if self._one_by_one:
            return [self._train_stack([client], proximal)[0] for client in clients]
        return self._train_stack(clients, proximal)

    def _train_stack(self, clients: Sequence[BatchedClient], proximal: float) -> list[Vector]:
        plans = [_plan(client, self._settings, self._width) for client in clients]
        # Longest training first, so that the clients that still train are a prefix of the stack.
        order = sorted(range(len(plans)), key=lambda i: -len(plans[i].rows))
        values = self._stacked([clients[i].start for i in order])
        with np.errstate(all="ignore"):
            self._descend(
                values,
                [plans[i] for i in order],
                proximal,
                self._rates(clients, order),
                _stacked_shifts([clients[i].shift for i in order]),
            )
        trained = dict(zip(order, values, strict=True))
        return [trained[i].copy() for i in range(len(clients))]

    def _rates(self, clients: Sequence[BatchedClient], order: Sequence[int]) -> Stacked | None:
        """Return each client's learning rate as a column; None if all have that of the settings."""
        if self._settings.schedule == "constant":
            return None
        rates = [clients[i].lr for i in order]
        default = self._settings.lr
        return np.array([default if lr is None else lr for lr in rates], np.float32)[:, None]

    def _stacked(self, starts: Sequence[Vector]) -> Stacked:
        values = np.empty((len(starts), self._layout.size), np.float32)
        for row, start in zip(values, starts, strict=True):
            check_size(start, row.size)
            row[:] = start
        return values

    def _descend(
        self,
        values: Stacked,
        plans: Sequence[BatchPlan],
        proximal: float,
        rates: Stacked | None,
        shifts: Stacked | None,
    ) -> None:
        smoothing = self._settings.label_smoothing
        stack = DenseStack(self._layers, values, np.zeros_like(values))
        start = values.copy() if proximal else values
        velocity = np.zeros_like(values) if self._settings.momentum else stack.gradient
        trainable = self._layout.parameters  # frozen values come after them
        for steps, count in _phases(plans):
            rows, shares = _stacked_plans(plans[:count], steps)
            active = stack.first(count)
            arrays = (active.values, active.gradient, velocity[:count], start[:count])
            x, gradient, v, first = (array[:, trainable] for array in arrays)
            lr = self._settings.lr if rates is None else rates[:count]
            shift = None if shifts is None else shifts[:count]
            for now, share in zip(rows, shares, strict=True):
                if self._one_by_one:  # the padding, with weight 0, comes last
                    real = np.count_nonzero(share)
                    now, share = now[:, :real], share[:, :real]  # noqa: PLW2901
                labels = self._samples.labels.take(now)
                active.differentiate(self._read(now), labels, share, smoothing, shift)
                self._add_terms(x, gradient, first, proximal)
                self._step(x, gradient, v, lr)

    def _add_terms(self, x: Stacked, gradient: Stacked, start: Stacked, proximal: float) -> None:
        sgd = self._settings
        if sgd.clip_norm:
            norm = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))[:, None]
            gradient *= np.minimum(np.float32(sgd.clip_norm) / norm, 1)
        if sgd.weight_decay:
            gradient += sgd.weight_decay * x
        if proximal:
            gradient += proximal * (x - start)

    def _step(self, x: Stacked, gradient: Stacked, velocity: Stacked, lr: float | Stacked) -> None:
        sgd = self._settings
        if sgd.momentum:
            velocity *= sgd.momentum
            velocity += gradient
            x -= lr * (gradient + sgd.momentum * velocity if sgd.nesterov else velocity)
        else:
            gradient *= lr
            x -= gradient

    def _read(self, rows: Ints) -> Stacked:
        found = self._samples.read(rows.ravel())
        if self._layers[0].embeds:
            return found.reshape(*rows.shape, -1)
        if self._is_normalised or found.dtype != np.float32:
            found = self._preprocess(input_tensor(found)).numpy()
        return found.reshape(*rows.shape, -1)


class DenseLayer(NamedTuple):
    """A linear layer as segments of the model vector, and whether a ReLU follows it.

    If `embeds` is true, the layer is an embedding: it looks up a row of its weight for each whole
    number, and concatenates the rows.
    """

    weight: Segment
    bias: Segment | None
    relu: bool
    embeds: bool = False


def dense_layers(
    module: nn.Module, layout: Layout, input_shape: tuple[int, ...]
) -> list[DenseLayer]:
    """Return the layers of a module made of Linear, ReLU and a leading Embedding and Flatten.

    Raises BadInput for any other module, which only `Trainer` can train.

    >>> from fedraw.learning.vectors import layout_of
    >>> module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [layer.relu for layer in dense_layers(module, layout_of(module), (2, 2))]
    [True, False]
    """
    segments = {segment.name: segment for segment in layout.segments}
    layers: list[DenseLayer] = []
    flat = len(input_shape) == 1
    for name, layer in _leaves(module):
        if _has_hooks(layer):
            raise _unsupported_layer(name, layer, " (it has hooks)")
        if _is_flatten(layer):
            flat = True
        elif _is_plain_embedding(layer) and flat and not layers:
            layers.append(_dense(name, layer, segments)._replace(embeds=True))
            flat = False
        elif type(layer) is nn.Linear and flat:
            layers.append(_dense(name, layer, segments))
        elif type(layer) is nn.ReLU and layers and not layers[-1].embeds:
            layers[-1] = layers[-1]._replace(relu=True)
        else:
            raise _unsupported_layer(name, layer)
    return layers


class DenseStack:
    """Networks with the same layers; the rows of `values` are their vectors.

    >>> from fedraw.learning.vectors import layout_of
    >>> module = nn.Linear(1, 2, bias=False)
    >>> layers = dense_layers(module, layout_of(module), (1,))
    >>> stack = DenseStack(layers, np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
    >>> stack.differentiate(np.ones((1, 1, 1), np.float32), np.array([[0]]), np.float32([[1]]))
    >>> stack.gradient.tolist()
    [[-0.5, 0.5]]
    """

    def __init__(self, layers: Sequence[DenseLayer], values: Stacked, gradient: Stacked) -> None:
        self.values, self.gradient = values, gradient
        self._layers = layers
        self._tensors = [_views(layer, values) for layer in layers]
        self._grads = [_views(layer, gradient) for layer in layers]
        self._classes = layers[-1].weight.shape[0]

    def first(self, count: int) -> DenseStack:
        """Return the first `count` networks, in the same memory."""
        return DenseStack(self._layers, self.values[:count], self.gradient[:count])

    def differentiate(
        self,
        inputs: Stacked,
        labels: Ints,
        shares: Stacked,
        smoothing: float = 0.0,
        shift: Stacked | None = None,
    ) -> None:
        """Set `gradient` to the gradient of Σ share · cross-entropy over each network's samples.

        `shift` has a row for each network, which is added to its scores.
        """
        outputs = self._forward(inputs)
        flow = softmax(outputs[-1] if shift is None else outputs[-1] + shift[:, None])
        if smoothing:
            flow -= smoothing / self._classes
        flow *= shares[:, :, None]
        true_label = np.arange(labels.size) * self._classes + labels.ravel()
        target = (1 - smoothing) * shares.ravel() if smoothing else shares.ravel()
        flow.reshape(-1)[true_label] -= target
        self._backward(inputs, outputs, flow)

    def _forward(self, inputs: Stacked) -> list[Stacked]:
        outputs: list[Stacked] = []
        for layer, (weight, bias) in zip(self._layers, self._tensors, strict=True):
            if layer.embeds:
                networks = np.arange(len(weight))[:, None, None]
                inputs = weight[networks, inputs].reshape(*inputs.shape[:2], -1)
                outputs.append(inputs)
                continue
            inputs = inputs @ weight.swapaxes(1, 2)
            if bias is not None:
                inputs += bias[:, None]
            if layer.relu:
                np.maximum(inputs, 0, out=inputs)
            outputs.append(inputs)
        return outputs

    def _backward(self, inputs: Stacked, outputs: list[Stacked], flow: Stacked) -> None:
        for i in reversed(range(len(self._layers))):
            weight, bias = self._grads[i]
            if self._layers[i].embeds:
                _add_rows(weight, inputs, flow)
                continue
            if self._layers[i].relu:
                flow *= outputs[i] > 0
            np.matmul(flow.swapaxes(1, 2), outputs[i - 1] if i else inputs, out=weight)
            if bias is not None:
                np.add.reduce(flow, axis=1, out=bias)
            if i:
                flow = flow @ self._tensors[i][0]


def _add_rows(gradient: Stacked, codes: Stacked, flow: Stacked) -> None:
    """Set the gradient of an embedding: the sum of the flows into each of its rows.

    >>> gradient = np.zeros((1, 3, 1), np.float32)
    >>> _add_rows(gradient, np.array([[[0, 2], [2, 2]]]), np.float32([[[1, 2], [3, 4]]]))
    >>> gradient.ravel().tolist()
    [1.0, 0.0, 9.0]
    """
    networks, rows, width = gradient.shape
    first = (np.arange(networks) * rows)[:, None, None]
    places = ((codes + first) * width)[..., None] + np.arange(width)
    sums = np.zeros(gradient.size, np.float32)  # the gradient itself is not contiguous
    # In the order of the samples, so that a network's sums do not depend on the others.
    np.add.at(sums, places.reshape(-1), flow.reshape(-1))
    gradient[:] = sums.reshape(gradient.shape)


def softmax(scores: Stacked) -> Stacked:
    """Return the softmax over the last axis."""
    exponents: Stacked = scores - scores.max(axis=-1, keepdims=True)
    np.exp(exponents, out=exponents)
    exponents /= exponents.sum(axis=-1, keepdims=True)
    return exponents


def _stacked_shifts(shifts: Sequence[Vector | None]) -> Stacked | None:
    """Return the shifts of the clients, one per row; None if no client has one."""
    known = [shift for shift in shifts if shift is not None]
    if not known:
        return None
    no_shift = np.zeros_like(known[0])
    return np.stack([no_shift if shift is None else shift for shift in shifts])


class BatchPlan(NamedTuple):
    """A client's mini-batches, one per row: rows of the data, and the weight of each sample."""

    rows: Ints
    shares: npt.NDArray[np.float32]


def _plan(client: BatchedClient, settings: SGD, width: int) -> BatchPlan:
    samples = client.rows.stop - client.rows.start
    require_samples(samples)
    client.rng.integers(2**63)  # `Trainer` draws a seed for dropout here, which is not needed
    places, shares = _epoch_batches(samples, min(settings.batch, samples), width)
    epochs = [client.rng.permutation(samples)[places] for _ in range(settings.epochs)]
    rows = np.concatenate(epochs) + client.rows.start
    return BatchPlan(rows, np.concatenate([shares] * settings.epochs))


@lru_cache(maxsize=1024)
def _epoch_batches(samples: int, batch: int, width: int) -> tuple[Ints, Stacked]:
    """Return each mini-batch as positions in the shuffled samples, and the weight of each sample.

    >>> places, shares = _epoch_batches(samples=5, batch=4, width=4)
    >>> places.tolist(), shares.tolist()
    ([[0, 1, 2, 3], [4, 4, 4, 4]], [[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    """
    places = np.arange(0, samples, batch)[:, None] + np.arange(width)
    size = np.minimum(batch, samples - places[:, :1])
    shares = np.where(places < samples, 1 / size, 0).astype(np.float32)
    # Padding repeats a sample of the same mini-batch, so it overflows only if that sample does.
    return np.minimum(places, samples - 1), shares


def _phases(plans: Sequence[BatchPlan]) -> Iterator[tuple[slice, int]]:
    """Yield ranges of steps with a constant number of clients; the longest plan comes first."""
    done = 0
    for count in range(len(plans), 0, -1):
        steps = len(plans[count - 1].rows)
        if steps > done:
            yield slice(done, steps), count
            done = steps


def _stacked_plans(plans: Sequence[BatchPlan], steps: slice) -> tuple[Ints, Stacked]:
    rows = np.stack([plan.rows[steps] for plan in plans], axis=1)
    return rows, np.stack([plan.shares[steps] for plan in plans], axis=1)


def _views(layer: DenseLayer, rows: Stacked) -> tuple[Stacked, Stacked | None]:
    weight = rows[:, layer.weight.slice].reshape(len(rows), *layer.weight.shape)
    return weight, None if layer.bias is None else rows[:, layer.bias.slice]


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential or _has_hooks(module):
        yield name, module
        return
    # `named_children` would list a layer that is used twice only once.
    for key, child in module._modules.items():
        assert child is not None
        yield from _leaves(child, f"{name}.{key}" if name else key)


def _is_flatten(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _is_plain_embedding(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Embedding
        and layer.padding_idx is None
        and layer.max_norm is None
        and not layer.scale_grad_by_freq
        and not layer.sparse
    )


def _dense(name: str, layer: nn.Module, segments: dict[str, Segment]) -> DenseLayer:
    prefix = f"{name}." if name else ""
    keys = ("weight",) if getattr(layer, "bias", None) is None else ("weight", "bias")
    for key in keys:
        if prefix + key not in segments:
            raise _unsupported_layer(name, layer, f" (its {key} is not a parameter of its own)")
    weight, *bias = (segments[prefix + key] for key in keys)
    return DenseLayer(weight, bias[0] if bias else None, relu=False)


def _has_hooks(layer: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, kind) for kind in kinds)


def _unsupported_layer(name: str, layer: nn.Module, why: str = "") -> BadInput:
    # The representation of a whole network is too long for a message.
    what = type(layer).__name__ if next(layer.children(), None) else str(layer)
    where = f"layer {name!r}, {what}" if name else f"a model of type {what}"
    return BadInput(
        f"the batched executor cannot train {where}{why}: it supports only "
        "Embedding, Flatten, then Linear and ReLU in nn.Sequential; use executor='inline' or "
        "'processes'"
    )
