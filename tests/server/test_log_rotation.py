"""The server continues a long log in numbered files, and every reader reads all of them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import Engine
from tests.server.test_recovery import packed

from fedraw.auditing.times import read_times
from fedraw.dashboard.watcher import Watcher
from fedraw.errors import BadInput, FolderChanged
from fedraw.eventlog.compare import compare
from fedraw.eventlog.follow import LogFollower
from fedraw.eventlog.log_file import LogTail, find_logs, read_log
from fedraw.eventlog.records import ContinuedRecord, Record
from fedraw.eventlog.segments import open_log, parts_of, segment
from fedraw.experiment.result import load
from fedraw.export import TARGETS, export_runs
from fedraw.report.report_data import read_report_data
from fedraw.simulation.arrivals import read_trace, sites_of
from fedraw.strategies.fedraw import FedRAW

SMALL: dict[str, Any] = {"log_segment": 2000, "snapshot_every": 2.0}


def rotated(make_engine: MakeEngine, arrivals: int = 30) -> Engine:
    engine = make_engine(FedRAW(buffer=3), **SMALL)
    engine.accept(arrivals)
    return engine


def log_of(engine: Engine) -> Path:
    return engine.settings.folder / "events.jsonl"


def joined(log: Path, into: Path) -> Path:
    """A copy of the log in one file."""
    into.mkdir()
    with open_log(log) as file:
        (into / log.name).write_bytes(file.read())
    return into / log.name


def test_each_file_but_the_last_ends_with_a_continued_record(
    make_engine: MakeEngine,
) -> None:
    engine = rotated(make_engine)
    log = log_of(engine)
    parts = parts_of(log)
    assert len(parts) >= 4
    assert [path.name for path, _ in parts[:2]] == ["events.jsonl", "events.000002.jsonl"]
    assert all(2000 <= size < 5000 for _, size in parts[:-1])
    ends = [path.read_bytes().splitlines()[-1] for path, _ in parts[:-1]]
    assert all(line.startswith(b'{"kind":"continued"') for line in ends)
    led = [record.segment for record in read_log(log) if isinstance(record, ContinuedRecord)]
    assert led == list(range(2, len(parts) + 1))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path, _ in parts)


def test_a_federation_is_the_same_with_and_without_rotation(make_engine: MakeEngine) -> None:
    def decisions(engine: Engine) -> list[Record]:
        records = list(read_log(log_of(engine)))[1:]  # the start record has the settings
        return [record for record in records if not isinstance(record, ContinuedRecord)]

    engine, other = (
        rotated(make_engine),
        make_engine(FedRAW(buffer=3), snapshot_every=2.0, folder="other"),
    )
    other.accept(30)
    assert decisions(engine) == decisions(other)
    assert packed(engine) == packed(other)
    engine.restart()
    assert packed(engine) == packed(other)


def test_a_restart_continues_in_the_last_file(make_engine: MakeEngine) -> None:
    engine = rotated(make_engine)
    for arrivals in range(31, 60):
        before, parts = packed(engine), parts_of(log_of(engine))
        engine.restart()
        assert packed(engine) == before
        assert parts_of(log_of(engine))[:-1][: len(parts) - 1] == parts[:-1]
        engine.accept(arrivals)
    list(read_log(log_of(engine)))


# Readers


def look(follower: LogFollower) -> object:
    follower.poll()
    return follower.detail(), follower.sites(0.0), follower.read


def dashboard(log: Path) -> object:
    watcher = Watcher([log.parent])
    assert watcher.poll()
    (view,) = watcher.views(sites=True)
    return view.detail, view.time, view.problem


def exported(log: Path) -> list[bytes]:
    out = log.parent / "exported"
    export_runs([log], TARGETS["csv"], out)
    return [path.read_bytes() for path in sorted(out.rglob("*.csv"))]


READERS: dict[str, Callable[[Path], object]] = {
    "compare": lambda log: [str(row) for row in compare([log.parent])],
    "report": lambda log: next(iter(read_report_data([log.parent]).groups)).runs[0].summary,
    "load": lambda log: load(log.parent).arrivals().columns,
    "dashboard": dashboard,
    "export": exported,
    "replay": read_trace,
    "audit": lambda log: read_times(log, sites_of(log)).seconds.tolist(),
    "watch": lambda log: look(LogFollower(log)),
    "tail": lambda log: list(LogTail(log).read()),
    "read": lambda log: list(read_log(log)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_all_files_as_one(
    make_engine: MakeEngine, tmp_path: Path, reader: str
) -> None:
    engine = make_engine(FedRAW(buffer=3), arrivals=30, **SMALL)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    alone = joined(log_of(engine), tmp_path / "federation-joined")
    shutil.copytree(engine.settings.folder / "checkpoint", alone.parent / "checkpoint")
    read = READERS[reader]
    assert read(log_of(engine)) == read(alone)


def test_readers_follow_while_the_log_grows_and_rotates(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=3), **SMALL)
    engine.accept(1)
    log = log_of(engine)
    follower, tail, tailed = LogFollower(log), LogTail(log), list[Record]()
    for arrivals in range(2, 40):
        engine.accept(arrivals)
        assert follower.poll()
        assert follower.status(0.0).event == engine.coordinator.accepted
        tailed += tail.read()
        assert tailed == list(read_log(log))
    assert len(parts_of(log)) > 4


def test_a_later_file_of_a_log_is_refused(make_engine: MakeEngine) -> None:
    engine = rotated(make_engine)
    later = segment(log_of(engine), 2)
    for read in (find_logs, lambda path: list(read_log(path))):
        with pytest.raises(BadInput, match=r"000002.jsonl continues a log that begins in .*jsonl"):
            read(later)


# A kill at each step of a rotation


def before_rotation(make_engine: MakeEngine) -> tuple[Engine, Path, bytes]:
    """A closed server whose log has just rotated, its last file, and the continued record."""
    engine = make_engine(FedRAW(buffer=3), **SMALL)
    log = log_of(engine)
    engine.run(lambda: segment(log, 3).exists() and not segment(log, 3).stat().st_size)
    engine.coordinator.abandon()
    line = segment(log, 2).read_bytes().splitlines(keepends=True)[-1]
    assert line.startswith(b'{"kind":"continued"')
    return engine, log, line


def test_a_kill_in_the_middle_of_the_last_line_of_a_file(make_engine: MakeEngine) -> None:
    engine, log, line = before_rotation(make_engine)
    newest = max((engine.settings.folder / "checkpoint").glob("*[0-9]"))
    shutil.rmtree(newest)  # the snapshot after the rotation had not been written
    before, saved = segment(log, 2).read_bytes(), engine.settings.folder.with_name("saved")
    shutil.copytree(engine.settings.folder, saved)
    states = []
    for kept in (0, 1, 20, len(line) - 1, len(line)):
        shutil.rmtree(engine.settings.folder)
        shutil.copytree(saved, engine.settings.folder)
        segment(log, 2).write_bytes(before[: len(before) - len(line) + kept])
        engine.restart()
        states.append(packed(engine))
        records = list(read_log(log))
        assert isinstance(records[-2], ContinuedRecord) == (kept == len(line))
        assert records[-1].kind == "restarted"
        engine.accept(30)
        events = [r["event"] for r in engine.log("arrival")]
        assert events == list(range(1, len(events) + 1))
        engine.coordinator.abandon()
    assert all(state == states[0] for state in states)


def test_a_kill_before_the_first_record_of_a_file(make_engine: MakeEngine) -> None:
    engine, log, _ = before_rotation(make_engine)
    engine.restart()
    assert segment(log, 3).read_bytes().startswith(b'{"kind":"restarted"')
    engine.accept(30)


def test_a_torn_first_line_of_a_file(make_engine: MakeEngine) -> None:
    engine, log, _ = before_rotation(make_engine)
    segment(log, 3).write_bytes(b'{"kind":"arr')
    assert LogFollower(log).poll()
    engine.restart()
    assert segment(log, 3).read_bytes().startswith(b'{"kind":"restarted"')
    engine.accept(30)
    list(read_log(log))


@pytest.mark.parametrize("call", ["open", "fsync", "write"])
def test_a_disk_that_is_full_during_a_rotation_leaves_the_log_as_it_is(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    engine = make_engine(FedRAW(buffer=3), log_segment=2000, snapshot_every=1e6)
    engine.accept(12)
    log, store = log_of(engine), engine.coordinator._store
    before = log.read_bytes()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if call == "open":
            patch.setattr("fedraw.server.log.sync", full)
        elif call == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(type(store.log), "_append", full)
        with pytest.raises(OSError, match="No space"):
            store.snapshot(engine.now)
    assert log.read_bytes() == before
    engine.accept(14)
    store.snapshot(engine.now)
    assert segment(log, 2).exists()
    engine.accept(16)
    state = packed(engine)
    engine.restart()
    assert packed(engine) == state
    list(read_log(log))


# Damage


def removed(log: Path) -> None:
    log.unlink()


def emptied(log: Path) -> None:
    log.write_bytes(b"")


def shortened(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))


def exchanged(log: Path) -> None:
    other = log.with_name("events.000004.jsonl")
    content = log.read_bytes()
    log.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize("damage", [removed, emptied, shortened, exchanged])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_reader_names_a_damaged_file(
    make_engine: MakeEngine, damage: Callable[[Path], None], number: int
) -> None:
    engine = rotated(make_engine)
    engine.coordinator.abandon()
    log = log_of(engine)
    damage(segment(log, number))
    uses: list[Callable[[], object]] = [
        engine.restart,
        lambda: list(read_log(log)),
        lambda: look(LogFollower(log)),
    ]
    for use in uses:
        with pytest.raises(BadInput) as refusal:
            use()
        assert "events." in str(refusal.value)


def test_a_missing_last_file_is_named(make_engine: MakeEngine) -> None:
    engine, log, _ = before_rotation(make_engine)
    segment(log, 3).unlink()
    for use in (engine.restart, lambda: list(read_log(log)), LogFollower(log).poll):
        with pytest.raises(BadInput, match=r"events\.000003\.jsonl is missing"):
            use()


def test_an_earlier_file_that_changes_stops_the_server(make_engine: MakeEngine) -> None:
    engine = rotated(make_engine)
    segment(log_of(engine), 2).unlink()
    with pytest.raises(FolderChanged, match=r"a file of .*events\.jsonl was changed"):
        engine.wait(5)
