"""The clients of one seed: their data, their labels, their speeds, and who lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.types import Floats, Ints
from fedraw.data import partition
from fedraw.data.dataset import Dataset
from fedraw.data.label_noise import mixed_up
from fedraw.errors import BadInput
from fedraw.experiments.source import Where, load_dataset
from fedraw.experiments.spec import Spec
from fedraw.privacy.summaries import private_table
from fedraw.simulation.drift import moved, without
from fedraw.simulation.misreport import Form, misreport
from fedraw.simulation.speeds import mean_seconds

# A user's own partition: labels, number of classes, generator -> sample numbers of each client.
Partition = Callable[[Ints, int, np.random.Generator], Sequence[npt.ArrayLike]]


@dataclass(frozen=True, eq=False)
class Later:
    """What changes in the middle of a run."""

    train_indices: list[Ints]
    train_labels: list[Ints]
    table: LabelTable


@dataclass(frozen=True, eq=False)
class Clients:
    """Who takes part; clients are numbered from 0."""

    dataset: Dataset
    train_indices: list[Ints]
    train_labels: list[Ints]  # what each client believes that they are
    test_indices: list[Ints]
    table: LabelTable  # the truth, counted on the local training samples
    claimed: LabelTable  # what the server is told
    rare_labels: tuple[int, ...]  # those that the metrics look at
    rare: frozenset[int]  # clients that hold one of them
    liars: tuple[int, ...]  # whose summaries are false
    seconds: Floats  # mean training time
    later: Later | None = None  # after a drift

    @property
    def attacker(self) -> int | None:
        """The first of them, whom the metrics look at."""
        return self.liars[0] if self.liars else None


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
    # Who is slow and who is rare does not change, whatever comes to whom.
    whole = _table(dataset, drawn)
    slow = _holders(whole, dataset, spec.partition.rare_labels, "partition.rare_labels")
    measured = spec.metrics.rare_labels
    rare_labels = spec.partition.rare_labels if measured is None else measured
    rare = _holders(whole, dataset, rare_labels, "metrics.rare_labels")
    train_indices, later_indices = _before_and_after(spec, dataset, drawn, rare, streams)
    table = whole if train_indices is drawn else _table(dataset, train_indices)
    seconds = mean_seconds(
        spec.speeds.kind, len(table), slow, streams.generator("speeds"), spec.speeds.ratio or 1.0
    )
    liars = _liars(spec, seconds, rare, table, dataset)
    return Clients(
        dataset=dataset,
        train_indices=train_indices,
        train_labels=_believed(spec, dataset, train_indices, rare, streams),
        later=_later(spec, dataset, later_indices, rare, streams),
        test_indices=[test for _, test in local],
        table=table,
        claimed=_private(spec, _claimed(spec, table, dataset, liars), streams),
        rare_labels=dataset.label_indices(rare_labels),
        rare=frozenset(rare),
        liars=liars,
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


def _table(dataset: Dataset, indices: Sequence[Ints]) -> LabelTable:
    """Each client's label counts; labels stand in the order in which clients first hold them."""
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


def _holders(
    table: LabelTable, dataset: Dataset, labels: Sequence[int | str], key: str
) -> list[int]:
    """Positions of the clients that have a training sample of one of the labels."""
    names = [dataset.label_names[i] for i in dataset.label_indices(labels)]
    unheld = [name for name in names if name not in table.labels]
    if unheld:
        raise BadInput(f"{key}: no client has a training sample of label {unheld[0]!r}")
    columns = [table.labels.index(name) for name in names]
    held = np.isin(table.column, columns) & (table.count > 0)
    return [int(i) for i in np.unique(table.row_of_entry()[held])]


def _before_and_after(
    spec: Spec, dataset: Dataset, drawn: list[Ints], rare: Sequence[int], streams: Streams
) -> tuple[list[Ints], list[Ints] | None]:
    """Everyone's samples at first, and after the drift if there is one."""
    drift = spec.drift
    if drift is None:
        return drawn, None
    (label,) = dataset.label_indices([drift.label])
    if drift.kind == "new":
        before = without(drawn, dataset.labels, label)
        if not all(own.size for own in before):
            raise BadInput(f"drift: some client has nothing but label {drift.label!r} to train on")
        return before, drawn
    holders = _holders(_table(dataset, drawn), dataset, [drift.label], "drift.label")
    able = np.setdiff1d(np.arange(len(drawn)), rare)
    if able.size < len(holders):
        raise BadInput(f"drift: {len(holders)} holders of {drift.label!r}, and fewer to move it to")
    receivers = streams.generator("drift").permutation(able)[: len(holders)]
    return drawn, moved(drawn, dataset.labels, label, receivers.tolist())


def _later(
    spec: Spec,
    dataset: Dataset,
    indices: list[Ints] | None,
    rare: Sequence[int],
    streams: Streams,
) -> Later | None:
    if indices is None:
        return None
    believed = _believed(spec, dataset, indices, rare, streams)
    return Later(indices, believed, _table(dataset, indices))


def _believed(
    spec: Spec,
    dataset: Dataset,
    train_indices: Sequence[Ints],
    rare: Sequence[int],
    streams: Streams,
) -> list[Ints]:
    """The labels that each client trains with: the true ones unless the spec mixes them up."""
    labels, noise = [dataset.labels[own] for own in train_indices], spec.label_noise
    if noise is not None:
        for client in rare if noise.clients == "rare" else range(len(labels)):
            rng = streams.generator("label noise", client)
            labels[client] = mixed_up(labels[client], noise.share, rng)
    return labels


def _liars(
    spec: Spec, seconds: Floats, rare: Sequence[int], table: LabelTable, dataset: Dataset
) -> tuple[int, ...]:
    """Those without rare labels, the fastest first; who hides a label is one of its holders."""
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
    if claim.form == "hidden":
        able = np.array(_holders(table, dataset, [claim.label], "misreport.label"))
    else:
        able = np.setdiff1d(np.arange(seconds.size), rare)
    if not able.size:
        raise BadInput("misreport.client = 'fastest': every client holds a rare label; name one")
    count = claim.liars or 1
    if count > able.size:
        raise BadInput(f"misreport.liars = {count}, and only {able.size} clients could be")
    return tuple(able[np.argsort(seconds[able], kind="stable")][:count].tolist())


def _private(spec: Spec, claimed: LabelTable, streams: Streams) -> LabelTable:
    """What is left of the claims where they are not told openly."""
    if spec.summaries is None:
        return claimed
    return private_table(claimed, spec.summaries.privacy(), streams.generator("privacy"))


def _claimed(spec: Spec, table: LabelTable, dataset: Dataset, liars: Sequence[int]) -> LabelTable:
    claim = spec.misreport
    if claim is None:
        return table
    name: int | str = str(claim.label)
    if claim.form != "invented":
        (label,) = dataset.label_indices([claim.label])
        name = dataset.label_names[label]
    for number, liar in enumerate(liars):
        form: Form = claim.form
        if form == "invented" and number:  # it is a label of theirs by now
            form = "recounted"
        table = misreport(table, liar, name, claim.share, form)
    return table
