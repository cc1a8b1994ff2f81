"""The public releases that can be fetched: where they come from, what they hold, what they ask.

Checksums are the published ones (of the owners, of torchvision, of the Dataverse); where
there is none it stays None, and then the length and the CRCs inside the zip are what is verified.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from fedraw.errors import BadInput, nearest

Kind = Literal["zip", "tar.gz", "file"]


@dataclass(frozen=True)
class Source:
    """One file to download, and where its content goes below the data root."""

    url: str
    file: str  # its name in ROOT/downloads
    size: int  # bytes, to foresee the room; what the server says decides
    checksum: str | None  # "md5:…" or "sha256:…"
    kind: Kind
    folder: str
    members: str  # file names, as a pattern; whatever else an archive holds stays packed
    count: int = 1  # files of that pattern


@dataclass(frozen=True)
class Release:
    """What its owners publish under one name; `labels` is 0 for weights."""

    name: str
    title: str
    images: int
    labels: int
    unpacked: int  # bytes on disk, without the archives
    licence: str
    origin: str
    homepage: str
    citation: str
    sources: tuple[Source, ...]

    @property
    def download(self) -> int:
        return sum(source.size for source in self.sources)

    @property
    def verified_by(self) -> str:
        if all(source.checksum for source in self.sources):
            return "checksum"
        return "length and the zip's CRCs; no published checksum is known"

    def as_json(self) -> dict[str, Any]:
        files = [
            {"url": source.url, "checksum": source.checksum, "folder": source.folder}
            for source in self.sources
        ]
        return {
            "name": self.name,
            "title": self.title,
            "images": self.images,
            "labels": self.labels,
            "download_bytes": self.download,
            "unpacked_bytes": self.unpacked,
            "licence": self.licence,
            "origin": self.origin,
            "homepage": self.homepage,
            "citation": self.citation,
            "verified_by": self.verified_by,
            "files": files,
        }


class Here(StrEnum):
    """How much of a release is in a data root."""

    whole = "yes"
    part = "part"
    absent = "no"


def find(name: str) -> Release:
    """The release of that name, or which one was meant.

    >>> find("cifar10").labels
    10
    """
    if name not in BY_NAME:
        raise BadInput(f"unknown data set {name!r}; {nearest(name, BY_NAME)}")
    return BY_NAME[name]


def missing(release: Release, root: Path) -> list[Source]:
    """The sources whose files are not all in the root.

    A file gets its final name when it is whole, so counting names is enough.
    """
    wanted: Counter[tuple[str, str]] = Counter()
    for source in release.sources:
        wanted[source.folder, source.members] += source.count
    lacking = {place for place, count in wanted.items() if _files(root, place) < count}
    return [source for source in release.sources if (source.folder, source.members) in lacking]


def here(release: Release, root: Path) -> Here:
    """Whether all of a release, some of it or nothing is in the root."""
    if not missing(release, root):
        return Here.whole
    places = {(source.folder, source.members) for source in release.sources}
    return Here.part if any(_files(root, place) for place in places) else Here.absent


def digest(path: Path, checksum: str) -> str:
    """The file's checksum, by the algorithm of the one it is to be compared with."""
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def damage(source: Source, path: Path) -> str | None:
    """What is wrong with a file that should be the published one."""
    if source.checksum is None:
        return None
    found = digest(path, source.checksum)
    return None if found == source.checksum else f"has {found}, and {source.checksum} is published"


