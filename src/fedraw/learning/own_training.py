"""Local training with a user's function: any optimiser, loss, schedule and precision.

The function is called as `train(model, data, context)`. It trains `model` in place, and may return
a dict of metrics. The guide is `docs/how-to/training.md`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedraw.core.types import ClientId, Ints, Vector
from fedraw.errors import BadInput, TrainingFailed, error_context, user_traceback
from fedraw.learning.device import device_of, make_repeatable, seeded
from fedraw.learning.inputs import Array, Normalisation, Preprocessor, input_tensor, target_tensor
from fedraw.learning.losses import CROSS_ENTROPY
from fedraw.learning.sgd import SGD
from fedraw.learning.training import scores_of
from fedraw.learning.vectors import layout_of, load_vector, read_vector, standalone_copy

Batch = tuple[torch.Tensor, torch.Tensor]
State = Mapping[str, npt.NDArray[Any]]
# The user's function. Its return value is checked after each call.
TrainFunction = Callable[[Any, Any, Any], Mapping[str, Any] | None]


class ClientData:
    """The training samples of one client.

    Iterating yields shuffled mini-batches `(x, y)` on the run's device. One pass is one epoch, and
    every pass has a new order. The last, smaller mini-batch is kept.

    Attributes:
        batch: Samples in a mini-batch.

    """

    def __init__(
        self,
        inputs: Array,
        targets: Array,
        batch: int,
        preprocess: Preprocessor,
        rng: np.random.Generator,
    ) -> None:
        self.batch = min(batch, len(targets))
        self._inputs, self._targets = inputs, targets
        self._preprocess, self._rng = preprocess, rng

    def __len__(self) -> int:
        """Return the number of mini-batches in a pass."""
        return math.ceil(len(self._targets) / self.batch)

    def __iter__(self) -> Iterator[Batch]:
        order = self._rng.permutation(len(self._targets))
        inputs = input_tensor(self._inputs.take(order, 0))
        targets = self._on_device(target_tensor(self._targets.take(order, 0)))
        batches = self._preprocess.batches(inputs, self.batch)
        yield from zip(batches, torch.split(targets, self.batch), strict=True)

    def tensors(self) -> Batch:
        """Return the inputs and targets of all samples, in the client's own order."""
        # Copies protect the data of the run from changes in the user's function.
        x, y = input_tensor(self._inputs).clone(), target_tensor(self._targets).clone()
        return self._preprocess(x), self._on_device(y)

    @cached_property
    def dataset(self) -> TensorDataset:
        """All samples as a torch `Dataset`, for your own `DataLoader`."""
        return TensorDataset(*self.tensors())

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._preprocess.device)


