"""The life of a federation from the first site to its end: tasks, members and the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import COUNTS, failing

from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.server.results import Recall
from fedraw.server.settings import ServerSettings
from fedraw.server.tasks import EvaluateReply, Failure, Task, TrainReply
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW


def test_training_begins_with_enough_sites_and_ends_with_enough_updates(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(min_clients=3, arrivals=6)
    engine.online = {"north", "south"}
    engine.wait(30)
    assert not (engine.settings.folder / "events.jsonl").read_bytes()
    engine.online = set(COUNTS)
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    assert engine.coordinator.finished == "6 updates accepted"
    kinds = engine.kinds()
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("arrival") == 6
    assert (engine.settings.folder / "model.safetensors").exists()


def test_an_asynchronous_method_hands_each_sender_the_model_at_once(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    engine.accept(12)
    arrivals = engine.log("arrival")
    # north trains for 1 s, west for 4: that is how often they are heard.
    heard = {name: sum(r["client"] == name for r in arrivals) for name in COUNTS}
    assert heard["north"] > heard["south"] > heard["west"] >= 1
    assert [r["event"] for r in arrivals] == list(range(1, len(arrivals) + 1))
    assert all(r["time"] - r["start_time"] >= 1 for r in arrivals)


def test_a_synchronous_method_waits_for_its_round(make_engine: MakeEngine) -> None:
    engine = make_engine(FedAvg())
    engine.accept(8)
    clients = [r["client"] for r in engine.log("arrival")]
    assert sorted(clients[:4]) == sorted(clients[4:]) == sorted(COUNTS)
    assert [r["version"] for r in engine.log("arrival")] == [0, 0, 0, 1, 1, 1, 1, 2]


def test_a_newcomer_joins_and_the_log_has_the_scores_before_and_after(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(FedRAW(buffer=2), min_clients=3)
    engine.online = {"north", "south", "east"}
    engine.accept(3)
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    (scores,) = engine.log("scores")
    # cat: 2 holders become 3, dog stays at 3, owl is new. north has 6 cats and 4 dogs.
    assert scores["cause"] == "west joined"
    assert scores["before"]["north"] == pytest.approx(0.6 / 2 + 0.4 / 3)
    assert scores["after"]["north"] == pytest.approx(0.6 / 3 + 0.4 / 3)
    assert scores["before"]["west"] is None
    assert scores["after"]["west"] == pytest.approx(0.75 / 1 + 0.25 / 3)
    assert "east" not in scores["after"]  # nothing of hers has changed
    engine.run(lambda: any(r["client"] == "west" for r in engine.log("arrival")))


def test_an_absent_site_leaves_and_rejoins(make_engine: MakeEngine) -> None:
    engine = make_engine(FedAvg(), absence=20)
    engine.accept(4)
    engine.online.remove("west")
    engine.run(lambda: "west" not in engine.coordinator.members)
    (left,) = engine.log("left")
    assert left["client"] == "west" and "out of reach" in left["reason"]
    accepted = engine.coordinator.accepted
    engine.accept(accepted + 6)  # the round no longer waits for it
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    assert [r["client"] for r in engine.log("joined")].count("west") == 2
    engine.run(lambda: engine.log("arrival")[-1]["client"] == "west")


def test_a_restarted_node_has_another_id_and_is_the_same_site(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=4))
    engine.accept(8)
    engine.sites["north"].node = 900  # at once, before anyone noticed
    engine.replies = [entry for entry in engine.replies if "north" not in str(vars(entry[2]))]
    engine.run(lambda: "back as node 900" in engine.reasons())
    before = engine.coordinator.accepted
    engine.accept(before + 6)
    assert not engine.log("left")
    buffer = engine.log("arrival")[-1]["buffer"]
    assert sorted(buffer) == sorted(COUNTS)  # one slot each, whatever the node ids


def test_the_name_of_an_online_site_cannot_be_taken(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3)
    engine.sites["west"].name = "north"
    engine.accept(6)
    engine.wait(60)
    assert "may not join: 'north' is online as node 100" in engine.reasons()
    assert engine.coordinator.members == ["north", "south", "east"]
    assert engine.sites["west"].trained == 0


def test_a_pinned_name_belongs_to_its_first_key(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3, pinned=True, absence=5, pace=8.0)
    engine.online = {"north", "south", "east"}
    engine.accept(3)
    engine.online = {"south", "east", "west"}
    engine.sites["west"].name = "north"
    engine.wait(120)
    assert "'north' is registered with node 100, and this node has another key" in engine.reasons()
    assert engine.coordinator.members == ["south", "east"]


def test_a_pinned_key_has_one_name(make_engine: MakeEngine) -> None:
    """Otherwise a quarantined site could return under another name."""
    engine = make_engine(pinned=True, patience=1, quarantine=1e6, back_off=1.0)
    engine.accept(4)
    engine.sites["west"].reply = failing
    engine.run(lambda: "west" not in engine.coordinator.members)
    for name in ("west 2", "west 3"):
        engine.sites["west"].name = name
        engine.wait(60)
        assert f"as 'west', so its key cannot take part as '{name}' as well" in engine.reasons()
        engine.restart()
    assert engine.reasons().count("node 103 is registered as 'west', so its key cannot") == 2
    assert {r["client"] for r in engine.log("joined")} == set(COUNTS)


def test_a_key_that_had_two_names_keeps_the_first(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3, absence=5, pace=8.0)
    engine.accept(3)
    engine.online.remove("west")
    engine.run(lambda: bool(engine.log("left")))
    engine.sites["west"].name = "west 2"
    engine.online.add("west")
    engine.run(lambda: "west 2" in engine.coordinator.members)
    engine.restart(pinned=True)
    engine.wait(60)
    assert "west 2" not in engine.coordinator.members
    assert "node 103 is registered as 'west'" in engine.reasons()


def test_without_pinned_a_node_may_change_its_name(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=3, absence=5, pace=8.0)
    engine.accept(3)
    engine.online.remove("west")
    engine.run(lambda: bool(engine.log("left")))
    engine.sites["west"].name = "west 2"
    engine.online.add("west")
    engine.run(lambda: "west 2" in engine.coordinator.members)


def test_only_sites_on_the_list_take_part(make_engine: MakeEngine) -> None:
    engine = make_engine(min_clients=2, only=("north", "south"))
    engine.accept(4)
    assert sorted(engine.coordinator.members) == ["north", "south"]
    engine.wait(60)
    assert "'east' is not among the sites that may take part" in engine.reasons()


def test_a_site_declares_new_counts_with_an_update(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2))
    engine.sites["east"].reply = lambda task, honest: replace(
        honest, counts={"dog": 8, "eel": 2} if task.version else None
    )
    engine.run(lambda: bool(engine.log("declared")))
    (declared,) = engine.log("declared")
    assert declared["client"] == "east" and declared["counts"] == {"dog": 8, "eel": 2}
    (scores,) = engine.log("scores")
    assert scores["after"] == {"east": pytest.approx(0.8 / 3 + 0.2 / 1)}


def test_time_ends_a_federation(make_engine: MakeEngine) -> None:
    engine = make_engine(arrivals=None, seconds=20)
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "20 s have passed"


def test_a_target_ends_a_federation(make_engine: MakeEngine) -> None:
    seen: list[float] = []

    def evaluate(model: Vector) -> Recall:
        seen.append(float(model[0]))
        return Recall({"owl": len(seen)}, {"owl": 10})

    engine = make_engine(
        evaluate=evaluate,
        arrivals=None,
        target=30.0,
        target_metric="AvgRare",
        evaluate_every=5,
        rare_labels=("owl",),
    )
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "AvgRare reached 30.0"
    assert [r["metrics"]["AvgRare"] for r in engine.log("evaluation")] == [10, 20, 30]


def test_the_model_is_evaluated_every_so_many_updates_and_at_the_end(
    make_engine: MakeEngine,
) -> None:
    def evaluate(model: Vector) -> Recall:
        return Recall({"owl": 1}, {"owl": 10})

    engine = make_engine(evaluate=evaluate, evaluate_every=3, arrivals=8)
    engine.run(lambda: engine.coordinator.finished is not None)
    assert [r["event"] for r in engine.log("evaluation")] == [3, 6, 8]


def test_a_site_that_cannot_evaluate_does_not_hold_up_the_evaluation(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(federated_evaluation=True, evaluate_every=4)
    engine.sites["west"].evaluated = lambda task, honest: Failure("no test data")
    engine.run(lambda: bool(engine.log("evaluation")), limit=60)  # long before its deadline
    assert engine.log("evaluation")[0]["sites"] == 3
    assert "no evaluation: no test data" in engine.reasons()


def test_an_evaluation_in_another_sites_name_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(federated_evaluation=True, evaluate_every=4)
    serve = engine._serve

    def forged(task: Task, message_id: str) -> None:
        serve(task, message_id)
        if task.kind == "evaluate" and task.site == "west":
            due, own, reply = engine.replies.pop()
            assert isinstance(reply, EvaluateReply)
            engine.replies.append((due, own, replace(reply, site="north")))

    engine._serve = forged  # type: ignore[method-assign]
    engine.run(lambda: bool(engine.log("evaluation")), limit=60)  # long before its deadline
    (record, *_) = engine.log("evaluation")
    assert record["sites"] == 3 and "owl" not in record["recall"]
    notes = [r["reason"] for r in engine.log("note") if r.get("client") == "west"]
    reason = "no evaluation: client 'west' replied in the name of 'north'"
    assert notes == [f"asked again in 30 s: {reason}"]


def test_in_a_large_federation_only_the_changed_score_is_logged(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedraw.server.log.MOST_SCORES", 2)
    engine = make_engine(FedRAW(buffer=2), min_clients=3)
    engine.online = {"north", "south", "east"}
    engine.accept(3)
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    (scores,) = engine.log("scores")
    assert scores["before"] == {"west": None}
    assert scores["after"] == {"west": pytest.approx(0.75 / 1 + 0.25 / 3)}


@pytest.mark.parametrize(("buffer", "warned"), [(3, False), (4, True)])
def test_as_many_sites_as_slots_give_a_warning(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, buffer: int, warned: bool
) -> None:
    with caplog.at_level("WARNING", "fedraw"):
        make_engine(FedRAW(buffer=buffer))
    assert ("min_clients = 4 equals the number of buffer slots" in caplog.text) == warned


def test_a_target_without_a_metric_or_a_value_is_refused() -> None:
    with pytest.raises(BadInput, match="target_metric = '' is empty"):
        ServerSettings(target=90.0, target_metric="")
    with pytest.raises(BadInput, match="target = nan must be a finite number"):
        ServerSettings(target=float("nan"))


def test_a_task_has_the_settings_for_all_sites_and_for_its_site(make_engine: MakeEngine) -> None:
    engine = make_engine(
        train_config=lambda site, version: {"lr": 0.1 / (1 + version), "epochs": 1, "mu": 0.5},
        train={"epochs": 2, "optimizer.name": "sgd"},
        train_at={"west": {"epochs": 5}},
    )
    engine.accept(1)
    told = {task.site: task.config for task in engine.sent if task.kind == "train"}
    alike = {"lr": 0.1, "epochs": 2, "mu": 0.5, "optimizer.name": "sgd"}
    assert told["north"] == alike
    assert told["west"] == {**alike, "epochs": 5}
    assert not any(task.config for task in engine.sent if task.kind != "train")


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"server-round": 3}, "train has the key 'server-round', which the server sets itself"),
        ({"fedraw.task": 3}, "train has the key 'fedraw.task'"),
        ({"lr": None}, "train: lr = None must be a text, a number"),
        ([1], "must be a table"),
    ],
)
def test_settings_that_cannot_be_sent_are_refused(train: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        ServerSettings(arrivals=1, train=train)


def test_training_metrics_of_sites_survive_a_crash(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    engine.sites["west"].reply = lambda task, honest: replace(
        honest, metrics={"train_loss": 0.25, "auc": float("inf")}
    )
    engine.run(lambda: any(r["client"] == "west" for r in engine.log("arrival")))
    told = [r.get("metrics") for r in engine.log("arrival") if r["client"] == "west"]
    assert told == [{"train_loss": 0.25, "auc": None}]
    log = engine.settings.folder / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    assert b'"west"' in lines[-1]
    engine.coordinator._store.log.close()
    log.write_bytes(b"".join(lines[:-1]))  # as if the server had died before it wrote the line
    engine.coordinator = engine.open()
    assert [r["metrics"] for r in engine.log("arrival") if r["client"] == "west"] == told


def test_the_server_computes_differences_from_models(
    make_engine: MakeEngine,
) -> None:
    """A difference that the site sends equals the one that the server computes from its model."""
    models = []
    for whole in (False, True):
        engine = make_engine(folder=str(whole), strategy=FedBuff(buffer=2))

        def send(task: Task, honest: TrainReply, whole: bool = whole) -> TrainReply:
            assert task.model is not None
            vector = honest.vector + task.model if whole else honest.vector
            return replace(honest, vector=vector, is_model=whole)

        for site in engine.sites.values():
            site.reply = send
        engine.accept(4)
        models.append(engine.coordinator._store.strategy_state.model)
    assert models[0] == pytest.approx(models[1], abs=1e-6)


def test_a_failing_evaluation_does_not_end_a_federation(make_engine: MakeEngine) -> None:
    def evaluate(model: object) -> Recall:
        raise ZeroDivisionError("no test images")

    engine = make_engine(evaluate=evaluate, evaluate_every=2)
    engine.accept(5)
    assert "the server's evaluation failed: ZeroDivisionError('no test images')" in engine.reasons()


def test_sites_evaluate_on_their_own_tests(make_engine: MakeEngine) -> None:
    engine = make_engine(federated_evaluation=True, evaluate_every=4)
    engine.run(lambda: bool(engine.log("evaluation")))
    (record, *_) = engine.log("evaluation")
    assert record["sites"] == 4
    # Half of each, rounded down: cats 3+2+0 of 12, dogs 2+2+4 of 17, owls 1 of 3.
    assert record["recall"] == {
        "cat": pytest.approx(100 * 5 / 12),
        "dog": pytest.approx(100 * 8 / 17),
        "owl": pytest.approx(100 / 3),
    }
    assert record["metrics"]["LocalRare"] == 25.0  # west: 1 of 4
    assert record["metrics"]["AvgRare"] == pytest.approx(100 / 3)


def test_impossible_settings_are_refused_at_the_start(make_engine: MakeEngine) -> None:
    with pytest.raises(BadInput, match="min_clients = 4: buffer = 10 never fills"):
        make_engine(FedRAW(buffer=10))
    with pytest.raises(BadInput, match="this federation would never end"):
        make_engine(arrivals=None)
    with pytest.raises(BadInput, match="did you mean 'deadline'"):
        ServerSettings.read({"deadlin": 3}, "server")
    with pytest.raises(BadInput, match=r"absence = -1\.0 must be at least 0"):
        make_engine(absence=-1.0)


def test_rare_labels_are_those_of_low_coverage_unless_named(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=2))
    engine.accept(1)
    assert engine.log("start")[0]["rare_labels"] == ["owl"]
    engine = make_engine(FedFa(buffer=2), folder="two", rare_labels=("dog",))
    engine.accept(1)
    assert engine.log("start")[0]["rare_labels"] == ["dog"]
