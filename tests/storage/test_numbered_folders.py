from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedraw.errors import BadInput
from fedraw.storage.numbered_folders import FORMAT, NumberedFolders, VerifiedFolder


def filling(text: str) -> Callable[[Path], None]:
    def fill(draft: Path) -> None:
        (draft / "a.txt").write_text(text)
        (draft / "below").mkdir()
        (draft / "below" / "b.txt").write_text(text.upper())

    return fill


def sealed(**changes: object) -> bytes:
    """A manifest of folder 7 without files, with the given changes and a correct digest."""
    facts = {"format": FORMAT, "number": 7, "at": 1, "sha256": {}, **changes}
    facts = {name: value for name, value in facts.items() if value is not None}
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({**facts, "manifest": digest}).encode()


def content(kept: VerifiedFolder | BadInput | None) -> str:
    assert isinstance(kept, VerifiedFolder)
    return (kept.path / "a.txt").read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_folder_is_read_with_its_metadata(tmp_path: Path) -> None:
    folders = NumberedFolders(tmp_path / "kept")
    assert folders.read() is None
    path = folders.write(7, filling("seven"), {"bytes": 12})
    assert folders.read() == (path, {"bytes": 12})
    assert path == tmp_path / "kept" / "0000000007"
    manifest = json.loads((path / "manifest.json").read_text())
    assert list(manifest) == ["format", "number", "bytes", "sha256", "manifest"]
    assert sorted(manifest["sha256"]) == ["a.txt", "below/b.txt"]
    folders.write(12, filling("twelve"))
    assert content(folders.read()) == "twelve"
    assert names(tmp_path / "kept") == ["0000000012"]


def test_the_given_number_of_folders_is_kept(tmp_path: Path) -> None:
    folders = NumberedFolders(tmp_path, keep=2)
    for number in (1, 2, 10):
        folders.write(number, filling(str(number)))
    assert [content(kept) for kept in folders.read_all()] == ["10", "2"]


def test_a_folder_with_a_higher_number_is_removed(tmp_path: Path) -> None:
    folders = NumberedFolders(tmp_path, keep=2)
    for number in (5, 9, 6):
        folders.write(number, filling(str(number)))
    assert [content(kept) for kept in folders.read_all()] == ["6", "5"]


def test_a_number_may_be_written_again(tmp_path: Path) -> None:
    folders = NumberedFolders(tmp_path)
    folders.write(3, filling("old"))
    folders.write(3, filling("new"))
    assert content(folders.read()) == "new"
    assert names(tmp_path) == ["0000000003"]


def test_a_folder_being_replaced_is_still_readable(tmp_path: Path) -> None:
    folders = NumberedFolders(tmp_path)
    folders.write(3, filling("old")).rename(tmp_path / "0000000003.old")
    assert content(folders.read()) == "old"
    folders.write(3, filling("new"))
    assert content(folders.read()) == "new"
    assert names(tmp_path) == ["0000000003"]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("a.txt", b"seveN", "a.txt is damaged: its checksum does not match manifest.json; mend"),
        ("below/b.txt", None, "b.txt is damaged: its checksum"),
        ("manifest.json", b"{", "manifest.json is damaged or of another version; mend it"),
        ("manifest.json", sealed(format=1), "of another version"),
        ("manifest.json", sealed(number=8), "of another version"),
        ("manifest.json", sealed(at=None), "of another version"),
        ("manifest.json", sealed(sha256=[]), "of another version"),
        ("manifest.json", sealed().replace(b'"at": 1', b'"at": 9'), "of another version"),
        ("manifest.json", b"[1, 2]", "of another version"),
        ("manifest.json", b"\xff", "of another version"),
        ("manifest.json", None, "of another version"),
    ],
)
def test_damage_is_reported_with_its_remedy(
    file: str, damage: bytes | None, message: str, tmp_path: Path
) -> None:
    folders = NumberedFolders(tmp_path, 2, required=["at"], remedy="mend it")
    folders.write(6, filling("six"), {"at": 1})
    path = folders.write(7, filling("seven"), {"at": 2}) / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(BadInput, match=message):
        folders.read()
    newest, older = folders.read_all()
    assert isinstance(newest, BadInput)
    assert content(older) == "six"


def test_a_correct_manifest_is_accepted(tmp_path: Path) -> None:
    """The unchanged manifest is accepted, so the changed ones are refused for their changes."""
    folders = NumberedFolders(tmp_path, required=["at"])
    path = folders.write(7, filling("seven"), {"at": 2})
    (path / "manifest.json").write_bytes(sealed())
    assert folders.read() == VerifiedFolder(path, {"at": 1})


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_keeps_earlier_folders_and_removes_the_draft(
    problem: BaseException, tmp_path: Path
) -> None:
    folders = NumberedFolders(tmp_path)
    folders.write(1, filling("one"))

    def fail(draft: Path) -> None:
        (draft / "a.txt").write_text("half")
        raise problem

    with pytest.raises(type(problem)):
        folders.write(2, fail)
    assert names(tmp_path) == ["0000000001"]
    assert content(folders.read()) == "one"


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_folder_is_complete_or_absent_while_it_is_removed(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed before it removes the first, second or third file of folder 1."""
    folders = NumberedFolders(tmp_path)
    folders.write(1, filling("one"))
    unlink, calls = os.unlink, []

    def dying(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) == moment:
            raise KeyboardInterrupt
        unlink(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            folders.write(2, filling("two"))
    assert [content(kept) for kept in folders.read_all()] == ["two"]
    folders.write(3, filling("three"))
    assert names(tmp_path) == ["0000000003"]


def test_metadata_may_not_use_the_manifests_own_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format"):
        NumberedFolders(tmp_path).write(1, filling("one"), {"format": 3})
    with pytest.raises(ValueError, match="keep = 0"):
        NumberedFolders(tmp_path, keep=0)


WRITER = """
import sys
from pathlib import Path
from fedraw.storage.numbered_folders import NumberedFolders
folders = NumberedFolders(Path(sys.argv[1]), keep=2)
for number in range(1, 10**9):
    folders.write(number, lambda draft: (draft / "a.txt").write_text(str(number) * 20_000))
    print(number, flush=True)
"""


def test_a_killed_writer_keeps_all_complete_folders(tmp_path: Path) -> None:
    for turn in range(6):
        folder = tmp_path / str(turn)
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(2 + 3 * turn):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            last = [2 + 3 * turn, *map(int, process.stdout.read().split())][-1]
        kept = NumberedFolders(folder, keep=2).read()
        assert kept is not None
        number = int(kept.path.name)
        assert number >= last
        assert content(kept) == str(number) * 20_000
        NumberedFolders(folder).write(number + 1, filling("next"))
        assert names(folder) == [f"{number + 1:010d}"]
