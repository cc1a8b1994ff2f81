"""Client apps that send invalid replies are logged, and the federation continues without them.

The faults are mods of Flower around an honest client app: they change a reply last, where a
broken or malicious site would. Server app, folder, messages and their bytes are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file
from tests.flower.memory_grid import MemoryGrid, identity

from fedraw.flower import TrainConfig, client_app, server_app
from fedraw.strategies.fedraw import FedRAW

pytestmark = pytest.mark.usefixtures("identity")
assert identity

MODEL = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(2, np.float32), "seen": np.array(0)}
NODES = {11: "north", 12: "south", 13: "east", 14: "west"}
LABELS = {
    "north": {"cat": 3},
    "south": {"cat": 2, "dog": 2},
    "east": {"dog": 5},
    "west": {"owl": 5},
}
OTHERS = {"north", "south", "east"}
PATIENCE, ARRIVALS = 3, 30

Change = Callable[[Message], object]


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    """Each site moves one number of the model towards one."""
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    model["w"].flat[list(LABELS).index(str(context.node_config["site"]))] = 1.0
    return model, 5


def label_counts(context: Context) -> dict[str, int]:
    return LABELS[str(context.node_config["site"])]


def a_grid(change: Change = lambda reply: None, kind: str = "train") -> MemoryGrid:
    """Four sites; all replies of one kind from `west` are changed before they are sent."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if context.node_config["site"] == "west" and message.metadata.message_type == kind:
            change(reply)
        return reply

    honest = client_app(train=train, label_counts=label_counts)
    app = ClientApp(mods=[mod])
    app.query("fedraw")(honest)
    app.train()(honest)
    contexts = {n: Context(1, n, {"site": site}, RecordDict(), {}) for n, site in NODES.items()}
    return MemoryGrid(app, contexts)


def lead(grid: MemoryGrid, folder: Path, **more: Any) -> None:
    """Run a server until the federation ends."""
    chosen = {
        "folder": folder,
        "min_clients": 4,
        "arrivals": ARRIVALS,
        "patience": PATIENCE,
        "back_off": 0.001,  # less than a turn
        "poll": 0.005,
    }
    app = server_app(
        initial_model=lambda: MODEL, strategy=FedRAW(buffer=3), settings={**chosen, **more}
    )
    app(grid, Context(1, 1, {}, RecordDict(), {}))


def log(folder: Path, kind: str, site: str | None = None) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [r for r in records if r["kind"] == kind and site in (None, r.get("client"))]


def check_end(folder: Path, grid: MemoryGrid) -> None:
    """Check that all other sites sent their updates and the model is correct."""
    arrivals = [r["client"] for r in log(folder, "arrival")]
    assert len(arrivals) == ARRIVALS
    assert set(arrivals) >= OTHERS
    assert not any(log(folder, kind, site) for site in OTHERS for kind in ("left", "rejected"))
    assert log(folder, "end")[0]["reason"] == f"{ARRIVALS} updates accepted"
    tensors = load_file(folder / "model.safetensors")
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    assert np.abs(tensors["w"]).max() <= 1
    assert grid.replies == {}, "everything that was asked for has been fetched"


def tensor(name: str, value: Any) -> Change:
    def change(reply: Message) -> None:
        reply.content["arrays"][name] = Array(np.asarray(value))

    return change


def fact(name: str, value: Any) -> Change:
    def change(reply: Message) -> None:
        reply.content["fedraw"][name] = value

    return change


def metric(name: str, value: float) -> Change:
    def change(reply: Message) -> None:
        reply.content["metrics"][name] = value

    return change


def many_metrics(reply: Message) -> None:
    reply.content["metrics"]["x"] = [1.0] * 101


def without_tensor(reply: Message) -> None:
    del reply.content["arrays"]["b"]


def garbage(reply: Message) -> None:
    del reply.content["fedraw"]
    reply.content["fedraw"] = MetricRecord({"site": 7.0})


def nothing(reply: Message) -> None:
    reply.content = RecordDict()


def torn(reply: Message) -> None:
    array = reply.content["arrays"]["w"]
    reply.content["arrays"]["w"] = Array(array.dtype, array.shape, array.stype, array.data[:-3])


def no_array(reply: Message) -> None:
    reply.content["arrays"]["w"] = Array("float32", (2, 2), "numpy.ndarray", b"\x93NUMPY\xff junk")


def raising(reply: Message) -> None:
    raise ValueError("CUDA out of memory")


