"""Bounds on everything that a site can make the server store."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import Engine

from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.errors import BadInput
from fedraw.server.admission import (
    LARGEST_COUNTS,
    MOST_LABELS,
    MOST_LABELS_IN_ALL,
    check_counts,
    check_new_labels,
)
from fedraw.server.tasks import EvaluateReply, Failure, LabelSummary, Task, TrainReply
from fedraw.strategies.fedraw import FedRAW

TURN = count()


def labels(number: int) -> dict[str, int]:
    """This many labels that no site had before."""
    turn = next(TURN)
    return {f"{turn} {i}": 1 for i in range(number)}


def log_bytes(engine: Engine) -> int:
    return (engine.settings.folder / "events.jsonl").stat().st_size


def longest_line(engine: Engine) -> int:
    return max(map(len, (engine.settings.folder / "events.jsonl").read_bytes().splitlines()))


FLOODS: dict[str, tuple[Any, str]] = {
    "too many labels": (
        lambda: labels(MOST_LABELS + 1),
        "reports 10001 labels; the limit is 10000",
    ),
    "labels that are too long": (lambda: {"x" * 201: 1}, "has a label of 201 characters"),
    "too many characters": (
        lambda: {f"{name:->190}": 1 for name in labels(2000)},
        "bytes, and the limit is 262144",
    ),
    "a lone surrogate": (lambda: {"\ud800": 1}, "is not valid text"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_labels_is_refused_with_the_whole_reply(
    make_engine: MakeEngine, flood: str
) -> None:
    make, words = FLOODS[flood]
    engine = make_engine(FedRAW(buffer=2), patience=3, back_off=1.0)
    engine.sites["west"].reply = lambda _, honest: replace(honest, counts=make())
    engine.run(lambda: bool(engine.log("left")))
    refused = engine.log("rejected")
    assert len(refused) == 3 and all(words in r["reason"] for r in refused)
    assert "quarantined for 3600 s after 3 failures in a row" in engine.log("left")[0]["reason"]
    assert longest_line(engine) < 2000
    assert len(engine.coordinator._store.strategy_state.federation.labels) == 3
    assert engine.coordinator._store.state.counts["north"] == {"cat": 6, "dog": 4}


def test_the_longest_label_is_accepted() -> None:
    assert check_counts("north", {"x" * 200: 1}) == {"x" * 200: 1}
    with pytest.raises(BadInput, match="a label of 201 characters; the limit is 200"):
        check_counts("north", {"x" * 201: 1})


def test_the_number_of_new_labels_per_site_is_bounded(make_engine: MakeEngine) -> None:
    """Each reply is within its limit, but all replies together exceed the limit of a site."""
    engine = make_engine(FedRAW(buffer=2), patience=3, back_off=1.0, quarantine=5.0)
    engine.sites["west"].reply = lambda _, honest: replace(
        honest, counts={"owl": 3, **labels(3000)} if honest.version else None
    )
    engine.sites["west"].counts = {"owl": 3000}
    engine.run(lambda: bool(engine.log("left")))
    assert len(engine.log("declared")) == 3
    refused = engine.reasons("rejected")
    assert (
        "would have added 12000 labels that no site had before; a site may add at most 10000"
        in refused
    )
    assert longest_line(engine) <= LARGEST_COUNTS + 200
    known = engine.coordinator._store.strategy_state.federation.labels
    assert len(known) == 3 + 9000
    engine.restart()  # it stays known how many the site has brought
    engine.run(lambda: len(engine.log("left")) == 2)
    assert len(engine.log("joined")) == 5
    assert len(engine.coordinator._store.strategy_state.federation.labels) == 3 + 9000


def test_the_total_number_of_labels_is_bounded() -> None:
    check_new_labels("b", 5, 0, MOST_LABELS_IN_ALL - 5)
    check_new_labels("b", 0, MOST_LABELS + 1, MOST_LABELS_IN_ALL + 1)  # what is there may stay
    with pytest.raises(
        BadInput, match=f"adds 6 labels to the 99995 .* at most {MOST_LABELS_IN_ALL}"
    ):
        check_new_labels("b", 6, 0, MOST_LABELS_IN_ALL - 5)


def test_new_labels_of_joins_and_declarations_count() -> None:
    federation = Federation.of(LabelTable.from_counts({"a": {"cat": 1}}))
    federation.join("b", {**labels(1000), "cat": 1})
    assert len(federation.labels) == 1001
    assert federation.coverage.tolist() == [2] + [1] * 1000
    federation.declare("b", {"dog": 1})
    assert federation.coverage.tolist() == [1] + [0] * 1000 + [1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 10_000_000, "1 to 200 characters; this one has 10000000"),
        ("no\ud800rth", "'no\\ud800rth' is not valid text"),
    ],
    ids=["long", "surrogate"],
)
def test_a_site_with_an_invalid_name_may_not_join(
    make_engine: MakeEngine, name: str, words: str
) -> None:
    engine = make_engine(min_clients=3, back_off=1.0)
    engine.sites["west"].name = name
    engine.accept(6)
    assert words in engine.reasons()
    assert "west" not in engine.coordinator.members
    assert longest_line(engine) < 2000


def test_a_long_name_in_an_update_adds_little_to_the_log(make_engine: MakeEngine) -> None:
    engine = make_engine(patience=3, back_off=1.0)
    engine.sites["west"].reply = lambda _, honest: replace(honest, site="w" * 10_000_000)
    engine.run(lambda: bool(engine.log("left")))
    assert len(engine.log("rejected")) == 3
    assert "replied in the name of 'www" in engine.log("rejected")[0]["reason"]
    assert log_bytes(engine) < 50_000


def test_an_unexpected_reply_adds_little_to_the_log(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.accept(1)
    before = log_bytes(engine)
    engine.coordinator.receive("no message_id", LabelSummary("w" * 10_000_000, {}), engine.now)
    assert log_bytes(engine) - before < 1000


def test_the_reason_of_a_failure_is_truncated(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3)
    engine.online = {"north", "south", "east"}
    engine.accept(1)
    before = log_bytes(engine)
    engine.coordinator._store.note("\x1b[2J" + "x" * 10_000_000, engine.now, "north")
    engine.coordinator._store.leave("north", "y" * 10_000_000, engine.now)
    assert log_bytes(engine) - before < 5000
    assert engine.log("note")[-1]["reason"].startswith("\\x1b[2Jxxx")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: labels(MOST_LABELS + 1), "reports 10001 labels"),
        (lambda: {"x" * 201: 1}, "has a label of 201 characters"),
        (lambda: {"\ud800": 1}, "is not valid text"),
    ],
    ids=["many", "long", "surrogate"],
)
def test_a_flood_in_an_evaluation_counts_against_the_site(
    make_engine: MakeEngine, make: Any, words: str
) -> None:
    engine = make_engine(federated_evaluation=True, evaluate_every=2, patience=3, back_off=0.1)

    def lie(task: Task, honest: EvaluateReply) -> EvaluateReply:
        return replace(honest, right={}, total=make())

    engine.sites["west"].evaluated = lie
    engine.run(lambda: bool(engine.log("left")))
    (left,) = engine.log("left")
    assert "3 failures in a row" in left["reason"] and words in left["reason"]
    assert longest_line(engine) < 2000
    assert all(set(r["recall"]) <= {"cat", "dog", "owl"} for r in engine.log("evaluation"))


def test_an_unreadable_evaluation_counts_against_the_site_and_a_missing_one_does_not(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(federated_evaluation=True, evaluate_every=2, patience=3, back_off=0.1)
    engine.sites["west"].evaluated = lambda _, honest: Failure("too large", malformed=True)
    engine.sites["east"].evaluated = lambda _, honest: Failure("it has no evaluate")
    engine.run(lambda: bool(engine.log("left")))
    assert [r["client"] for r in engine.log("left")] == ["west"]
    engine.accept(60)
    assert "east" in engine.coordinator.members


def test_good_training_does_not_reset_failed_evaluations(
    make_engine: MakeEngine,
) -> None:
    """Failures are counted separately for training and evaluation."""
    engine = make_engine(federated_evaluation=True, evaluate_every=6, patience=2, back_off=0.1)
    engine.sites["north"].evaluated = lambda _, honest: replace(honest, right={"cat": 10**6})
    engine.run(lambda: bool(engine.log("left")))
    assert sum(r["client"] == "north" for r in engine.log("arrival")) >= 2


def test_label_counts_of_initial_sites_are_bounded() -> None:
    with pytest.raises(BadInput, match="the limit is 10000"):
        check_counts("north", labels(MOST_LABELS + 1))
    assert len(check_counts("north", labels(MOST_LABELS))) == MOST_LABELS


def test_valid_new_counts_are_accepted(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2))
    engine.sites["east"].counts = {"dog": 800}

    def grown(task: Task, honest: TrainReply) -> TrainReply:
        return replace(honest, counts={"dog": 800, **{f"breed {i}": 1 for i in range(2000)}})

    engine.sites["east"].reply = grown
    engine.accept(8)
    assert len(engine.log("declared")) == 1 and not engine.log("rejected")


def test_names_that_steer_a_terminal_are_escaped_before_training_begins(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedraw.server")
    sites = {"\x1b[2Jn\north": {"cat": 1}, "south\r\nERROR: all is lost": {}}
    engine = make_engine(sites=sites, min_clients=3)
    engine.wait(70.0)
    assert "1 of 3 sites are connected: \\x1b[2Jn orth" in caplog.text
    assert "south ERROR: all is lost: node 101 may not join" in caplog.text
    told = [record.getMessage() for record in caplog.records]
    assert told and all(message.isprintable() for message in told)


def test_the_console_lists_a_limited_number_of_sites(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedraw.server")
    engine = make_engine(sites={f"site {i}": {"cat": 1} for i in range(25)}, min_clients=26)
    engine.wait(2.0)
    assert "25 of 26 sites are connected: site 0, " in caplog.text
    last = caplog.records[-1].getMessage()
    assert last.endswith(" and 5 more") and last.count("site ") == 20


def test_departures_from_a_large_federation_log_few_scores(make_engine: MakeEngine) -> None:
    sites = {f"site {i}": {"cat": 1, f"label {i}": 1} for i in range(120)}
    engine = make_engine(FedRAW(buffer=2), sites=sites, absence=5, pace=1000.0)
    engine.run(lambda: bool(engine.log("start")))
    engine.online = {"site 0"}
    engine.run(lambda: len(engine.coordinator.members) == 1)
    scores = engine.log("scores")
    assert len(scores) == 119
    # Above 50 members only the one that left, of 0.5 / coverage of cat + 0.5; then all members.
    assert list(scores[0]["before"].values()) == [0.5 / 120 + 0.5]
    assert list(scores[0]["after"].values()) == [None]
    assert [len(r["before"]) for r in scores] == [1] * 70 + list(range(50, 1, -1))


def test_a_score_that_did_not_change_is_not_logged_at_the_border(make_engine: MakeEngine) -> None:
    sites = {f"site {i}": {f"label {i}": 1} for i in range(51)}
    engine = make_engine(FedRAW(buffer=2), sites=sites, absence=5, pace=1000.0)
    engine.run(lambda: bool(engine.log("start")))
    engine.online = set(sites) - {"site 50", "site 49"}
    engine.run(lambda: len(engine.coordinator.members) == 49)
    left = [(r["before"], r["after"]) for r in engine.log("scores")]
    assert left == [({"site 49": 1.0}, {"site 49": None}), ({"site 50": 1.0}, {"site 50": None})]
