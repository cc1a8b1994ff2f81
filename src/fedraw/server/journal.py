"""The journal stores every accepted update as a file, before the update takes effect."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np

from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.storage.files import PARTIAL, atomic_write, drop_from_page_cache, make_private_folder

# The number types of vectors, by their names in a safetensors file: models, and sums.
TYPES = {"float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class ArrivalFacts:
    """The facts about an arrival that its log record needs in addition to the update."""

    start_time: float  # when the site was sent its model
    start_event: int
    time: float  # when the update arrived
    norm: float
    metrics: Mapping[str, float | None] | None = None  # reported by the site's training


class Journal:
    """The files `updates/<event>.safetensors`, each an update's vector and metadata.

    A checksum covers the whole file. Snapshots refer to these files instead of storing the vectors
    again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private_folder(folder)
        self._vectors: dict[int, ref[Vector]] = {}

    def remove_drafts(self) -> None:
        """Remove incomplete files of a killed server; their updates were not accepted."""
        for draft in self._folder.glob(f"*{PARTIAL}"):
            draft.unlink()

    def write(self, event: int, update: Update, facts: ArrivalFacts) -> Update:
        """Write the update to disk before returning; an OSError leaves no file.

        Return the update as a strategy gets it: sums, which are in float64, stay on disk, because a
        strategy keeps those of every client.
        """
        path = self.path(event)
        data = update.vector.data.cast("B")
        atomic_write(path, _header(event, update, facts, data), data, private=True)
        drop_from_page_cache(path)  # only a restarted server reads it
        return self._known(event, update)

    def _known(self, event: int, update: Update) -> Update:
        """Note where the vector of an update is; sums are mapped from their file.

        If the vector is in memory already, the update gets that one: snapshots refer to it.
        """
        earlier = self._vectors.get(event)
        if earlier is not None and (present := earlier()) is not None:
            return replace(update, vector=present)
        self._vectors[event] = ref(update.vector)
        if update.vector.dtype == np.float32:
            return update
        path = self.path(event)
        start = path.stat().st_size - update.vector.nbytes
        vector: Any = np.memmap(path, update.vector.dtype, "r", start)
        self._vectors[event] = ref(vector)
        return replace(update, vector=vector)

    def read(self, event: int) -> tuple[Update, ArrivalFacts]:
        """Return an update and its facts; raise BadInput if the file is damaged or missing."""
        path = self.path(event)
        try:
            update, facts = _parse(event, path.read_bytes())
        except (OSError, KeyError, TypeError, ValueError, RecursionError, struct.error):
            raise BadInput(
                f"{path} is damaged or missing, and the federation cannot be restored without it; "
                "restore it from a backup"
            ) from None
        return self._known(event, update), facts

    def events(self) -> list[int]:
        """Return the events of all stored updates, in ascending order."""
        names = (path.stem for path in self._folder.glob("*.safetensors"))
        return sorted(int(name) for name in names if name.isdecimal())

    def vectors(self) -> dict[int, int]:
        """Return the event of each vector that is still in memory, by the array's id."""
        live = ((event, vector()) for event, vector in self._vectors.items())
        return {id(vector): event for event, vector in live if vector is not None}

    def remove(self, event: int) -> None:
        """Remove an update."""
        self.path(event).unlink(missing_ok=True)
        self._vectors.pop(event, None)

    def remove_unused(self, used: Collection[int], until: int) -> None:
        """Remove the updates up to event `until` whose events are not in `used`."""
        for event in self.events():
            if event <= until and event not in used:
                self.remove(event)

    def path(self, event: int) -> Path:
        """Return the path of an update's file."""
        return self._folder / f"{event:010d}.safetensors"


def _parse(event: int, content: bytes) -> tuple[Update, ArrivalFacts]:
    """Parse a file; raise an error of any type if a byte is wrong."""
    (length,) = struct.unpack_from("<Q", content)
    start = 8 + length
    header = json.loads(content[8:start])
    fields, tensor = json.loads(header["__metadata__"]["update"]), header["vector"]
    (dtype,) = (kind for kind, name in TYPES.items() if name == tensor["dtype"])
    vector: Vector = np.frombuffer(content, dtype, offset=start)  # read-only, like its bytes
    facts = ArrivalFacts(**fields.pop("flight"))
    if fields.pop("event") != event:
        raise ValueError("the file belongs to another update")
    update = Update(vector=vector, **fields)
    # Writing the header again must give the same bytes; its checksum covers the vector.
    if _header(event, update, facts, vector.data.cast("B")) != content[:start]:
        raise ValueError("the file was changed")
    return update, facts


def _header(event: int, update: Update, facts: ArrivalFacts, data: memoryview) -> bytes:
    """Return the header of a safetensors file with one tensor.

    The safetensors library itself would copy the vector twice.
    """
    fields = {
        "event": event,
        "client": update.client,
        "start_version": update.start_version,
        "examples": update.examples,
        "loss": update.loss,
        "statistics_size": update.statistics_size,
        # Values of None are left out, because files of earlier versions do not have them.
        "flight": {name: value for name, value in vars(facts).items() if value is not None},
    }
    text = json.dumps(fields)
    checksum = zlib.crc32(data, zlib.crc32(text.encode()))
    metadata = {"update": text, "crc32": f"{checksum:08x}"}
    dtype = TYPES[update.vector.dtype.name]
    tensor = {"dtype": dtype, "shape": [update.vector.size], "data_offsets": [0, data.nbytes]}
    header = json.dumps({"__metadata__": metadata, "vector": tensor}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header
