"""The public releases, as `releases.toml` describes them.

The table is the only place that describes a release: readers compare a copy on disk with it, and
`fedraw.data.fetch` downloads the files that it lists.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    folder: str
    members: str  # pattern of the file names to unpack; all other members are ignored
    count: int = 1  # number of files that match the pattern
    checksum: str | None = None  # "md5:…" or "sha256:…"

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

    `counts` is empty for weights. `samples` is the word for samples in notes. `extent` is the width
    and height of photographs, the largest if they are `varied`.
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
    extent: Sequence[int] = ()
    varied: bool = False

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
        same = (
            "name", "title", "images", "labels", "licence", "origin", "homepage", "citation",
            "verified_by",
        )  # fmt: skip
        files = [
            {"url": source.url, "checksum": source.checksum, "folder": source.folder}
            for source in self.sources
        ]
        sizes = {"download_bytes": self.download, "unpacked_bytes": self.unpacked}
        return {key: getattr(self, key) for key in same} | sizes | {"files": files}


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


def count_notes(release: Release, counts: Counts) -> tuple[str, ...]:
    """Describe how the counts of a copy differ from the official ones; empty if they agree.

    >>> count_notes(find("ham10000"), {"all": {"nv": 12}})
    ('ham10000: 12 images, official 10,015',)
    """
    notes = []
    for part, official in release.counts.items():
        found, kind = counts.get(part, {}), "" if part == "all" else f"{part} "
        total, expected = sum(found.values()), sum(official.values())
        each = [
            f"{k} {found.get(k, 0):,} ({n:,})" for k, n in official.items() if found.get(k) != n
        ]
        if total != expected:
            notes.append(f"{total:,} {kind}{release.samples}, official {expected:,}")
        elif each:
            differ = f"by label (official) differ: {several(each, 3)}"
            notes.append(f"{kind}{release.samples} {differ}")
    return tuple(f"{release.name}: {note}" for note in notes)


def extent_notes(release: Release, extents: Counter[tuple[int, int]]) -> tuple[str, ...]:
    """Describe how the sizes of the images differ from the official ones; empty if they agree.

    >>> extent_notes(find("ham10000"), Counter([(200, 150), (200, 150)]))
    ('ham10000: images of 200x150, official 600x450',)
    """
    official = "{}x{}".format(*release.extent) if release.extent else ""
    other = [extent for extent in extents if extent != tuple(release.extent)]
    if not other or (release.varied and max(map(max, extents)) >= max(release.extent)):
        return ()
    if release.varied:
        width, height = max(extents, key=max)
        return (f"{release.name}: images of at most {width}x{height}, official up to {official}",)
    if len(extents) == 1:
        return (f"{release.name}: images of {other[0][0]}x{other[0][1]}, official {official}",)
    count = sum(extents[extent] for extent in other)
    images = "1 image" if count == 1 else f"{count:,} images"
    return (f"{release.name}: {images} not of the official {official}",)


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


def damage(source: Source, path: Path) -> str | None:
    """Return how a file differs from the published one, or None if it does not."""
    if source.checksum is None:
        return None
    algorithm = source.checksum.partition(":")[0]
    with path.open("rb") as file:
        found = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
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


def _files(root: Path, place: tuple[str, str]) -> int:
    folder, members = place
    return sum(1 for _ in (root / folder).glob(members))


def _read(name: str, facts: dict[str, Any]) -> Release:
    labels = facts.pop("labels", ())
    counts = {
        part: dict.fromkeys(labels, each) if isinstance(each, int) else each
        for part, each in facts.pop("counts", {}).items()
    }
    sources = []
    for source in facts.pop("sources"):
        file = source.get("file", source["url"].rpartition("/")[2])
        sources.append(Source(**{"file": file, "members": file} | source))
    return Release(name=name, counts=counts, sources=tuple(sources), **facts)


_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RELEASES = {name: _read(name, facts) for name, facts in _FACTS.items()}
LESION_IDS = RELEASES["isic2019"].sources[1].file