BAD: dict[str, tuple[Change, str]] = {
    "NaN": (tensor("b", np.array([np.nan, 0], np.float32)), "sent 1 numbers that are NaN or"),
    "infinite": (tensor("b", np.full(2, np.inf, np.float32)), "sent 2 numbers that are NaN or"),
    "wrong shape": (
        tensor("w", np.zeros((2, 3), np.float32)),
        "'w' is float32 of shape (2, 3), but the model's is",
    ),
    "flat": (
        tensor("w", np.zeros(4, np.float32)),
        "'w' is float32 of shape (4,), but the model's is",
    ),
    "wrong type": (
        tensor("w", np.zeros((2, 2), np.complex64)),
        "'w' is complex64 of shape (2, 2), but",
    ),
    "missing tensor": (without_tensor, "tensor 'b' is missing"),
    "more tensors": (tensor("x", np.zeros(2, np.float32)), "tensor 'x' is not part of the model"),
    "torn": (torn, "tensor 'w' has 13 bytes of data instead of 16"),
    "no array": (no_array, "tensor 'w' is not a NumPy array"),
    "another's name": (fact("site", "north"), "'west' replied in the name of 'north'"),
    "another version": (fact("version", 10_000), "but replied for version 10000"),
    "negative examples": (metric("num-examples", -5), "trained on -5 examples"),
    "many metrics": (many_metrics, "reports 101 metrics; the limit is 100"),
    "name of numbers": (fact("site", 7), "site is 7, not a text"),
    "garbage": (garbage, "record 'fedraw' is of type MetricRecord"),
    "nothing": (nothing, "a reply must have one ArrayRecord; this one has 0"),
    "long name": (fact("site", "x" * 2_000_000), "the reply has 2000"),
    "long tensor name": (tensor("x" * 100_000, np.zeros(2)), "tensor 'xxxx"),
    "large integer": (tensor("seen", np.zeros(10**6, np.int64)), "bytes; the limit is 104"),
    "exception": (raising, "its client app raised an exception: ValueError: CUDA out of memory"),
}


def check_quarantined(folder: Path, grid: MemoryGrid, words: str) -> None:
    """Check that `west` was logged after each failure and quarantined after `patience` failures."""
    told = [*log(folder, "note", "west"), *log(folder, "rejected", "west")]
    again = [r["reason"] for r in told if r["reason"].startswith("asked again in ")]
    assert len(again) == PATIENCE - 1 and all(words in reason for reason in again), told
    (left,) = log(folder, "left", "west")
    assert f"quarantined for 3600 s after {PATIENCE} failures in a row" in left["reason"]
    assert words in left["reason"]
    asked = [m for m in grid.pushed if m.metadata.message_type == "train"]
    assert sum(m.metadata.dst_node_id == 14 for m in asked) == PATIENCE
    assert not log(folder, "arrival", "west")


@pytest.mark.parametrize("bad", BAD, ids=lambda name: name.replace(" ", "-"))
def test_a_bad_update_is_logged_and_its_sender_quarantined(bad: str, tmp_path: Path) -> None:
    change, words = BAD[bad]
    grid = a_grid(change)
    lead(grid, tmp_path)
    check_quarantined(tmp_path, grid, words)
    check_end(tmp_path, grid)
    assert max(map(len, (tmp_path / "events.jsonl").read_bytes().splitlines())) < 2000


class Trap:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_without_loading_it(tmp_path: Path) -> None:
    trace, file = tmp_path / "unpickled", BytesIO()
    np.save(file, np.array([[Trap(trace)] * 2] * 2, object), allow_pickle=True)

    def change(reply: Message) -> None:
        pickled = Array("float32", (2, 2), "numpy.ndarray", file.getvalue())
        reply.content["arrays"]["w"] = pickled

    np.load(BytesIO(file.getvalue()), allow_pickle=True)
    assert trace.exists(), "the trap works"
    trace.unlink()
    grid = a_grid(change)
    lead(grid, tmp_path / "run")
    check_quarantined(tmp_path / "run", grid, "tensor 'w' has Python objects")
    check_end(tmp_path / "run", grid)
    assert not trace.exists()


@pytest.mark.parametrize("honest", [0, 3])
def test_a_huge_update_is_refused_even_as_the_first_update(honest: int, tmp_path: Path) -> None:
    trained: list[int] = []

    def change(reply: Message) -> None:
        trained.append(1)
        if len(trained) > honest:
            tensor("w", np.full((2, 2), 1e30, np.float32))(reply)

    grid = a_grid(change)
    lead(grid, tmp_path)
    assert len(log(tmp_path, "arrival", "west")) == honest
    words = [r["reason"] for r in log(tmp_path, "rejected", "west")]
    assert len(words) == PATIENCE and all("more than 10 times the " in reason for reason in words)
    assert "Infinity" not in (tmp_path / "events.jsonl").read_text()
    check_end(tmp_path, grid)


