from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.releases_on_disk import lay_out_ham10000, lay_out_isic2019, write_photograph

from fedraw.data.catalog import load
from fedraw.data.dataset import Dataset
from fedraw.data.lesions import read_ham10000, read_isic2019
from fedraw.errors import BadInput


def lesions(name: str, root: Path, **wanted: Any) -> Dataset:
    return load(name, root=root, rng=np.random.default_rng(0), **({"size": 8} | wanted))


def all_labels(data: Dataset) -> list[int]:
    counts = np.bincount([*data.labels, *data.test_labels], minlength=data.classes)
    return [int(count) for count in counts]


def test_ham10000_is_resized_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    lay_out_ham10000(tmp_path, images=42)
    data = lesions("ham10000", tmp_path)
    assert (data.inputs.shape, data.test_inputs.shape) == ((34, 3, 8, 8), (8, 3, 8, 8))
    assert data.label_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert all_labels(data) == [6] * 7
    # Red is 30 times the label, green 100, blue 200; JPEG is a little off.
    colours = data.inputs[:].mean(axis=(2, 3))
    assert np.abs(colours - np.c_[30 * data.labels, [100] * 34, [200] * 34]).max() < 4


def test_isic2019_has_its_own_labels_in_the_archive_s_order(tmp_path: Path) -> None:
    lay_out_isic2019(tmp_path, images=40)
    data = lesions("isic2019", tmp_path)
    assert data.label_names == ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
    assert all_labels(data) == [6, 6, 6, 6, 4, 4, 4, 4]
    assert np.abs(data.inputs[:].mean(axis=(2, 3))[:, 0] - 30 * data.labels).max() < 4


def test_images_have_64_pixels_by_default(tmp_path: Path) -> None:
    lay_out_ham10000(tmp_path, images=5)
    assert lesions("ham10000", tmp_path, size=None).input_shape == (3, 64, 64)


def test_images_keep_their_orientation(tmp_path: Path) -> None:
    place = lay_out_ham10000(tmp_path, images=2)
    for file in (place / "images").iterdir():
        photo = Image.new("RGB", (60, 40), (255, 0, 0))
        photo.paste((0, 0, 255), (30, 20, 60, 40))
        photo.save(file, quality=95)
    image = lesions("ham10000", tmp_path, size=4).inputs[:1][0].astype(int)
    assert np.abs(image[:, 0, 0] - [255, 0, 0]).max() < 6
    assert np.abs(image[:, 0, 3] - [255, 0, 0]).max() < 6
    assert np.abs(image[:, 3, 3] - [0, 0, 255]).max() < 6


def test_grey_photographs_become_rgb(tmp_path: Path) -> None:
    place = lay_out_ham10000(tmp_path, images=2)
    for file in (place / "images").iterdir():
        Image.new("L", (10, 10), 77).save(file)
    assert np.abs(lesions("ham10000", tmp_path).inputs[:].astype(int) - 77).max() < 3


@pytest.mark.parametrize(
    "layout",
    [
        {"folders": ("HAM10000_images_part_1", "HAM10000_images_part_2")},
        {"folders": (".",)},
        {"folder": "."},
        {"table": "HAM10000_metadata"},
        {"table": "HAM10000_metadata.tab", "separator": "\t"},
    ],
)
def test_other_layouts_of_ham10000_give_the_same(tmp_path: Path, layout: dict[str, Any]) -> None:
    lay_out_ham10000(tmp_path / "plain")
    lay_out_ham10000(tmp_path / "other", **layout)
    plain, other = (lesions("ham10000", tmp_path / root) for root in ("plain", "other"))
    assert plain.sha256() == other.sha256()


def test_isic2019_may_be_in_the_data_root_itself(tmp_path: Path) -> None:
    lay_out_isic2019(tmp_path, folder=".")
    assert len(lesions("isic2019", tmp_path).inputs) == 32


