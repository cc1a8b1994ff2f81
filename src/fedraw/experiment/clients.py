"""The clients of one seed: their data, labels and speeds, and which of them attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.types import Floats, Ints
from fedraw.data import partition
from fedraw.data.dataset import Dataset, Images
from fedraw.errors import BadInput
from fedraw.experiment.loading import Data, load_dataset
from fedraw.experiment.options import DEFAULTS, Options
from fedraw.experiment.sections import (
    DriftSpec,
    LabelNoiseSpec,
    MisreportSpec,
    SummariesSpec,
)
from fedraw.experiment.spec import Spec
from fedraw.privacy.summaries import private_table
from fedraw.simulation.executors.base import Job
from fedraw.simulation.executors.workers import SharedArray
from fedraw.simulation.perturbations import attacks, drift
from fedraw.simulation.speeds import mean_seconds

# A user's own partition: a function of the labels, the number of classes and a generator that
# returns the sample numbers of each client.
Partition = Callable[[Ints, int, np.random.Generator], Sequence[npt.ArrayLike]]


@dataclass(frozen=True, eq=False)
class DataEpoch:
    """The training samples of all clients in one data epoch."""

    indices: list[Ints]
    labels: list[Ints]  # the labels that each client trains with, right or wrong
    table: LabelTable  # counted with the true labels


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients of one seed, numbered from 0."""

    dataset: Dataset
    epochs: tuple[DataEpoch, ...]  # one, or two with a drift
    test_indices: list[Ints]
    claimed: LabelTable  # what the server is told
    rare_labels: tuple[int, ...]  # the labels that the metrics call rare
    rare: frozenset[int]  # clients that hold one of them
    attackers: tuple[int, ...]  # clients whose summaries are false
    seconds: Floats  # mean training time

    @property
    def table(self) -> LabelTable:
        """The true label counts at the start."""
        return self.epochs[0].table


def draw_clients(
    spec: Spec,
    streams: Streams,
    data: Data | None = None,
    own_partition: Partition | None = None,
    options: Options = DEFAULTS,
) -> Clients:
    """Load, partition and draw what the spec says, each from its own random stream."""
    dataset = load_dataset(spec, streams, data, options.data_root, options.data_progress)
    rng = streams.generator("partition")
    shares = _partition(spec, dataset, own_partition, rng)
    local = [partition.split_local(share, spec.partition.local_test, rng) for share in shares]
    drawn = [train for train, _ in local]
    # Which clients are slow and which are rare does not change in a drift.
    whole = label_table(dataset, drawn)
    slow = holders(whole, dataset, spec.partition.rare_labels, "partition.rare_labels")
    measured = spec.metrics.rare_labels
    rare_labels = spec.partition.rare_labels if measured is None else measured
    rare = holders(whole, dataset, rare_labels, "metrics.rare_labels")
    seconds = mean_seconds(
        spec.speeds.kind, len(whole), slow, streams.generator("speeds"), spec.speeds.ratio or 1.0
    )
    epochs = [DataEpoch(drawn, [dataset.labels[own] for own in drawn], whole)]
    if spec.drift is not None:
        epochs = _drifting(spec.drift, dataset, drawn, rare, streams.generator("drift"))
    if spec.label_noise is not None:
        epochs = [_noisy(epoch, spec.label_noise, rare, streams) for epoch in epochs]
    claimed = epochs[0].table
    attackers: tuple[int, ...] = ()
    if spec.misreport is not None:
        attackers = _attackers(spec.misreport, seconds, rare, claimed, dataset)
        claimed = _claims(spec.misreport, claimed, dataset, attackers)
    if spec.summaries is not None:
        claimed = _private(spec.summaries, claimed, streams)
    return Clients(
        dataset=dataset,
        epochs=tuple(epochs),
        test_indices=[test for _, test in local],
        claimed=claimed,
        rare_labels=dataset.label_indices(rare_labels),
        rare=frozenset(rare),
        attackers=attackers,
        seconds=seconds,
    )


def _partition(
    spec: Spec, dataset: Dataset, own: Partition | None, rng: np.random.Generator
) -> Sequence[Ints]:
    labels, classes, wanted = dataset.labels, dataset.classes, spec.partition
    if own is not None:
        return partition.check_partition(own(labels, classes, rng), len(labels))
    if wanted.kind == "iid":
        return partition.iid(labels, classes, rng, clients=wanted.clients)
    if wanted.kind == "dirichlet":
        alpha = wanted.alpha or 1.0
        return partition.dirichlet(labels, classes, rng, clients=wanted.clients, alpha=alpha)
    return partition.coverage(
        labels,
        classes,
        rng,
        clients=wanted.clients,
        rare_labels=dataset.label_indices(wanted.rare_labels),
        clients_per_rare_label=wanted.clients_per_rare_label,
        clients_per_common_label=wanted.clients_per_common_label,
    )


def _drifting(
    wanted: DriftSpec,
    dataset: Dataset,
    drawn: list[Ints],
    rare: Sequence[int],
    rng: np.random.Generator,
) -> list[DataEpoch]:
    """The data epochs before and after the drift."""
    label = _label_index(dataset, wanted.label, "drift.label")
    try:
        if wanted.kind == "new":
            before, after = drift.without(drawn, dataset.labels, label), drawn
        else:
            receivers = drift.draw_receivers(drawn, dataset.labels, label, rare, rng)
            before, after = drawn, drift.moved(drawn, dataset.labels, label, receivers)
        drift.refuse_empty(before if wanted.kind == "new" else after)
    except BadInput as problem:
        raise BadInput(f"drift.label = {wanted.label!r}: {problem}") from None
    return [
        DataEpoch(own, [dataset.labels[i] for i in own], label_table(dataset, own))
        for own in (before, after)
    ]


