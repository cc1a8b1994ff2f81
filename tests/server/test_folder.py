"""The folder of a federation has one server, one log and one model; every change is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import failing
from tests.server.test_recovery import packed

from fedraw.core.layout import Layout
from fedraw.errors import BadInput, FedrawError
from fedraw.eventlog.follow import RunsFollower
from fedraw.strategies.fedraw import FedRAW


def content(folder: Path) -> dict[str, bytes]:
    """Every file of the federation except the lock, which is empty."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# The log is renamed, replaced or shortened while a server runs


def renamed(log: Path) -> None:
    log.rename(log.with_name("events.jsonl.1"))


def recreated(log: Path) -> None:
    renamed(log)
    log.touch()


def copied_and_truncated(log: Path) -> None:
    shutil.copy(log, log.with_name("events.jsonl.1"))
    with log.open("ab") as file:
        file.truncate(0)


def shortened(log: Path) -> None:
    shutil.copy(log, log.with_name("events.jsonl.1"))
    with log.open("ab") as file:
        file.truncate(log.stat().st_size - 20)


def written_to(log: Path) -> None:
    shutil.copy(log, log.with_name("events.jsonl.1"))
    with log.open("ab") as file:
        file.write(b'{"kind":"note"}\n')


ROTATIONS = [renamed, recreated, copied_and_truncated, shortened, written_to]


