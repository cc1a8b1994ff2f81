"""The clients of one seed: their data, labels and speeds, and which of them attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.core import rarity
from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats, Ints
from fedraw.data import partition
from fedraw.data.dataset import Array, Dataset, Inputs
from fedraw.data.own_data import Shares
from fedraw.data.ragged import Ragged
from fedraw.errors import BadInput, error_context, nearest
from fedraw.experiment.loading import DEFAULT_MAP, load_dataset, standardised
from fedraw.experiment.options import DEFAULTS, Options
from fedraw.experiment.sections import (
    DEFAULT_CLIENTS,
    TEXT_MODEL,
    Drift,
    LabelNoise,
    Misreport,
    Partition,
    Summaries,
)
from fedraw.experiment.spec import Spec
from fedraw.privacy.summaries import private_table
from fedraw.simulation.arrivals import Trace, read_trace
from fedraw.simulation.executors.base import Job
from fedraw.simulation.executors.workers import SharedArray
from fedraw.simulation.perturbations import attacks, drift
from fedraw.simulation.speeds import mean_of_trace, mean_seconds, own_speeds

if TYPE_CHECKING:
    from fedraw.experiment.parts import Parts

# A user's own partition: the sample numbers of each client, or a function of the labels, the number
# of classes and a generator that returns them.
PartitionFunction = Shares | Callable[[Ints, int, np.random.Generator], Shares]


@dataclass(frozen=True, eq=False)
class DataEpoch:
    """The training samples of all clients in one data epoch."""

    indices: Ragged
    labels: Ragged  # the labels that each client trains with, right or wrong
    table: LabelTable  # counted with the true labels


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of one seed; where they are numbers, these are positions in the table."""

    dataset: Dataset
    epochs: tuple[DataEpoch, ...]  # one, or two with a drift
    test_indices: Ragged
    claimed: LabelTable  # what the server is told
    rare_labels: tuple[int, ...]  # the labels that the metrics call rare
    rare: frozenset[int]  # positions of the clients that hold one of them
    attackers: tuple[ClientId, ...]  # clients whose summaries are false
    seconds: Floats  # mean training time
    trace: Trace | None = None  # recorded training times, in place of drawn ones

    @property
    def table(self) -> LabelTable:
        """The true label counts at the start."""
        return self.epochs[0].table


def draw_clients(
    spec: Spec,
    streams: Streams,
    parts: Parts | None = None,
    options: Options = DEFAULTS,
    needs_features: bool = False,
) -> Clients:
    """Load, partition and draw what the spec says, each from its own random stream.

    Data, partition and speeds of `parts` take the place of the spec's. With `needs_features`, the
    default features replace the samples if the spec has no feature map.
    """
    given = None if parts is None else parts.partition
    own_map = None if parts is None else parts.features
    dataset = load_dataset(
        spec,
        streams,
        None if parts is None else parts.data,
        options.data_root,
        options.data_progress,
        test=None if parts is None else parts.test,
        shares=None if callable(given) else given,
        own_map=own_map or (DEFAULT_MAP if needs_features else None),
    )
    if not dataset.has_labels:
        _refuse_rare_labels(spec, dataset)
    own_model = (parts is not None and parts.model is not None) or ":" in spec.training.model
    reads_codes = own_model or spec.training.model == TEXT_MODEL
    if not reads_codes and dataset.inputs.dtype == np.int64:
        # The library's other models compute with floats; whole numbers are for embeddings.
        dataset = replace(
            dataset,
            inputs=dataset.inputs.as_floats(),
            test_inputs=dataset.test_inputs.as_floats(),
        )
    rng = streams.generator("partition")
    names, shares = _partition(spec, dataset, given if callable(given) else None, rng)
    drawn, held = partition.split_local(shares, spec.partition.local_test, rng)
    if spec.features is not None and spec.features.standardise and spec.training.kind != "none":
        dataset = standardised(dataset, drawn.flat)
    # Which clients are slow and which are rare does not change in a drift.
    labels = drawn.mapped(dataset.labels)
    whole = label_table(dataset, labels, names)
    rare_labels = _rare_labels(spec, dataset, whole)
    rare = holders(whole, dataset, rare_labels, "metrics.rare_labels")
    slow = rare
    if spec.partition.rare_labels:
        slow = holders(whole, dataset, spec.partition.rare_labels, "partition.rare_labels")
    seconds, trace = _speeds(spec, None if parts is None else parts.speeds, whole, slow, streams)
    epochs = [DataEpoch(drawn, labels, whole)]
    if spec.drift is not None:
        epochs = _drifting(spec.drift, dataset, whole.clients, drawn, rare, streams)
    if spec.label_noise is not None:
        epochs = [_noisy(epoch, spec.label_noise, rare, streams) for epoch in epochs]
    claimed = epochs[0].table
    attackers: tuple[ClientId, ...] = ()
    if spec.misreport is not None:
        chosen = _attackers(spec.misreport, seconds, rare, claimed, dataset)
        attackers = tuple(claimed.clients[position] for position in chosen)
        claimed = _claims(spec.misreport, claimed, dataset, attackers)
    if spec.summaries is not None:
        claimed = _private(spec.summaries, claimed, streams)
    return Clients(
        dataset=dataset,
        epochs=tuple(epochs),
        test_indices=held,
        claimed=claimed,
        rare_labels=dataset.label_indices(rare_labels),
        rare=frozenset(rare),
        attackers=attackers,
        seconds=seconds,
        trace=trace,
    )


