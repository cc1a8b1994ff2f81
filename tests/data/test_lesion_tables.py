from __future__ import annotations

from pathlib import Path

import pytest

from fedraw.data.lesions import read_ham10000, read_isic2019
from fedraw.errors import BadInput

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


def test_images_labels_and_lesions_of_ham10000(tmp_path: Path) -> None:
    table = read_ham10000(written(tmp_path, HAM))
    assert table.images == ("ISIC_1", "ISIC_2", "ISIC_3")
    assert table.labels.tolist() == [5, 5, 3]
    assert table.groups is not None
    assert table.groups.tolist() == [0, 0, 1]


def test_quotes_tabs_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    other = "\ufeff" + HAM.replace(",", "\t").replace("nv", '"nv"').replace("\n", "\r\n")
    assert read_ham10000(written(tmp_path, other)).labels.tolist() == [5, 5, 3]


def test_without_the_table_of_lesions_there_are_no_groups(tmp_path: Path) -> None:
    table = read_isic2019(written(tmp_path, ISIC), None)
    assert (table.labels.tolist(), table.groups) == ([1, 7], None)


def test_an_image_without_a_lesion_id_is_its_own_group(tmp_path: Path) -> None:
    truth = written(tmp_path, ISIC + "ISIC_3,1,0,0,0,0,0,0,0,0\nISIC_4,1,0,0,0,0,0,0,0,0\n")
    lesions = "image,lesion_id\nISIC_4,L\nISIC_2,L\nISIC_1,\n"
    table = read_isic2019(truth, written(tmp_path, lesions, "lesions.csv"))
    assert table.groups is not None
    assert table.groups.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HAM.replace("dx", "diagnosis"), r"'dx' is missing \(found lesion_id, image_id, diagnosis"),
        ("", "'lesion_id' is missing .found nothing"),
        (HAM.replace("df", "dff"), "ISIC_3 has the unknown dx 'dff'; did you mean 'df'"),
        (HAM + "H3,ISIC_4\n", "ISIC_4 has the unknown dx ''"),
        (HAM + "H3,ISIC_1,nv\n", "line 5: ISIC_1 is listed twice; keep one row"),
        (HAM + "H3,,nv\n", "line 5: no image_id"),
        (HAM.split("\n", maxsplit=1)[0], "lists no images"),
        (HAM.encode("utf-16"), "is not UTF-8"),
        (HAM + 'H3,"ISIC_4\n' + "x" * 200_000, "is not a table .*field larger"),
    ],
)
def test_what_is_wrong_in_ham10000_is_named(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    with pytest.raises(BadInput, match=rf"table\.csv: .*{words}"):
        read_ham10000(written(tmp_path, content))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("ISIC_9,0,0,0,0,0,0,0,0,0", "ISIC_9 has class none; give it exactly one of MEL, NV"),
        ("ISIC_9,1,0,1,0,0,0,0,0,0", "ISIC_9 has class MEL and BCC"),
        ("ISIC_9,0,0,0,0,0,0,0,0,1", "ISIC_9 has class UNK"),
        ("ISIC_9,yes,0,0,0,0,0,0,0,0", "ISIC_9 has MEL = 'yes'; write 0.0 or 1.0"),
        ("ISIC_9,nan,0,0,0,0,0,0,0,0", "ISIC_9 has MEL = 'nan'"),
        ("ISIC_9,0,0.5,0,0,0,0,0,0,0", "ISIC_9 has NV = '0.5'"),
        ("ISIC_9,1", "ISIC_9 has NV = ''"),
        ("ISIC_1,1,0,0,0,0,0,0,0,0", "line 4: ISIC_1 is listed twice"),
    ],
)
def test_what_is_wrong_in_isic2019_is_named(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(BadInput, match=rf"table\.csv: .*{words}"):
        read_isic2019(written(tmp_path, f"{ISIC}{row}\n"), None)


def test_the_table_of_lesions_needs_their_ids(tmp_path: Path) -> None:
    lesions = written(tmp_path, "image,sex\nISIC_1,male\n", "lesions.csv")
    with pytest.raises(BadInput, match=r"lesions\.csv: column 'lesion_id' is missing"):
        read_isic2019(written(tmp_path, ISIC), lesions)
