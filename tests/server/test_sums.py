"""A server whose sites send sums: one digest in any order, after kills, and without a site."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.server.engine import Engine
from tests.server.sums_engine import (
    COUNTS,
    OPENED,
    SHAPE,
    SLOPES,
    RegressionEngine,
    SumsEngine,
    samples,
    sums_of_targets,
    totals_of,
)

from fedraw.core.sums import digest
from fedraw.errors import BadInput, FolderUnavailable
from fedraw.privacy.budget import Privacy
from fedraw.server import forgetting, journal, snapshots
from fedraw.server.forgetting import forget
from fedraw.server.tasks import Failure
from fedraw.server.verification import verify_folder
from fedraw.storage import numbered_folders
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.one_pass import OnePassState


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    for engine in OPENED:
        engine.coordinator._store.log.close()
    OPENED.clear()


def finished(folder: Path, **settings: Any) -> SumsEngine:
    engine = SumsEngine(folder, **settings)
    engine.finish()
    return engine


def test_it_ends_when_every_site_was_heard(tmp_path: Path) -> None:
    engine = finished(tmp_path)
    assert engine.coordinator.finished == "every member was heard"
    assert engine.kinds().count("arrival") == 4
    assert digest(engine.totals) == digest(totals_of(COUNTS))
    evaluations = engine.log("evaluation")
    assert len(evaluations) == 4  # one after each message
    assert [record.get("final", False) for record in evaluations] == [False] * 3 + [True]
    assert evaluations[-1]["metrics"]["AvgRare"] > 80
    model = load_file(tmp_path / "model.safetensors")
    assert {name: own.shape for name, own in model.items()} == {"weight": (3, 6), "bias": (3,)}
    assert [check.problems for check in verify_folder(tmp_path)] == [[]] * 6


def test_named_sites_are_waited_for(tmp_path: Path) -> None:
    engine = SumsEngine(tmp_path, only=tuple(COUNTS), min_clients=3, absence=5.0)
    engine.online = {"north", "south", "east"}
    engine.run(lambda: engine.coordinator.accepted == 3)
    engine.wait(60)
    assert engine.coordinator.finished is None
    engine.online = {"west"}  # the others are gone, and their sums stay
    engine.finish()
    assert digest(engine.totals) == digest(totals_of(COUNTS))


def test_the_only_holder_answers_once_and_is_gone(tmp_path: Path) -> None:
    engine = SumsEngine(tmp_path, only=tuple(COUNTS), absence=5.0)
    engine.sites["west"].seconds = 0.1
    for other in ("north", "south", "east"):
        engine.sites[other].seconds = 120.0
    engine.run(lambda: engine.coordinator.accepted == 1)
    engine.online.discard("west")
    engine.finish()
    assert "west" in [record["client"] for record in engine.log("left")]
    assert engine.log("evaluation")[-1]["recall"]["owl"] > 80


@pytest.mark.parametrize("seed", range(6))
def test_order_and_speed_do_not_matter(seed: int, tmp_path: Path) -> None:
    engine = SumsEngine(tmp_path)
    for name, seconds in zip(COUNTS, np.random.default_rng(seed).permutation(4), strict=True):
        engine.sites[name].seconds = 1.0 + float(seconds)
    engine.finish()
    assert digest(engine.totals) == digest(totals_of(COUNTS))


def test_sums_lie_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    engine = SumsEngine(tmp_path)
    engine.run(lambda: engine.coordinator.accepted == 3)
    kept = engine.coordinator._store.strategy_state.messages  # type: ignore[attr-defined]
    assert {type(message) for message in kept.values()} == {np.memmap}
    engine.restart()
    kept = engine.coordinator._store.strategy_state.messages  # type: ignore[attr-defined]
    assert {type(message) for message in kept.values()} == {np.memmap}


def test_sums_of_other_sites_stay_in_the_journal_when_one_is_forgotten(tmp_path: Path) -> None:
    engine = finished(tmp_path)
    stored = {event: engine.coordinator._store.journal.read(event)[0].client
              for event in engine.coordinator._store.journal.events()}  # fmt: skip
    forget(tmp_path, "west")
    again = SumsEngine(tmp_path)
    left = again.coordinator._store.journal.events()
    assert [stored[event] for event in left] == [c for c in stored.values() if c != "west"]
    kept = again.coordinator._store.strategy_state.messages  # type: ignore[attr-defined]
    assert {type(message) for message in kept.values()} == {np.memmap}


def model_bytes(engine: SumsEngine) -> bytes:
    return engine.coordinator._store.strategy_state.model.tobytes()


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("site", COUNTS)
def test_a_site_that_is_forgotten_was_never_heard(site: str, ended: bool, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    engine = SumsEngine(folder, snapshot_every=1.0, keep_best="GlobalAcc", seconds=1e6)
    if ended:
        engine.finish()
    else:
        engine.run(lambda: engine.coordinator.accepted == 4)
        engine.coordinator._store.snapshot(engine.now)
        engine.coordinator._store.log.close()
    before = engine.coordinator._store.strategy_state.version
    done = forget(folder, site)
    assert done.version == before + 1
    assert [check.problems for check in verify_folder(folder)] == [[]] * 6
    assert not (folder / "best.safetensors").exists()
    others = [name for name in COUNTS if name != site]
    again = SumsEngine(folder, snapshot_every=1.0, keep_best="GlobalAcc", seconds=1e6)
    assert digest(again.totals) == digest(totals_of(others))
    never = SumsEngine(tmp_path / "never", min_clients=3)
    never.online.discard(site)
    never.finish()
    assert model_bytes(again) == model_bytes(never)
    if ended:
        one, other = (load_file(own / "model.safetensors") for own in (folder, tmp_path / "never"))
        assert {name: own.tobytes() for name, own in one.items()} == {
            name: own.tobytes() for name, own in other.items()
        }
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sums = SHAPE.sums(SHAPE.of_samples(*samples(site))).tobytes()
    assert [path for path, content in found.items() if sums in content] == []
    assert done.remains[0].startswith(str(folder / "events.jsonl"))
    again.coordinator._store.log.close()


def test_forgetting_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each of its steps, and called again."""
    for step in ("state", "models", "snapshot", "others", "journal"):
        folder = tmp_path / step
        finished(folder)
        with monkeypatch.context() as patch:

            def killed(*_: Any, **__: Any) -> None:
                raise KeyboardInterrupt

            where: dict[str, tuple[Any, str]] = {
                "state": (OnePassState, "forget"),
                "snapshot": (snapshots.Snapshots, "replace_all"),
                "journal": (journal.Journal, "remove"),
                "models": (forgetting, "_rewrite_models"),
                "others": (numbered_folders.NumberedFolders, "remove_others"),
            }
            patch.setattr(*where[step], killed)
            with pytest.raises(KeyboardInterrupt):
                forget(folder, "west")
        forget(folder, "west")
        assert [check.problems for check in verify_folder(folder)] == [[]] * 6
        again = SumsEngine(folder)
        assert digest(again.totals) == digest(totals_of(["north", "south", "east"]))
        again.coordinator._store.log.close()


