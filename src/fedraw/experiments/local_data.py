"""All clients' training samples in one block, client after client, so that each is a view."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.experiments.clients import Clients
from fedraw.simulation.shared import SharedArray

Images = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LocalData:
    """Client i has the samples `start[i]:start[i + 1]`."""

    images_in: Images | SharedArray
    labels_in: Ints | SharedArray
    start: Ints
    classes: int

    @classmethod
    def of(cls, clients: Clients) -> LocalData:
        data, own = clients.dataset, clients.train_indices
        everything = np.concatenate(own)
        start = np.concatenate([[0], np.cumsum([len(indices) for indices in own])])
        return cls(data.images[everything], data.labels[everything], start, data.classes)

    @property
    def images(self) -> Images:
        return _array(self.images_in)

    def of_client(self, position: int) -> tuple[Images, Ints]:
        own = slice(int(self.start[position]), int(self.start[position + 1]))
        return self.images[own], _array(self.labels_in)[own]


@contextmanager
def shared(data: LocalData) -> Iterator[LocalData]:
    """The same data in shared memory: workers see it without a copy of their own."""
    images = SharedArray.copy_of(_array(data.images_in))
    labels = SharedArray.copy_of(_array(data.labels_in))
    try:
        yield LocalData(images, labels, data.start, data.classes)
    finally:
        images.close()
        labels.close()


def _array(data: npt.NDArray[np.generic] | SharedArray) -> npt.NDArray:  # type: ignore[type-arg]
    return data.array if isinstance(data, SharedArray) else data
