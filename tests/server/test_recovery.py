"""Every accepted update survives any end of the process."""

from __future__ import annotations

import errno
import json
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.eventlog.logs import as_bytes, record
from tests.server.conftest import MakeEngine
from tests.server.engine import Engine, failing

from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import NoteRecord
from fedraw.server.journal import ArrivalFacts, Journal
from fedraw.server.log import ServerLog
from fedraw.server.tasks import Task, TrainReply
from fedraw.storage import snapshot
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg

STRATEGIES = [
    FedRAW(buffer=3),
    FedFa(buffer=2),
    FedBuff(buffer=2),
    CA2FL(buffer=2),
    FedAsync(),
    FedAvg(),
    QFedAvg(lr=0.1),
]


def wrong_dtype(task: Task, honest: TrainReply) -> TrainReply:
    return replace(honest, vector=honest.vector.astype(np.float64))


def packed(engine: Engine) -> tuple[Any, dict[str, bytes]]:
    """The state of the federation as text and bytes."""
    store = engine.coordinator._store
    arrays = snapshot.Arrays()
    # When a snapshot was written does not matter, and wall time is only for display.
    book = replace(store.state, clock=0.0, epoch=0.0)
    tree = snapshot.pack([store.strategy_state, book], arrays)
    return json.loads(json.dumps(tree)), {name: array.tobytes() for name, array in arrays.items()}


def test_the_log_of_a_restart_has_the_new_limit(make_engine: MakeEngine) -> None:
    engine = make_engine(arrivals=20)
    engine.accept(3)
    engine.restart(arrivals=100)
    engine.restart(arrivals=None, seconds=1000)
    assert [record["events"] for record in engine.log("restarted")] == [100, 0]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("arrivals", [1, 7, 20])
def test_a_killed_server_continues_bit_for_bit(
    make_engine: MakeEngine, strategy: Any, arrivals: int
) -> None:
    engine = make_engine(strategy, snapshot_every=6.0)
    engine.accept(arrivals)
    before = packed(engine)
    engine.restart(away=100.0)
    assert packed(engine) == before
    restarted = engine.log("restarted")[-1]
    assert restarted["gap"] >= 99
    assert set(restarted["reasked"]) == set(engine.coordinator._store.state.awaiting_model)
    engine.accept(arrivals + 5)  # those in flight were asked again
    events = [r["event"] for r in engine.log("arrival")]
    assert events == sorted(set(events))


def test_an_update_in_the_journal_counts_even_if_the_log_lacks_it(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2))
    engine.accept(6)
    before = packed(engine)
    path = engine.settings.folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = next(i for i in reversed(range(len(lines))) if b'"arrival"' in lines[i])
    path.write_bytes(b"".join(lines[:last]) + lines[last][:20])  # cut off in the middle
    engine.restart()
    assert packed(engine) == before
    assert path.read_bytes().splitlines(keepends=True)[: last + 1] == lines[: last + 1]


def test_a_reply_that_never_reached_the_journal_is_asked_for_again(make_engine: MakeEngine) -> None:
    engine = make_engine(FedAvg())
    engine.accept(2)
    waiting = set(engine.coordinator._store.state.awaiting_model)
    engine.restart()
    engine.turn()
    engine.now += 1
    engine.turn()
    assert {task.site for task in engine.sent[-len(waiting) :]} == waiting
    engine.accept(4)
    assert engine.log("arrival")[-1]["version"] == 1


def test_a_site_that_trains_during_a_restart_stays_a_member(make_engine: MakeEngine) -> None:
    """Its node is online, but answers the new server only after 120 s, twice its absence."""
    engine = make_engine(FedRAW(buffer=3), absence=60.0, deadline=100.0)
    engine.accept(12)
    engine.restart()
    engine.delays["summary"] = 120.0
    engine.online.remove("west")
    engine.wait(110)
    assert [(r["client"], r["reason"]) for r in engine.log("left")] == [
        ("west", "out of reach for 60 s")
    ]
    engine.accept(16)
    assert set(engine.coordinator.members) == {"north", "south", "east"}


def test_a_site_that_never_answers_after_a_restart_leaves(make_engine: MakeEngine) -> None:
    """A round waits for it for three deadlines of 100 s, and then for its absence of 60 s."""
    engine = make_engine(FedAvg(), absence=60.0, deadline=100.0)
    engine.accept(4)
    engine.restart()
    engine.delays["summary"] = 1e9
    engine.wait(350)
    assert set(engine.coordinator.members) == set(engine.sites)
    engine.wait(20)
    assert engine.coordinator.members == []


def test_the_first_snapshot_has_time_zero(make_engine: MakeEngine) -> None:
    engine = make_engine(snapshot_every=1e6)
    engine.run(lambda: bool(engine.log("start")))
    assert engine.coordinator._store.state.clock == 0.0
    (first,) = (engine.settings.folder / "checkpoint").iterdir()
    assert snapshot.read(first)[0]["state"]["clock"] == 0.0