def test_the_holdout_differs_by_seed_and_not_by_run(tmp_path: Path) -> None:
    lay_out_ham10000(tmp_path)
    first, again, other = (
        load("ham10000", root=tmp_path, size=8, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert first.sha256() == again.sha256()
    assert first.sha256() != other.sha256()


@pytest.mark.parametrize(
    ("name", "lay_out"), [("ham10000", lay_out_ham10000), ("isic2019", lay_out_isic2019)]
)
def test_grouped_keeps_both_images_of_a_lesion_on_one_side(
    tmp_path: Path, name: str, lay_out: Any
) -> None:
    lay_out(tmp_path, images=40)
    data = lesions(name, tmp_path, holdout="grouped")
    assert data.test_inputs.rows is not None
    held = set((data.test_inputs.rows // 2).tolist())
    assert data.inputs.rows is not None
    both = held & set((data.inputs.rows // 2).tolist())
    # The last two of ISIC-2019 have no common lesion id and may be parted.
    assert both <= ({19} if name == "isic2019" else set())
    assert 8 <= len(data.test_labels) <= 9


def test_grouped_needs_the_table_of_lesions(tmp_path: Path) -> None:
    lay_out_isic2019(tmp_path, metadata=False)
    assert len(lesions("isic2019", tmp_path, holdout="random").inputs) == 32
    with pytest.raises(BadInput, match=r"ISIC_2019_Training_Metadata\.csv is not in .*ISIC_2019"):
        lesions("isic2019", tmp_path, holdout="grouped")


def test_some_images_of_another_size_are_counted(tmp_path: Path) -> None:
    photo = lay_out_ham10000(tmp_path, images=3, shape=(600, 450)) / "images" / "ISIC_0024306.jpg"
    write_photograph(photo, 0, (600, 449))
    assert "ham10000: 1 image not of the official 600x450" in lesions("ham10000", tmp_path).notes


@pytest.mark.parametrize("size", [0, 1025, True, 3.5])
def test_impossible_sizes_are_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(BadInput, match=f"size = {size!r}; it must be"):
        lesions("ham10000", tmp_path, size=size)


def test_an_unknown_holdout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown holdout 'group'; did you mean 'grouped'"):
        lesions("ham10000", tmp_path, holdout="group")


def test_a_changed_label_or_image_is_noticed(tmp_path: Path) -> None:
    place = lay_out_ham10000(tmp_path, images=14)
    table, photo = place / "HAM10000_metadata.csv", place / "images" / "ISIC_0024306.jpg"
    before = lesions("ham10000", tmp_path)
    table.write_text(table.read_text().replace("bcc", "bkl"))
    relabelled = lesions("ham10000", tmp_path)
    assert (all_labels(before)[1:3], all_labels(relabelled)[1:3]) == ([2, 2], [0, 4])
    os.utime(photo, ns=(0, 0))
    lesions("ham10000", tmp_path)
    assert len(list((tmp_path / "cache").glob("*/meta.json"))) == 3


HAM = "lesion_id,image_id,dx\nH1,ISIC_1,nv\nH1,ISIC_2,nv\nH2,ISIC_3,df\n"
ISIC = (
    "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK\n"
    "ISIC_1,0,1,0,0,0,0,0,0,0\n"
    "ISIC_2,0,0,0,0,0,0,0,1.0,0\n"
)


def written(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


WINDOWS = "\ufeff" + HAM.replace(",", "\t").replace("nv", '"nv"').replace("\n", "\r\n")


@pytest.mark.parametrize("content", [HAM, WINDOWS])
def test_labels_and_lesions_of_ham10000(tmp_path: Path, content: str) -> None:
    table = read_ham10000(written(tmp_path, content))
    assert table == {"ISIC_1": (5, 0), "ISIC_2": (5, 0), "ISIC_3": (3, 1)}


def test_an_image_of_isic2019_without_a_lesion_id_shows_a_lesion_of_its_own(tmp_path: Path) -> None:
    truth = written(tmp_path, ISIC + "ISIC_3,1,0,0,0,0,0,0,0,0\nISIC_4,1,0,0,0,0,0,0,0,0\n")
    lesions = written(tmp_path, "image,lesion_id\nISIC_4,L\nISIC_2,L\nISIC_1,\n", "lesions.csv")
    labels = {"ISIC_1": 1, "ISIC_2": 7, "ISIC_3": 0, "ISIC_4": 0}
    assert read_isic2019(truth) == {image: (label, None) for image, label in labels.items()}
    assert [group for _, group in read_isic2019(truth, lesions).values()] == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HAM.replace("dx", "diagnosis"), "column 'dx' is missing"),
        ("", "is empty; a header and rows are needed"),
        (HAM.replace("df", "dff"), "line 4, column 'dx': 'dff' is no diagnosis; did you mean 'df'"),
        (HAM + "H3,ISIC_4\n", "line 5 has 2 cells, the header has 3"),
        (HAM + "H3,ISIC_1,nv\n", "line 5: ISIC_1 is listed twice; keep one row"),
        (HAM + "H3,,nv\n", "line 5, column 'image_id': the name is empty"),
        (HAM.split("\n", maxsplit=1)[0], "lists no images"),
        (HAM.encode("utf-16"), "is UTF-16; save it"),
    ],
)
def test_errors_in_the_table_of_ham10000_are_named(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    with pytest.raises(BadInput, match=rf"table\.csv: .*{words}"):
        read_ham10000(written(tmp_path, content))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("ISIC_9,0,0,0,0,0,0,0,0,0", "ISIC_9 has class none; give it exactly one of MEL, NV"),
        ("ISIC_9,1,0,1,0,0,0,0,0,0", "ISIC_9 has class MEL and BCC"),
        ("ISIC_9,0,0,0,0,0,0,0,0,1", "ISIC_9 has class none"),
        ("ISIC_9,yes,0,0,0,0,0,0,0,0", "line 4, column 'MEL': 'yes' is not 0.0 or 1.0"),
        ("ISIC_9,0,0.5,0,0,0,0,0,0,0", "line 4, column 'NV': '0.5' is not"),
        ("ISIC_1,1,0,0,0,0,0,0,0,0", "line 4: ISIC_1 is listed twice"),
    ],
)
def test_errors_in_the_table_of_isic2019_are_named(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(BadInput, match=rf"table\.csv: .*{words}"):
        read_isic2019(written(tmp_path, f"{ISIC}{row}\n"))


def test_the_table_of_lesions_needs_their_ids(tmp_path: Path) -> None:
    lesions = written(tmp_path, "image,sex\nISIC_1,male\n", "lesions.csv")
    with pytest.raises(BadInput, match=r"lesions\.csv: column 'lesion_id' is missing"):
        read_isic2019(written(tmp_path, ISIC), lesions)
