"""The descriptions of the public releases, and how much of a release a folder contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedraw.data.releases import RELEASES, LocalCopy, Source, damage, find, local_copy, missing
from fedraw.errors import BadInput

HEX = {"md5": 32, "sha256": 64}


def test_the_counts_add_up_to_the_published_numbers() -> None:
    sizes = {name: (release.images, release.labels) for name, release in RELEASES.items()}
    assert sizes == {
        "emnist": (131_600, 47),
        "cifar10": (60_000, 10),
        "ham10000": (10_015, 7),
        "isic2019": (25_331, 8),
        "shakespeare": (198_212, 25),
        "flights": (327_346, 6),
        "resnet18": (0, 0),
    }
    images = [source.count for source in find("ham10000").sources if source.kind == "zip"]
    assert sum(images) == find("ham10000").images


@pytest.mark.parametrize("name", RELEASES)
def test_every_release_has_its_origin_and_how_it_is_verified(name: str) -> None:
    release = find(name)
    assert release.licence and release.citation and release.title
    assert release.homepage.startswith("https://")
    assert len({source.file for source in release.sources}) == len(release.sources)
    for source in release.sources:
        assert source.url.startswith("https://")
        if source.checksum is not None:
            algorithm, _, digits = source.checksum.partition(":")
            assert len(digits) == HEX[algorithm]
            assert int(digits, 16) > 0
    unverified = any(source.checksum is None for source in release.sources)
    assert ("no published checksum" in release.verified_by) == unverified


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(BadInput, match="unknown dataset 'cifar'; did you mean 'cifar10'"):
        find("cifar")


def test_a_local_copy_is_absent_partial_or_complete(tmp_path: Path) -> None:
    release = find("emnist")
    assert local_copy(release, tmp_path) is LocalCopy.absent
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for n in range(4):
        assert missing(release, tmp_path) == list(release.sources)
        (raw / f"emnist-balanced-{n}.gz").touch()
        assert local_copy(release, tmp_path) is (
            LocalCopy.complete if n == 3 else LocalCopy.partial
        )


def test_only_absent_sources_are_missing(tmp_path: Path) -> None:
    release = find("ham10000")
    (tmp_path / "HAM10000").mkdir()
    (tmp_path / "HAM10000" / "HAM10000_metadata.csv").touch()
    assert [source.kind for source in missing(release, tmp_path)] == ["zip", "zip"]


def test_a_file_with_another_checksum_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    right = "md5:900150983cd24fb0d6963f7d28e17f72"
    assert damage(Source("", "a", 3, "", "a", checksum=right), path) is None
    wrong = damage(Source("", "a", 3, "", "a", checksum="md5:00"), path)
    assert wrong == f"has {right}, but md5:00 is published"
