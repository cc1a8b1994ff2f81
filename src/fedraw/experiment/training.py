"""How clients train: the network that a spec names, local training, and the executor of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.sums import Sums, check_samples, labels_below
from fedraw.core.types import Ints, Vector
from fedraw.data.dataset import Array, Dataset, Inputs
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiment.clients import Clients, LocalData, shared
from fedraw.experiment.loading import weights_file
from fedraw.experiment.options import Options
from fedraw.experiment.sections import TEXT_MODEL
from fedraw.experiment.spec import Spec
from fedraw.learning.losses import CROSS_ENTROPY
from fedraw.learning.sgd import SGD
from fedraw.simulation.executors.base import Executor, Job, Train, TrainingResult
from fedraw.simulation.executors.inline import (
    Batched,
    Inline,
    TrainTogether,
    no_training,
    slots_for,
)
from fedraw.simulation.executors.processes import Processes
from fedraw.simulation.executors.ray_cluster import cpus_of_cluster
from fedraw.simulation.executors.ray_workers import RayWorkers
from fedraw.simulation.executors.spilled import spilled
from fedraw.simulation.perturbations.attacks import Attackers, Support
from fedraw.strategies.protocol import Needs, Payload

if TYPE_CHECKING:
    from fedraw.experiment.parts import Parts
    from fedraw.experiment.scenario import Scenario
    from fedraw.learning.batched import BatchedTrainer
    from fedraw.learning.inputs import Normalisation
    from fedraw.learning.models import ModelFactory, Module
    from fedraw.learning.own_training import TrainFunction
    from fedraw.learning.training import Trainer
    from fedraw.learning.weights import LoadedWeights


# Bytes of the messages of all clients above which they are kept in a temporary file.
MOST_IN_MEMORY = 2**30


@dataclass(frozen=True, eq=False)
class Network:
    """A trainer, the initial model, and the weights that it was loaded from."""

    trainer: Trainer
    initial: Vector
    loaded: LoadedWeights | None = None


class ModelForm(NamedTuple):
    """What a model takes and returns: the shape of a sample, and how many numbers for one.

    A model that predicts labels returns one score for each label. Where the data have targets of
    their own, it returns as many numbers as a target has, or one for each class if targets are
    classes, and its output may have any shape.
    """

    input_shape: tuple[int, ...]
    outputs: int
    predicts_labels: bool = True
    whole_numbers: bool = False  # whether samples consist of whole numbers, such as ids of tokens

    @classmethod
    def of(cls, inputs: Inputs, targets: Array | None, classes: int) -> ModelForm:
        """Return the form for these samples; without targets, the model predicts labels."""
        whole = inputs.dtype.kind == "i"
        if targets is None:
            return cls(inputs.shape[1:], classes, whole_numbers=whole)
        outputs = math.prod(targets.shape[1:])
        if targets.dtype.kind == "i" and targets.ndim == 1:  # classes, beside groups
            outputs = int(targets.max()) + 1
        return cls(inputs.shape[1:], outputs, False, whole)


def make_network(
    spec: Spec, parts: Parts, dataset: Dataset, streams: Streams, root: Path | None = None
) -> Network:
    """Make the spec's model, or the user's, with the spec's weights or random ones."""
    try:
        from fedraw.learning import vectors, weights
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    _refuse_targets(parts, dataset)
    if parts.model is None and spec.training.model == TEXT_MODEL:
        _refuse_other_codes(dataset)
    form = ModelForm.of(dataset.inputs, dataset.targets, dataset.classes)
    normalisation = _normalisation(spec)
    if normalisation is not None:
        normalisation.check(form.input_shape)
    module = _module(spec, parts.model, form, streams)
    wanted = spec.training.weights
    loaded = None if wanted is None else weights.load_weights(module, weights_file(wanted, root))
    return Network(_trainer(spec, module), vectors.to_vector(module), loaded)


def make_head(spec: Spec, payload: Payload, dataset: Dataset, streams: Streams) -> Network:
    """Make the linear model of the features that is solved from sums, with zeros.

    The training that the spec names is left out, because nobody trains.
    """
    _refuse_other_sums(payload, dataset)
    try:
        from fedraw.learning import models
        from fedraw.learning.training import Trainer
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    rng = streams.generator("initial model")
    form = ModelForm.of(dataset.inputs, dataset.targets, dataset.classes)
    module = models.build("linear", form.input_shape, form.outputs, rng)
    trainer = Trainer(module, spec.training.sgd(), device=spec.training.device)
    return Network(trainer, np.zeros(trainer.layout.size, np.float32))


