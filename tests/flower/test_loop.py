"""The loop, with a real coordinator, real client apps and a grid in memory."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.supercore.run import RunNotRunningException
from safetensors.numpy import load_file
from tests.flower.memory_grid import MemoryGrid, identity

from fedraw.errors import BadInput
from fedraw.flower import Recall, TrainConfig, client_app, server_app
from fedraw.server.journal import Journal
from fedraw.server.log import ServerLog
from fedraw.server.supervise import REFUSED_RUN
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedraw import FedRAW

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = {
    "w": np.zeros(3, np.float32),
    "running_var": np.ones(1, np.float32),
    "seen": np.array(0),
}
NODES = {11: "north", 12: "south", 13: "east"}
LABELS = {"north": {"cat": 3}, "south": {"cat": 2, "dog": 2}, "east": {"owl": 5}}


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    """Each site moves one number of the model towards one."""
    place = sorted(LABELS).index(str(context.node_config["site"]))
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    model["w"][place] = 1.0
    return model, 5, 0.1


def label_counts(context: Context) -> dict[str, int]:
    return LABELS[str(context.node_config["site"])]


def a_grid(**options: Any) -> MemoryGrid:
    contexts = {n: Context(1, n, {"site": site}, RecordDict(), {}) for n, site in NODES.items()}
    return MemoryGrid(client_app(train=train, label_counts=label_counts), contexts, **options)


def lead(grid: MemoryGrid, folder: Path, strategy: Any = None, **more: Any) -> None:
    """Run a server until the federation ends."""
    chosen = {"folder": folder, "min_clients": 3, "arrivals": 9, "poll": 0.01, "back_off": 0.05}
    config = {} if strategy is not None else {"fedraw.strategy.buffer": 3}
    app = server_app(
        initial_model=lambda: MODEL,
        strategy=strategy,
        evaluate=more.pop("evaluate", None),
        settings={**chosen, **more},
    )
    app(grid, Context(1, 1, {}, RecordDict(), config))


def log(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [record for record in records if kind in (None, record["kind"])]


def test_a_federation_runs_to_its_end(tmp_path: Path) -> None:
    tested = []

    def evaluate(arrays: ArrayRecord) -> Recall:
        tested.append(arrays["w"].numpy().tolist())
        arrays.clear()  # whatever a user does with it, the sites' model stays whole
        return Recall({"cat": 1}, {"cat": 2})

    grid = a_grid()
    lead(grid, tmp_path, evaluate=evaluate, evaluate_every=3)
    assert [r["client"] for r in log(tmp_path, "arrival")].count("east") == 3
    assert log(tmp_path, "end")[0]["reason"] == "9 updates accepted"
    assert log(tmp_path, "start")[0]["engine"].startswith("flwr 1.")
    final = load_file(tmp_path / "model.safetensors")["w"]
    assert final.tolist() == pytest.approx(tested[-1])
    assert (final > 0).all()
    assert grid.replies == {}, "everything that was asked for has been fetched"
    assert [m.metadata.message_type for m in grid.pushed[:3]] == ["query.fedraw"] * 3


def test_all_receivers_of_a_version_share_one_record(tmp_path: Path) -> None:
    grid = a_grid()
    lead(grid, tmp_path, arrivals=3)
    first = [m.content["arrays"] for m in grid.pushed if m.metadata.group_id == "0"
             and "arrays" in m.content]  # fmt: skip
    assert len(first) == 3
    assert first[0] is first[1] is first[2]


def test_a_message_that_flower_refuses_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = a_grid()
    refused: list[Any] = []
    push = grid.push_messages

    def reluctant(messages: Any) -> Any:
        if grid.pushed and messages[0].metadata.message_type == "train" and len(refused) < 2:
            refused.append(messages)
            return [None] if len(refused) == 1 else []  # as deployed, as in simulation
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", reluctant)
    lead(grid, tmp_path)
    told = [r["reason"] for r in log(tmp_path, "note") if "did not accept" in r["reason"]]
    assert len(told) == 2
    assert len(log(tmp_path, "arrival")) == 9


def test_a_model_of_another_precision_cannot_continue_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(a_grid(), tmp_path, arrivals=3)
    monkeypatch.setitem(MODEL, "w", MODEL["w"].astype(np.float64))
    with pytest.raises(BadInput, match=r"'w' of type float32 .* app's is .* type float64"):
        lead(a_grid(), tmp_path, arrivals=3)


@pytest.mark.parametrize("absence", [0.25, 0.0])
def test_connected_sites_stay_members_while_the_server_is_busy(
    absence: float, tmp_path: Path
) -> None:
    def slow_evaluation(arrays: ArrayRecord) -> dict[str, float]:
        time.sleep(0.5)
        return {"auc": 0.5}

    lead(a_grid(), tmp_path, evaluate=slow_evaluation, evaluate_every=3, absence=absence)
    assert not log(tmp_path, "left")
    assert len(log(tmp_path, "arrival")) == 9


@pytest.mark.parametrize("call", ["look", "push", "pull"])
def test_nothing_is_lost_while_the_superlink_is_away(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid, calls = a_grid(), []

    def before(name: str) -> None:
        calls.append(name)
        if name == call and 3 < calls.count(call) < 9:
            raise httpx.ConnectError("refused")

    grid.before = before
    lead(grid, tmp_path)
    assert len(log(tmp_path, "arrival")) == 9
    assert not log(tmp_path, "left")
    assert log(tmp_path, "note") == []
    lines = [record.message for record in caplog.records if record.name == "fedraw.server"]
    assert lines.count("the SuperLink is unreachable and will be tried again: refused") == 1
    assert lines.count("the SuperLink is reachable again") == 1
    assert len({m.object_id for m in grid.pushed}) == len(grid.pushed), "sent twice"


def test_sites_do_not_leave_because_the_superlink_was_away(tmp_path: Path) -> None:
    grid, looks = a_grid(), []

    def before(name: str) -> None:
        if name == "look":
            looks.append(name)
            grid.offline = set(NODES) if len(looks) in (6, 7) else set()  # not back yet
            if len(looks) == 6:
                time.sleep(1.2)

    grid.before = before
    lead(grid, tmp_path, absence=0.6, arrivals=30)
    assert len(looks) > 7
    assert not log(tmp_path, "left")


def test_an_internal_error_for_one_message_does_not_block_others(tmp_path: Path) -> None:
    grid, calls = a_grid(), []
    request = httpx.Request("POST", "http://superlink")
    error = httpx.HTTPStatusError("500", request=request, response=httpx.Response(500))

    def before(name: str) -> None:
        calls.append(name)
        if (name, calls.count(name)) in (("push", 5), ("pull", 5)):
            raise error

    grid.before = before
    lead(grid, tmp_path)
    assert len(log(tmp_path, "arrival")) == 9


def test_a_reply_that_flower_cannot_read_affects_no_other_reply(tmp_path: Path) -> None:
    grid, calls = a_grid(), []

    def before(name: str) -> None:
        calls.append(name)
        if name == "pull" and calls.count(name) == 5:
            raise ValueError("Unexpected set of `children`.\nsecond line")

    grid.before = before
    lead(grid, tmp_path)
    told = [r["reason"] for r in log(tmp_path, "note")]
    assert any("unreadable reply: ValueError Unexpected set of `children`." in t for t in told)
    assert len(log(tmp_path, "arrival")) == 9


def test_a_message_missing_in_a_simulations_grid_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = a_grid()
    lost: list[str] = []
    pull = grid.pull_messages

    def forgetful(message_ids: Any) -> Any:
        found = list(pull(message_ids))
        if found and found[0].metadata.message_type == "train" and not lost:
            lost.extend(message_ids)
            raise KeyError(message_ids[0])
        return found

    monkeypatch.setattr(grid, "pull_messages", forgetful)
    lead(grid, tmp_path)
    told = [r["reason"] for r in log(tmp_path, "note")]
    assert "asked again later: the message or its reply has expired" in told


def test_errors_and_bad_replies_are_logged_and_asked_for_again(tmp_path: Path) -> None:
    grid, bad = a_grid(), iter([2, 5, "empty", 8])

    def tamper(reply: Message) -> Message:
        what = next(bad, None) if reply.metadata.message_type == "train" else None
        if what == "empty":
            reply.content = RecordDict()
        elif isinstance(what, int):
            reply.__dict__.update(_content=None, _error=Error(what, "told"))
        return reply

    grid.tamper = tamper
    lead(grid, tmp_path)
    told = " ".join(r["reason"] for r in log(tmp_path, "note"))
    for words in (
        "raised an exception: told",
        "unreachable",
        "must have one ArrayRecord",
        "crashed",
    ):
        assert words in told
    assert len(log(tmp_path, "arrival")) == 9


def test_an_update_waits_in_memory_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grid, tries, write = a_grid(), [], Journal.write

    def full(self: Journal, event: int, *rest: Any) -> Any:
        tries.append((event, len(grid.replies)))
        if 2 < len(tries) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, event, *rest)

    monkeypatch.setattr(Journal, "write", full)
    lead(grid, tmp_path)
    assert [event for event, _ in tries] == [1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 6, 7, 8, 9]
    waiting = [replies for event, replies in tries if event == 3]
    assert waiting == sorted(waiting), "the others' replies stay with the SuperLink meanwhile"
    assert len(log(tmp_path, "arrival")) == 9
    lines = [r.message for r in caplog.records if r.message.startswith("an update")]
    assert lines == [
        "an update cannot be written and will be tried again: No space left on device",
        "an update is written",
    ]


def test_outstanding_replies_are_awaited_at_the_end_until_their_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = a_grid()

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "query.fedraw" and reply.metadata.src_node_id == 13:
            grid.slow.add(13)
        return reply

    ended: list[bool] = []

    def look(call: str) -> None:
        if "outstanding replies" in caplog.text:
            ended.append((tmp_path / "model.safetensors").exists() and bool(log(tmp_path, "end")))

    grid.tamper, grid.before = tamper, look
    strategy = FedRAW(buffer=2)
    began = time.monotonic()
    lead(grid, tmp_path, strategy, arrivals=4, deadline=1.5, patience=99)
    assert 1.0 < time.monotonic() - began < 6
    assert "waiting for 1 outstanding replies" in caplog.text
    assert len(log(tmp_path, "arrival")) == 4
    assert grid.replies == {}
    assert ended and all(ended), "everything is on disk before anyone is waited for"


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The previous signal handler, which is Flower's in a deployment."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


def terminate_when(condition: Callable[[], bool]) -> threading.Thread:
    def wait() -> None:
        while not condition():
            time.sleep(0.005)
        # Python acts on a signal that comes just before a blocking call only after that call.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("name", ["fedraw", "fedbuff"])
def test_a_stop_signal_leaves_everything_on_disk(
    name: str, tmp_path: Path, heard: list[int]
) -> None:
    strategy = None if name == "fedraw" else FedBuff(buffer=2)
    grid = a_grid()
    thread = terminate_when(lambda: len(grid.pushed) > 12)
    lead(grid, tmp_path, strategy, arrivals=10_000)
    thread.join()
    assert heard == [signal.SIGTERM], "the rest is Flower's"
    done = len(log(tmp_path, "arrival"))
    assert done >= 5
    assert not log(tmp_path, "end")
    lead(a_grid(), tmp_path, strategy, arrivals=done + 4)
    assert len(log(tmp_path, "restarted")) == 1
    assert len(log(tmp_path, "arrival")) == done + 4
    assert log(tmp_path, "end")


def test_a_stop_signal_ends_a_wait_for_the_superlink(tmp_path: Path, heard: list[int]) -> None:
    grid, away = a_grid(), []

    def before(name: str) -> None:
        if len(grid.pushed) > 8:
            away.append(name)
            time.sleep(60)  # as Flower's grid does

    grid.before = before
    thread = terminate_when(lambda: bool(away))
    began = time.monotonic()
    lead(grid, tmp_path, arrivals=10_000)
    thread.join()
    assert time.monotonic() - began < 20
    assert heard == [signal.SIGTERM]
    assert len(away) == 1
    assert list((tmp_path / "checkpoint").iterdir())


def test_a_run_that_was_stopped_leaves_everything_on_disk(tmp_path: Path) -> None:
    grid = a_grid()

    def before(name: str) -> None:
        if len(grid.pushed) > 8:
            raise RunNotRunningException

    grid.before = before
    with pytest.raises(RunNotRunningException):
        lead(grid, tmp_path, arrivals=10_000)
    done = len(log(tmp_path, "arrival"))
    lead(a_grid(), tmp_path, arrivals=done + 1)
    assert len(log(tmp_path, "arrival")) == done + 1


def test_a_strategy_named_twice_is_refused(tmp_path: Path) -> None:
    app = server_app(
        initial_model=lambda: MODEL,
        strategy=FedBuff(2),
        settings={"arrivals": 1, "folder": tmp_path},
    )
    config = {"fedraw.strategy.name": "fedraw"}
    with pytest.raises(BadInput, match=r"fedraw\.strategy\.name is set, but this app has"):
        app(a_grid(), Context(1, 1, {}, RecordDict(), config))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"fedraw.arival": 3}, "[fedraw] has the unknown key 'arival'; did you mean 'arrivals'?"),
        ({"fedraw.strategy.buffer": 99}, "99"),
        ({"fedraw.strategy.bufer": 3}, "[fedraw.strategy] has the unknown key 'bufer'"),
    ],
)
def test_a_users_mistake_is_one_line_and_a_short_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], words: str
) -> None:
    settings = {"arrivals": 9, "min_clients": 3, "folder": tmp_path / "federation"}
    app = server_app(initial_model=lambda: MODEL, settings=settings)
    with pytest.raises(BadInput) as refused:
        app(a_grid(), Context(1, 1, {}, RecordDict(), config))
    assert str(refused.value).startswith(f"{REFUSED_RUN}: ") and words in str(refused.value)
    assert refused.value.__suppress_context__ and refused.value.__cause__ is None
    assert refused.traceback[-1].name == "main", "the traceback ends where Flower calls the app"
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.name == "fedraw.server" and line.exc_info is None
    assert str(refused.value).endswith(line.getMessage())


def test_a_folder_that_another_server_still_uses_is_not_a_lasting_mistake(
    tmp_path: Path,
) -> None:
    """The server app of the last run may still be ending; the supervisor tries again."""
    first = ServerLog(tmp_path)
    try:
        with pytest.raises(BadInput, match=r"^another process is running in"):
            lead(a_grid(), tmp_path)
    finally:
        first.close()
    lead(a_grid(), tmp_path)


def test_a_folder_that_cannot_be_written_to_is_not_a_lasting_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"^cannot write to"):
        lead(a_grid(), tmp_path / "file" / "federation")


HEAD = {"fc.weight": np.zeros((3, 1), np.float32), "fc.bias": np.zeros(3, np.float32)}
OUTPUTS = ("cat", "dog", "owl")


def train_head(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    """Training that raises the outputs of the site's own labels and lowers the others."""
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    held = [label in LABELS[str(context.node_config["site"])] for label in OUTPUTS]
    model["fc.bias"] += np.where(held, 0.2, -0.1).astype(np.float32)
    return model, 5


