"""The exact values of limits, the start of timers, and tasks that could not be sent."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.server.conftest import MakeEngine
from tests.server.engine import failing

from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.server.admission import LARGEST_COUNTS, check_labels
from fedraw.server.evaluation import StoppingTarget, TestedModel
from fedraw.server.journal import ArrivalFacts, Journal
from fedraw.server.results import EvaluationResult, Recall
from fedraw.server.settings import ServerSettings
from fedraw.strategies.fedraw import FedRAW

FACTS = ArrivalFacts(1.0, 2, 3.0, 4.0)


def test_an_unreachable_site_is_asked_again_without_a_failure(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(back_off=4.0)
    engine.accept(8)
    engine.unreachable = {"west"}
    engine.run(lambda: "could not be reached" in engine.reasons())
    (note,) = (r for r in engine.log("note") if "could not be reached" in r["reason"])
    assert (note["client"], note["reason"]) == (
        "west",
        "asked again later: could not be reached: no route",
    )
    engine.unreachable = set()
    failed, trained = engine.now, engine.sites["west"].trained
    engine.run(lambda: engine.sites["west"].trained > trained)
    assert 4.0 <= engine.now - failed <= 8.5
    assert not list(engine.coordinator._pending._unsent.values())
    assert "west" in engine.coordinator.members


def test_a_late_failure_does_not_end_the_next_training(make_engine: MakeEngine) -> None:
    engine = make_engine(deadline=2.0, back_off=0.5, patience=100)
    engine.sites["west"].seconds, engine.sites["west"].reply = 3.0, failing
    engine.wait(20.0)
    reasons = [r["reason"] for r in engine.log("note") if r.get("client") == "west"]
    assert reasons and not any("crashed" in reason for reason in reasons)


def test_the_first_interval_of_snapshots_starts_with_the_training(make_engine: MakeEngine) -> None:
    engine = make_engine(snapshot_every=50.0)
    engine.accept(1)
    checkpoints, begun = engine.settings.folder / "checkpoint", engine.now
    engine.wait(40.0)
    assert [int(path.name) for path in checkpoints.iterdir()] == [0]
    engine.run(lambda: max(int(path.name) for path in checkpoints.iterdir()) > 0)
    assert engine.now - begun <= 51.0


def test_a_site_that_left_is_not_asked_to_evaluate(make_engine: MakeEngine) -> None:
    engine = make_engine(federated_evaluation=True)
    engine.accept(2)
    leader = engine.coordinator
    leader._begin_evaluation(engine.now)
    leader._release("west")
    asked = {task.site for task in leader.tasks(engine.now) if task.kind == "evaluate"}
    assert asked == {"north", "south", "east"}


def test_a_site_without_declared_labels_may_test_on_any_number_of_samples(
    make_engine: MakeEngine,
) -> None:
    sites = {name: {"cat": 500} for name in ("north", "south", "east")}
    engine = make_engine(
        FedRAW(buffer=2, labels="inferred", classes=("cat", "dog")),
        sites=sites,
        federated_evaluation=True,
        evaluate_every=2,
    )
    for site in engine.sites.values():
        site.counts = {}
        site.evaluated = lambda _, honest: replace(honest, right={"cat": 500}, total={"cat": 500})
    engine.run(lambda: bool(engine.log("evaluation")))
    assert engine.log("evaluation")[0]["metrics"]["GlobalAcc"] == 100.0
    assert engine.log("evaluation")[0]["sites"] == 3


def test_recall_by_label_and_its_mean_over_rare_labels() -> None:
    recall = Recall({"cat": 1}, {"cat": 2, "owl": 4, "dog": 0})
    assert recall.by_label() == {"cat": 50.0, "owl": 0.0}
    assert recall.metrics(["cat", "owl", "dog"]) == {"GlobalAcc": 100 / 6, "AvgRare": 25.0}


def test_a_target_that_others_reach_exactly_has_no_decisive_site() -> None:
    local = {site: EvaluationResult(Recall({"cat": 6}, {"cat": 10})) for site in ("north", "south")}
    tested = TestedModel(0, np.zeros(1, np.float32), local=local)
    assert tested.decisive_site(StoppingTarget("GlobalAcc", 60.0), ()) is None
    assert tested.decisive_site(StoppingTarget("GlobalAcc", 60.1), ()) == "north"


def test_label_counts_may_take_exactly_the_most_bytes() -> None:
    counts = {f"{label:0180d}": 1 for label in range(LARGEST_COUNTS // 186)}
    names = list(counts)
    room = LARGEST_COUNTS - len(json.dumps(names)) - 2 * len(names)
    last = counts.pop(names[-1])
    counts[names[-1] + "x" * min(room, 20)] = last
    room -= min(room, 20)
    names = list(counts)
    counts[names[0]] = 10**room  # one more digit for each byte that is left
    check_labels("north", counts)
    counts[names[0]] *= 10
    with pytest.raises(BadInput, match=f"take {LARGEST_COUNTS + 1} bytes"):
        check_labels("north", counts)


def test_a_long_reason_is_truncated_to_500_characters(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(1)
    for length, logged in ((500, "x" * 500), (501, "x" * 499 + "…")):
        engine.coordinator._store.note("x" * length, engine.now)
        engine.turn()
        assert engine.log("note")[-1]["reason"] == logged


def test_the_journal_removes_unused_updates_up_to_an_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for event in (1, 2, 3):
        journal.write(event, Update("north", 0, np.zeros(2, np.float32), 1), FACTS)
    journal.remove_unused({1}, until=2)
    assert journal.events() == [1, 3]
    journal.remove(2)  # which is gone already
    assert journal.events() == [1, 3]


@pytest.mark.parametrize("client", ["a", "ab", "abc", "abcd", "abcde"])
def test_the_vector_of_an_update_file_is_aligned(tmp_path: Path, client: str) -> None:
    vector = np.array([1.5, -2.0], np.float32)
    Journal(tmp_path).write(1, Update(client, 0, vector, 1), FACTS)
    path = tmp_path / "0000000001.safetensors"
    assert struct.unpack_from("<Q", path.read_bytes())[0] % 8 == 0
    assert load_file(path)["vector"].tolist() == [1.5, -2.0]


def test_a_norm_bound_of_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"norm_bound = 1\.0 would refuse ordinary updates"):
        ServerSettings(tmp_path, arrivals=1, norm_bound=1)


def test_initial_sites_join_at_time_zero(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(1)
    assert [r["time"] for r in engine.log("joined")] == [0.0] * 4


@pytest.mark.parametrize("counts", [{"owl": 3, "cat": 1}, {"owl": 5}], ids=["same", "new"])
def test_a_restarted_site_declares_only_changed_counts(
    make_engine: MakeEngine, counts: dict[str, int]
) -> None:
    engine = make_engine()
    engine.accept(4)
    before = engine.sites["west"].counts
    engine.sites["west"].node, engine.sites["west"].counts = 900, counts
    engine.run(lambda: "back as node 900" in engine.reasons())
    declared = [(r["client"], r["counts"]) for r in engine.log("declared")]
    assert declared == ([] if counts == before else [("west", counts)])


def test_a_reply_is_accepted_for_three_deadlines(make_engine: MakeEngine) -> None:
    engine = make_engine(deadline=10.0, back_off=1.0, patience=100)
    engine.accept(4)
    arrived = sum(r["client"] == "west" for r in engine.log("arrival"))
    for seconds, counted in ((29.0, True), (32.0, False)):
        engine.sites["west"].seconds = seconds
        engine.wait(100.0)
        now = sum(r["client"] == "west" for r in engine.log("arrival"))
        assert (now > arrived + 1) is counted
        engine.sites["west"].seconds = 1000.0
        engine.wait(60.0)
        arrived = sum(r["client"] == "west" for r in engine.log("arrival"))