def _refuse_other_sums(payload: Payload, dataset: Dataset) -> None:
    """Refuse to sum targets as labels, and labels as targets."""
    own, regression = f"dataset {dataset.name!r}", getattr(payload, "regression", False)
    targets = dataset.targets
    if targets is not None and targets.dtype.kind == "i":
        raise BadInput(
            f"{own} has groups, and targets that are whole numbers, so classes, and clients "
            "declare their groups; leave the groups out, or give targets of a float type and set "
            "strategy.readout = 'regression'"
        )
    if targets is not None and not regression:
        raise BadInput(
            f"the labels of {own} are targets of a regression; set strategy.readout = "
            "'regression', or convert the targets to classes"
        )
    if targets is None and regression:
        raise BadInput(
            f"strategy.readout = 'regression', and {own} has labels; give targets of a float type "
            "in place of the labels, or leave readout out"
        )


def refuse_with_sums(spec: Spec, name: str) -> None:
    """Refuse settings that have no meaning where clients send sums instead of training."""
    claim = spec.misreport
    for key, is_set, reason in (
        ("training.kind = 'none'", spec.training.kind == "none", "sums need the samples"),
        ("[calibration]", spec.calibration is not None, "its output layer is solved from sums"),
        ("[summaries]", spec.summaries is not None, "sums contain the exact label counts"),
        (
            "misreport.support",
            claim is not None and claim.support is not None,
            "there is no update that could support a claim",
        ),
    ):
        if is_set:
            raise BadInput(f"{key} does not go with strategy {name!r}: {reason}; leave it out")


def refuse_empty_sums(clients: Clients, payload: Payload) -> None:
    """Refuse a floor with which nobody would send anything."""
    if not isinstance(payload, Sums):
        return
    if len(labels_below(clients.table, payload)) == len(clients.table.labels):
        of = "" if payload.regression else " of any label"
        raise BadInput(
            f"strategy.floor = {payload.floor}: no client has so many samples{of}, so nobody would "
            "send anything; lower it"
        )


def _refuse_targets(parts: Parts, dataset: Dataset) -> None:
    """Refuse targets that are no labels, without a function that learns or measures them."""
    if dataset.targets is None:
        return
    measured = parts.metrics or dataset.targets.dtype.kind == "f"
    for key, value, reason in (
        ("train", parts.train, "the built-in SGD learns labels; give a training function"),
        ("metrics", measured, "accuracy is a metric of labels; give your own, by name"),
    ):
        if not value:
            raise BadInput(
                f"the labels of dataset {dataset.name!r} have a float type, so they are targets of "
                f"a regression, and {reason}: {key} = … (docs/how-to/training.md); convert them to "
                "whole numbers or names if they are classes"
            )


def _refuse_other_codes(dataset: Dataset) -> None:
    """Refuse inputs that are not character codes, before a training fails on them."""
    from fedraw.learning.models import CHARACTERS

    for kind, inputs in (("inputs", dataset.inputs), ("test_inputs", dataset.test_inputs)):
        codes = inputs[:]
        if codes.size and not 0 <= codes.min() <= codes.max() < CHARACTERS:
            raise BadInput(
                f"model 'text' reads ASCII codes from 0 to {CHARACTERS - 1}, and {kind} of dataset "
                f"{dataset.name!r} have values from {codes.min()} to {codes.max()}; encode the "
                "texts in ASCII, or use a model of your own"
            )


def _module(spec: Spec, model: ModelFactory | None, form: ModelForm, streams: Streams) -> Module:
    from fedraw.learning import models

    wanted = spec.training
    return models.build(
        wanted.model if model is None else model,  # in place of the spec's model and stem
        form.input_shape,
        form.outputs,
        streams.generator("initial model"),
        wanted.stem if model is None else None,
        whole_numbers=form.whole_numbers,
        any_output=not form.predicts_labels,
    )


def _trainer(spec: Spec, module: Module) -> Trainer:
    from fedraw.learning.training import Trainer

    wanted = spec.training
    return Trainer(module, wanted.sgd(), device=wanted.device, normalisation=_normalisation(spec))


def _normalisation(spec: Spec) -> Normalisation | None:
    from fedraw.learning.inputs import NORMALISATIONS

    # Features are computed from normalised pixels, and are not normalised themselves.
    return NORMALISATIONS[spec.data.normalise] if spec.features is None else None


@dataclass(frozen=True, eq=False)
class Recipe:
    """Everything a worker process needs to train as this process would."""

    spec: Spec
    model: ModelFactory | None
    data: LocalData
    streams: Streams
    needs: Needs
    form: ModelForm
    train: TrainFunction | None = None

    def progress(self, job: Job) -> float:
        """Return the share of the run's events before the client got its model."""
        return job.event / self.spec.run.events

    def __str__(self) -> str:
        """Return the names of model and training function, which a worker may fail to load."""
        from fedraw.learning.own_training import function_name

        model = repr(self.spec.training.model) if self.model is None else function_name(self.model)
        own = "" if self.train is None else f" and train = {function_name(self.train)}"
        return f"model {model}{own}"

    def __call__(self) -> Train:
        if self.needs.payload is not None:
            return summing(self)
        # Every job brings its weights, so none are read here.
        module = _module(self.spec, self.model, self.form, self.streams)
        trainer = _trainer(self.spec, module)
        return local_training(trainer, self)