def lead_heads(folder: Path, labels: Any, **options: Any) -> Any:
    contexts = {n: Context(1, n, {"site": site}, RecordDict(), {}) for n, site in NODES.items()}
    grid = MemoryGrid(client_app(train=train_head, **options), contexts)
    chosen = {"folder": folder, "min_clients": 3, "arrivals": 60, "poll": 0.001, "back_off": 0.05}
    config = {
        "fedraw.strategy.buffer": 3,
        "fedraw.strategy.labels": labels,
        "fedraw.strategy.classes": "cat,dog,owl",
    }
    app = server_app(initial_model=lambda: HEAD, settings={**chosen, "norm_bound": 1e9})
    app(grid, Context(1, 1, {}, RecordDict(), config))
    return log(folder)


def test_sites_need_not_declare_labels_if_the_server_infers_them(tmp_path: Path) -> None:
    records = lead_heads(tmp_path, "inferred")
    weights = [
        dict(zip(r["buffer"], r["weights"], strict=True)) for r in records if r.get("weights")
    ]
    # Coverage: cat 2, dog 1, owl 1. S: north 1/2, south 1/4 + 1/2, east 1.
    total = 0.5 + 0.75 + 1
    expected = {"north": 0.5 / total, "south": 0.75 / total, "east": 1 / total}
    assert weights[-1] == pytest.approx(expected, rel=0.1)
    joined = {r["client"]: r["counts"] for r in records if r["kind"] == "joined"}
    assert joined == {site: {"not told": 1} for site in LABELS}


def test_a_false_claim_is_in_the_log_of_a_server_that_checks(tmp_path: Path) -> None:
    def claims(context: Context) -> dict[str, int]:
        site = str(context.node_config["site"])
        return {**LABELS[site], **({"owl": 9} if site == "north" else {})}

    records = lead_heads(tmp_path, "checked", label_counts=claims)
    doubted = [(r["client"], r["label"]) for r in records if r["kind"] == "doubted"]
    assert doubted == [("north", "owl")]