def size_text(size: int) -> str:
    """A number of bytes for people.

    >>> size_text(170_052_171), size_text(9_771_618_190), size_text(512)
    ('170 MB', '9.8 GB', '512 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            value = size / unit
            return f"{value:.1f} {name}" if value < 10 else f"{value:.0f} {name}"
    return f"{size} bytes"


def _files(root: Path, place: tuple[str, str]) -> int:
    folder, members = place
    return sum(1 for _ in (root / folder).glob(members))


EMNIST = Release(
    name="emnist",
    title="EMNIST Balanced: handwritten digits and letters, 28x28, grey",
    images=131_600,
    labels=47,
    unpacked=40_000_000,
    licence="free for research",
    origin="NIST",
    homepage="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    citation="G. Cohen, S. Afshar, J. Tapson, A. van Schaik. EMNIST: Extending MNIST to "
    "handwritten letters. IJCNN 2017",
    sources=(
        Source(
            url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            file="emnist-gzip.zip",
            size=561_753_746,
            checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e",
            kind="zip",
            folder="EMNIST/raw",
            members="emnist-balanced-*.gz",
            count=4,
        ),
    ),
)

CIFAR10 = Release(
    name="cifar10",
    title="CIFAR-10: ten kinds of things, 32x32, colour",
    images=60_000,
    labels=10,
    unpacked=184_380_000,
    licence="free for research",
    origin="Univ. of Toronto",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    citation="A. Krizhevsky. Learning multiple layers of features from tiny images. "
    "University of Toronto 2009",
    sources=(
        Source(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            file="cifar-10-binary.tar.gz",
            size=170_052_171,
            checksum="sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            kind="tar.gz",
            folder="cifar-10-batches-bin",
            members="*.bin",
            count=6,
        ),
    ),
)

_DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile"
HAM10000 = Release(
    name="ham10000",
    title="HAM10000: dermatoscopic images of pigmented skin lesions, 600x450, colour",
    images=10_015,
    labels=7,
    unpacked=2_771_000_000,
    licence="CC BY-NC 4.0",
    origin="Harvard Dataverse",
    homepage="https://dataverse.harvard.edu/dataset.xhtml?persistentId=doi:10.7910/DVN/DBW86T",
    citation="P. Tschandl, C. Rosendahl, H. Kittler. The HAM10000 dataset, a large collection of "
    "multi-source dermatoscopic images of common pigmented skin lesions. Scientific Data 2018",
    sources=(
        Source(
            # Without format=original the table comes converted, and no checksum fits it.
            url=f"{_DATAVERSE}/4338392?format=original",
            file="HAM10000_metadata.csv",
            size=690_218,
            checksum="md5:8f85fb1aa29d80a2797247e434deb79d",
            kind="file",
            folder="HAM10000",
            members="HAM10000_metadata.csv",
        ),
        Source(
            url=f"{_DATAVERSE}/3172585",
            file="HAM10000_images_part_1.zip",
            size=1_366_522_108,
            checksum="md5:4639bfa73ab251610530a97c898e6e46",
            kind="zip",
            folder="HAM10000/images",
            members="ISIC_*.jpg",
            count=5000,
        ),
        Source(
            url=f"{_DATAVERSE}/3172584",
            file="HAM10000_images_part_2.zip",
            size=1_403_566_547,
            checksum="md5:da43d6cc50f6613013be07e8986b384b",
            kind="zip",
            folder="HAM10000/images",
            members="ISIC_*.jpg",
            count=5015,
        ),
    ),
)

_ISIC = "https://isic-challenge-data.s3.amazonaws.com/2019"


def _isic_table(what: str, size: int) -> Source:
    file = f"ISIC_2019_Training_{what}.csv"
    return Source(f"{_ISIC}/{file}", file, size, None, "file", "ISIC_2019", file)


ISIC2019 = Release(
    name="isic2019",
    title="ISIC 2019 challenge, training part: dermatoscopic images, many sizes, colour",
    images=25_331,
    labels=8,
    unpacked=9_800_000_000,
    licence="CC BY-NC 4.0",
    origin="ISIC Archive",
    homepage="https://challenge.isic-archive.com/data/#2019",
    citation="P. Tschandl et al. HAM10000, Scientific Data 2018; N. Codella et al. "
    "arXiv:1710.05006; M. Combalia et al. BCN20000, arXiv:1908.02288",
    sources=(
        _isic_table("GroundTruth", 1_291_479),
        _isic_table("Metadata", 1_300_000),
        Source(
            url=f"{_ISIC}/ISIC_2019_Training_Input.zip",
            file="ISIC_2019_Training_Input.zip",
            size=9_771_618_190,
            checksum=None,
            kind="zip",
            folder="ISIC_2019/ISIC_2019_Training_Input",
            members="ISIC_*.jpg",
            count=25_331,
        ),
    ),
)

RESNET18 = Release(
    name="resnet18",
    title="ResNet-18 weights of torchvision, trained on ImageNet-1K",
    images=0,
    labels=0,
    unpacked=46_830_571,
    licence="BSD-3 (code), research use",
    origin="PyTorch",
    homepage="https://docs.pytorch.org/vision/stable/models/resnet.html",
    citation="K. He, X. Zhang, S. Ren, J. Sun. Deep residual learning for image recognition. "
    "CVPR 2016",
    sources=(
        Source(
            url="https://download.pytorch.org/models/resnet18-f37072fd.pth",
            file="resnet18-f37072fd.pth",
            size=46_830_571,
            checksum="sha256:f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
            kind="file",
            folder="weights",
            members="resnet18-f37072fd.pth",
        ),
    ),
)

BY_NAME = {release.name: release for release in (EMNIST, CIFAR10, HAM10000, ISIC2019, RESNET18)}