def local_training(trainer: Trainer, recipe: Recipe) -> Train:
    """Local training on a client's own samples, by the user's function or with SGD."""
    if recipe.train is not None:
        return _own_training(trainer, recipe, recipe.train)
    try:
        together = stacked_training(trainer, recipe)
    except BadInput:  # not a network of linear layers, or not on the cpu
        return _any_training(trainer, recipe)
    return lambda job: together([job])[0]


def _any_training(trainer: Trainer, recipe: Recipe) -> Train:
    data, streams, needs = recipe.data, recipe.streams, recipe.needs
    shift_of = _shifts(trainer.settings, data)

    def train(job: Job) -> TrainingResult:
        number, rows = data.of_job(job)
        images, labels = data.inputs[rows], data.targets[rows]
        loss = trainer.mean_loss(job.model, images, labels) if needs.loss else None
        rng = streams.generator("batches", number, job.training)
        lr = trainer.settings.rate(recipe.progress(job))
        shift = shift_of(number)
        vector = trainer.train(job.model, images, labels, rng, needs.proximal, lr, shift)
        return TrainingResult(vector, len(labels), loss)

    return train


def summing(recipe: Recipe) -> Train:
    """Return the step of a client that sends the sums of its features instead of training."""
    data, streams, payload = recipe.data, recipe.streams, recipe.needs.payload
    assert isinstance(payload, Sums)
    shape = payload.shape(recipe.form.outputs, math.prod(recipe.form.input_shape))

    def sums_of(job: Job) -> TrainingResult:
        number, rows = data.of_job(job)
        features = data.inputs[rows].reshape(rows.stop - rows.start, -1)
        answers = data.targets[rows]
        targets = answers if payload.regression else None
        check_samples(f"client {job.client!r}", features, targets)
        exact = payload.exact(shape, features, answers)
        # Whoever is asked again for the same samples sends the same message.
        message: Any = payload.sent(shape, exact, streams.generator("privacy", number))
        return TrainingResult(message, payload.examples(shape, message, len(features)))

    return sums_of


class ClientCounts:
    """The label counts of clients, as their training sees them; a copy for each caller."""

    def __init__(self, data: LocalData) -> None:
        self._data = data
        self._totals: dict[int, Ints] = {}

    def own(self, number: int) -> Ints:
        """Return how many samples of each label a data set has."""
        return self._data.label_counts(number)

    def of_all(self, number: int) -> Ints:
        """Return how many samples of each label all clients have, in the epoch of a data set."""
        epoch = number // self._data.clients
        if epoch not in self._totals:
            self._totals[epoch] = self._data.label_totals(number)
        return self._totals[epoch].copy()


def _shifts(settings: SGD, data: LocalData) -> Callable[[int], Vector | None]:
    """Return a function that gives the shift of the loss for a data set by its number."""
    if settings.loss == CROSS_ENTROPY:
        return lambda number: None
    counts = ClientCounts(data)
    return lambda number: settings.shift(counts.own(number), counts.of_all(number))


def _own_training(trainer: Trainer, recipe: Recipe, function: TrainFunction) -> Train:
    from fedraw.learning.own_training import OwnTraining, Request

    data, streams, needs = recipe.data, recipe.streams, recipe.needs
    own = OwnTraining(
        function,
        trainer.module,
        trainer.settings,
        device=recipe.spec.training.device,
        normalisation=_normalisation(recipe.spec),
    )

    counts = ClientCounts(data) if recipe.form.predicts_labels else None
    unset = recipe.spec.training.chosen_lr is None

    def train(job: Job) -> TrainingResult:
        number, rows = data.of_job(job)
        request = Request(
            job.client,
            job.training,
            job.version,
            job.event,
            lr=None if unset else trainer.settings.rate(recipe.progress(job)),
            proximal=needs.proximal,
            needs_loss=needs.loss,
            shuffle=streams.generator("batches", number, job.training),
            rng=streams.generator("own training", number, job.training),
            state=job.state,
            label_counts=None if counts is None else counts.own(number),
            label_totals=None if counts is None else counts.of_all(number),
        )
        done = own(job.model, data.inputs[rows], data.targets[rows], request)
        examples = rows.stop - rows.start
        return TrainingResult(done.vector, examples, done.loss, done.metrics, done.state)

    return train