@dataclass(eq=False)
class TrainingContext:
    """The facts about one training, for the training function.

    Attributes:
        client: The client that trains.
        training: The number of this client's training, from 0.
        version: The version of the model that the client received.
        event: The number of updates that had reached the server when the client received it.
        epochs: The passes over the data that the run asks for.
        device: The device of the model and the mini-batches.
        needs_loss: Whether the strategy needs the mean loss of the received model on the client's
            data; the function then returns it as "loss".
        rng: A NumPy generator for your own draws.
        generator: A torch generator for your own draws.
        state: Arrays by name that this client keeps from one training to the next. The state is
            empty in the client's first training, and is stored in the checkpoints of the run.
        label_counts: The number of the client's training samples of each label; None if the targets
            of the data are not labels.
        label_totals: The number of training samples of each label over all clients, which a server
            knows if clients report their counts; None if the targets are not labels.

    """

    client: ClientId
    training: int
    version: int
    event: int
    epochs: int
    _lr: float | None = field(repr=False)
    device: torch.device
    needs_loss: bool
    rng: np.random.Generator = field(repr=False)
    generator: torch.Generator = field(repr=False)
    state: dict[str, Any] = field(repr=False)
    label_counts: Ints | None = field(repr=False)
    label_totals: Ints | None = field(repr=False)
    _settings: SGD = field(repr=False)
    _proximal: float = field(repr=False)
    _start: list[torch.Tensor] = field(repr=False)
    _proximal_was_read: bool = field(default=False, repr=False)
    _loss_was_called: bool = field(default=False, repr=False)

    @property
    def lr(self) -> float:
        """The learning rate that the run asks for, after its schedule.

        Reading it is an error if nobody has set a rate, because the default of the built-in SGD is
        no rate for another optimiser.
        """
        if self._lr is None:
            raise BadInput(
                "context.lr: no learning rate is set for your training function; write the rate in "
                "the function, or set training.lr, in Python with "
                'spec=fedraw.Spec.from_dict({"training": {"lr": 0.05}})'
            )
        return self._lr

    def loss(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of a mini-batch with the settings loss, tau, prior and label_smoothing.

        `output` is the model's output for the mini-batch, and `labels` are its labels.
        """
        self._loss_was_called = True
        scores, settings = scores_of(output), self._settings
        if settings.loss != CROSS_ENTROPY:
            if self.label_counts is None:
                raise BadInput(
                    f"training.loss = {settings.loss!r} needs label counts, but the targets of "
                    "these data are not labels; use 'cross-entropy'"
                )
            shift = settings.shift(self.label_counts, self.label_totals)
            if shift is not None:
                scores = scores + torch.from_numpy(shift).to(scores.device)
        smoothing = settings.label_smoothing
        return functional.cross_entropy(scores, labels, label_smoothing=smoothing)

    @property
    def proximal(self) -> float:
        """The factor ρ of the proximal term that the strategy asks for; 0 if it asks for none."""
        self._proximal_was_read = True
        return self._proximal

    def proximal_term(self, model: nn.Module) -> torch.Tensor:
        """Return ρ/2 · |x − start|² over the trainable parameters x, to be added to the loss."""
        self._proximal_was_read = True
        term = torch.zeros((), device=self.device)
        if not self._proximal:
            return term
        trainable = [p for p in model.parameters() if p.requires_grad]
        if [p.shape for p in trainable] != [p.shape for p in self._start]:
            raise BadInput(
                "proximal_term needs the model that the training function received, with the same "
                "trainable parameters; pass that model"
            )
        for parameter, start in zip(trainable, self._start, strict=True):
            term = term + (parameter - start).square().sum()
        return self._proximal / 2 * term

    def _refuse_ignored_proximal(self, name: str) -> None:
        if self._proximal and not self._proximal_was_read:
            raise BadInput(
                f"{name}: the strategy asks for a proximal term (ρ = {self._proximal:g}), but the "
                "function ignores it; add context.proximal_term(model) to the loss"
            )

    def _refuse_ignored_loss(self, name: str) -> None:
        if self._settings.loss != CROSS_ENTROPY and not self._loss_was_called:
            raise BadInput(
                f"{name}: training.loss = {self._settings.loss!r}, but the function ignores it; "
                "compute the loss with context.loss(model(x), y), or leave training.loss out"
            )


class Request(NamedTuple):
    """One training of one client, apart from the model and the data.

    `shuffle` is the generator for the order of the samples, and `rng` that for the function's own
    draws.
    """

    client: ClientId
    training: int
    version: int
    event: int
    lr: float | None
    proximal: float
    needs_loss: bool
    shuffle: np.random.Generator
    rng: np.random.Generator
    state: State | None = None
    label_counts: Ints | None = None
    label_totals: Ints | None = None


class Outcome(NamedTuple):
    """The result of a training function: the model, metrics and the client's state."""

    vector: Vector
    loss: float | None
    metrics: dict[str, float | None] | None
    state: State | None


class OwnTraining:
    """Calls a user's training function, each time with a fresh copy of one module.

    A call depends only on its arguments: hooks, attributes or gradients that the function leaves on
    the model do not reach the next call. If the function keeps no state elsewhere, the results are
    the same in every process.

    >>> def train(model, data, context):
    ...     with torch.no_grad():
    ...         model.weight += len(data.dataset)
    >>> request = Request("a", 0, 0, 0, 0.1, 0.0, False, *[np.random.default_rng(0)] * 2)
    >>> own = OwnTraining(train, nn.Linear(1, 1, bias=False), SGD())
    >>> own(np.zeros(1, np.float32), np.ones((3, 1)), np.array([0, 0, 0]), request).vector
    array([3.], dtype=float32)
    """

    def __init__(
        self,
        function: TrainFunction,
        module: nn.Module,
        settings: SGD,
        *,
        device: str = "cpu",
        normalisation: Normalisation | None = None,
    ) -> None:
        self._function = function
        self._settings = settings
        self._device = device_of(device)
        make_repeatable(self._device)
        self._preprocess = Preprocessor(self._device, normalisation)
        self._module = standalone_copy(module)
        self._layout = layout_of(self._module)

    def __call__(self, start: Vector, inputs: Array, targets: Array, request: Request) -> Outcome:
        """Train the model `start` on these samples."""
        name = (
            f"train = {function_name(self._function)}, client {request.client!r}, "
            f"training {request.training}"
        )
        model = copy.deepcopy(self._module)
        load_vector(model, self._layout, start)
        model = model.to(self._device).train()
        # As in the built-in SGD, the first draw is a seed, and each pass then draws an order.
        seed = int(request.shuffle.integers(2**63))
        data = ClientData(inputs, targets, self._settings.batch, self._preprocess, request.shuffle)
        context = self._context(model, request)
        with seeded(self._device, seed), torch.enable_grad():
            returned = self._call(name, model, data, context)
        context._refuse_ignored_proximal(name)
        context._refuse_ignored_loss(name)
        metrics = _checked_metrics(name, returned)
        loss = metrics.get("loss")
        if request.needs_loss and loss is None:
            raise BadInput(
                f"{name}: the strategy needs the client's loss, but the function returned no "
                "'loss'; return {'loss': …}, the mean loss of the received model before training"
            )
        with error_context(name):
            vector = read_vector(model, self._layout)
        finite = {key: v if math.isfinite(v) else None for key, v in metrics.items()}
        state = _checked_state(name, context.state)
        untouched = request.state is None and not state
        own_loss = loss if request.needs_loss else None
        return Outcome(vector, own_loss, finite or None, None if untouched else state)

    def _context(self, model: nn.Module, request: Request) -> TrainingContext:
        seed = int(request.rng.integers(2**63))
        trainable = [p for p in model.parameters() if p.requires_grad] if request.proximal else []
        return TrainingContext(
            client=request.client,
            training=request.training,
            version=request.version,
            event=request.event,
            epochs=self._settings.epochs,
            _lr=request.lr,
            device=self._device,
            needs_loss=request.needs_loss,
            rng=request.rng,
            generator=torch.Generator(self._device).manual_seed(seed),
            # Copies, because the run still owns these arrays, and they may be read-only.
            state={key: np.array(value) for key, value in (request.state or {}).items()},
            label_counts=request.label_counts,
            label_totals=request.label_totals,
            _settings=self._settings,
            _proximal=request.proximal,
            _start=[p.detach().clone() for p in trainable],
        )

    def _call(self, name: str, model: nn.Module, data: ClientData, context: TrainingContext) -> Any:
        try:
            return self._function(model, data, context)
        except Exception as error:
            raise TrainingFailed(
                f"{name} failed with {type(error).__name__}: {error}\n{user_traceback(error)}"
            ) from None


def function_name(function: object) -> str:
    """Return the name of a user's function for messages: its module and its qualified name.

    >>> function_name(math.sqrt), function_name(OwnTraining)
    ('math.sqrt', 'fedraw.learning.own_training.OwnTraining')
    """
    named: Any = getattr(function, "func", function)  # the function of a functools.partial
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{named.__module__}.{named.__qualname__}"


def _checked_metrics(name: str, returned: Any) -> dict[str, float]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise BadInput(
            f"{name} returned a {type(returned).__name__}; train the model in place, and return "
            "nothing or a dict of numbers"
        )
    metrics = {}
    for key, value in returned.items():
        try:
            plain = value.detach() if isinstance(value, torch.Tensor) else value
            metrics[str(key)] = float(plain)
        except (TypeError, ValueError, RuntimeError):
            raise BadInput(
                f"{name} returned {key!r}: {type(value).__name__}, which is not a number; return a "
                "dict of numbers"
            ) from None
    return metrics


def _checked_state(name: str, state: Any) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise BadInput(
            f"{name}: context.state is not a dict of arrays by name; change its entries instead of "
            "replacing it"
        )
    kept = {}
    for key, value in state.items():
        array = np.array(_plain(value) if isinstance(value, torch.Tensor) else value)
        if array.dtype.kind not in "biuf":
            raise BadInput(
                f"{name}: context.state[{key!r}] is a {type(value).__name__}; keep arrays of "
                "numbers, which a checkpoint can hold"
            )
        kept[key] = array
    return kept


def _plain(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; numbers of a type that NumPy lacks become float32."""
    values = tensor.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
