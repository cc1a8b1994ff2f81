"""Whatever was accepted is there again after any end of the process."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.event_logs import as_bytes
from tests.server.conftest import Found
from tests.server.engine import Engine, failing

from fedraw.core.update import Update
from fedraw.disk import snapshot
from fedraw.disk.event_log import Position, read_log
from fedraw.errors import BadInput
from fedraw.server.journal import Flight, Journal
from fedraw.server.log import ServerLog
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


def packed(engine: Engine) -> tuple[Any, dict[str, bytes]]:
    """All that matters, to the bit."""
    ledger = engine.coordinator._ledger
    arrays = snapshot.Arrays()
    book = replace(ledger.book, clock=0.0)  # when a snapshot was written does not matter
    tree = snapshot.pack([ledger.state, book], arrays)
    return json.loads(json.dumps(tree)), {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("arrivals", [1, 7, 20])
def test_a_killed_server_goes_on_where_it_was(found: Found, strategy: Any, arrivals: int) -> None:
    engine = found(strategy, snapshot_every=6.0)
    engine.accept(arrivals)
    before = packed(engine)
    engine.restart(away=100.0)
    assert packed(engine) == before
    restarted = engine.log("restarted")[-1]
    assert restarted["gap"] >= 99
    assert set(restarted["reasked"]) == set(engine.coordinator._ledger.book.owed)
    engine.accept(arrivals + 5)  # those in flight were asked again
    events = [r["event"] for r in engine.log("arrival")]
    assert events == sorted(set(events))


def test_an_update_in_the_journal_counts_though_the_log_lacks_it(found: Found) -> None:
    engine = found(FedRAW(buffer=2))
    engine.accept(6)
    before = packed(engine)
    path = engine.settings.folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = next(i for i in reversed(range(len(lines))) if b'"arrival"' in lines[i])
    path.write_bytes(b"".join(lines[:last]) + lines[last][:20])  # cut off in the middle
    engine.restart()
    assert packed(engine) == before
    assert path.read_bytes().splitlines(keepends=True)[: last + 1] == lines[: last + 1]


def test_a_reply_that_never_reached_the_journal_is_asked_for_again(found: Found) -> None:
    engine = found(FedAvg())
    engine.accept(2)
    waiting = set(engine.coordinator._ledger.book.owed)
    engine.restart()
    engine.look()
    engine.now += 1
    engine.look()
    assert {order.site for order in engine.sent[-len(waiting) :]} == waiting
    engine.accept(4)
    assert engine.log("arrival")[-1]["version"] == 1


def test_a_snapshot_refers_to_updates_instead_of_copying_them(found: Found) -> None:
    engine = found(FedFa(buffer=4), snapshot_every=1.0)
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


def test_a_damaged_snapshot_is_passed_over_and_the_log_says_so(found: Found) -> None:
    engine = found(FedRAW(buffer=3), snapshot_every=1.0)
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


def test_a_damaged_update_is_named(found: Found) -> None:
    engine = found(FedRAW(buffer=3))
    engine.accept(5)
    path = engine.settings.folder / "updates" / "0000000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"0000000002.safetensors is damaged or missing"):
        engine.restart()


def test_another_strategy_or_model_is_refused(found: Found) -> None:
    engine = found(FedRAW(buffer=3))
    engine.accept(5)
    engine.strategy = FedRAW(buffer=2)
    with pytest.raises(BadInput, match="strategy has buffer = 3, and this one has 2"):
        engine.restart()


def test_two_servers_cannot_share_a_folder(found: Found) -> None:
    engine = found()
    with pytest.raises(BadInput, match="another process is running"):
        engine.open()


def test_a_finished_federation_stays_finished(found: Found) -> None:
    engine = found(arrivals=3)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    engine.restart()
    assert engine.coordinator.finished == "3 updates accepted"
    assert engine.coordinator.orders(engine.now) == []
    engine.coordinator.close(engine.now)
    assert engine.kinds().count("end") == 1


def test_a_server_killed_before_it_could_end_ends_when_it_is_back(found: Found) -> None:
    engine = found(arrivals=5)
    engine.accept(4)
    engine.restart(arrivals=4)
    engine.look()
    assert engine.coordinator.finished == "4 updates accepted"


def test_quarantine_outlives_a_restart(found: Found) -> None:
    engine = found(patience=2, back_off=1.0, quarantine=500.0, min_clients=4)
    engine.sites["west"].answer = failing
    engine.run(lambda: bool(engine.log("left")))
    trained = engine.sites["west"].trained
    engine.restart()
    for site in engine.sites.values():
        site.seconds *= 20
    engine.wait(100)
    assert engine.sites["west"].trained == trained
    engine.sites["west"].answer = None
    engine.wait(500)
    assert "west" in engine.coordinator.members


class FullDisk:
    """Every write fails like on a full disk, as long as it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        fsync = __import__("os").fsync

        def full(handle: int) -> None:
            if self.on:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(handle)

        monkeypatch.setattr("os.fsync", full)


def test_on_a_full_disk_nothing_is_accepted_and_nothing_lost(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    engine = found(FedRAW(buffer=3))
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


def test_a_snapshot_that_does_not_fit_costs_nothing(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = found(FedRAW(buffer=3), snapshot_every=1.0)
    engine.accept(4)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fedraw.disk.snapshot.write_tensors", full)
        engine.accept(12)
    assert engine.reasons().count("no snapshot could be written (No space left on device)") == 1
    before = packed(engine)
    engine.restart()
    assert packed(engine) == before
    engine.accept(16)
    newest = max(int(path.name) for path in (engine.settings.folder / "checkpoint").iterdir())
    assert newest >= 12


def test_the_journal_gives_back_what_it_got(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    vector = np.array([1.5, -2.0, 3e38], np.float32)
    flight = Flight(1.0, 2, 3.0, 4.0)
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


def test_a_torn_line_is_cut_and_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    whole = as_bytes([{"kind": "left"}])
    path.write_bytes(whole + b'{"kind":"arri')
    log = ServerLog(path)
    assert path.read_bytes() == whole
    assert [r["kind"] for r in log.verify(Position())] == ["left"]
    disk = FullDisk(monkeypatch)
    disk.on = True
    with pytest.raises(OSError, match="No space"):
        log.commit({"kind": "joined"})
    assert path.read_bytes() == whole
    disk.on = False
    log.commit({"kind": "joined"})
    assert [r["kind"] for r in read_log(path)] == ["left", "joined"]
    log.close()
