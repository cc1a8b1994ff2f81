"""All clients' training samples in one row, client after client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.images import Images, Pixels
from fedraw.experiments.clients import Clients
from fedraw.simulation.shared import SharedArray


@dataclass(frozen=True, eq=False)
class LocalData:
    """Client i has the samples `start[i]:start[i + 1]`; after a drift, those of N + i."""

    images_in: Images | SharedArray
    labels: Ints
    start: Ints
    classes: int

    @classmethod
    def of(cls, clients: Clients) -> LocalData:
        later = clients.later
        data, own, labels = clients.dataset, clients.train_indices, clients.train_labels
        if later is not None:
            own, labels = own + later.train_indices, labels + later.train_labels
        everything = np.concatenate(own)
        start = np.concatenate([[0], np.cumsum([len(indices) for indices in own])])
        told = np.concatenate(labels)
        return cls(data.images.select(everything), told, start, data.classes)

    @property
    def images(self) -> Images:
        shared = self.images_in
        return Images(shared.array) if isinstance(shared, SharedArray) else shared

    def of_client(self, position: int) -> tuple[Pixels, Ints]:
        own = slice(int(self.start[position]), int(self.start[position + 1]))
        return self.images[own], self.labels[own]


@contextmanager
def shared(data: LocalData) -> Iterator[LocalData]:
    """The same data for worker processes: one copy in memory, however many they are."""
    if data.images.in_a_file:
        yield data
        return
    images = SharedArray.copy_of(data.images[:])
    try:
        yield replace(data, images_in=images)
    finally:
        images.close()
