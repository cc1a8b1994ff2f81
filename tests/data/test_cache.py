from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.data.releases_on_disk import lay_out_ham10000

from fedraw.data import cache
from fedraw.data.cache import Draft, Entry, write_npy
from fedraw.data.catalog import load
from fedraw.errors import BadInput

FACTS = {"reader": 1, "files": [["a.jpg", 3, 99]]}


class Squares:
    """Writes 0, 1, 4, 9 in two chunks, and counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, draft: Draft) -> dict[str, Any]:
        self.times += 1
        draft.write("squares", iter([np.array([0, 1]), np.array([4, 9])]))
        return {"notes": ["made"], "names": ("a", "b")}


def get(write: cache.Writer, facts: dict[str, Any] = FACTS) -> Entry:
    return cache.entry("squares", facts, write)


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    squares = Squares()
    first, second = get(squares), get(squares)
    assert squares.times == 1
    assert first == second
    assert second.array("squares").tolist() == [0, 1, 4, 9]
    assert second.info == {"notes": ["made"], "names": ["a", "b"]}
    assert second.folder.parent == tmp_path / "cache"


def test_arrays_are_mapped_and_cannot_be_written() -> None:
    mapped = get(Squares()).array("squares")
    assert isinstance(mapped, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 7


@pytest.mark.parametrize(
    "other", [{"reader": 2}, {"files": [["a.jpg", 4, 99]]}, {"files": [["a.jpg", 3, 98]]}]
)
def test_different_facts_give_a_different_entry(other: dict[str, Any]) -> None:
    squares = Squares()
    assert get(squares).folder != get(squares, FACTS | other).folder
    assert squares.times == 2


def test_the_order_of_the_facts_does_not_matter() -> None:
    squares = Squares()
    get(squares, {"a": 1, "b": 2})
    get(squares, {"b": 2, "a": 1})
    assert squares.times == 1


def cut(entry: Entry) -> None:
    with (entry.folder / "squares.npy").open("ab") as file:
        file.truncate(130)


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda entry: (entry.folder / "squares.npy").unlink(),
        lambda entry: (entry.folder / "meta.json").unlink(),
        lambda entry: (entry.folder / "meta.json").write_text('{"arrays": {"squ'),
        lambda entry: (entry.folder / "meta.json").write_text("[]"),
        lambda entry: (entry.folder / "meta.json").write_bytes(b"\xff\xfe"),
        lambda entry: (entry.folder / "meta.json").write_text('{"arrays": {}}'),
    ],
)
def test_a_damaged_entry_is_written_again(damage: Any) -> None:
    squares = Squares()
    damage(get(squares))
    assert get(squares).array("squares").tolist() == [0, 1, 4, 9]
    get(squares)
    assert squares.times == 2


def test_a_failed_write_leaves_no_files(tmp_path: Path) -> None:
    def fail(draft: Draft) -> dict[str, Any]:
        def pieces() -> Iterator[cache.Array]:
            yield np.array([0, 1])
            raise BadInput("b.jpg does not decode")

        draft.write("squares", pieces())
        return {}

    with pytest.raises(BadInput, match=r"b\.jpg does not decode"):
        get(fail)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert get(Squares()).array("squares").tolist() == [0, 1, 4, 9]


def test_the_cache_may_be_read_only() -> None:
    entry = get(Squares())
    for lock in entry.folder.parent.glob("*.lock"):
        lock.unlink()
    get(Squares())
    assert not list(entry.folder.parent.glob("*.lock"))


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BadInput, match=r"file/cache: Not a directory.*set FEDRAW_CACHE to another"):
        get(Squares())


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/ada")
    monkeypatch.setenv("FEDRAW_CACHE", "/big/disk")
    assert cache.cache_folder() == Path("/big/disk")
    monkeypatch.setenv("FEDRAW_CACHE", "")
    assert cache.cache_folder() == Path("/var/ada/fedraw")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == Path("/home/ada/.cache/fedraw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path("/home/ada/.cache/fedraw")


@given(
    array=arrays.arrays(
        st.sampled_from([np.uint8, np.int64, np.float32]),
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=6),
    ),
    cuts=st.lists(st.integers(0, 6), max_size=3).map(sorted),
)
def test_chunks_are_joined_into_one_array(
    tmp_path_factory: pytest.TempPathFactory, array: cache.Array, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    size, sha256 = write_npy(path, np.split(array, cuts))
    assert np.array_equal(np.load(path), array, equal_nan=array.dtype == np.float32)
    assert (size, sha256) == (path.stat().st_size, write_npy(path, [array])[1])


def test_many_rows_fit_into_the_header(tmp_path: Path) -> None:
    write_npy(tmp_path / "a.npy", (np.zeros((100_000, 1), np.uint8) for _ in range(11)))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (1_100_000, 1)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([], "no chunk"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"\(1, 3\) float64 after \(2,\)"),
        ([np.zeros(1), np.zeros(1, np.uint8)], "uint8 after"),
    ],
)
def test_chunks_of_different_shapes_are_refused(
    tmp_path: Path, chunks: list[cache.Array], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        write_npy(tmp_path / "a.npy", chunks)


SCRIPT = Path(__file__).with_name("one_decoding.py")
# More than a block of photographs, so that there is something between the first and the last.
IMAGES = 260


@contextmanager
def decoding(root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), *(options or ("straight",))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(input="\n" * 9, timeout=60)
    return output.splitlines()


def fingerprint(root: Path) -> str:
    return load("ham10000", root=root, size=8, rng=np.random.default_rng(0)).sha256()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lay_out_ham10000(tmp_path / "data", images=IMAGES, shape=(8, 8))
    return tmp_path / "data"


def test_a_killed_decoding_leaves_no_entry_that_looks_complete(root: Path) -> None:
    kept = root.parent / "cache"
    with decoding(root, "pause") as process:
        assert line(process) == "reading ham10000 0 260"
        assert line(process) == "reading ham10000 256 260"
        process.kill()
        process.wait()
    lock, remains = sorted(kept.iterdir())
    assert (lock.suffix, remains.suffix) == (".lock", ".part")
    assert (remains / "inputs.npy").exists()
    told: list[tuple[str, int, int]] = []
    load(
        "ham10000", root=root, size=8, rng=np.random.default_rng(0),
        progress=lambda *what: told.append(what),
    )  # fmt: skip
    assert told[0] == ("reading ham10000", 0, 260)
    assert not list(kept.glob("*.part"))


def test_a_second_process_waits_for_the_entry_of_the_first(root: Path) -> None:
    with decoding(root, "pause") as first:
        assert [line(first), line(first)][1] == "reading ham10000 256 260"
        with decoding(root) as second:
            assert line(second) == "waiting for another process to prepare ham10000 0 1"
            *rest, made = lines(first)
            assert rest == ["reading ham10000 260 260"]
            assert lines(second) == [made]
    assert made == fingerprint(root)


def test_a_full_disk_is_reported_and_leaves_no_files(root: Path) -> None:
    with decoding(root, "straight", "20000") as process:
        problem = lines(process)[-1]
    kept = root.parent / "cache"
    assert problem == (
        f"cannot write to the cache {kept}: File too large; free some space there, or set "
        "FEDRAW_CACHE to another folder"
    )
    assert [path.suffix for path in kept.iterdir()] == [".lock"]
    assert len(fingerprint(root)) == 64
