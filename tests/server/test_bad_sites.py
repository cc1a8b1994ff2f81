"""Sites that fail, reply late, lie or send invalid values are logged and have no effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import SIZE, Engine, failing

from fedraw.errors import BadInput
from fedraw.server.admission import check_counts
from fedraw.server.membership import Nodes
from fedraw.server.tasks import Failure, LabelSummary, Reply, Task, TrainReply
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW

Lie = Callable[[Task, TrainReply], Reply]


def with_vector(vector: object) -> Lie:
    return lambda task, honest: replace(honest, vector=np.asarray(vector))


BAD: dict[str, tuple[Lie, str]] = {
    "NaN": (
        with_vector(np.array([0, np.nan, 0, 0], np.float32)),
        "sent 1 numbers that are NaN or infinite",
    ),
    "wrong length": (with_vector(np.zeros(3, np.float32)), "sent 3 numbers, the model has 4"),
    "wrong shape": (with_vector(np.zeros((2, 2), np.float32)), "an array of shape (2, 2)"),
    "wrong dtype": (with_vector(np.zeros(SIZE, np.float64)), "type float64, not float32"),
    "huge": (with_vector(np.full(SIZE, 1e6, np.float32)), "more than 10 times the usual"),
    "overflow": (with_vector(np.full(SIZE, 3e38, np.float32)), "more than 10 times the usual"),
    "another's name": (
        lambda task, honest: replace(honest, site="north"),
        "client 'west' replied in the name of 'north'",
    ),
    "another version": (
        lambda task, honest: replace(honest, version=task.version + 7),
        "but replied for version",
    ),
    "no examples": (lambda task, honest: replace(honest, examples=0), "trained on 0 examples"),
    "too many examples": (
        lambda task, honest: replace(honest, examples=401),
        "trained on 401 examples and declared 4 samples; a site may train on at most 100 times",
    ),
    "endless examples": (
        lambda task, honest: replace(honest, examples=10**400),
        "trained on more than 9007199254740992 examples",
    ),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda name: name.replace(" ", "-"))
def test_a_bad_update_is_refused_and_its_sender_quarantined(
    make_engine: MakeEngine, bad: str
) -> None:
    lie, words = BAD[bad]
    engine = make_engine(FedFa(buffer=2), patience=3, back_off=2.0)
    engine.accept(8)  # so that a usual norm is known
    engine.sites["west"].reply = lie
    engine.run(lambda: "west" not in engine.coordinator.members)
    rejected = [r for r in engine.log("rejected") if r["client"] == "west"]
    assert len(rejected) == 3 and all(words in r["reason"] for r in rejected)
    (left,) = engine.log("left")
    assert "quarantined for 3600 s after 3 failures in a row" in left["reason"]
    assert words in left["reason"]
    # The pauses double: 2 s, then 4 s.
    first, second, third = (r["start_time"] for r in rejected)
    assert second - first >= 2 and third - second >= 4
    assert np.isfinite(engine.coordinator._store.strategy_state.model).all()


def test_the_claimed_number_of_examples_cannot_replace_the_model(make_engine: MakeEngine) -> None:
    """FedAvg weights by examples: north claims 100 times its 10 samples, and more is refused."""
    engine = make_engine(FedAvg(weighting="samples"), patience=9, back_off=1.0)
    claims = iter([10**308, 2**62, 1001, 1000])
    engine.sites["north"].reply = lambda task, honest: replace(honest, examples=next(claims))
    engine.accept(4)
    assert [r["client"] for r in engine.log("rejected")] == ["north"] * 3
    assert sorted(engine.log("arrival")[-1]["weights"]) == pytest.approx(
        [10 / 1030, 10 / 1030, 10 / 1030, 1000 / 1030]
    )


def test_a_site_that_declares_no_labels_has_a_limit_of_examples_too(
    make_engine: MakeEngine,
) -> None:
    strategy = FedRAW(buffer=2, labels="inferred")
    engine = make_engine(strategy, sites={"north": {}, "south": {}}, patience=9, back_off=1.0)
    claims = iter([2**53 + 1, 2**53])
    engine.sites["north"].reply = lambda task, honest: replace(
        honest, examples=next(claims, honest.examples)
    )
    engine.accept(4)
    (rejected,) = engine.log("rejected")
    assert "'north' trained on more than 9007199254740992 examples" in rejected["reason"]


def test_one_failure_leads_to_a_pause_only(make_engine: MakeEngine) -> None:
    engine = make_engine(patience=2, back_off=1.0)
    tries = {"west": 0}

    def every_other(task: Task, honest: TrainReply) -> Reply:
        tries["west"] += 1
        return Failure("killed") if tries["west"] % 2 else honest

    engine.sites["west"].reply = every_other
    engine.run(lambda: tries["west"] >= 6)
    assert "west" in engine.coordinator.members


def test_a_round_does_not_wait_for_a_site_that_never_returns(make_engine: MakeEngine) -> None:
    engine = make_engine(FedAvg(), deadline=10.0, patience=2, back_off=1.0, absence=1e9)
    engine.sites["west"].seconds = 1e9
    engine.accept(6)  # the second round is under way: without west
    assert "asked again in 1 s: no reply in 10 s" in engine.reasons()
    (left,) = engine.log("left")
    assert "2 failures in a row: no reply in 10 s" in left["reason"]


def test_a_late_reply_is_accepted_once(make_engine: MakeEngine) -> None:
    engine = make_engine(deadline=10.0, back_off=1.0, patience=9)
    engine.sites["west"].seconds = 16.0  # asked again after 11, answers the first time after 16
    engine.run(lambda: any(r["client"] == "west" for r in engine.log("arrival")))
    arrival = next(r for r in engine.log("arrival") if r["client"] == "west")
    assert arrival["time"] - arrival["start_time"] >= 16
    engine.wait(60)
    assert "a late update is ignored" in engine.reasons()
    # Never more tasks under way than one that counts and what was overdue before it.
    under_way = [d for d in engine.coordinator._pending if d.task.site == "west"]
    assert sum(not d.overdue and not d.replaced for d in under_way) <= 1


def test_a_repeated_reply_counts_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(3)
    engine.turn()
    _, message_id, reply = min(engine.replies, key=lambda entry: entry[:2])
    before = engine.coordinator.accepted
    engine.now += 10
    engine.coordinator.receive(message_id, reply, engine.now)
    engine.coordinator.receive(message_id, reply, engine.now)
    assert engine.coordinator.accepted == before + 1
    assert "an unexpected reply" in engine.reasons()


def test_a_too_stale_update_is_refused_but_is_not_a_failure(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=1), max_staleness=3, patience=2, back_off=1.0)
    engine.sites["west"].seconds = 20.0
    engine.wait(120)
    refused = [r for r in engine.log("rejected") if r["client"] == "west"]
    assert len(refused) >= 3 and "max_staleness is 3" in refused[0]["reason"]
    assert "west" in engine.coordinator.members


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": -1}, "count -1 is negative"),
        ({"cat": 0}, "reports no labels"),
        ({}, "reports no labels"),
        ({"cat": 1.5}, "is fractional"),
        ({"cat": float("nan")}, "is not a number"),
        ({"cat": "many"}, "is not a number"),
        ({"x" * 300: 1}, "a label of 300 characters"),
    ],
)
def test_a_site_with_invalid_label_counts_may_not_join(
    make_engine: MakeEngine, counts: dict[str, object], words: str
) -> None:
    engine = make_engine(min_clients=3, pace=20.0)
    engine.online = {"north", "south", "east"}
    engine.accept(1)
    engine.sites["west"].counts = counts
    engine.online.add("west")
    engine.wait(20)
    assert words in engine.reasons()
    assert "west" not in engine.coordinator.members
    engine.sites["west"].counts = {"owl": 3}
    engine.wait(200)
    assert "west" in engine.coordinator.members


def test_a_large_change_of_the_sample_total_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.sites["east"].reply = lambda task, honest: replace(honest, counts={"dog": 8000})
    engine.accept(6)
    assert (
        "reported 8 samples and now 8000, a change by more than a factor of 10" in engine.reasons()
    )
    assert engine.coordinator._store.state.counts["east"] == {"dog": 8}
    assert check_counts("east", {"dog": 80}, {"dog": 8}) == {"dog": 80}
    assert check_counts("east", {"dog": 8}, {"dog": 80}) == {"dog": 8}
    for jump in (81, 100):
        with pytest.raises(BadInput, match="a change by more than a factor of 10"):
            check_counts("east", {"dog": jump}, {"dog": 8})
    with pytest.raises(BadInput, match="a change by more than a factor of 10"):
        check_counts("east", {"dog": 7}, {"dog": 80})
    with pytest.raises(BadInput, match="1 to 200 characters"):
        check_counts("", {"dog": 80})


def test_a_reply_of_the_wrong_kind_is_a_failure(make_engine: MakeEngine) -> None:
    engine = make_engine(patience=2, back_off=1.0)
    engine.sites["west"].reply = lambda task, honest: LabelSummary("west", {"owl": 1})
    engine.run(lambda: bool(engine.log("left")))
    assert "the reply to a train task is LabelSummary" in engine.log("left")[0]["reason"]


def test_a_node_without_a_summary_is_asked_with_growing_pauses(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(min_clients=3, back_off=10.0, pace=20.0)
    asked: list[float] = []
    serve = engine._serve

    def silent(task: Task, message_id: str) -> None:
        if task.node == engine.sites["west"].node:
            asked.append(engine.now)
            engine.replies.append((engine.now, message_id, Failure("the client app crashed")))
        else:
            serve(task, message_id)

    engine._serve = silent  # type: ignore[method-assign]
    engine.wait(200)
    gaps = np.diff(asked)
    assert len(gaps) >= 3 and all(np.diff(gaps) > 0)


def ask_newcomer(engine: Engine, node: int, message_id: str) -> None:
    """Send a new node the question for its site's name."""
    known = {site.node for site in engine.sites.values()}
    engine.coordinator.online(known | {node}, engine.now)
    (task,) = (task for task in engine.coordinator.tasks(engine.now) if task.node == node)
    engine.coordinator.sent(task, message_id)


