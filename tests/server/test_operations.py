"""The operator's commands: verify, back up, restore, roll back and revoke."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import fedraw
from tests.server.conftest import MakeEngine
from tests.server.engine import Engine
from tests.server.test_folder import content
from tests.server.test_recovery import STRATEGIES, packed

from fedraw import Spec, simulate
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Chain, read_log
from fedraw.server.journal import Journal
from fedraw.server.revocation import revoke
from fedraw.server.rollback import backup, restore_points, rollback
from fedraw.server.snapshots import kept_snapshots
from fedraw.server.tasks import Task, TrainReply
from fedraw.server.verification import verify_folder
from fedraw.strategies.fedraw import FedRAW

SETTINGS: dict[str, Any] = {"snapshot_every": 2.0}


def problems(folder: Path) -> list[str]:
    return [problem for check in verify_folder(folder) for problem in check.problems]


def killed(
    make_engine: MakeEngine, arrivals: int = 30, strategy: Any = None, **settings: Any
) -> Engine:
    engine = make_engine(strategy or FedRAW(buffer=3), **{**SETTINGS, **settings})
    engine.accept(arrivals)
    engine.coordinator.abandon()
    return engine


# Verify


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_an_intact_folder_passes(make_engine: MakeEngine, strategy: Any) -> None:
    engine = killed(make_engine, strategy=strategy)
    before = content(engine.settings.folder)
    checks = {check.name: check for check in verify_folder(engine.settings.folder)}
    assert [check.problems for check in checks.values()] == [[]] * 6
    assert checks["log records"].count > 30 and checks["snapshots"].count == 6
    assert checks["replays to the bit"].count == 2
    assert content(engine.settings.folder) == before, "verifying changes nothing"


def test_a_folder_with_restarts_refusals_and_departures_passes(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(
        FedRAW(buffer=3),
        arrivals=40,
        keep_best="AvgRare",
        absence=3.0,
        **SETTINGS,
        federated_evaluation=True,
        evaluate_every=5,
    )

    def sometimes_nan(task: Task, honest: TrainReply) -> TrainReply:
        wrong = replace(honest, vector=honest.vector * np.nan)
        return wrong if engine.sites["west"].trained % 4 == 1 else honest

    engine.sites["west"].reply = sometimes_nan
    for arrivals in (9, 18, 27):
        engine.accept(arrivals)
        engine.online = set(engine.sites) - {"east"}
        engine.wait(6)
        engine.online = set(engine.sites)
        engine.restart()
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    assert {"left", "restarted", "rejected", "end"} <= set(engine.kinds())
    assert problems(engine.settings.folder) == []


def test_a_running_server_is_not_verified(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(3)
    with pytest.raises(BadInput, match=r"another process is running .* stop its server first"):
        verify_folder(engine.settings.folder)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "pattern",
    ["events.jsonl", "checkpoint/*/state.safetensors", "updates/*",
     "checkpoint/*/manifest.json", "checkpoint/*/state.json", "model.safetensors"],
)  # fmt: skip
def test_damage_anywhere_is_found(make_engine: MakeEngine, pattern: str) -> None:
    engine = make_engine(FedRAW(buffer=3), arrivals=20, **SETTINGS)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    folder = engine.settings.folder
    assert problems(folder) == []
    for path in sorted(folder.glob(pattern)):
        before = path.read_bytes()
        for damage in (flipped, Path.unlink) if pattern != "model.safetensors" else (emptied,):
            damage(path)
            if pattern == "events.jsonl" and damage is Path.unlink:
                with pytest.raises(BadInput, match="no events"):
                    problems(folder)
            elif not pattern.startswith("checkpoint") or damage is flipped:
                assert any(path.name in p or path.stem.lstrip("0") in p for p in problems(folder))
            path.write_bytes(before)
    assert problems(folder) == []


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def test_a_snapshot_of_another_federation_is_found(make_engine: MakeEngine) -> None:
    """The checksums of the foreign snapshot are correct."""
    engine, other = killed(make_engine), killed(make_engine, folder="other", min_clients=3)
    newest = max((other.settings.folder / "checkpoint").iterdir())
    own = max((engine.settings.folder / "checkpoint").iterdir())
    shutil.rmtree(own)
    shutil.copytree(newest, own.with_name(newest.name))
    assert any("belongs to another log" in problem for problem in problems(engine.settings.folder))


def test_a_trained_folder_without_snapshots_is_found(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    folder = killed(make_engine, 5).settings.folder
    shutil.rmtree(folder / "checkpoint")
    (found,) = [problem for problem in problems(folder) if "no snapshot" in problem]
    assert str(folder / "checkpoint") in found and "restore the folder from a backup" in found
    (folder / "checkpoint").mkdir()
    assert fedraw("server", "verify", folder, cwd=tmp_path).returncode == 1


def test_a_folder_whose_only_updates_are_in_the_journal_needs_a_snapshot(
    make_engine: MakeEngine,
) -> None:
    folder = killed(make_engine, 5).settings.folder
    log = folder / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    begun = [line for line in lines if json.loads(line)["kind"] in ("start", "joined")]
    assert begun == lines[: len(begun)]
    log.write_bytes(b"".join(begun))
    shutil.rmtree(folder / "checkpoint")
    assert any("no snapshot" in problem for problem in problems(folder))
    shutil.rmtree(folder / "updates")
    assert problems(folder) == [], "a server was killed before its first snapshot"


def test_a_folder_in_which_training_has_not_begun_passes(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=3), **SETTINGS)
    engine.online = {"north"}
    engine.wait(5)
    engine.coordinator.abandon()
    assert problems(engine.settings.folder) == []


def arrivals_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [own for own in records if own["kind"] == "arrival"]


def with_another(kind: str, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    """A change that appends a record at the event and the time of the last one."""

    def change(records: list[dict[str, Any]]) -> None:
        event, time = records[-1]["event"], records[-1]["time"]
        more = {name: value + event if name == "event" else value for name, value in fields.items()}
        records.append({"kind": kind, "event": event, "time": time, **more})

    return change


def with_changed(**fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    """A change of the last arrival."""

    def change(records: list[dict[str, Any]]) -> None:
        last = arrivals_of(records)[-1]
        last.update({name: value(last[name]) for name, value in fields.items()})

    return change


def without_an_arrival(records: list[dict[str, Any]]) -> None:
    records.remove(arrivals_of(records)[-2])


def with_two_starts(records: list[dict[str, Any]]) -> None:
    records.insert(-1, dict(records[0]))


def with_an_early_end(records: list[dict[str, Any]]) -> None:
    before = records[-2]
    end = {"kind": "end", "event": before["event"], "time": before["time"], "reason": "enough"}
    records.insert(-1, end)


NOTE = {"client": None, "reason": "x"}
UNLIKE = "does not reproduce the record of arrival 30"
WRONG_LOGS: list[tuple[Any, str]] = [
    (with_two_starts, "line 35: the start record must be the first, and the only one"),
    (with_an_early_end, "line 36: it follows the end record"),
    (with_another("note", **NOTE, time=1.0), "line 36: its time 1.0 is before 20.0"),
    (with_another("note", **NOTE, event=3), "line 36: its event is 33 instead of 30"),
    (with_another("evaluation", event=9, version=1, metrics={}, recall={}, server_models=1.0),
     "line 36: its event is 39, but the last event was 30"),
    (with_another("joined", client="north", counts={"cat": 6}, node=100), "is a member already"),
    (with_another("left", client="nobody", reason="x"), "client 'nobody' is not a member"),
    (with_another("declared", client="nobody", counts={"cat": 1}, reason="x"), "is not a member"),
    (with_changed(client=lambda own: "nobody"), UNLIKE),
    (with_changed(version=lambda own: own + 5), UNLIKE),
    (with_changed(aggregated=lambda own: not own), UNLIKE),
    (with_changed(weights=lambda own: own[:-1]), UNLIKE),
    (with_changed(weights=lambda own: [0.5 * weight for weight in own]), UNLIKE),
    (without_an_arrival, UNLIKE),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), WRONG_LOGS)
def test_a_wrong_log_with_right_digests_is_found(
    make_engine: MakeEngine, change: Any, words: str
) -> None:
    log = killed(make_engine, snapshot_every=6.0).settings.folder / "events.jsonl"
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    change(records)
    chain = Chain()
    log.write_bytes(b"".join(
        chain.encode_fields({key: own for key, own in record.items() if key != "digest"})
        for record in records
    ))  # fmt: skip
    assert any(words in problem for problem in problems(log.parent)), problems(log.parent)


@pytest.mark.parametrize(
    ("name", "text"),
    [("revoked.json", "west"), ("revoked.json", '{"sites": {}, "nodes": ["x"]}'),
     ("revoked.json", '{"sites": ["west"], "nodes": []}'), ("discarded.json", "[]"),
     ("discarded.json", '{"a": {"west": "many"}}'), ("discarded.json", '{"a": 3}')],
)  # fmt: skip
def test_an_unreadable_list_of_sites_is_found(
    make_engine: MakeEngine, tmp_path: Path, name: str, text: str
) -> None:
    folder = killed(make_engine, 5).settings.folder
    (folder / name).write_text(text, encoding="utf-8")
    (found,) = problems(folder)
    assert found.startswith(f"{folder / name} is not a list of") and "backup" in found
    assert fedraw("server", "verify", folder, cwd=tmp_path).returncode == 1


def test_intact_lists_of_sites_are_counted(make_engine: MakeEngine) -> None:
    folder = killed(make_engine, 30).settings.folder
    rollback(folder, str(restore_points(folder)[2].version))
    revoke(folder, "west")
    lists = verify_folder(folder)[-1]
    assert (lists.name, lists.count, lists.problems) == ("lists of sites", 2, [])


# Back up and restore


def test_a_restored_backup_equals_the_killed_server_bit_for_bit(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = killed(make_engine)
    shutil.copytree(engine.settings.folder, tmp_path / "copy")
    engine.restart()
    again = make_engine(FedRAW(buffer=3), folder="copy", **SETTINGS)
    assert packed(again) == packed(engine)
    for one in (engine, again):
        one.now = 2_000_000.0
        for site in one.sites.values():
            site.trained = 1000
        one.restart()
        one.accept(60)
        one.coordinator.abandon()
        assert problems(one.settings.folder) == []
    assert packed(again) == packed(engine)


def test_a_backup_of_a_running_server_is_its_current_state(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(FedRAW(buffer=3), **SETTINGS)
    for arrivals in range(5, 60, 5):
        engine.accept(arrivals)
        out = tmp_path / f"backup-{arrivals}"
        at = backup(engine.settings.folder, out)
        assert problems(out) == []
        assert {oct(path.stat().st_mode & 0o77) for path in out.rglob("*")} == {"0o0"}
        store = engine.coordinator._store
        assert (store.state.event, store.strategy_state.version) == (at.event, at.version)
        restored = make_engine(FedRAW(buffer=3), folder=out.name, **SETTINGS)
        assert packed(restored) == packed(engine)


def test_a_backup_has_changes_of_members_without_a_new_update(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    """All sites train for hours, so there is no new snapshot; two leave and one joins."""
    settings = {**SETTINGS, "min_clients": 3, "absence": 20.0}
    engine = make_engine(FedRAW(buffer=3), **settings)
    engine.online = {"north", "south", "east"}
    engine.accept(4)
    for site in engine.sites.values():
        site.seconds = 5000.0
    engine.wait(20)
    engine.online = {"north", "west"}
    engine.wait(60)
    backup(engine.settings.folder, tmp_path / "backup")
    assert problems(tmp_path / "backup") == []
    restored = make_engine(FedRAW(buffer=3), folder="backup", **settings)
    assert restored.coordinator.members == ["north", "west"]
    assert packed(restored) == packed(engine)


def test_a_backup_of_an_ended_federation_has_ended(make_engine: MakeEngine, tmp_path: Path) -> None:
    """An evaluation reaches the target after the last snapshot, and no update arrives meanwhile."""
    settings = {**SETTINGS, "federated_evaluation": True, "evaluate_every": 4, "target": 10.0}
    engine = make_engine(FedRAW(buffer=3), pace=6.0, **settings)
    engine.delays["evaluate"] = 5.0
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    out = tmp_path / "backup"
    backup(engine.settings.folder, out)
    assert problems(out) == []
    name = "model.safetensors"
    assert (out / name).read_bytes() == (engine.settings.folder / name).read_bytes()
    restored = make_engine(FedRAW(buffer=3), folder="backup", **settings)
    assert restored.coordinator.finished == engine.coordinator.finished
    assert packed(restored) == packed(engine)


def test_a_backup_over_a_folder_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = killed(make_engine, 5)
    with pytest.raises(BadInput, match="exists"):
        backup(engine.settings.folder, tmp_path)


@pytest.mark.parametrize("inside", ["sub", "checkpoint/sub", ".", "../federation/sub"])
def test_a_backup_inside_the_folder_itself_is_refused(make_engine: MakeEngine, inside: str) -> None:
    folder = killed(make_engine, 5).settings.folder
    before = content(folder)
    with pytest.raises(BadInput, match=r"(is in .*|exists); name a folder"):
        backup(folder, folder / inside)
    assert content(folder) == before


def test_a_backup_through_a_link_into_the_folder_is_refused(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    folder = killed(make_engine, 5).settings.folder
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(BadInput, match=r"is in .*federation; name a folder outside it"):
        backup(folder, tmp_path / "link" / "copy")


def test_a_backup_of_a_damaged_log_names_the_servers_file_and_leaves_nothing(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    folder = killed(make_engine).settings.folder
    flipped(folder / "events.jsonl")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput) as refused:
        backup(folder, tmp_path / "copy")
    assert str(refused.value).startswith(f"{folder / 'events.jsonl'}")
    assert "restore the folder from a backup" in str(refused.value).lower()
    assert "--force" not in str(refused.value) and ".part" not in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_backup_without_a_needed_update_names_it_and_leaves_nothing(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    folder = killed(make_engine).settings.folder
    needed = restore_points(folder)[0].snapshot.metadata["updates"][0]
    lost = Journal(folder / "updates").path(needed)
    lost.unlink()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput) as refused:
        backup(folder, tmp_path / "copy")
    assert str(refused.value) == f"{lost} is missing; restore the folder from a backup"
    assert sorted(tmp_path.iterdir()) == before


# Roll back


def history(engine: Engine, arrivals: int) -> dict[int, Any]:
    """The server's state at each version."""
    states: dict[int, Any] = {}
    leader = engine.coordinator._store
    accept = leader.accept

    def noted(*args: Any) -> Any:
        told = accept(*args)
        states[leader.strategy_state.version] = leader.strategy_state.model.copy()
        return told

    leader.accept = noted  # type: ignore[assignment, method-assign]
    engine.accept(arrivals)
    return states