def _noisy(
    epoch: DataEpoch, noise: LabelNoiseSpec, rare: Sequence[int], streams: Streams
) -> DataEpoch:
    """The same samples with label noise: the clients train with wrong labels and do not know it."""
    labels = list(epoch.labels)
    for client in rare if noise.clients == "rare" else range(len(labels)):
        rng = streams.generator("label noise", client)
        labels[client] = partition.shuffle_labels(labels[client], noise.share, rng)
    return replace(epoch, labels=labels)


def _attackers(
    claim: MisreportSpec,
    seconds: Floats,
    rare: Sequence[int],
    table: LabelTable,
    dataset: Dataset,
) -> tuple[int, ...]:
    """The client that the spec names, or the fastest clients that can make the false claim."""
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
    claim: MisreportSpec, table: LabelTable, dataset: Dataset, attackers: Sequence[int]
) -> LabelTable:
    """The label counts that clients report: the true ones, except for those of attackers."""
    name: int | str = str(claim.label)
    if claim.form != "invented":
        name = dataset.label_names[_label_index(dataset, claim.label, "misreport.label")]
    for number, attacker in enumerate(attackers):
        form: attacks.Form = claim.form
        if form == "invented" and number:  # the first attacker holds the label by now
            form = "recounted"
        table = attacks.misreport(table, attacker, name, claim.share, form)
    return table


def _private(summaries: SummariesSpec, claimed: LabelTable, streams: Streams) -> LabelTable:
    """What the server sees of the claims through private summaries."""
    try:
        return private_table(claimed, summaries.privacy(), streams.generator("privacy"))
    except BadInput as problem:
        raise BadInput(f"[summaries]: {problem}") from None


def label_table(dataset: Dataset, indices: Sequence[Ints]) -> LabelTable:
    """Each client's label counts, with labels in the order in which clients first hold them."""
    client = np.repeat(np.arange(len(indices)), [len(own) for own in indices])
    label = dataset.labels[np.concatenate(indices)]
    entry, count = np.unique(client * dataset.classes + label, return_counts=True)
    row, label = np.divmod(entry, dataset.classes)
    held, first = np.unique(label, return_index=True)
    held = held[np.argsort(first)]
    column = np.empty(dataset.classes, np.int64)
    column[held] = np.arange(held.size)
    names = [dataset.label_names[i] for i in held]
    return LabelTable.from_entries(range(len(indices)), names, row, column[label], count)


def _label_index(dataset: Dataset, label: int | str, key: str) -> int:
    """The number of a label; an error names the spec's `key`."""
    try:
        (index,) = dataset.label_indices([label])
    except BadInput as problem:
        raise BadInput(f"{key} = {label!r}: {problem}") from None
    return index


def holders(
    table: LabelTable, dataset: Dataset, labels: Sequence[int | str], key: str
) -> list[int]:
    """Positions of the clients that have a training sample of one of the labels."""
    names = [dataset.label_names[_label_index(dataset, label, key)] for label in labels]
    unheld = [name for name in names if name not in table.labels]
    if unheld:
        raise BadInput(f"{key}: no client has a training sample of label {unheld[0]!r}")
    columns = [table.labels.index(name) for name in names]
    held = np.isin(table.column, columns) & (table.count > 0)
    return [int(i) for i in np.unique(table.row_of_entry()[held])]


@dataclass(frozen=True, eq=False)
class LocalData:
    """The training samples of all clients in one array, client after client, epoch after epoch.

    Data set n has the samples `start[n]:start[n + 1]`; see `of_job`.
    """

    images_in: Images | SharedArray
    labels: Ints
    start: Ints
    clients: int
    classes: int

    @classmethod
    def of(cls, clients: Clients) -> LocalData:
        """Select the training samples of all clients and epochs."""
        own = [indices for epoch in clients.epochs for indices in epoch.indices]
        labels = [labels for epoch in clients.epochs for labels in epoch.labels]
        start = np.concatenate([[0], np.cumsum([len(indices) for indices in own])])
        dataset = clients.dataset
        images = dataset.images.select(np.concatenate(own))
        return cls(images, np.concatenate(labels), start, len(clients.table), dataset.classes)

    @property
    def images(self) -> Images:
        """The images, whether they lie in shared memory or not."""
        shared = self.images_in
        return Images(shared.array) if isinstance(shared, SharedArray) else shared

    def of_job(self, job: Job) -> tuple[int, slice]:
        """The number of the data set that a job trains on, and its rows.

        The number also names the random stream that draws the job's batches.
        """
        number = job.position + job.epoch * self.clients
        return number, slice(self.start.item(number), self.start.item(number + 1))


@contextmanager
def shared(data: LocalData) -> Iterator[LocalData]:
    """The same data for worker processes, with one copy in memory for all of them."""
    if data.images.in_a_file:
        yield data
        return
    images = SharedArray.copy_of(data.images[:])
    try:
        yield replace(data, images_in=images)
    finally:
        images.close()