def stacked_training(trainer: Trainer, recipe: Recipe) -> TrainTogether:
    """Local SGD of many clients in one call, for networks of linear layers; same bits."""
    from fedraw.learning.batched import BatchedClient
    from fedraw.learning.own_training import function_name

    if recipe.train is not None:
        raise BadInput(
            f"train = {function_name(recipe.train)}: the batched executor has only its own SGD; "
            "use the executor inline or processes"
        )
    data, streams, needs = recipe.data, recipe.streams, recipe.needs
    stacked = _stacked_trainer(trainer, recipe)
    shift_of = _shifts(trainer.settings, data)

    def train(jobs: Sequence[Job]) -> list[TrainingResult]:
        clients = []
        for job in jobs:
            number, rows = data.of_job(job)
            rng = streams.generator("batches", number, job.training)
            lr = trainer.settings.rate(recipe.progress(job))
            clients.append(BatchedClient(job.model, rows, rng, lr, shift_of(number)))
        trained = []
        for job, own, vector in zip(
            jobs, clients, stacked.train(clients, needs.proximal), strict=True
        ):
            rows, loss = own.rows, None
            if needs.loss:
                loss = trainer.mean_loss(job.model, data.inputs[rows], data.targets[rows])
            trained.append(TrainingResult(vector, rows.stop - rows.start, loss))
        return trained

    return train


def _stacked_trainer(trainer: Trainer, recipe: Recipe) -> BatchedTrainer:
    from fedraw.learning.batched import BatchedTrainer, ClientSamples, RowReader, dense_layers

    spec, data = recipe.spec, recipe.data
    if spec.training.device != "cpu":
        raise BadInput(
            f"training.device = {spec.training.device!r}, and the batched executor trains on the "
            "cpu; use executor='inline'"
        )
    images = data.inputs
    shape = images.shape[1:]
    dense_layers(trainer.module, trainer.layout, shape)  # refuses others before data are copied
    read: Callable[[Ints], Array] = images.take
    if not images.is_mapped:
        # A copy in the clients' order, because a selection would look up its rows at every step.
        read = RowReader(images[:])
    samples = ClientSamples(read, data.targets, shape, int(np.diff(data.start).max()))
    return BatchedTrainer(trainer.module, trainer.settings, samples, _normalisation(spec))


@contextmanager
def executor_of(scenario: Scenario, options: Options) -> Iterator[Executor]:
    """Return the executor of a run, wrapped by its attack; its workers end with the run."""
    with _executor(scenario, options) as own, _in_memory_or_file(own, scenario) as executor:
        claim, layout = scenario.spec.misreport, scenario.setup.layout
        if claim is None or claim.support is None or layout is None:
            yield executor
            return
        (output,) = scenario.clients.dataset.label_indices([claim.label])
        support = Support(output, claim.support, layout)
        yield Attackers(executor, scenario.clients.attackers, support)


@contextmanager
def _in_memory_or_file(executor: Executor, scenario: Scenario) -> Iterator[Executor]:
    """Keep messages in a file if the strategy keeps those of all clients and they are large."""
    payload = scenario.strategy.needs.payload
    if payload is None:
        yield executor
        return
    size = payload.layout(scenario.setup.layout).size * payload.dtype.itemsize
    if size * len(scenario.clients.table) <= MOST_IN_MEMORY:
        yield executor
        return
    with spilled(executor, size) as in_file:
        yield in_file


@contextmanager
def _executor(scenario: Scenario, options: Options) -> Iterator[Executor]:
    trainer, size = scenario.trainer, scenario.setup.model.size
    if trainer is None:
        yield Inline(no_training([epoch.table.totals() for epoch in scenario.clients.epochs]))
        return
    data, streams = LocalData.of(scenario.clients), Streams(scenario.seed)
    own, needs = scenario.parts, scenario.strategy.needs
    dataset = scenario.clients.dataset
    form = ModelForm.of(dataset.inputs, dataset.targets, dataset.classes)
    recipe = Recipe(scenario.spec, own.model, data, streams, needs, form, own.train)
    sends_sums = needs.payload is not None
    if own.train is None and not sends_sums:
        trainer.refuse_lone_samples(np.diff(data.start), data.inputs[:1])
    if options.executor == "inline" or (options.executor == "batched" and sends_sums):
        yield Inline(summing(recipe) if sends_sums else local_training(trainer, recipe))
    elif options.executor == "batched":
        yield Batched(stacked_training(trainer, recipe), slots_for(size))
    elif options.executor == "processes":
        with shared(data) as in_shared_memory:
            recipe = replace(recipe, data=in_shared_memory)
            with closing(Processes(recipe, size, options.workers)) as processes:
                yield processes
    else:
        # Other machines have no file of this one, so the inputs themselves are sent.
        recipe = replace(recipe, data=replace(data, inputs_in=Inputs(data.inputs[:])))
        with (
            options.connected(),
            closing(RayWorkers(recipe, options.workers or cpus_of_cluster())) as ray_workers,
        ):
            yield ray_workers
