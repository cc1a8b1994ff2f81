"""Data with natural owners: plays by role, flights by aircraft, LEAF's files, a user's columns."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from tests.data.releases_on_disk import HEADER, PLAY, flights_file, lay_out_plays

from fedraw.data import catalog
from fedraw.data.arrays import from_arrays, load_npz
from fedraw.data.flights import read_flights
from fedraw.data.leaf import load_leaf
from fedraw.data.partition import by_column
from fedraw.data.shakespeare import SHAKESPEARE, read_play
from fedraw.errors import BadInput
from fedraw.storage.lock import acquire


def test_a_play_gives_the_pieces_of_each_role(tmp_path: Path) -> None:
    path = tmp_path / "hamlet_gut_f.txt"
    path.write_text(PLAY, encoding="latin-1")
    found = read_play(path)
    # "Nay answer me: | Stand & vnfold | your selfe Bar…" in pieces of 15, the middle one the label.
    words = "nay answer me: stand & vnfold your selfe barnardo?"
    pieces = [words[start : start + 15] for start in (0, 15, 30)]
    expected = [piece for piece in pieces if piece[7] in SHAKESPEARE.label_names]
    own = found.columns["role"] == "hamlet/Fran"
    assert [SHAKESPEARE.label_names[i] for i in found.labels[own]] == [p[7] for p in expected]
    texts = ["".join(map(chr, row)) for row in found.inputs[own].tolist()]
    assert texts == [piece[:7] + piece[8:] for piece in expected]
    assert set(found.columns["play"]) == {"hamlet"}


def test_the_plays_are_read_from_the_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    root = lay_out_plays(tmp_path / "root")
    data = catalog.load("shakespeare", root=root, rng=np.random.default_rng(0))
    assert data.input_shape == (14,)
    assert data.inputs.dtype == np.int64
    assert set(data.columns) == {"role", "play"}
    assert len(np.unique(data.columns["play"])) > 30  # the others are all held out


def test_waiting_for_another_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    root = lay_out_plays(tmp_path / "root")
    catalog.load("shakespeare", root=root, rng=np.random.default_rng(0))
    (entry,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    shutil.rmtree(entry)
    messages: list[str] = []
    other = entry.with_name(f"{entry.name}.lock").open("ab")
    assert acquire(other)

    def note(message: str, done: int, total: int) -> None:
        messages.append(message)
        other.close()  # the other process ends

    timer = Timer(5.0, other.close)  # without a message, the load would wait forever
    timer.start()
    catalog.load("shakespeare", root=root, rng=np.random.default_rng(0), progress=note)
    timer.cancel()
    assert messages[0] == "waiting for another process to prepare shakespeare"


def test_a_flight_has_the_label_of_its_delay(tmp_path: Path) -> None:
    row = "2013,1,1,30,{},UA,N1,EWR,IAH,1400,6"
    delays = ("-16", "-15", "14", "15", "60", "180", "300", "", "NA")
    found = read_flights(flights_file(tmp_path / "f.zip", *(row.format(d) for d in delays)))
    assert found.labels.tolist() == [0, 1, 1, 2, 3, 4, 5]
    assert found.inputs[0].tolist() == pytest.approx([0.5, 1, 0, 0.5, 0.866025, 1.4, 1, 0, 0])
    assert found.columns["tailnum"].tolist() == ["N1"] * 7


@pytest.mark.parametrize(
    ("header", "row", "says"),
    [
        ("month,hour", "1,2", "has no column tailnum"),
        (HEADER, "2013,1,1,soon,5,UA,N1,EWR,IAH,1400,6", "could not convert string"),
    ],
)
def test_a_wrong_table_of_flights_is_refused(
    tmp_path: Path, header: str, row: str, says: str
) -> None:
    path = flights_file(tmp_path / "f.zip", row, header=header)
    with pytest.raises(BadInput, match=says):
        read_flights(path)


def leaf(folder: Path, part: str, users: dict[str, tuple[list[object], list[object]]]) -> None:
    (folder / part).mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / part / "all_data_0_niid_0_keep_0.json").write_text(json.dumps(content))


def test_femnist_of_leaf_has_the_writer_as_a_column(tmp_path: Path) -> None:
    blank: list[object] = [[0.0] * 784, [1.0] * 784]
    leaf(tmp_path, "train", {"f0001_41": (blank, [3, 61]), "f0002_01": (blank[:1], [3])})
    leaf(tmp_path, "test", {"f0001_41": (blank[1:], [61])})
    data = load_leaf(tmp_path, np.random.default_rng(0))
    assert data.input_shape == (1, 28, 28)
    assert (data.classes, data.labels.tolist(), data.test_labels.tolist()) == (62, [3, 61, 3], [61])
    shares = by_column(data.columns["user"])
    assert {user: own.tolist() for user, own in shares.items()} == {
        "f0001_41": [0, 1],
        "f0002_01": [2],
    }


def test_shakespeare_of_leaf_is_read_as_character_codes(tmp_path: Path) -> None:
    leaf(
        tmp_path, "all_data", {"HAMLET": (["to b", "o be"], ["e", ","]), "GHOST": (["list"], [","])}
    )
    data = load_leaf(tmp_path, np.random.default_rng(0))
    everything = np.concatenate([data.inputs[:], data.test_inputs[:]])
    assert sorted("".join(map(chr, row)) for row in everything.tolist()) == ["list", "o be", "to b"]
    assert data.label_names == (",", "e")


@pytest.mark.parametrize(
    ("users", "says"),
    [
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "neither texts nor lists of numbers of one length"),
        ({"a": (["ab", "abc"], [0, 1])}, "texts have 2 to 3 characters"),
        ({"a": ([[1.0]], [0, 1])}, "does not have one y for each x"),
        ({"a": ([[0.0], [1.0]], [[1], [1, 2]])}, r"user 'a' has the label \[1\], which is neither"),
        ({"a": ([[0.0], [1.0]], [1, None])}, "user 'a' has the label None, which is neither"),
    ],
)
def test_wrong_samples_of_leaf_are_refused(
    tmp_path: Path, users: dict[str, tuple[list[object], list[object]]], says: str
) -> None:
    leaf(tmp_path, "train", users)
    with pytest.raises(BadInput, match=says):
        load_leaf(tmp_path, np.random.default_rng(0))


def test_a_folder_or_a_file_that_is_not_of_leaf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no \.json file"):
        load_leaf(tmp_path, np.random.default_rng(0))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x.json").write_text("[1, 2]")
    with pytest.raises(BadInput, match="is not a file of LEAF"):
        load_leaf(tmp_path, np.random.default_rng(0))
    with pytest.raises(BadInput, match="needs a path; set path to the folder"):
        catalog.load("leaf", rng=np.random.default_rng(0))


def test_an_npz_file_may_have_columns(tmp_path: Path) -> None:
    file = io.BytesIO()
    inputs, labels = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    np.savez(file, inputs=inputs, labels=labels, column_site=np.array(["x", "y", "x", "x"]))
    path = tmp_path / "mine.npz"
    path.write_bytes(file.getvalue())
    data = load_npz(path, np.random.default_rng(0))
    assert set(data.columns) == {"site"}
    assert len(data.columns["site"]) == len(data.labels) == 2  # the others are held out


def test_a_column_needs_one_value_for_each_sample() -> None:
    with pytest.raises(BadInput, match=r"column 'site' has shape \(1,\) for 2 samples"):
        from_arrays(np.eye(2), [0, 1], columns={"site": ["x"]}, rng=np.random.default_rng(0))


def test_columns_follow_the_samples_that_are_kept() -> None:
    data = from_arrays(
        np.arange(8.0)[:, None],
        [0, 1] * 4,
        test_inputs=[[1.0]],
        test_labels=[1],
        columns={"site": list("abcdefgh")},
    )
    assert data.keep(np.array([1, 6])).columns["site"].tolist() == ["b", "g"]


def test_small_values_of_a_column_are_left_out() -> None:
    column = np.array([3, 1, 3, 2, 2, 3])
    assert list(by_column(column, least_samples=2)) == [2, 3]
    assert list(by_column(column, clients=1)) == [3]
    with pytest.raises(BadInput, match="no client has 4 samples, the largest has 3"):
        by_column(column, least_samples=4)
    with pytest.raises(BadInput, match="asks for 4; ask for fewer"):
        by_column(column, clients=4)