def test_a_renamed_log_does_not_let_a_second_server_in(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(3)
    renamed(engine.settings.folder / "events.jsonl")
    with pytest.raises(BadInput, match="another process is running"):
        engine.open()


@pytest.mark.parametrize("rotate", ROTATIONS, ids=lambda f: f.__name__)
def test_a_log_rotated_from_outside_stops_the_server_without_loss(
    make_engine: MakeEngine, rotate: Callable[[Path], None]
) -> None:
    engine = make_engine(FedRAW(buffer=3), snapshot_every=3.0)
    engine.accept(9)
    before, log = packed(engine), engine.settings.folder / "events.jsonl"
    rotate(log)
    with pytest.raises(FedrawError, match=r"events\.jsonl .* while this server was running"):
        engine.wait(5)
    assert packed(engine) == before, "nothing was accepted after it"
    if rotate in (renamed, recreated, copied_and_truncated):
        with pytest.raises(BadInput, match=r"events\.jsonl has 0 bytes, and the last snapshot"):
            engine.restart()
    engine.coordinator._store.log.close()
    log.with_name("events.jsonl.1").replace(log)  # the remedy that the message names
    engine.restart()
    assert packed(engine) == before
    engine.accept(12)


@pytest.mark.parametrize("rotate", [renamed, recreated, copied_and_truncated])
def test_watch_reports_a_log_rotated_from_outside(
    make_engine: MakeEngine, rotate: Callable[[Path], None]
) -> None:
    engine = make_engine(snapshot_every=3.0)
    engine.accept(9)
    folder = engine.settings.folder
    watched = RunsFollower(folder)
    watched.poll()
    rotate(folder / "events.jsonl")
    for watcher in (watched, RunsFollower(folder)):  # one that looked on, and one that comes now
        with pytest.raises(BadInput, match=r"events\.jsonl.* rotation"):
            watcher.poll()


def test_watch_reports_one_missing_log_among_several(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine, other = make_engine(), make_engine(folder="other")
    engine.accept(3)
    other.accept(3)
    watched = RunsFollower(tmp_path)
    watched.poll()
    (other.settings.folder / "events.jsonl").rename(tmp_path / "gone")
    with pytest.raises(BadInput, match=r"events\.jsonl has 0 bytes, but at the last checkpoint"):
        watched.poll()
    shutil.rmtree(other.settings.folder)  # that is no accident
    watched.poll()


def test_a_removed_lock_stops_the_server(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(3)
    (engine.settings.folder / "lock").unlink()
    with pytest.raises(FedrawError, match=r"lock was removed"):
        engine.wait(5)


# Parts of the folder are missing


@pytest.mark.parametrize("lost", [("checkpoint",), ("checkpoint", "events.jsonl")])
def test_a_folder_without_checkpoint_is_refused_and_unchanged(
    make_engine: MakeEngine, lost: tuple[str, ...]
) -> None:
    engine = make_engine(snapshot_every=5.0)
    engine.accept(20)
    folder = engine.settings.folder
    for name in lost:
        (shutil.rmtree if name == "checkpoint" else Path.unlink)(folder / name)
    before = content(folder)
    words = f"log has {20 if len(lost) == 1 else 0} accepted updates, updates/ has [1-9]"
    with pytest.raises(BadInput, match=words) as refusal:
        engine.restart()
    assert "checkpoint" in str(refusal.value) and "set another folder" in str(refusal.value)
    assert {name: data for name, data in content(folder).items() if data} == before


def test_a_folder_without_checkpoint_and_updates_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(snapshot_every=5.0)
    engine.accept(20)
    shutil.rmtree(engine.settings.folder / "checkpoint")
    shutil.rmtree(engine.settings.folder / "updates")
    before = (engine.settings.folder / "events.jsonl").read_bytes()
    with pytest.raises(BadInput, match="20 accepted updates"):
        engine.restart()
    assert (engine.settings.folder / "events.jsonl").read_bytes() == before


def test_a_federation_killed_before_its_first_snapshot_starts_again(
    make_engine: MakeEngine,
) -> None:
    """A log with only the start and the initial members is not a federation yet."""
    engine = make_engine()
    engine.run(lambda: bool(engine.coordinator.members))
    folder = engine.settings.folder
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    shutil.rmtree(folder / "checkpoint")
    (folder / "events.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:30])
    engine.restart()
    engine.accept(5)
    assert engine.kinds().count("start") == 1


# Bits that flip


@pytest.mark.parametrize("name", ["events.jsonl", "updates", "checkpoint"])
def test_a_flipped_bit_is_reported_or_has_no_effect(make_engine: MakeEngine, name: str) -> None:
    engine = make_engine(FedRAW(buffer=3), snapshot_every=1e6, patience=2, back_off=1.0)
    engine.accept(6)
    engine.coordinator._store.snapshot(engine.now)
    engine.sites["west"].reply = failing
    engine.run(lambda: bool(engine.log("left")))  # members change after the snapshot, too
    engine.accept(14)
    before, folder = packed(engine), engine.settings.folder
    engine.coordinator._store.log.close()
    whole, rng = content(folder), np.random.default_rng(5)
    names = sorted(path for path in whole if path.startswith(name))
    wrong, named = [], 0
    for _ in range(25):
        path = names[rng.integers(len(names))]
        place = int(rng.integers(8 * len(whole[path])))
        flipped = bytearray(whole[path])
        flipped[place // 8] ^= 1 << place % 8
        (folder / path).write_bytes(flipped)
        try:
            engine.restart()
            if packed(engine) != before:
                wrong.append((path, place))
            told = str(engine.log("restarted")[-1].get("damaged"))  # an older snapshot was used
        except BadInput as damage:
            told = str(damage)
        named += str(folder / path) in told
        engine.coordinator._store.log.close()
        put_back(folder, whole)
    assert wrong == []
    assert named > 8  # of the others, nothing is needed any more


def put_back(folder: Path, whole: dict[str, bytes]) -> None:
    for path in content(folder).keys() - whole.keys():
        (folder / path).unlink()
    for path, data in whole.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)


def test_a_folder_of_another_version_is_refused_with_both_versions(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(4)
    folder = engine.settings.folder
    engine.coordinator._store.log.close()
    log = folder / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"format":3', b'"format":2', 1))
    for manifest in folder.glob("checkpoint/*/manifest.json"):
        manifest.write_bytes(manifest.read_bytes().replace(b'"format": 2', b'"format": 1'))
    with pytest.raises(BadInput, match="has format 2, and this fedraw reads format 3"):
        engine.open()


# Another model, other rare labels

WEIGHT, BIAS = ("head.weight", (2, 1)), ("head.bias", (2,))
OTHERS = {
    "reordered": (
        Layout.of([BIAS, WEIGHT]),
        r"is the parameter 'head.weight' .* app's is .* 'head.bias'",
    ),
    "renamed": (Layout.of([("last.weight", (2, 1)), BIAS]), "'last.weight'"),
    "transposed": (Layout.of([("head.weight", (1, 2)), BIAS]), r"shape \(1, 2\)"),
    "a statistic": (Layout.of([WEIGHT], [BIAS]), "app's is the statistic 'head.bias'"),
    "smaller": (Layout.of([WEIGHT]), "'head.bias' .* and the app's is missing"),
    "larger": (
        Layout.of([WEIGHT, BIAS, ("more", (1,))]),
        "tensor 3 is missing, and the app's is the parameter 'more'",
    ),
}


@pytest.mark.parametrize("other", OTHERS, ids=lambda name: name.replace(" ", "-"))
def test_another_model_of_the_same_size_is_refused(make_engine: MakeEngine, other: str) -> None:
    engine = make_engine()
    engine.accept(4)
    before = content(engine.settings.folder)
    engine.layout, words = OTHERS[other]
    with pytest.raises(BadInput, match=words) as refusal:
        engine.restart()
    assert "use the app that began the federation, or set another folder" in str(refusal.value)
    assert content(engine.settings.folder) == before


def test_other_rare_labels_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(rare_labels=("owl",))
    engine.accept(4)
    engine.restart()
    for other in (("dog",), ("unicorn",), ()):
        with pytest.raises(BadInput, match="rare_labels") as refusal:
            engine.restart(rare_labels=other)
        assert "owl" in str(refusal.value) and "another folder" in str(refusal.value)
    engine.restart(rare_labels=("owl",))
    engine.accept(6)


def test_rare_labels_found_by_coverage_may_be_named_later(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(4)
    engine.restart(rare_labels=("owl",))
    engine.restart(rare_labels=())
    with pytest.raises(BadInput, match="rare_labels"):
        engine.restart(rare_labels=("cat",))
