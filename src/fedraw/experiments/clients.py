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
from fedraw.experiments.source import Where, load_dataset
from fedraw.experiments.spec import Spec
from fedraw.privacy.summaries import private_table
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
    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    own_partition: Partition | None = None,
    where: Where | None = None,
) -> Clients:
    """Load, partition and draw what the spec says, each from its own random stream."""
    dataset = load_dataset(spec, data, streams, where or Where())
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
    epochs = tuple(
        DataEpoch(
            indices,
            _noisy_labels(spec, dataset, indices, rare, streams),
            whole if indices is drawn else label_table(dataset, indices),
        )
        for indices in _drifting(spec, dataset, drawn, rare, streams)
    )
    attackers = _attackers(spec, seconds, rare, epochs[0].table, dataset)
    claimed = _claims(spec, epochs[0].table, dataset, attackers)
    return Clients(
        dataset=dataset,
        epochs=epochs,
        test_indices=[test for _, test in local],
        claimed=_private(spec, claimed, streams),
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
    spec: Spec, dataset: Dataset, drawn: list[Ints], rare: Sequence[int], streams: Streams
) -> list[list[Ints]]:
    """Every client's samples in each data epoch: one, or two with a drift."""
    wanted = spec.drift
    if wanted is None:
        return [drawn]
    label = _label_index(dataset, wanted.label, "drift.label")
    try:
        if wanted.kind == "new":
            before, after = drift.without(drawn, dataset.labels, label), drawn
        else:
            rng = streams.generator("drift")
            receivers = drift.draw_receivers(drawn, dataset.labels, label, rare, rng)
            before, after = drawn, drift.moved(drawn, dataset.labels, label, receivers)
        drift.refuse_empty(before if wanted.kind == "new" else after)
    except BadInput as problem:
        raise BadInput(f"drift.label = {wanted.label!r}: {problem}") from None
    return [before, after]


def _noisy_labels(
    spec: Spec,
    dataset: Dataset,
    indices: Sequence[Ints],
    rare: Sequence[int],
    streams: Streams,
) -> list[Ints]:
    """The labels that each client trains with: the true ones unless the spec adds label noise."""
    labels, noise = [dataset.labels[own] for own in indices], spec.label_noise
    if noise is not None:
        for client in rare if noise.clients == "rare" else range(len(labels)):
            rng = streams.generator("label noise", client)
            labels[client] = partition.shuffle_labels(labels[client], noise.share, rng)
    return labels


def _attackers(
    spec: Spec, seconds: Floats, rare: Sequence[int], table: LabelTable, dataset: Dataset
) -> tuple[int, ...]:
    """The client that the spec names, or the fastest clients that can make the false claim."""
    claim = spec.misreport
    if claim is None:
        return ()
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
    spec: Spec, table: LabelTable, dataset: Dataset, attackers: Sequence[int]
) -> LabelTable:
    """The label counts that clients report: the true ones, except for those of attackers."""
    claim = spec.misreport
    if claim is None:
        return table
    name: int | str = str(claim.label)
    if claim.form != "invented":
        name = dataset.label_names[_label_index(dataset, claim.label, "misreport.label")]
    for number, attacker in enumerate(attackers):
        form: attacks.Form = claim.form
        if form == "invented" and number:  # the first attacker holds the label by now
            form = "recounted"
        table = attacks.misreport(table, attacker, name, claim.share, form)
    return table


def _private(spec: Spec, claimed: LabelTable, streams: Streams) -> LabelTable:
    """The claims as the server sees them; private summaries blur them."""
    if spec.summaries is None:
        return claimed
    try:
        return private_table(claimed, spec.summaries.privacy(), streams.generator("privacy"))
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

    The client at a position has in an epoch the samples `start[n]:start[n + 1]`, where n is
    `number(position, epoch)`.
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

    def number(self, position: int, epoch: int) -> int:
        """The number of a client's data set in an epoch, which also names its random stream."""
        return position + epoch * self.clients

    def rows(self, number: int) -> slice:
        """The rows of the data set with this number."""
        return slice(int(self.start[number]), int(self.start[number + 1]))


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
