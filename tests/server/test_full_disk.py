"""Tests on a small file system that is filled up to its last page."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.server.engine import Engine
from tests.server.test_recovery import packed

from fedraw.core.layout import Layout
from fedraw.eventlog.records import NoteRecord
from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.tasks import Reply, Task, TrainReply
from fedraw.server.verification import verify_folder
from fedraw.storage.numbered_folders import NumberedFolders
from fedraw.strategies.fedraw import FedRAW

# An update takes 5 pages, a snapshot 16: with so many left, each step of each fails once.
PAGE, PARAMETERS = 4096, 4500
ROOM = (0, 1, 2, 4, 5, 6, 10, 13, 14, 15, 16, 17, 18)
LAYOUT = Layout.of([("w", (PARAMETERS,))])


class Disk:
    """A file system of 2 MB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, pages_left: int) -> None:
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        os.truncate(self._filler, max(0, self._filler.stat().st_size - pages_left * PAGE))

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        # Lazily: a test that failed may have left the log open.
        subprocess.run(["umount", "-l", str(path)], check=True)


class Patient(Engine):
    """An engine on a full disk, which hands in a reply again until it is accepted."""

    def __init__(self, disk: Disk) -> None:
        self.refusals = 0
        self._given: dict[str, tuple[float, str, Reply]] = {}
        folder = disk.path / "federation"
        super().__init__(folder, FedRAW(buffer=3), snapshot_every=6.0, absence=5.0)

    def open(self) -> Coordinator:
        return open_federation(
            self.strategy,
            lambda: np.zeros(PARAMETERS, np.float32),
            self.settings,
            LAYOUT,
            engine="test",
            now=self.now,
            wall=lambda: self.now,
        )

    def turn(self) -> None:
        try:
            super().turn()
        except OSError as problem:
            assert "No space left" in str(problem)
            self.refusals += 1
            waited_for = self.coordinator.message_ids
            self.replies = [self._given[t] for t in waited_for if t in self._given]
            self.coordinator.tick(self.now)

    def _serve(self, task: Task, message_id: str) -> None:
        super()._serve(task, message_id)
        self._given.update({entry[1]: entry for entry in self.replies})

    def _train(self, name: str, task: Task) -> TrainReply:
        assert task.model is not None
        site = self.sites[name]
        drawn = np.random.default_rng([site.node, site.trained]).normal(size=PARAMETERS)
        vector = np.asarray(drawn + task.model, np.float32)
        return TrainReply(name, task.number, task.version, vector, 10, 0.5)


@pytest.fixture
def engine(disk: Disk) -> Iterator[Patient]:
    engine = Patient(disk)
    yield engine
    engine.coordinator._store.log.close()


def check_whole(engine: Patient) -> None:
    """Check that the log has each accepted update once and that a new server recovers them."""
    events = [r["event"] for r in engine.log("arrival")]
    assert events == sorted(set(events))
    assert len(events) == engine.coordinator.accepted
    before = packed(engine)
    engine.restart()
    assert packed(engine) == before


@pytest.mark.parametrize("pages", ROOM)
def test_the_disk_is_full_while_updates_arrive(disk: Disk, engine: Patient, pages: int) -> None:
    engine.accept(9)
    disk.fill(pages)
    engine.wait(20)
    assert engine.refusals, "the disk was not full"
    accepted, before = engine.coordinator.accepted, packed(engine)
    assert accepted <= 9 + pages
    engine.restart()  # killed while the disk is full, and started again on it
    assert packed(engine) == before
    engine.wait(20)
    disk.free()
    engine.accept(accepted + 20)
    check_whole(engine)
    assert "no snapshot could be written" in engine.reasons()
    assert not engine.log("rejected", "left")
    drafts = [p.name for p in engine.settings.folder.rglob("*") if p.suffix == ".part"]
    assert drafts == []


def test_a_freed_disk_needs_no_restart(disk: Disk, engine: Patient) -> None:
    """A reply that could not be written is handed in again; no site is asked twice."""
    engine.accept(8)
    disk.fill(2)
    engine.wait(20)
    asked = len(engine.sent)
    engine.wait(20)
    assert len(engine.sent) == asked, "all four wait for their updates to be taken"
    disk.free()
    engine.accept(12)
    assert {r["client"] for r in engine.log("arrival")[8:12]} == set(engine.sites)
    check_whole(engine)


def test_the_disk_is_full_while_a_snapshot_is_written(disk: Disk, engine: Patient) -> None:
    checkpoint = engine.settings.folder / "checkpoint"
    failed = 0
    for pages in ROOM:
        engine.accept(engine.coordinator.accepted + 3)
        newest = max(p.name for p in checkpoint.iterdir())
        disk.fill(pages)
        engine.now += 7
        engine.coordinator.tick(engine.now)  # no reply is handed in meanwhile
        names = {p.name for p in checkpoint.iterdir()}
        assert "draft" not in names and newest in names
        failed += max(names) == newest
        assert NumberedFolders(checkpoint, 2, number_key="event").read() is not None
        before = packed(engine)
        engine.restart()
        assert packed(engine) == before
        disk.free()
        engine.wait(7)
        assert max(p.name for p in checkpoint.iterdir()) > newest, "written now"
    assert 5 <= failed < len(ROOM), "some had room enough and some had not"
    assert "no snapshot could be written" in engine.reasons()
    check_whole(engine)


