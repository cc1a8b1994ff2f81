"""A log that a server of fedraw 0.2 wrote in several files is refused until it is joined.

`several_log_files.tar.xz` has a folder that commit e334fd8 wrote (`tests/server/engine.py`:
FedRAW(buffer=3), snapshot_every=3, log_segment=2500, rollback_points=2; 30 updates accepted, then
killed). Such a folder is never written again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from stress.forked import Kill, run_forked
from tests.cli.command import fedraw
from tests.server.conftest import MakeEngine
from tests.server.engine import Engine
from tests.server.test_folder import content
from tests.server.test_operations import problems

from fedraw.auditing.times import read_times
from fedraw.dashboard.watcher import Watcher
from fedraw.errors import BadInput, FedrawError
from fedraw.eventlog.compare import compare
from fedraw.eventlog.follow import LogFollower, RunsFollower
from fedraw.eventlog.log_file import find_logs, read_log
from fedraw.experiment.result import load
from fedraw.export import TARGETS, export_runs
from fedraw.report.report_data import read_report_data
from fedraw.server.joining import join
from fedraw.server.rollback import restore_points
from fedraw.simulation.arrivals import read_trace
from fedraw.storage.lock import FolderLock
from fedraw.strategies.fedraw import FedRAW

FIXTURE = Path(__file__).parent / "several_log_files.tar.xz"
# A record that never took effect, because a kill ended its line.
TORN = b'{"kind":"arr'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.unpack_archive(FIXTURE, tmp_path)
    return tmp_path / "federation"


def files_of(folder: Path) -> list[Path]:
    return [folder / "events.jsonl", *sorted(folder.glob("events.0*.jsonl"))]


def whole(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files_of(folder))


def open_server(folder: Path, make_engine: MakeEngine) -> Engine:
    return make_engine(FedRAW(buffer=3), snapshot_every=3.0, folder=folder.name)


@pytest.mark.parametrize("torn", [b"", TORN])
def test_a_joined_folder_has_the_same_bytes_and_continues(
    folder: Path, make_engine: MakeEngine, torn: bytes
) -> None:
    assert len(files_of(folder)) == 4
    last = files_of(folder)[-1]
    last.write_bytes(last.read_bytes() + torn)
    before, others = whole(folder), content(folder)
    done = fedraw("server", "join", folder, cwd=folder)
    assert done.returncode == 0 and "4 files of the log joined in events.jsonl" in done.stderr
    kept = {name: own for name, own in others.items() if not name.startswith("events")}
    assert content(folder) == {"events.jsonl": before, **kept}
    assert (folder / "events.jsonl").stat().st_mode & 0o777 == 0o600
    assert problems(folder) == []
    assert len(restore_points(folder)) == 4

    expected = json.loads((folder.parent / "expected.json").read_text(encoding="utf-8"))
    engine = open_server(folder, make_engine)
    state = engine.coordinator._store.strategy_state
    assert engine.coordinator.accepted == expected["accepted"]
    assert (state.version, state.model.tolist()) == (expected["version"], expected["model"])
    assert list(state.contents.clients) == expected["buffer"]
    engine.accept(45)
    engine.restart()
    engine.coordinator.abandon()
    assert (folder / "events.jsonl").read_bytes().startswith(before.removesuffix(torn))
    assert problems(folder) == []
    assert join(folder) == 1, "a log in one file stays as it is"


# Refusals


def export(folder: Path) -> object:
    return export_runs(find_logs(folder), TARGETS["csv"], folder.parent / "exported")


def dashboard(folder: Path) -> None:
    watcher = Watcher([folder])
    watcher.poll()
    (view,) = watcher.views(sites=True)
    raise BadInput(view.problem or "")


READERS: dict[str, Callable[[Path], object]] = {
    "audit": lambda folder: read_times(folder / "events.jsonl", ["north"]),
    "compare": lambda folder: compare([folder]),
    "dashboard": dashboard,
    "export": export,
    "follow a run": lambda folder: LogFollower(folder / "events.jsonl").poll(),
    "load": lambda folder: load(folder).arrivals(),
    "read": lambda folder: list(read_log(folder / "events.jsonl")),
    "read a later file": lambda folder: list(read_log(folder / "events.000002.jsonl")),
    "find a later file": lambda folder: find_logs(folder / "events.000002.jsonl"),
    "replay": lambda folder: read_trace(folder / "events.jsonl"),
    "report": lambda folder: list(read_report_data([folder]).groups),
    "watch": lambda folder: RunsFollower(folder).poll(),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_names_the_command_that_joins_the_files(folder: Path, reader: str) -> None:
    with pytest.raises(BadInput) as refusal:
        READERS[reader](folder)
    assert str(refusal.value).removeprefix("speeds.trace: ") == (
        f"the log in {folder} is in several files, which fedraw 0.2 was the last version to write; "
        f"stop its server, and join them with: fedraw server join {folder}"
    )


COMMANDS = [
    ["watch", "FOLDER", "--once"],
    ["compare", "FOLDER"],
    ["report", "FOLDER", "-o", "report.html"],
    ["model", "export", "FOLDER", "-o", "model.safetensors"],
    ["server", "verify", "FOLDER"],
    ["server", "backup", "FOLDER", "copy"],
    ["server", "rollback", "FOLDER"],
    ["server", "rollback", "FOLDER", "--to", "3"],
    ["server", "revoke", "north", "FOLDER"],
    ["server", "forget", "north", "FOLDER"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_names_the_command_that_joins_the_files(
    folder: Path, tmp_path: Path, command: list[str]
) -> None:
    before = content(folder)
    done = fedraw(*(folder if word == "FOLDER" else word for word in command), cwd=tmp_path)
    assert done.returncode != 0
    assert f"fedraw server join {folder}" in " ".join(done.stderr.split())
    assert content(folder) == before


def test_a_server_is_refused_and_changes_nothing(folder: Path, make_engine: MakeEngine) -> None:
    before = content(folder)
    with pytest.raises(FedrawError, match="join them with: fedraw server join"):
        open_server(folder, make_engine)
    assert content(folder) == before


def test_a_dashboard_shows_the_run_once_its_files_are_joined(folder: Path) -> None:
    watcher = Watcher([folder])
    watcher.poll()
    join(folder)
    watcher.poll()
    (view,) = watcher.views(sites=True)
    assert view.problem is None and view.status.event == 30


# Damage and interruptions


def altered(folder: Path) -> None:
    path = folder / "events.000002.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"time":1', b'"time":2', 1))


def torn_in_the_middle(folder: Path) -> None:
    path = folder / "events.000002.jsonl"
    path.write_bytes(path.read_bytes()[:-20])


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "first missing": (lambda folder: (folder / "events.jsonl").unlink(), "no events.jsonl"),
    "second missing": (
        lambda folder: (folder / "events.000002.jsonl").unlink(),
        "events.000002.jsonl is missing",
    ),
    "last missing": (
        lambda folder: (folder / "events.000004.jsonl").unlink(),
        "events.000004.jsonl is missing",
    ),
    "altered": (altered, "events.000002.jsonl, line "),
    "torn in the middle": (torn_in_the_middle, "events.000002.jsonl, line "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_not_joined(folder: Path, damage: str) -> None:
    harm, message = DAMAGES[damage]
    harm(folder)
    before = content(folder)
    with pytest.raises(BadInput, match=message):
        join(folder)
    assert content(folder) == before


def test_the_files_of_a_running_server_are_not_joined(folder: Path) -> None:
    lock, before = FolderLock(folder), content(folder)
    with pytest.raises(BadInput, match=r"another process is running .* stop its server first"):
        join(folder)
    lock.close()
    assert content(folder) == before


@pytest.mark.parametrize("continued", [True, False], ids=["before the first record", "before it"])
def test_a_server_that_was_killed_while_it_began_a_file(folder: Path, continued: bool) -> None:
    third, last = files_of(folder)[2:]
    lines = third.read_bytes().splitlines(keepends=True)
    assert lines[-1].startswith(b'{"kind":"continued"')
    third.write_bytes(b"".join(lines if continued else [*lines[:-1], TORN]))
    last.write_bytes(b"")
    before = whole(folder)
    join(folder)
    assert (folder / "events.jsonl").read_bytes() == before
    kinds = [record.kind for record in read_log(folder / "events.jsonl", allow_cut_off=True)]
    assert kinds.count("continued") == (3 if continued else 2)


def test_files_that_an_older_version_added_to_a_joined_log_are_joined_too(folder: Path) -> None:
    first, second, third, last = files_of(folder)
    parts = [path.read_bytes() for path in (first, second, third, last)]
    first.write_bytes(b"".join(parts[:3]))  # it ends with `continued`, and has others inside
    second.write_bytes(parts[3])
    third.unlink()
    last.unlink()
    assert join(folder) == 2
    assert first.read_bytes() == b"".join(parts)
    assert problems(folder) == []


def test_a_kill_at_any_step_loses_nothing(folder: Path) -> None:
    """Each file operation of `join` is interrupted, before and after, in a process of its own."""
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    log, others, before = folder / "events.jsonl", content(folder), whole(folder)
    kept = {name: own for name, own in others.items() if not name.startswith("events")}
    refused = complete = 0
    for call in count(1):
        ended = run_forked(lambda _: join(folder) and None, Kill("call", call))
        if not ended.was_killed:
            assert ended.code == 0, ended.problem
            break
        assert log.read_bytes() in (before, others["events.jsonl"]), "old or new, never between"
        if log.read_bytes() != before:
            assert whole(folder) == before
        if len(files_of(folder)) > 1:
            refused += 1
            with pytest.raises(BadInput, match="fedraw server join"):
                list(read_log(log))
        else:
            complete += 1
        join(folder)
        assert content(folder) == {"events.jsonl": before, **kept}, call
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
    assert refused > 30 and complete > 1
    assert content(folder) == {"events.jsonl": before, **kept}


@pytest.mark.parametrize("size", [1, 4000, 8000])
def test_a_kill_in_the_middle_of_a_write_loses_nothing(folder: Path, size: int) -> None:
    """The kernel ends the process in the middle of a write, when the draft has this size."""
    before = whole(folder)
    ended = run_forked(lambda _: join(folder) and None, Kill("torn", size))
    assert ended.was_killed, ended.problem
    assert whole(folder) == before
    join(folder)
    assert (folder / "events.jsonl").read_bytes() == before
    assert problems(folder) == []