@pytest.mark.parametrize("reply", [LabelSummary("late", {"cat": 3}), Failure("expired")], ids=type)
def test_a_node_that_was_away_for_too_long_is_ignored(
    make_engine: MakeEngine, reply: Reply
) -> None:
    """A node is forgotten after ten times `absence`, but its reply may come for 900 s."""
    engine = make_engine(absence=20.0)
    engine.accept(4)
    ask_newcomer(engine, 999, "question")
    engine.wait(210)
    engine.coordinator.receive("question", reply, engine.now)
    assert "a reply of node 999 is ignored, because it was away for too long" in engine.reasons()
    engine.accept(engine.coordinator.accepted + 4)
    assert set(engine.coordinator.members) == set(engine.sites)


def test_an_online_node_is_not_forgotten() -> None:
    nodes = Nodes()
    nodes.update({7}, now=0.0)
    nodes.forget_unlisted(unlisted_since=1.0)
    assert nodes.knows(7)
    nodes.update((), now=2.0)
    nodes.forget_unlisted(unlisted_since=3.0)
    assert not nodes.knows(7)


def test_a_node_has_one_site(make_engine: MakeEngine) -> None:
    """A node answers two questions with two names; then it goes away, and its one site leaves."""
    engine = make_engine(absence=60.0)
    engine.accept(4)
    ask_newcomer(engine, 999, "first question")
    engine.now += 301  # past the deadline of a summary, so the node is asked again
    engine.turn()
    ask_newcomer(engine, 999, "second question")
    for name, message_id in (("first", "first question"), ("second", "second question")):
        engine.coordinator.receive(message_id, LabelSummary(name, {"cat": 3}), engine.now)
    assert set(engine.coordinator.members) == {*engine.sites, "first"}
    assert "node 999 takes part as 'first', so it cannot take part as 'second'" in engine.reasons()
    engine.wait(70)
    assert set(engine.coordinator.members) == set(engine.sites)