@pytest.mark.parametrize("pages", ROOM)
def test_the_disk_is_full_when_training_begins(disk: Disk, engine: Patient, pages: int) -> None:
    disk.fill(pages)
    engine.wait(5)
    disk.free()
    engine.accept(5)
    assert engine.kinds().count("start") == 1
    assert [r["client"] for r in engine.log("joined")] == list(engine.sites)
    check_whole(engine)


@pytest.mark.parametrize("pages", [2, 6, 10, 14])
def test_a_site_leaves_while_the_disk_is_too_full_to_begin(
    disk: Disk, engine: Patient, pages: int
) -> None:
    """There is room for the log, but not for the first snapshot, so training has not begun."""
    disk.fill(pages)
    engine.wait(5)
    assert engine.refusals, "the disk was not full"
    engine.online.remove("west")
    engine.wait(10)  # longer than `absence`
    assert engine.coordinator.members == []
    engine.restart()
    disk.free()
    engine.wait(5)
    engine.online.add("west")
    engine.accept(5)
    assert [r["client"] for r in engine.log("joined")] == list(engine.sites)
    assert not engine.log("left")
    check_whole(engine)


def fill_page(engine: Patient) -> None:
    """Fill the last page of the log, so that its next record needs another page."""
    store = engine.coordinator._store
    note = NoteRecord(event=0, time=0.0, reason="")
    before = len(store.log)
    store.log.note(note)
    own = len(store.log) - before
    store.log.note(replace(note, reason="x" * (-(len(store.log) + own) % PAGE)))
    assert len(store.log) % PAGE == 0


@pytest.mark.parametrize("pages", [0, 2])
def test_the_disk_is_full_while_a_site_leaves_and_returns(
    disk: Disk, engine: Patient, pages: int
) -> None:
    engine.accept(8)
    fill_page(engine)
    disk.fill(pages)
    engine.online.remove("west")
    engine.wait(10)
    left = [r["client"] for r in engine.log("left")]
    assert left == (["west"] if pages else []), "what is not on disk does not take effect"
    assert ("west" in engine.coordinator.members) == (not pages)
    disk.free()
    engine.wait(1)
    assert [r["client"] for r in engine.log("left")] == ["west"]
    fill_page(engine)
    disk.fill(0)
    engine.online.add("west")
    engine.wait(5)
    assert [r["client"] for r in engine.log("joined")].count("west") == 1
    disk.free()
    engine.wait(5)
    assert [r["client"] for r in engine.log("joined")].count("west") == 2
    assert "west" in engine.coordinator.members
    check_whole(engine)


@pytest.mark.parametrize("pages", ROOM)
def test_the_disk_is_full_at_the_end(disk: Disk, engine: Patient, pages: int) -> None:
    engine.accept(8)
    leader = engine.coordinator
    leader._settings = replace(leader._settings, arrivals=9)
    engine.run(lambda: leader.finished is not None)
    disk.fill(pages)
    with suppress(OSError):
        leader.close(engine.now)
    disk.free()
    if not leader._store.log._file.closed:
        leader.close(engine.now)
    assert engine.kinds().count("end") == 1 and engine.kinds()[-1] == "end"
    assert [check.problems for check in verify_folder(engine.settings.folder)] == [[]] * 6
    tensors = load_file(engine.settings.folder / "model.safetensors")
    assert tensors["w"].tobytes() == leader._store.strategy_state.model.tobytes()
    engine.restart()
    assert engine.coordinator.finished == "9 updates accepted"
    assert engine.coordinator.accepted == 9


def test_a_server_app_waits_for_disk_space_and_logs_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's loop keeps its one reply and pulls no other while the disk is full."""
    pytest.importorskip("flwr")
    from tests.flower import test_bad_clients as flower
    from tests.flower.memory_grid import identity

    fixture: Any = identity
    fixture.__wrapped__(monkeypatch)
    grid, folder, looks = flower.a_grid(), disk.path / "federation", []

    def before(call: str) -> None:
        looks.append(call)
        if looks.count("look") == 5 and call == "look":
            disk.fill(3)
        elif looks.count("look") == 25 and call == "look":
            disk.free()

    grid.before = before
    flower.lead(grid, folder, snapshot_every=0.02)
    lines = [r.message for r in caplog.records if r.message.startswith("an update")]
    assert lines == [
        "an update cannot be written and will be tried again: No space left on device",
        "an update is written",
    ]
    flower.check_end(folder, grid)
    assert not flower.log(folder, "left") and not flower.log(folder, "rejected")