def test_a_regression_survives_kills_and_forgets_a_site(tmp_path: Path) -> None:
    engine = RegressionEngine(tmp_path / "one", snapshot_every=1.0)
    for accepted in range(1, 4):  # killed after each message but the last
        engine.run(lambda n=accepted: engine.coordinator.accepted >= n)  # type: ignore[misc]
        engine.restart()
    engine.finish()
    assert digest(engine.totals) == digest(sum(map(sums_of_targets, COUNTS)))
    model = load_file(tmp_path / "one" / "model.safetensors")
    assert model["weight"] == pytest.approx(SLOPES, abs=1e-3)
    assert model["bias"] == pytest.approx([1, 1], abs=1e-3)
    forget(tmp_path / "one", "west")
    assert [check.problems for check in verify_folder(tmp_path / "one")] == [[]] * 6
    never = RegressionEngine(tmp_path / "never", min_clients=3)
    never.online.discard("west")
    never.finish()
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "never"))
    assert {key: own.tobytes() for key, own in one.items()} == {
        key: own.tobytes() for key, own in other.items()
    }


def test_what_cannot_be_forgotten_is_said(tmp_path: Path) -> None:
    engine = SumsEngine(tmp_path / "sums")
    engine.run(lambda: engine.coordinator.accepted == 2)
    with pytest.raises(FolderUnavailable, match="stop its server first"):
        forget(tmp_path / "sums", "north")
    engine.coordinator.close(engine.now)
    with pytest.raises(BadInput, match=r"'nort' has sent nothing to .*; did you mean 'north'"):
        forget(tmp_path / "sums", "nort")
    trained = Engine(tmp_path / "trained", FedRAW(2))
    trained.accept(3)
    trained.coordinator.close(trained.now)
    before = {path: path.read_bytes() for path in (tmp_path / "trained").rglob("*.*")
              if path.is_file()}  # fmt: skip
    with pytest.raises(BadInput, match="'fedraw' trains a model, and nobody can say what of it"):
        forget(tmp_path / "trained", "north")
    assert {path: path.read_bytes() for path in before} == before