def test_a_site_that_recovers_takes_part_again(tmp_path: Path) -> None:
    """After its quarantine the site is asked for its summary, and joins."""
    trained: list[int] = []

    def change(reply: Message) -> None:
        trained.append(1)
        if len(trained) <= PATIENCE:
            raise ValueError("no data yet")

    grid = a_grid(change)
    lead(grid, tmp_path, quarantine=0.005)
    assert len(log(tmp_path, "left", "west")) == 1
    assert len(log(tmp_path, "joined", "west")) == 2
    assert log(tmp_path, "arrival", "west")
    check_end(tmp_path, grid)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda reply: reply.content["counts"].update(owl=-5), "count -5 is negative"),
        (lambda reply: reply.content["counts"].clear(), "reports no labels"),
        (lambda reply: reply.content["counts"].update(owl=0.5), "not a whole number"),
        (fact("site", "north"), "may not join: 'north' is online as node 11"),
        (fact("site", "x" * 300), "1 to 200 characters"),
        (garbage, "record 'fedraw' is of type MetricRecord"),
        (raising, "ValueError: CUDA out of memory"),
    ],
    ids=["negative", "no-labels", "fraction", "anothers-name", "long-name", "garbage", "exception"],
)
def test_a_site_with_an_invalid_summary_may_not_join(
    change: Change, words: str, tmp_path: Path
) -> None:
    grid = a_grid(change, kind="query.fedraw")
    grid.offline = {14}  # until training has begun: the log begins then, too

    def before(_call: str) -> None:
        if len(grid.pushed) > 6:
            grid.offline = set()

    grid.before = before
    lead(grid, tmp_path, min_clients=3)
    told = [r["reason"] for r in log(tmp_path, "note")]
    assert any("node 14" in reason and words in reason for reason in told), told
    assert {r["client"] for r in log(tmp_path, "joined")} == OTHERS
    assert not any(
        m.metadata.message_type == "train" and m.metadata.dst_node_id == 14 for m in grid.pushed
    )
    check_end(tmp_path, grid)


def test_invalid_new_counts_are_logged_and_the_old_counts_stay(tmp_path: Path) -> None:
    def change(reply: Message) -> None:
        reply.content["counts"] = ConfigRecord({"owl": -5})

    grid = a_grid(change)
    lead(grid, tmp_path)
    told = [r["reason"] for r in log(tmp_path, "note", "west")]
    assert told and all("new label counts are refused" in reason for reason in told)
    assert "count -5 is negative" in told[0]
    assert not log(tmp_path, "declared")
    assert log(tmp_path, "arrival", "west"), "the update itself was in order"
    check_end(tmp_path, grid)


def once_each(folder: Path) -> None:
    """Check that no task has two replies."""
    arrivals = log(folder, "arrival")
    stamps = [(r["client"], r["start_time"], r["start_version"]) for r in arrivals]
    assert len(set(stamps)) == len(stamps)


def test_a_duplicate_reply_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = a_grid()
    pull = grid.pull_messages
    monkeypatch.setattr(
        grid, "pull_messages", lambda message_ids: [*(found := pull(message_ids)), *found]
    )
    lead(grid, tmp_path)
    once_each(tmp_path)
    assert not log(tmp_path, "left") and not log(tmp_path, "rejected")
    check_end(tmp_path, grid)


def test_a_reply_repeated_with_every_later_reply_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, handed_out = a_grid(), []
    pull = grid.pull_messages

    def again(message_ids: Any) -> list[Message]:
        handed_out.extend(found := list(pull(message_ids)))
        return [*handed_out[-20:], *found]

    monkeypatch.setattr(grid, "pull_messages", again)
    lead(grid, tmp_path)
    once_each(tmp_path)
    assert not log(tmp_path, "left") and not log(tmp_path, "rejected")
    check_end(tmp_path, grid)


def test_an_old_reply_to_a_new_task_is_refused(tmp_path: Path) -> None:
    first: list[RecordDict] = []

    def change(reply: Message) -> None:
        first.append(reply.content)
        reply.content = first[0]

    grid = a_grid(change)
    lead(grid, tmp_path)
    assert len(log(tmp_path, "arrival", "west")) == 1
    (left,) = log(tmp_path, "left", "west")
    assert "but replied for version 0" in left["reason"]
    assert len(log(tmp_path, "rejected", "west")) == PATIENCE
    check_end(tmp_path, grid)