def _refuse_rare_labels(spec: Spec, dataset: Dataset) -> None:
    """Refuse rare labels of a data set that has none."""
    for key, named in (
        ("partition.rare_labels", spec.partition.rare_labels),
        ("metrics.rare_labels", spec.metrics.rare_labels),
    ):
        if named:
            raise BadInput(
                f"{key} = {list(named)}: the labels of dataset {dataset.name!r} have a float type, "
                "so they are targets of a regression, which has no labels; convert them to whole "
                "numbers or names if they are classes"
            )


def _partition(
    spec: Spec,
    dataset: Dataset,
    own: Callable[[Ints, int, np.random.Generator], Shares] | None,
    rng: np.random.Generator,
) -> tuple[tuple[ClientId, ...], Ragged]:
    """Return the names or numbers of the clients, and the samples of each."""
    labels, classes, wanted = dataset.labels, dataset.classes, spec.partition
    if dataset.owners is not None and own is not None:
        raise BadInput(
            "the data already say which samples each client has, and the partition would "
            "divide them again; leave the partition out"
        )
    if dataset.owners is not None:
        parts = Ragged.by_owner(dataset.owners, len(dataset.clients))
        named = dict(zip(dataset.clients, parts, strict=True))
        return _named(partition.check_partition(named, len(labels)))
    if own is not None:
        shares = own(labels.copy(), classes, rng)  # the function may write into its copy
        return _named(partition.check_partition(shares, len(labels)))
    if wanted.kind == "column":
        return _named(_by_column(wanted, dataset))
    clients = wanted.clients or DEFAULT_CLIENTS
    if wanted.kind == "iid":
        parts = partition.iid(labels, classes, rng, clients=clients)
    elif wanted.kind == "dirichlet":
        alpha = wanted.alpha or 1.0
        parts = partition.dirichlet(labels, classes, rng, clients=clients, alpha=alpha)
    else:
        parts = partition.coverage(
            labels,
            classes,
            rng,
            clients=clients,
            rare_labels=dataset.label_indices(wanted.rare_labels),
            clients_per_rare_label=wanted.clients_per_rare_label,
            clients_per_common_label=wanted.clients_per_common_label,
        )
    return tuple(range(len(parts))), parts


def _named(shares: Mapping[ClientId, Ints]) -> tuple[tuple[ClientId, ...], Ragged]:
    return tuple(shares), Ragged.of(shares.values())


def _by_column(wanted: Partition, dataset: Dataset) -> dict[ClientId, Ints]:
    """Return one client for each value of the column that the spec names."""
    column = wanted.column or ""
    if column not in dataset.columns:
        known = nearest(column, dataset.columns) if dataset.columns else "it has none"
        raise BadInput(
            f"partition.column = {column!r}: dataset {dataset.name!r} has no such column; {known}"
        )
    with error_context(f"partition.column = {column!r}"):
        return partition.by_column(
            dataset.columns[column],
            least_samples=wanted.least_samples or 1,
            clients=wanted.clients,
        )


def _rare_labels(spec: Spec, dataset: Dataset, table: LabelTable) -> tuple[str, ...]:
    """Return the labels that the spec calls rare, or else the labels of low coverage."""
    key, named = "metrics.rare_labels", spec.metrics.rare_labels
    if named is None and spec.partition.rare_labels:
        key, named = "partition.rare_labels", spec.partition.rare_labels
    if named is not None:
        return tuple(map(str, rarity.rare_labels_of(_held(table, dataset, named, key), table)))
    return tuple(
        sorted(map(str, rarity.rare_labels_of(None, table)), key=dataset.label_names.index)
    )


def _speeds(
    spec: Spec, own: Any, table: LabelTable, slow: Sequence[int], streams: Streams
) -> tuple[Floats, Trace | None]:
    """Return each client's mean training time, and the trace with the single times, if any."""
    wanted = spec.speeds
    if own is not None:
        if wanted.trace is not None:
            raise BadInput(
                f"speeds.trace = {wanted.trace!r}, and own speeds are given too; leave one of them "
                "out"
            )
        return own_speeds(own, table.clients)
    if wanted.arrivals == "recorded":
        trace = read_trace(Path(wanted.trace or ""), table.clients)
        return mean_of_trace(trace, table.clients), trace
    rng = streams.generator("speeds")
    factor, stragglers = wanted.ratio or 1.0, wanted.stragglers or 0
    return mean_seconds(wanted.kind, len(table), slow, rng, factor, stragglers), None