def test_every_version_since_the_last_but_one_snapshot_can_be_restored(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(FedRAW(buffer=3), snapshot_every=4.0, rollback_points=0)
    states = history(engine, 40)
    engine.coordinator.abandon()
    folder, saved = engine.settings.folder, engine.settings.folder.with_name("saved")
    shutil.copytree(folder, saved)
    oldest = restore_points(folder)[-1].version
    newest = max(states)
    assert newest - oldest >= 5
    for version in range(oldest, newest):
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        at, copy = rollback(folder, str(version))
        assert at.version == version
        assert content(copy) == content(saved)
        shutil.rmtree(copy)
        assert problems(folder) == []
        engine.restart()
        state = engine.coordinator._store.strategy_state
        assert state.version == version and np.array_equal(state.model, states[version])
        assert f"rolled back to version {version}" in engine.reasons()
        engine.accept(45)
        engine.coordinator.abandon()
        assert problems(folder) == []


def test_older_snapshots_can_be_restored_too(make_engine: MakeEngine) -> None:
    engine = killed(make_engine, 100)
    folder = engine.settings.folder
    known = restore_points(folder)
    assert len(known) == 6 and known[-1].version == 0
    third = known[2]
    at, copy = rollback(folder, str(third.version))
    assert at.version == third.version
    assert problems(folder) == [], "the updates before this snapshot are not needed"
    assert content(copy) != content(folder)
    engine.restart()
    assert engine.coordinator._store.strategy_state.version == third.version
    engine.accept(120)
    fourth = restore_points(folder)[4]
    engine.coordinator.abandon()
    assert problems(folder) == []
    at, _ = rollback(folder, str(fourth.version + 1))
    assert at.version == fourth.version, "updates after an old snapshot are gone"


def test_a_rollback_to_an_evaluation_that_began_earlier_keeps_its_updates(
    make_engine: MakeEngine,
) -> None:
    """The evaluation begins at event 4, and its record follows the arrivals of later events."""
    settings = {"federated_evaluation": True, "evaluate_every": 4, "snapshot_every": 1e6}
    engine = make_engine(FedRAW(buffer=3), **settings)
    engine.delays["evaluate"] = 2.0
    engine.run(lambda: bool(engine.log("evaluation")))
    (evaluation,) = engine.log("evaluation")
    before, event = packed(engine), engine.coordinator._store.state.event
    assert evaluation["event"] == 4 < event
    version = engine.coordinator._store.strategy_state.version
    engine.accept(event + 4)
    engine.coordinator.abandon()
    at, _ = rollback(engine.settings.folder, str(version))
    assert at.event == event
    assert packed_after_restart(engine) == {"state": before}


def test_a_folder_without_a_snapshot_has_no_state_to_roll_back_to(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    folder = killed(make_engine, 5).settings.folder
    shutil.rmtree(folder / "checkpoint")
    for more in ([], ["--to", "1"]):
        done = fedraw("server", "rollback", folder, *more, cwd=tmp_path)
        assert done.returncode == 2 and "has no undamaged snapshot; wait until" in done.stderr
        assert "restore the folder from a backup" in " ".join(done.stderr.split())


def test_a_time_without_a_zone_is_in_utc(make_engine: MakeEngine) -> None:
    engine = killed(make_engine, 60)
    folder = engine.settings.folder
    older = restore_points(folder)[2]
    moment = datetime.fromtimestamp(older.wall + 0.01, UTC)
    at, _ = rollback(folder, moment.replace(tzinfo=None).isoformat())
    assert at.event == older.event


@pytest.mark.parametrize(
    ("to", "words"),
    [("yesterday", "neither a version nor a time"), ("999", "name an earlier one"),
     ("1960-01-01", "no state that old .* restore a backup")],
)  # fmt: skip
def test_an_impossible_rollback_target_is_refused(
    make_engine: MakeEngine, to: str, words: str
) -> None:
    engine = killed(make_engine)
    before = content(engine.settings.folder)
    with pytest.raises(BadInput, match=words):
        rollback(engine.settings.folder, to)
    assert content(engine.settings.folder) == before


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_repeating_a_killed_rollback_completes_it(
    step: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = killed(make_engine, 24)
    folder, saved = engine.settings.folder, engine.settings.folder.with_name("saved")
    shutil.copytree(folder, saved)
    original = dict(packed_after_restart(engine))
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)
    target = str(restore_points(folder)[2].version)
    rollback(folder, target)
    expected = packed_after_restart(engine)
    for moment in range(step, 200, step):
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        with monkeypatch.context() as patch:
            calls = kill_at(patch, moment)
            try:
                rollback(folder, target)
                break  # it came to its end before the kill
            except KeyboardInterrupt:
                pass
        try:
            assert packed_after_restart(engine) in (original, expected)
        except BadInput:
            assert calls
        else:
            shutil.rmtree(folder)
            shutil.copytree(saved, folder)
        rollback_again(folder, target)
        assert packed_after_restart(engine) == expected
    assert moment > 20


def rollback_again(folder: Path, target: str) -> None:
    try:
        rollback(folder, target)
    except BadInput as done:  # only the note was missing
        assert "name an earlier one" in str(done)


def packed_after_restart(engine: Engine) -> dict[str, Any]:
    engine.restart()
    state = packed(engine)
    engine.coordinator.abandon()
    return {"state": state}


def kill_at(patch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """Kill the process before its n-th change of a file."""
    calls: list[str] = []

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == moment:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return call

    for name in ("unlink", "rmdir", "truncate", "rename", "fsync"):
        patch.setattr(os, name, dying(name, getattr(os, name)))
    return calls


def test_kept_snapshots_have_evenly_spread_ages() -> None:
    kept: list[int] = []
    for event in range(3000):
        kept = kept_snapshots([*kept, event], rollback_points=8)
        assert len(kept) <= 10 and kept[-2:] == [max(0, event - 1), event][-len(kept) :]
    ages = [3000 - event for event in kept]
    assert ages[0] == 3000
    assert max(older / newer for older, newer in pairwise(ages)) < 10
    assert kept_snapshots([0, 5, 9], rollback_points=0) == [5, 9]


# Revoke


def test_a_revoked_site_leaves_and_does_not_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2), min_clients=4)
    engine.accept(8)
    folder = engine.settings.folder
    revoke(folder, "west")
    engine.wait(30)
    assert "west" not in engine.coordinator.members
    assert engine.reasons("left") == "revoked by the operator"
    assert "'west' was revoked by the operator" in engine.reasons()
    accepted = engine.coordinator.accepted
    engine.restart()
    engine.accept(accepted + 10)
    events = [r["event"] for r in engine.log("arrival") if r["client"] == "west"]
    left = engine.log("left")[0]["event"]
    assert max(events) <= left
    revoke(folder, "west", undo=True)
    engine.run(lambda: "west" in engine.coordinator.members)
    engine.coordinator.abandon()
    assert problems(folder) == []


def test_revoking_and_admitting_a_site_replaces_its_key(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(FedRAW(buffer=2), min_clients=4, pinned=True, back_off=1.0)
    engine.accept(8)
    folder, west = engine.settings.folder, engine.sites["west"]
    old, west.node = west.node, 99  # a new key, without the operator's word
    engine.wait(70)
    assert "west" not in engine.coordinator.members
    assert (
        f"'west' is registered with node {old}, and this node has another key" in engine.reasons()
    )
    revoke(folder, "west")
    engine.restart()
    revoke(folder, "west", undo=True)
    engine.run(lambda: "west" in engine.coordinator.members)
    west.node = old  # whoever has the old key is not let in, under this name or another
    engine.restart()
    engine.wait(70)
    assert "west" not in engine.coordinator.members
    assert f"the key of node {old} was revoked" in engine.reasons()
    west.node = 99
    engine.run(lambda: "west" in engine.coordinator.members)
    engine.coordinator.abandon()
    assert problems(folder) == []


def test_a_key_is_out_even_if_its_site_is_admitted_again_at_once(
    make_engine: MakeEngine,
) -> None:
    """The operator gives both commands between two turns of the server."""
    engine = make_engine(FedRAW(buffer=2), pinned=True, back_off=1.0)
    engine.accept(6)
    revoke(engine.settings.folder, "north")
    revoke(engine.settings.folder, "north", undo=True)
    engine.turn()
    assert "north" not in engine.coordinator.members
    assert [r["reason"] for r in engine.log("left")] == ["revoked by the operator"]
    engine.wait(10)
    assert "the key of node 100 was revoked; give 'north' a new key" in engine.reasons()
    engine.sites["north"].node = 200
    engine.run(lambda: "north" in engine.coordinator.members)
    engine.wait(10)
    assert len(engine.log("left")) == 1


def test_revoking_an_unknown_site_is_refused(make_engine: MakeEngine) -> None:
    folder = killed(make_engine, 4).settings.folder
    for wrong, hint in (("wset", "did you mean 'west'?"), ("x", "known: east, north, south, west")):
        with pytest.raises(BadInput) as refused:
            revoke(folder, wrong)
        assert str(refused.value) == (
            f"{wrong!r} has never been a site of {folder} ({hint}); to exclude a site that has not "
            "joined yet, set `sites`"
        )
    with pytest.raises(BadInput, match=r"'west' is not revoked; no site is$"):
        revoke(folder, "west", undo=True)
    revoke(folder, "east")
    with pytest.raises(BadInput, match=r"'west' is not revoked; did you mean 'east'\?$"):
        revoke(folder, "west", undo=True)


def test_revoking_with_a_damaged_log_names_a_servers_remedy(make_engine: MakeEngine) -> None:
    folder = killed(make_engine, 4).settings.folder
    flipped(folder / "events.jsonl")
    with pytest.raises(BadInput, match=r"(?i)restore the folder from a backup"):
        revoke(folder, "west")


def test_an_unreadable_list_of_revoked_sites_stops_the_start(make_engine: MakeEngine) -> None:
    engine = killed(make_engine, 4)
    (engine.settings.folder / "revoked.json").write_text("west", encoding="utf-8")
    with pytest.raises(BadInput, match=r"revoked.json is not a list"):
        engine.restart()


# The command line


def test_the_commands(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = killed(make_engine, 40)
    folder = str(engine.settings.folder)
    done = fedraw("server", "verify", folder, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("good") == 6
    document = fedraw("server", "verify", folder, "--json", cwd=tmp_path).stdout
    assert json.loads(document)["checks"][0]["count"] > 40
    assert fedraw("server", "backup", folder, str(tmp_path / "copy"), cwd=tmp_path).returncode == 0
    listed = fedraw("server", "rollback", folder, cwd=tmp_path).stdout.splitlines()
    assert len(listed) == 6 and listed[-1].startswith("version 0 (event 0")
    done = fedraw("server", "rollback", folder, "--to", "20", cwd=tmp_path)
    assert done.returncode == 0 and "before-rollback" in done.stderr
    assert fedraw("server", "revoke", "west", folder, cwd=tmp_path).returncode == 0
    done = fedraw("server", "rollback", folder, "--to", "soon", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    flipped(engine.settings.folder / "events.jsonl")
    done = fedraw("server", "verify", folder, cwd=tmp_path)
    assert done.returncode == 1 and "1 wrong" in done.stdout
    assert list(read_log(tmp_path / "copy" / "events.jsonl"))


def test_the_folder_of_a_simulation_is_refused_and_unchanged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    spec = {"training": {"kind": "none"}, "run": {"events": 30, "seeds": [1]}}
    simulate(Spec.from_dict(spec), out=run, progress=False)
    folder = run / "seed-1"
    before = content(folder)
    for command in (
        lambda: verify_folder(folder),
        lambda: restore_points(folder),
        lambda: backup(folder, tmp_path / "copy"),
    ):
        with pytest.raises(BadInput, match="is a run of a simulation; name the folder of a server"):
            command()
    assert content(folder) == before
