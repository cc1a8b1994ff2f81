"""The partition by label coverage: rare labels on a few clients of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraw.core.types import Ints
from fedraw.errors import BadInput

# The clients that hold each label, in the order of the labels.
Holders = list[list[int]]


def coverage(
    labels: Ints,
    classes: int,
    rng: np.random.Generator,
    *,
    clients: int,
    rare_labels: Sequence[int],
    clients_per_rare_label: int,
    clients_per_common_label: int,
) -> list[Ints]:
    """Each rare label on a few dedicated clients, each common one on many clients drawn from all.

    With m clients per rare label, clients 0 to m-1 hold the first rare label, m to 2m-1 the second,
    and so on; common labels may reach them too. A label is split over its holders in parts that
    differ by one sample at most. A client that was drawn for nothing takes over one common label
    from a client that has two labels or more, so each label stays on as many clients as asked.

    >>> labels = np.repeat([0, 1, 2], 6)
    >>> parts = coverage(labels, 3, np.random.default_rng(0), clients=4, rare_labels=[2],
    ...                  clients_per_rare_label=1, clients_per_common_label=3)
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    [[0, 2, 6], [2, 0, 0], [2, 2, 0], [2, 2, 0]]
    """
    setting = _Coverage(
        clients, tuple(rare_labels), clients_per_rare_label, clients_per_common_label
    )
    setting.check(np.bincount(labels, minlength=classes))
    holders = _occupy_all(setting, setting.draw(classes, rng), rng)
    owner = np.empty(len(labels), np.int64)
    for label, chosen in enumerate(holders):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        each, rest = divmod(len(shuffled), len(chosen))
        owner[shuffled] = np.repeat(chosen, [each + 1] * rest + [each] * (len(chosen) - rest))
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


@dataclass(frozen=True)
class _Coverage:
    clients: int
    rare: tuple[int, ...]
    per_rare: int
    per_common: int

    def per_label(self, label: int) -> int:
        return self.per_rare if label in self.rare else self.per_common

    def draw(self, classes: int, rng: np.random.Generator) -> Holders:
        return [self._draw(label, rng) for label in range(classes)]

    def _draw(self, label: int, rng: np.random.Generator) -> list[int]:
        if label in self.rare:
            first = self.rare.index(label) * self.per_rare
            return list(range(first, first + self.per_rare))
        return [int(c) for c in rng.choice(self.clients, self.per_common, replace=False)]

    def check(self, samples: Ints) -> None:
        self._check_clients()
        self._check_rare(len(samples))
        for label, count in enumerate(samples.tolist()):
            if count < self.per_label(label):
                raise BadInput(
                    f"label {label} has {count} samples for {self.per_label(label)} clients; "
                    f"spread it over at most {count}"
                    if count
                    else f"label {label} has no samples to spread; take it out of the label names"
                )

    def _check_clients(self) -> None:
        if self.clients < 1 or self.per_rare < 1:
            raise BadInput(
                f"clients = {self.clients}, clients_per_rare_label = {self.per_rare}; "
                "both must be 1 or more"
            )
        if not 1 <= self.per_common <= self.clients:
            raise BadInput(
                f"clients_per_common_label = {self.per_common} of {self.clients} clients; "
                f"it must be from 1 to {self.clients}"
            )
        if len(self.rare) * self.per_rare > self.clients:
            raise BadInput(
                f"{len(self.rare)} rare labels on {self.per_rare} clients each need "
                f"{len(self.rare) * self.per_rare} clients, and there are {self.clients}; "
                "use more clients or a smaller clients_per_rare_label"
            )

    def _check_rare(self, classes: int) -> None:
        for label in self.rare:
            if not 0 <= label < classes:
                raise BadInput(f"rare label {label} is unknown; labels go from 0 to {classes - 1}")
            if self.rare.count(label) > 1:
                raise BadInput(f"rare label {label} is listed twice; list each once")


def _occupy_all(setting: _Coverage, holders: Holders, rng: np.random.Generator) -> Holders:
    load = np.bincount(
        [client for chosen in holders for client in chosen], minlength=setting.clients
    )
    common = [label for label in range(len(holders)) if label not in setting.rare]
    places = [(label, place) for label in common for place in range(len(holders[label]))]
    held = np.array([holders[label][place] for label, place in places], np.int64)
    for idle in np.flatnonzero(load == 0):
        spare = np.flatnonzero(load[held] > 1)
        if not spare.size:
            raise BadInput(
                f"{setting.clients} clients are too many for {len(holders)} labels with "
                f"clients_per_common_label = {setting.per_common}: client {idle} would hold "
                "nothing; use fewer clients or more clients per common label"
            )
        pick = spare[rng.integers(spare.size)]
        load[held[pick]] -= 1
        label, place = places[pick]
        held[pick] = holders[label][place] = int(idle)
        load[idle] += 1
    return holders
