from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedraw.errors import BadInput
from fedraw.storage.lock import LOCK, FolderLock, acquire, is_locked

HOLDER = """
import sys, time
from pathlib import Path
from fedraw.storage.lock import acquire
file = Path(sys.argv[1]).open("ab")
acquire(file)
print("held", flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_killed_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path) == (sys.platform == "linux")
        assert not is_locked(tmp_path / "nothing")
        assert not is_locked(path, table=tmp_path / "no such table")
        with path.open("ab") as file:
            assert not acquire(file)
            holder.kill()
            holder.wait()
            assert not is_locked(path)
            assert acquire(file)


def test_a_folder_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    held = FolderLock(tmp_path)
    assert is_locked(tmp_path / LOCK) == (sys.platform == "linux")
    (tmp_path / "events.jsonl").rename(tmp_path / "events.jsonl.1")
    message = f"another process is running in {tmp_path}; wait for it, or choose another folder"
    with pytest.raises(BadInput, match=re.escape(message)):
        FolderLock(tmp_path)
    with pytest.raises(BadInput, match="; ask first"):
        FolderLock(tmp_path, "ask first")
    assert held.is_intact
    held.close()
    again = FolderLock(tmp_path)
    again.path.unlink()
    assert not again.is_intact
    again.path.touch()
    assert not again.is_intact, "it is another file of the same name"
    again.close()