def _drifting(
    wanted: Drift,
    dataset: Dataset,
    clients: Sequence[ClientId],
    drawn: Ragged,
    rare: Sequence[int],
    streams: Streams,
) -> list[DataEpoch]:
    """Return the data epochs before and after the drift."""
    rng = streams.generator("drift")
    label = _label_index(dataset, wanted.label, "drift.label")
    with error_context(f"drift.label = {wanted.label!r}"):
        before = after = drawn
        if wanted.kind == "new":
            before = Ragged.of(drift.without(drawn, dataset.labels, label))
        else:
            receivers = drift.draw_receivers(drawn, dataset.labels, label, rare, rng)
            after = Ragged.of(drift.moved(drawn, dataset.labels, label, receivers))
        drift.refuse_empty(before if wanted.kind == "new" else after)
    both = [(own, own.mapped(dataset.labels)) for own in (before, after)]
    return [DataEpoch(own, held, label_table(dataset, held, clients)) for own, held in both]


def _noisy(epoch: DataEpoch, noise: LabelNoise, rare: Sequence[int], streams: Streams) -> DataEpoch:
    """Return the samples with label noise: clients train with wrong labels unknowingly."""
    labels = list(epoch.labels)
    for client in rare if noise.clients == "rare" else range(len(labels)):
        rng = streams.generator("label noise", client)
        labels[client] = partition.shuffle_labels(labels[client], noise.share, rng)
    return replace(epoch, labels=Ragged.of(labels))


def _attackers(
    claim: Misreport,
    seconds: Floats,
    rare: Sequence[int],
    table: LabelTable,
    dataset: Dataset,
) -> tuple[int, ...]:
    """Return the client that the spec names, or the fastest ones that can claim falsely."""
    if claim.client != "fastest":
        if not isinstance(claim.client, int) or not 0 <= claim.client < seconds.size:
            raise BadInput(
                f"misreport.client = {claim.client!r} must be 'fastest' or a client's number "
                f"from 0 to {seconds.size - 1}"
            )
        return (claim.client,)
    if claim.form == "hidden":  # only a holder can hide the label
        able = holders(table, dataset, [claim.label], "misreport.label")
    else:
        able = sorted(set(range(seconds.size)).difference(rare))
    if not able:
        raise BadInput("misreport.client = 'fastest': every client holds a rare label; name one")
    if claim.liars > len(able):
        raise BadInput(
            f"misreport.liars = {claim.liars}, and only {len(able)} clients could be; ask for fewer"
        )
    return attacks.fastest(able, seconds, claim.liars)


def _claims(
    claim: Misreport, table: LabelTable, dataset: Dataset, attackers: Sequence[ClientId]
) -> LabelTable:
    """Return the label counts that clients report, which are true except for attackers'."""
    name: int | str = str(claim.label)
    if claim.form != "invented":
        name = dataset.label_names[_label_index(dataset, claim.label, "misreport.label")]
    for number, attacker in enumerate(attackers):
        form: attacks.Form = claim.form
        if form == "invented" and number:  # the first attacker holds the label by now
            form = "recounted"
        table = attacks.misreport(table, attacker, name, claim.share, form)
    return table


def _private(summaries: Summaries, claimed: LabelTable, streams: Streams) -> LabelTable:
    """Return what the server sees of the claims through private summaries."""
    with error_context("summaries"):
        return private_table(claimed, summaries, streams.generator("privacy"))


def label_table(dataset: Dataset, labels: Ragged, clients: Sequence[ClientId]) -> LabelTable:
    """Count each client's labels, with labels in the order in which clients first hold them."""
    classes = dataset.classes
    entries = labels.owners()
    entries *= classes
    entries += labels.flat
    if len(labels) * classes <= 4 * len(entries):  # counting is faster than sorting
        counts = np.bincount(entries, minlength=len(labels) * classes).reshape(-1, classes)
        first = np.where(counts.any(axis=0), (counts > 0).argmax(axis=0), len(labels))
        held = _in_order(first, len(labels))
        names = [dataset.label_names[i] for i in held]
        return LabelTable.from_matrix(clients, names, counts[:, held])
    entry, count = np.unique(entries, return_counts=True)
    row, label = np.divmod(entry, classes)
    first = np.full(classes, len(labels))
    np.minimum.at(first, label, row)
    held = _in_order(first, len(labels))
    column = np.empty(classes, np.int64)
    column[held] = np.arange(held.size)
    names = [dataset.label_names[i] for i in held]
    return LabelTable.from_entries(clients, names, row, column[label], count)


