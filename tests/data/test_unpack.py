"""Unpacking: only what is wanted, only below its folder, only when whole."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.small_archives import packed_as, tarred, zipped

from fedraw.data.fetch import unpack
from fedraw.data.releases import Kind, Source
from fedraw.errors import BadInput

IMAGES = Source("http://official/a", "a", 0, None, "zip", "set/images", "ISIC_*.jpg", count=2)
KINDS: list[Kind] = ["zip", "tar.gz"]


def quiet(*_: object) -> None:
    pass


def unpacked(content: bytes, root: Path, source: Source = IMAGES) -> dict[str, bytes]:
    archive = root / source.file
    archive.write_bytes(content)
    unpack(source, archive, root, quiet)
    return {file.name: file.read_bytes() for file in (root / source.folder).iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_only_wanted_members_come_out_without_their_folders(kind: Kind, tmp_path: Path) -> None:
    source = replace(IMAGES, kind=kind)
    members = {
        "deep/er/ISIC_1.jpg": b"1",
        "ISIC_2.jpg": b"2",
        "readme": b"",
        "__X/._ISIC_1.jpg": b"",
    }
    assert unpacked(packed_as(source, members), tmp_path, source) == {
        "ISIC_1.jpg": b"1",
        "ISIC_2.jpg": b"2",
    }
    assert not (tmp_path / "set" / "images.part").exists()


def test_two_archives_share_a_folder_and_progress_is_told(tmp_path: Path) -> None:
    unpacked(zipped({"ISIC_1.jpg": b"1"}), tmp_path)
    second = replace(IMAGES, file="b")
    assert set(unpacked(zipped({"ISIC_2.jpg": b"2"}), tmp_path, second)) == {
        "ISIC_1.jpg",
        "ISIC_2.jpg",
    }
    told: list[tuple[str, int, int]] = []
    unpack(second, tmp_path / "b", tmp_path, lambda *now: told.append(now))
    assert told == [("unpack b", 1, 2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["../ISIC_1.jpg", "/tmp/ISIC_1.jpg", "a/../../ISIC_1.jpg"])
def test_a_path_that_leaves_the_folder_is_refused(name: str, kind: Kind, tmp_path: Path) -> None:
    source = replace(IMAGES, kind=kind)
    with pytest.raises(BadInput, match=r"leaves the folder.*fetch it again"):
        unpacked(packed_as(source, {"ISIC_0.jpg": b"0", name: b"1"}), tmp_path, source)
    assert [file.name for file in tmp_path.rglob("*")] == ["a", "set"]


def test_links_are_refused_in_a_zip(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        entry = zipfile.ZipInfo("ISIC_1.jpg")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(BadInput, match="link or device"):
        unpacked(packed.getvalue(), tmp_path)


@pytest.mark.parametrize("link", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused_in_a_tar(link: bytes, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("ISIC_1.jpg")
        entry.type, entry.linkname = link, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(BadInput, match="link or device"):
        unpacked(packed.getvalue(), tmp_path, replace(IMAGES, kind="tar.gz"))
    assert not (tmp_path / "set" / "images").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0, 10, 0.5, -9])
def test_a_damaged_archive_leaves_nothing(kind: Kind, keep: float, tmp_path: Path) -> None:
    source = replace(IMAGES, kind=kind)
    content = packed_as(source, {f"ISIC_{n}.jpg": bytes(range(256)) * 9 for n in range(9)})
    end = int(keep * len(content)) if isinstance(keep, float) else keep
    with pytest.raises(BadInput, match=r"a: is damaged or not a .* archive .*--force"):
        unpacked(content[:end], tmp_path, source)
    assert not (tmp_path / "set" / "images").exists()


def test_a_flipped_bit_is_found_by_the_crc_of_a_zip(tmp_path: Path) -> None:
    content = bytearray(zipped({"ISIC_1.jpg": b"pixels pixels"}))
    content[content.index(b"pixels")] ^= 1
    with pytest.raises(BadInput, match="CRC"):
        unpacked(bytes(content), tmp_path)


def test_an_archive_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"contains no ISIC_\*\.jpg; it is not http://official/a"):
        unpacked(tarred({"cat.jpg": b""}), tmp_path, replace(IMAGES, kind="tar.gz"))


def test_what_a_killed_unpacking_left_is_not_taken_for_images(tmp_path: Path) -> None:
    left = tmp_path / "set" / "images.part"
    left.mkdir(parents=True)
    (left / "ISIC_9.jpg").write_bytes(b"half")
    assert set(unpacked(zipped({"ISIC_1.jpg": b"1"}), tmp_path)) == {"ISIC_1.jpg"}
