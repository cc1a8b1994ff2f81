from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.releases_on_disk import (
    lay_out_cifar10,
    lay_out_emnist,
    lay_out_ham10000,
    lay_out_isic2019,
)

from fedraw.data.catalog import PUBLIC, check
from fedraw.data.releases import RELEASES, CheckReport, count_notes
from fedraw.errors import BadInput


def lay_out(name: str, root: Path) -> Path:
    makers = {
        "emnist": lay_out_emnist,
        "cifar10": lay_out_cifar10,
        "ham10000": lay_out_ham10000,
        "isic2019": lay_out_isic2019,
    }
    return makers[name](root)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("emnist", {"train": 94, "test": 47}),
        ("cifar10", {"train": 100, "test": 20}),
        ("ham10000", {"all": 42}),
        ("isic2019", {"all": 40}),
    ],
)
def test_a_whole_release_is_counted(tmp_path: Path, name: str, images: dict[str, int]) -> None:
    lay_out(name, tmp_path)
    told: list[tuple[str, int, int]] = []
    checked = check(name, tmp_path, lambda *what: told.append(what))
    assert {part: sum(counts.values()) for part, counts in checked.counts.items()} == images
    assert checked.damaged == ()
    assert checked.notes[0].startswith(f"{name}: {next(iter(images.values()))} ")
    assert told[-1][0] == f"checking {name}"
    assert told[-1][1] == told[-1][2]
    assert not (tmp_path / "cache").exists()


def test_the_counts_are_by_label(tmp_path: Path) -> None:
    lay_out_ham10000(tmp_path, images=6)
    assert check("ham10000", tmp_path).counts["all"] == {
        "akiec": 2, "bcc": 2, "bkl": 2, "df": 0, "mel": 0, "nv": 0, "vasc": 0,
    }  # fmt: skip


def test_each_damaged_or_missing_image_is_listed(tmp_path: Path) -> None:
    images = lay_out_ham10000(tmp_path) / "images"
    (images / "ISIC_0024306.jpg").write_bytes(b"")
    (images / "ISIC_0024308.jpg").unlink()
    cut = images / "ISIC_0024310.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(cut)
    cut.write_bytes(cut.read_bytes()[:-1000])
    checked = check("ham10000", tmp_path)
    missing, empty, short = checked.damaged
    assert missing.startswith("ISIC_0024308.jpg: listed in ")
    assert f"{images / 'ISIC_0024306.jpg'}: does not decode (not an image)" in empty
    assert f"{cut}: does not decode (image file is truncated" in short
    assert sum(checked.counts["all"].values()) == 39


def test_a_broken_table_does_not_hide_broken_images(tmp_path: Path) -> None:
    place = lay_out_ham10000(tmp_path)
    (place / "HAM10000_metadata.csv").write_text("image,label\n")
    (place / "images" / "ISIC_0024306.jpg").write_bytes(b"no image")
    table, image = check("ham10000", tmp_path).damaged
    assert "column 'lesion_id' is missing" in table
    assert "ISIC_0024306.jpg: does not decode" in image


def test_a_table_without_any_image_is_one_line(tmp_path: Path) -> None:
    place = lay_out_isic2019(tmp_path)
    (place / "ISIC_2019_Training_Input").rename(place / "elsewhere")
    (damaged,) = check("isic2019", tmp_path).damaged
    assert damaged.startswith("none of the 40 images of ")


def test_each_damaged_or_missing_file_of_emnist_is_listed(tmp_path: Path) -> None:
    place = lay_out_emnist(tmp_path)
    for file in place.glob("*-train-*"):
        file.write_bytes(file.read_bytes()[:20])
    (place / "emnist-balanced-test-images-idx3-ubyte.gz").unlink()
    checked = check("emnist", tmp_path)
    assert len(checked.damaged) == 3
    assert sum("not a whole gzip file" in line for line in checked.damaged) == 2
    assert sum("No such file" in line for line in checked.damaged) == 1


def test_a_check_goes_on_after_a_damaged_batch(tmp_path: Path) -> None:
    place = lay_out_cifar10(tmp_path)
    (place / "data_batch_2.bin").write_bytes(b"\0" * 3072)
    (place / "data_batch_4.bin").unlink()
    checked = check("cifar10", tmp_path)
    short, missing = checked.damaged
    assert "data_batch_2.bin: has 3,072 bytes" in short
    assert "data_batch_4.bin: No such file" in missing
    assert sum(checked.counts["train"].values()) == 60
    assert checked.notes[0] == "cifar10: 60 train images, official 50,000"


def test_labels_that_do_not_match_the_images_are_listed(tmp_path: Path) -> None:
    place = lay_out_emnist(tmp_path)
    (place / "emnist-balanced-train-labels-idx1-ubyte.gz").write_bytes(
        (place / "emnist-balanced-test-labels-idx1-ubyte.gz").read_bytes()
    )
    (damaged,) = check("emnist", tmp_path).damaged
    assert "94 images, but emnist-balanced-train-labels-idx1-ubyte.gz has 47 labels" in damaged


@pytest.mark.parametrize("name", ["emnist", "cifar10", "ham10000", "isic2019"])
def test_a_release_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}'.*fedraw data fetch {name}") as caught:
        check(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_only_public_data_sets_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'ham1000' cannot be checked; did you mean 'ham10000'"):
        check("ham1000", tmp_path)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_official_release_needs_no_note(name: str) -> None:
    assert count_notes(name, RELEASES[name].counts) == ()


def test_labels_that_differ_while_their_sum_agrees_are_said() -> None:
    counts = dict(RELEASES["ham10000"].counts["all"]) | {"df": 116, "nv": 6704}
    assert count_notes("ham10000", {"all": counts}) == (
        "ham10000: images by label (official) differ: df 116 (115), nv 6,704 (6,705)",
    )


def test_checked_is_a_value() -> None:
    assert CheckReport("emnist", {}) == CheckReport("emnist", {}, (), ())