def _in_order(first: Ints, clients: int) -> Ints:
    """Return the held labels, in the order of the first client that holds each."""
    order = np.argsort(first, kind="stable")
    return order[first[order] < clients]


def _label_index(dataset: Dataset, label: int | str, key: str) -> int:
    """Return the number of a label; an error names the spec's `key`."""
    with error_context(f"{key} = {label!r}"):
        (index,) = dataset.label_indices([label])
    return index


def _held(table: LabelTable, dataset: Dataset, labels: Sequence[int | str], key: str) -> list[str]:
    """Return the names of the labels; refuse a label that no client holds."""
    names = [dataset.label_names[_label_index(dataset, label, key)] for label in labels]
    unheld = [name for name in names if name not in table.labels]
    if unheld:
        raise BadInput(
            f"{key}: no client has a training sample of label {unheld[0]!r}; leave it out, or give "
            "a client samples of it"
        )
    return names


def holders(
    table: LabelTable, dataset: Dataset, labels: Sequence[int | str], key: str
) -> list[int]:
    """Return the positions of the clients that hold a training sample of one of the labels."""
    inside = rarity.holders(table, _held(table, dataset, labels, key))
    return [int(position) for position in np.flatnonzero(inside)]


def unknown_labels(clients: Clients) -> tuple[str, ...]:
    """Return notes about labels that no client holds, or that no test sample has."""
    dataset = clients.dataset
    if not dataset.has_labels or not len(dataset.test_labels):
        return ()
    held = {str(label) for epoch in clients.epochs for label in epoch.table.labels}
    tested = {dataset.label_names[label] for label in np.unique(dataset.test_labels).tolist()}
    unheld = [name for name in dataset.label_names if name not in held]
    cases = (
        ([name for name in unheld if name in tested], "the test set has labels that no client "
         "holds, so no method can learn them"),
        ([name for name in unheld if name not in tested], "neither a client nor the test set has "
         "a sample of some labels, for which the model has outputs"),
        ([name for name in dataset.label_names if name in held - tested], "the test set has no "
         "sample of some labels, so their recall is unknown"),
    )  # fmt: skip
    return tuple(f"{words}: {several(names)}" for names, words in cases if names)


@dataclass(frozen=True, eq=False)
class LocalData:
    """The training samples of all clients in one array, client after client, epoch after epoch.

    Data set n has the samples `start[n]:start[n + 1]`; see `of_job`.
    """

    inputs_in: Inputs | SharedArray
    targets: Array  # what training predicts: the data set's targets, or the labels, right or wrong
    start: Ints
    clients: int
    classes: int

    @classmethod
    def of(cls, clients: Clients) -> LocalData:
        """Select the training samples of all clients and epochs."""
        sizes = [epoch.indices.sizes for epoch in clients.epochs]
        start = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
        dataset = clients.dataset
        rows = np.concatenate([epoch.indices.flat for epoch in clients.epochs])
        targets = dataset.targets
        if targets is None:
            targets = np.concatenate([epoch.labels.flat for epoch in clients.epochs])
        else:
            targets = targets[rows]
        inputs = dataset.inputs.select(rows)
        return cls(inputs, targets, start, len(clients.table), dataset.classes)

    @property
    def inputs(self) -> Inputs:
        """The inputs, whether they lie in shared memory or not."""
        shared = self.inputs_in
        return Inputs(shared.array) if isinstance(shared, SharedArray) else shared

    def of_job(self, job: Job) -> tuple[int, slice]:
        """Return the number of the data set that a job trains on, and its rows.

        The number also names the random stream that draws the job's batches.
        """
        number = job.position + job.epoch * self.clients
        return number, self.rows(number)

    def rows(self, number: int) -> slice:
        """Return the rows of a data set."""
        return slice(self.start.item(number), self.start.item(number + 1))

    def label_counts(self, number: int) -> Ints:
        """Return how many samples of each label a data set has, as training sees them."""
        return np.bincount(self.targets[self.rows(number)], minlength=self.classes)

    def label_totals(self, number: int) -> Ints:
        """Return how many samples of each label all clients have, in the epoch of a data set."""
        first = number - number % self.clients
        own = slice(self.start.item(first), self.start.item(first + self.clients))
        return np.bincount(self.targets[own], minlength=self.classes)


@contextmanager
def shared(data: LocalData) -> Iterator[LocalData]:
    """Return the same data for worker processes, with one copy in memory for all of them."""
    if data.inputs.is_mapped:
        yield data
        return
    inputs = SharedArray.copy_of(data.inputs[:])
    try:
        yield replace(data, inputs_in=inputs)
    finally:
        inputs.close()