def test_a_snapshot_refers_to_updates_instead_of_copying_them(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=4), snapshot_every=1.0, rollback_points=0)
    engine.accept(30)
    folder = engine.settings.folder
    newest = max((folder / "checkpoint").iterdir())
    facts = json.loads((newest / "manifest.json").read_text())
    assert len(facts["updates"]) == 4
    # Of the four models in the window none is in it again: there is one, the global model.
    assert [a.size for a in snapshot.read(newest)[1].values() if a.dtype == np.float32] == [4]
    kept = {int(path.stem) for path in (folder / "updates").iterdir()}
    assert kept >= set(facts["updates"])
    assert len(kept) <= 12  # of 30: what no snapshot needs is gone


def test_a_damaged_snapshot_is_skipped_and_logged(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=3), snapshot_every=1.0)
    engine.accept(20)
    before = packed(engine)
    newest = max((engine.settings.folder / "checkpoint").iterdir()) / "state.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    engine.restart()
    assert packed(engine) == before
    (damage,) = engine.log("restarted")[-1]["damaged"]
    assert str(newest) in damage and "checksum" in damage


def test_a_damaged_update_is_named(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=3))
    engine.accept(5)
    path = engine.settings.folder / "updates" / "0000000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"0000000002.safetensors is damaged or missing"):
        engine.restart()


def test_another_strategy_or_model_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=3))
    engine.accept(5)
    engine.strategy = FedRAW(buffer=2)
    with pytest.raises(BadInput, match="strategy has buffer = 3, and this run has 2"):
        engine.restart()