def test_new_label_counts_bring_new_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "east", {"dog": 80})
    engine = SumsEngine(tmp_path, only=tuple(COUNTS), seconds=1e6)
    engine.run(lambda: engine.coordinator.accepted == 3)
    monkeypatch.setitem(COUNTS, "east", {"dog": 70, "cat": 9})
    engine.coordinator._store.declare("east", COUNTS["east"], engine.now)
    engine.finish()
    assert digest(engine.totals) == digest(totals_of(COUNTS))


WRONG: list[tuple[str, Any, str]] = [
    ("another feature map", lambda t, h: replace(h, feature_map="other"),
     "sent sums of the feature map other, and this federation uses a map"),
    ("a model", lambda t, h: replace(h, vector=np.zeros(21, np.float32)),
     "sent 21 numbers, a message of this method has 42"),
    ("sums times 1000", lambda t, h: replace(h, vector=1000 * h.vector, examples=1),
     "sent counts of 40,000 samples, and says that it has 1"),
    ("counts of others", lambda t, h: replace(h, vector=2 * h.vector, examples=80),
     "sent the sums of 20 samples of label 'cat' and declares 10"),
    ("far features", lambda t, h: replace(h, vector=SHAPE.of_samples(
        np.full((40, 6), 16.0), samples("west")[1])), "sent features of 39.2 .norm., more than 10"),
    ("targets", lambda t, h: replace(h, vector=sums_of_targets("west")),
     "sent 45 numbers, a message of this method has 42"),
    ("a failure", lambda t, h: Failure("no GPU"), "no GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change", "words"), WRONG, ids=[name for name, *_ in WRONG])
def test_wrong_sums_of_one_site_change_nothing(
    what: str, change: Any, words: str, tmp_path: Path
) -> None:
    engine = SumsEngine(tmp_path, seconds=1e6, norm_bound=10.0)
    engine.sites["west"].reply = change
    engine.sites["west"].seconds = 9.0
    engine.run(lambda: engine.coordinator.accepted == 3)
    engine.wait(20)
    found = engine.reasons("rejected") if what != "a failure" else engine.reasons()
    assert "west" in str(engine.log("rejected", "note"))
    assert re.search(words, found), found
    assert digest(engine.totals) == digest(totals_of(["north", "south", "east"]))
    engine.coordinator.abandon()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"labels": ()}, "labels has 0 names, and the model 3 outputs; set labels"),
    ({"feature_map": "", "seconds": 9.0}, "OnePass needs feature_map"),
    ({"max_staleness": 3}, "max_staleness does not go with OnePass: sums do not become stale"),
    (
        {"summaries": Privacy("randomised-response", 2)},
        "summaries does not go with OnePass: sums contain",
    ),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_settings_that_do_not_go_with_sums_are_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        SumsEngine(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature_map": "other"}, "feature_map = 'a map', and this run sets 'other'"),
        ({"labels": ("dog", "cat", "owl")}, "labels = .'cat', 'dog', 'owl'., and this run sets"),
    ],
)
def test_a_restart_with_other_features_or_labels_is_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    engine = SumsEngine(tmp_path)
    engine.run(lambda: engine.coordinator.accepted == 2)
    with pytest.raises(BadInput, match=words):
        engine.restart(**settings)


def test_a_copy_of_the_folder_is_named(tmp_path: Path) -> None:
    finished(tmp_path / "folder")
    shutil.copytree(tmp_path / "folder", tmp_path / "folder.before-rollback-1")
    assert any("before-rollback-1" in line for line in forget(tmp_path / "folder", "west").remains)
