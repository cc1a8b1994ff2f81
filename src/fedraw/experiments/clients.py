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
from fedraw.experiments.drifting import before_and_after
from fedraw.experiments.holdings import holders, label_table
from fedraw.experiments.liars import claims, liars_of
from fedraw.experiments.source import Where, load_dataset
from fedraw.experiments.spec import Spec
from fedraw.privacy.summaries import private_table
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

    @property
    def samples_at(self) -> Ints:
        """Number of training samples at each data position: i of client i, N + i after a drift."""
        tables = [self.table] if self.later is None else [self.table, self.later.table]
        return np.concatenate([table.totals() for table in tables])


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
    whole = label_table(dataset, drawn)
    slow = holders(whole, dataset, spec.partition.rare_labels, "partition.rare_labels")
    measured = spec.metrics.rare_labels
    rare_labels = spec.partition.rare_labels if measured is None else measured
    rare = holders(whole, dataset, rare_labels, "metrics.rare_labels")
    train_indices, later_indices = before_and_after(spec, dataset, drawn, rare, streams)
    table = whole if train_indices is drawn else label_table(dataset, train_indices)
    seconds = mean_seconds(
        spec.speeds.kind, len(table), slow, streams.generator("speeds"), spec.speeds.ratio or 1.0
    )
    liars = liars_of(spec, seconds, rare, table, dataset)
    return Clients(
        dataset=dataset,
        train_indices=train_indices,
        train_labels=_believed(spec, dataset, train_indices, rare, streams),
        later=_later(spec, dataset, later_indices, rare, streams),
        test_indices=[test for _, test in local],
        table=table,
        claimed=_private(spec, claims(spec, table, dataset, liars), streams),
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
    return Later(indices, believed, label_table(dataset, indices))


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


def _private(spec: Spec, claimed: LabelTable, streams: Streams) -> LabelTable:
    """What is left of the claims where they are not told openly."""
    if spec.summaries is None:
        return claimed
    try:
        return private_table(claimed, spec.summaries.privacy(), streams.generator("privacy"))
    except BadInput as problem:
        raise BadInput(f"[summaries]: {problem}") from None