def test_two_servers_cannot_share_a_folder(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(BadInput, match="another process is running"):
        engine.open()


def test_a_finished_federation_stays_finished(make_engine: MakeEngine) -> None:
    engine = make_engine(arrivals=3)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    engine.restart()
    assert engine.coordinator.finished == "3 updates accepted"
    assert engine.coordinator.tasks(engine.now) == []
    engine.coordinator.close(engine.now)
    assert engine.kinds().count("end") == 1


def test_a_server_killed_at_its_limit_ends_after_the_restart(make_engine: MakeEngine) -> None:
    engine = make_engine(arrivals=5)
    engine.accept(4)
    engine.restart(arrivals=4)
    engine.turn()
    assert engine.coordinator.finished == "4 updates accepted"


def test_quarantine_survives_a_restart(make_engine: MakeEngine) -> None:
    engine = make_engine(patience=2, back_off=1.0, quarantine=500.0, min_clients=4)
    engine.sites["west"].reply = failing
    engine.run(lambda: bool(engine.log("left")))
    trained = engine.sites["west"].trained
    engine.restart()
    for site in engine.sites.values():
        site.seconds *= 20
    engine.wait(100)
    assert engine.sites["west"].trained == trained
    engine.sites["west"].reply = None
    engine.wait(500)
    assert "west" in engine.coordinator.members


@pytest.mark.parametrize("wall_shift", [0.0, 1e9, -1e9])
def test_quarantine_counts_running_time_whatever_the_clocks_say(
    make_engine: MakeEngine, wall_shift: float
) -> None:
    engine = make_engine(patience=2, back_off=1.0, quarantine=60.0, seconds=1e6, pace=4.0)
    engine.sites["west"].reply = failing
    engine.run(lambda: bool(engine.log("left")))
    ended = engine.coordinator._store.state.quarantined["west"]
    last = engine.log()[-1]["time"]
    engine.now = 5.0  # the machine was started again, and its monotonic clock with it
    engine.wall_shift = wall_shift
    engine.restart()
    assert engine.log("restarted")[-1]["time"] == last
    assert engine.log("restarted")[-1]["gap"] >= 0
    engine.sites["west"].reply = None
    engine.run(lambda: "west" in engine.coordinator.members)
    assert engine.log("joined")[-1]["time"] == pytest.approx(ended, abs=1.0)
    times = [record["time"] for record in engine.log() if "time" in record]
    assert times == sorted(times)
    assert engine.coordinator.finished is None


def test_a_second_restart_counts_only_its_own_gap(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(3)
    engine.restart(away=1000.0)
    engine.restart(away=10.0)
    first, second = (record["gap"] for record in engine.log("restarted"))
    assert first == pytest.approx(1000, abs=2) and second == 10


def test_a_refused_update_has_its_own_event(make_engine: MakeEngine) -> None:
    """Otherwise the next update would replace a file of the journal."""
    engine = make_engine(FedFa(buffer=4), patience=9, back_off=1.0)
    engine.accept(3)
    honest, engine.sites["west"].reply = engine.sites["west"].reply, wrong_dtype
    engine.run(lambda: bool(engine.log("rejected")))
    engine.sites["west"].reply = honest
    engine.accept(8)
    events = [r["event"] for r in engine.log("arrival", "rejected")]
    assert events == list(range(1, len(events) + 1))
    arrived = {r["event"]: r["client"] for r in engine.log("arrival")}
    journal = engine.coordinator._store.journal
    assert {event: journal.read(event)[0].client for event in journal.events()} == arrived
    before = packed(engine)
    engine.restart()
    assert packed(engine) == before


def test_a_snapshot_after_a_restart_still_refers_to_updates(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=4), snapshot_every=1e6)
    engine.accept(6)
    engine.restart()
    engine.coordinator._store.state.event += 1  # a snapshot of the same event would be skipped
    engine.coordinator._store.snapshot(engine.now)
    newest = max((engine.settings.folder / "checkpoint").iterdir())
    assert json.loads((newest / "manifest.json").read_text())["updates"] == [3, 4, 5, 6]
    assert [a.size for a in snapshot.read(newest)[1].values() if a.dtype == np.float32] == [4]


class FullDisk:
    """While it is on, every write fails as on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        fsync = __import__("os").fsync

        def full(handle: int) -> None:
            if self.on:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(handle)

        monkeypatch.setattr("os.fsync", full)


def test_on_a_full_disk_nothing_is_accepted_and_nothing_lost(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    engine = make_engine(FedRAW(buffer=3))
    engine.accept(6)
    before = packed(engine)
    disk.on = True
    with pytest.raises(OSError, match="No space left"):
        engine.wait(5)
    assert packed(engine) == before
    assert not list((engine.settings.folder / "updates").glob("*.part"))
    disk.on = False
    engine.accept(9)
    assert "nothing could be written to the disk, and no update was accepted" in engine.reasons()
    engine.restart()
    assert engine.coordinator.accepted == 9


def test_a_failed_snapshot_loses_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(FedRAW(buffer=3), snapshot_every=1.0)
    engine.accept(4)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedraw.storage.snapshot.write_tensors", full)
        engine.accept(12)
    assert engine.reasons().count("no snapshot could be written (No space left on device)") == 1
    before = packed(engine)
    engine.restart()
    assert packed(engine) == before
    engine.accept(16)
    newest = max(int(path.name) for path in (engine.settings.folder / "checkpoint").iterdir())
    assert newest >= 12


def test_the_journal_returns_updates_unchanged(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    vector = np.array([1.5, -2.0, 3e38], np.float32)
    flight = ArrivalFacts(1.0, 2, 3.0, 4.0)
    journal.write(7, Update("north", 3, vector, 12, 0.25), flight)
    update, again = Journal(tmp_path).read(7)
    assert update.vector.tobytes() == vector.tobytes()
    assert (update.client, update.start_version, update.examples, update.loss) == (
        "north",
        3,
        12,
        0.25,
    )
    assert again == flight


def test_every_byte_of_an_update_file_is_covered(tmp_path: Path) -> None:
    vector = np.array([1.5, -2.0, 0.25], np.float32)
    Journal(tmp_path).write(7, Update("north", 3, vector, 12, 0.25), ArrivalFacts(1.0, 2, 3.0, 4.0))
    path = tmp_path / "0000000007.safetensors"
    whole = path.read_bytes()
    believed = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with suppress(BadInput):
            believed.append((place, Journal(tmp_path).read(7)))
    assert believed == []
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match=r"0000000007\.safetensors is damaged or missing"):
            Journal(tmp_path).read(7)


def test_an_update_file_with_another_number_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(7, Update("north", 3, np.ones(2, np.float32), 12), ArrivalFacts(1.0, 2, 3.0, 4.0))
    (tmp_path / "0000000007.safetensors").rename(tmp_path / "0000000008.safetensors")
    (tmp_path / "a copy.safetensors").touch()
    assert journal.events() == [8]
    with pytest.raises(BadInput, match=r"0000000008\.safetensors is damaged"):
        journal.read(8)


def test_a_partly_written_line_is_completed_later(tmp_path: Path) -> None:
    """A limit on the file size makes the kernel write only the first bytes."""
    log = ServerLog(tmp_path)
    log.note(record("note"))
    length, before = len(log), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + 10, before[1]))
    try:
        log.note(record("note", reason="first"))
        log.note(record("note", reason="second"))
        assert len(log) == log.path.stat().st_size == length + 10
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.note(record("note", reason="third"))
    told = [known.reason for known in log.verify() if isinstance(known, NoteRecord)]
    assert told == ["", "first", "second", "third"]
    log.close()


def test_an_altered_last_line_break_is_refused(tmp_path: Path) -> None:
    """One bit of the last line break flips, although the record had taken effect."""
    path = tmp_path / "events.jsonl"
    whole = as_bytes([record("left"), record("left")])
    path.write_bytes(whole[:-1] + b"\x0b")
    log = ServerLog(tmp_path)
    with pytest.raises(BadInput, match=r"events\.jsonl, line 2 was altered at its end; restore"):
        list(log.verify())
    assert len(path.read_bytes()) == len(whole)
    log.close()


def test_a_torn_line_is_removed_and_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    whole = as_bytes([record("left")])
    path.write_bytes(whole + b'{"kind":"arri')
    log = ServerLog(tmp_path)
    assert [r.kind for r in log.verify()] == ["left"]
    log.remove_torn_line()
    assert path.read_bytes() == whole
    disk = FullDisk(monkeypatch)
    disk.on = True
    with pytest.raises(OSError, match="No space"):
        log.commit(record("joined"))
    assert path.read_bytes() == whole
    disk.on = False
    log.commit(record("joined"))
    assert [r.kind for r in read_log(path)] == ["left", "joined"]
    log.close()