def test_a_refused_node_is_asked_with_growing_pauses(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3, back_off=10.0, pace=20.0, only=("north", "south", "east"))
    asked: list[float] = []
    serve = engine._serve

    def counted(task: Task, message_id: str) -> None:
        if task.node == engine.sites["west"].node:
            asked.append(engine.now)
        serve(task, message_id)

    engine._serve = counted  # type: ignore[method-assign]
    engine.wait(200)
    gaps = np.diff(asked)
    assert len(gaps) >= 3 and gaps[0] >= 10 and all(np.diff(gaps) > 0)


def test_the_federation_waits_while_all_sites_fail(make_engine: MakeEngine) -> None:
    engine = make_engine(patience=1, quarantine=50.0, min_clients=4)
    for site in engine.sites.values():
        site.reply = failing
    engine.run(lambda: len(engine.log("left")) == 4)
    for site in engine.sites.values():
        site.reply = None
    engine.accept(8)
    assert len(engine.coordinator.members) == 4


def test_a_refusal_before_training_is_printed_to_the_console(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(FedFa(buffer=2), sites={"north": {}, "south": {"cat": 1}})
    engine.wait(5.0)
    assert not engine.coordinator.members
    assert "north: node 100 may not join: client 'north' reports no labels" in caplog.text
    assert "use a strategy with labels = 'inferred'" in caplog.text


def test_a_server_that_infers_labels_needs_no_label_counts(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2, labels="inferred"), sites={"north": {}, "south": {}})
    engine.accept(6)
    assert set(engine.coordinator.members) == {"north", "south"}


def test_a_repeated_refusal_is_logged_once(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(FedFa(buffer=2), sites={"north": {}, "south": {"cat": 1}}, back_off=1.0)
    engine.wait(60.0)
    assert sum(task.kind == "summary" and task.node == 100 for task in engine.sent) > 2
    assert caplog.text.count("node 100 may not join") == 1


def test_the_console_says_which_sites_are_connected(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedraw.server")
    engine = make_engine(FedFa(buffer=2), min_clients=5)
    engine.wait(130.0)
    assert caplog.text.count("waiting: 4 of 5 sites are connected: north, south, east, west") == 3
    with pytest.raises(BadInput, match="min_clients = 5 is above the number of sites"):
        replace(engine.settings, sites=("north",))


def test_rare_labels_of_a_server_that_infers_are_outputs_of_the_model(
    make_engine: MakeEngine,
) -> None:
    strategy = FedRAW(buffer=2, labels="inferred", classes=("cat", "owl"))
    untold: dict[str, dict[str, int]] = {"north": {}, "south": {}}
    engine = make_engine(strategy, sites=untold, rare_labels=("owl",))
    engine.accept(2)
    start = engine.log("start")[0]
    assert (start["labels"], start["rare_labels"]) == (["cat", "owl"], ["owl"])


def test_an_ended_federation_stays_ended_and_logs_a_warning(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(FedFa(buffer=2), arrivals=4)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    engine.restart(arrivals=100)
    assert engine.coordinator.finished == "4 updates accepted"
    assert "has ended (4 updates accepted), and new limits do not reopen it" in caplog.text
    assert engine.kinds()[-1] == "end"
