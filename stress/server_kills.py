"""Kills a server repeatedly: every acknowledged update must still count.

A federation of four sites runs until 40 updates are accepted. Sites come and go, send updates that
are refused, or declare new label counts. The server's process is killed about ten times: at random
moments, around each of its file operations, and in the middle of a write. A restart continues from
the folder alone. One trial is one kill. After each federation this part compares:

* the updates that count, with those that were acknowledged (only the update that the server was
  receiving during a kill may count without having been acknowledged)
* the log before each kill with the log after it, which may only grow
* the final model, to the bit, with the strategy applied to the same updates, as they were sent

Run: python -m stress.server_kills --trials 500 --seed 1
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tests.server.engine import COUNTS, LAYOUT, SIZE, Engine

from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.eventlog import (
    ArrivalRecord,
    DeclaredRecord,
    EndRecord,
    JoinedRecord,
    LeftRecord,
    Record,
    read_log,
)
from fedraw.eventlog.log_file import log_size
from fedraw.server.coordinator import Coordinator
from fedraw.server.tasks import Failure, Reply, Task, TrainReply
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Arrived, Declared, Joined, Left, Setup, Strategy
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay
from stress.forked import Ended, Kill, Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong

STRATEGIES: Sequence[Strategy[Any]] = (
    FedRAW(buffer=3),
    Replay(buffer=2),
    FedFa(buffer=2),
    FedBuff(buffer=2),
    CA2FL(buffer=2),
    FedAsync(),
    FedAvg(),
    QFedAvg(lr=0.1),
)
ARRIVALS, KILLS = 40, 12
SETTINGS: dict[str, Any] = {
    "arrivals": ARRIVALS,
    "snapshot_every": 3.0,
    "absence": 3.0,
    "back_off": 1.0,
    "patience": 2,
    "quarantine": 6.0,
    "min_clients": 4,
}
# The server is stuck if one of its incarnations takes more turns than this.
TURNS = 2000


class Reported:
    """A coordinator that reports every update: before it is delivered, and once it counts."""

    def __init__(self, coordinator: Coordinator, send: Send) -> None:
        self._coordinator = coordinator
        self._send = send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def receive(self, message_id: str, reply: Reply, now: float) -> None:
        before = self._coordinator.accepted
        if isinstance(reply, TrainReply):
            offer = {
                "client": reply.site,
                "start_version": reply.version,
                "examples": reply.examples,
                "loss": reply.loss,
                "vector": reply.vector.tobytes().hex(),
            }
            report(self._send, "offered", update=offer)
        self._coordinator.receive(message_id, reply, now)
        if self._coordinator.accepted > before:
            report(self._send, "acknowledged")


def report(send: Send, what: str, **more: Any) -> None:
    send(json.dumps({"what": what, **more}).encode() + b"\n")


class Sites(Engine):
    """Sites that reply to one incarnation of the server, sometimes with bad updates."""

    def __init__(
        self, folder: Path, strategy: Strategy[Any], send: Send, life: int, begun: float, seed: int
    ) -> None:
        self._send, self._begun = send, begun
        self.rng = np.random.default_rng([seed, life])
        super().__init__(folder, strategy, **SETTINGS)
        for site in self.sites.values():
            site.trained = 1000 * life  # so that no update is sent twice
            site.reply = self._reply

    def open(self) -> Coordinator:
        self.now = self._begun
        coordinator = super().open()
        report(self._send, "opened", accepted=coordinator.accepted)
        reported: Any = Reported(coordinator, self._send)
        return reported  # type: ignore[no-any-return]

    def _reply(self, task: Task, honest: TrainReply) -> Reply:
        chance = self.rng.random()
        if chance < 0.04:
            return Failure("the client app crashed")
        if chance < 0.08:
            vector = np.full(SIZE, np.nan, np.float32)
            return TrainReply(honest.site, honest.task, honest.version, vector, 10, 0.5)
        if chance < 0.14:
            counts = {label: int(n + self.rng.integers(3)) for label, n in self._counts(task)}
            known = (honest.site, honest.task, honest.version, honest.vector)
            return TrainReply(*known, honest.examples, honest.loss, counts)
        return honest

    def _counts(self, task: Task) -> Sequence[tuple[str, int]]:
        return [(label, n) for label, n in COUNTS[task.site or ""].items()]

    def turn(self) -> None:
        self.now += 0.5
        if self.rng.random() < 0.03:
            gone = str(self.rng.choice(list(self.sites)))
            self.online = set(self.sites) - {gone}
        elif self.rng.random() < 0.1:
            self.online = set(self.sites)
        report(self._send, "turn", now=self.now)
        super().turn()


def serve(folder: Path, strategy: Strategy[Any], life: int, begun: float, seed: int) -> Any:
    """Return one incarnation of the server, as a function for a forked child."""

    def work(send: Send) -> None:
        engine = Sites(folder, strategy, send, life, begun, seed)
        for _ in range(TURNS):
            if engine.coordinator.finished is not None:
                break
            engine.turn()
        else:
            raise AssertionError(f"not finished within {TURNS} turns")
        report(send, "finished", model=model_of(engine.coordinator).tobytes().hex())
        engine.coordinator.close(engine.now)
        report(send, "closed")

    return work


def model_of(coordinator: Coordinator) -> Vector:
    return coordinator._store.strategy_state.model


@dataclass
class Witnessed:
    """The sites' knowledge: the updates that they sent, and the acknowledged ones."""

    counted: list[dict[str, Any]] = field(default_factory=list)
    pending: dict[str, Any] | None = None
    now: float = 1_000_000.0
    model: str | None = None
    problems: list[str] = field(default_factory=list)

    def take_in(self, sent: bytes) -> None:
        for line in sent.splitlines():
            message = json.loads(line)
            match message["what"]:
                case "opened":
                    self._opened(message["accepted"])
                case "offered":
                    self.pending = message["update"]
                case "acknowledged" if self.pending is not None:
                    self.counted.append(self.pending)
                    self.pending = None
                case "turn":
                    self.now = message["now"]
                    self.pending = None  # the last update was refused, or came too late
                case "finished":
                    self.model = message["model"]

    def _opened(self, accepted: int) -> None:
        known = len(self.counted)
        if accepted == known + 1 and self.pending is not None:
            self.counted.append(self.pending)  # on disk, but not acknowledged
        elif accepted != known:
            self.problems.append(
                f"{known} updates were acknowledged, and {accepted} count after the restart"
            )
        self.pending = None


def next_kill(rng: np.random.Generator, calls: int, seconds: float, last_file: int) -> Kill:
    """Draw a random kill, mostly within the lifetime of one incarnation."""
    share = float(rng.random()) ** 2
    match rng.integers(4):
        case 0:
            return Kill("moment", share * seconds)
        case 1:
            return Kill("call", 1 + int(share * calls))
        case 2:  # an update, a snapshot, the beginning of the log
            return Kill("torn", int(np.exp(rng.uniform(np.log(50), np.log(20_000)))))
        case _:  # further down the log
            return Kill("torn", last_file + 1 + int(share * 10_000))


def federation(number: int, seed: int, most: int) -> Iterator[Result]:
    """Kill one federation's server up to `most` times; yield the result of each kill."""
    rng = np.random.default_rng([seed, number])
    strategy = STRATEGIES[number % len(STRATEGIES)]
    with scratch() as root:
        calls, seconds = calibrated(root / "undisturbed", strategy, seed)
        folder = root / "federation"
        draw = partial(next_kill, rng, calls // 4, seconds / 4)
        yield from _disturbed(folder, strategy, draw, seed, most)


def calibrated(folder: Path, strategy: Strategy[Any], seed: int) -> tuple[int, float]:
    """Return the file operations and seconds of an undisturbed federation."""
    begun = time.monotonic()
    ended = run_forked(serve(folder, strategy, 0, 1_000_000.0, seed), count_calls=True)
    if ended.code != 0:
        raise AssertionError(f"the undisturbed federation failed: {ended.problem}")
    return ended.calls, time.monotonic() - begun


def _disturbed(
    folder: Path, strategy: Strategy[Any], draw: Callable[[int], Kill], seed: int, most: int
) -> Iterator[Result]:
    seen, life, log = Witnessed(), 0, b""
    done: list[str] = []
    while True:
        life += 1
        kill = draw(log_size(folder / "events.jsonl")) if len(done) < most else None
        ended = run_forked(serve(folder, strategy, life, seen.now + 10, seed), kill)
        has_begun = bool(seen.counted)  # otherwise it may start again with a new log
        seen.take_in(ended.sent)
        log = _grown(folder, log if has_begun else b"", seen)
        if kill is not None and ended.was_killed:
            done.append(kill.kind)
        elif ended.code != 0:
            seen.problems.append(f"incarnation {life} did not start or continue: {ended.problem}")
            break
        elif b'"closed"' in ended.sent and (kill is None or ended.code == 0):
            break
    if not seen.problems:
        seen.problems += _judge(folder, strategy, seen, ended)
    yield from _results(done, seen.problems, type(strategy).__name__)


def _results(done: Sequence[str], problems: Sequence[str], strategy: str) -> Iterator[Result]:
    """Yield one result per kill; a problem belongs to the last kill."""
    for kind in done[:-1] if problems else done:
        yield Result(f"kill: {kind}", Outcome.IDENTICAL)
    if problems:
        kind = done[-1] if done else "none"
        yield wrong(f"kill: {kind}", f"{strategy}, kills {list(done)}\n" + "\n".join(problems))


def _grown(folder: Path, before: bytes, seen: Witnessed) -> bytes:
    """Return the complete lines of the log, which must start with the earlier lines."""
    path, content = folder / "events.jsonl", b""
    if path.exists():
        content = path.read_bytes()
    content = content[: content.rfind(b"\n") + 1]
    if not content.startswith(before):
        seen.problems.append("the log lost or changed a record that it had before the kill")
    return content


def _judge(folder: Path, strategy: Strategy[Any], seen: Witnessed, ended: Ended) -> Iterator[str]:
    try:
        records = list(read_log(folder / "events.jsonl"))
        final = load_file(folder / "model.safetensors")
    except (BadInput, OSError) as problem:
        yield f"after its end: {problem}"
        return
    arrivals = [(r.client, r.start_version) for r in records if isinstance(r, ArrivalRecord)]
    counted = [(u["client"], u["start_version"]) for u in seen.counted]
    if arrivals != counted:
        both = f"{len(arrivals)} arrivals of the log, {len(counted)} updates that count"
        yield f"the log and the accepted updates differ: {both}"
        return
    expected = reference(strategy, records, seen.counted)
    if seen.model is not None and bytes.fromhex(seen.model) != expected.tobytes():
        yield "the final model differs from that of the accepted updates"
    written = np.concatenate([final[s.name].ravel() for s in LAYOUT.segments])
    if written.tobytes() != expected.tobytes():
        yield "model.safetensors differs from the model of the accepted updates"
    if sum(isinstance(record, EndRecord) for record in records) != 1:
        yield "the log does not have exactly one end"


def reference(
    strategy: Strategy[Any], records: Sequence[Record], updates: Sequence[dict[str, Any]]
) -> Vector:
    """Apply the strategy alone to the first members, the changes of members, and the updates."""
    later = list(records[1:])
    founders: dict[str, Mapping[str, int]] = {}
    while isinstance(record := later[0], JoinedRecord) and len(founders) < SETTINGS["min_clients"]:
        founders[str(record.client)] = record.counts
        del later[0]
    state, _ = strategy.start(Setup(np.zeros(SIZE, np.float32), LabelTable.from_counts(founders)))
    sent = iter(updates)
    for record in later:
        match record:
            case JoinedRecord():
                state, _ = strategy.step(state, Joined(record.client, record.counts))
            case DeclaredRecord():
                state, _ = strategy.step(state, Declared(record.client, record.counts or {}))
            case LeftRecord():
                state, _ = strategy.step(state, Left(record.client))
            case ArrivalRecord():
                facts = dict(next(sent))
                vector = np.frombuffer(bytes.fromhex(facts.pop("vector")), np.float32)
                state, _ = strategy.step(state, Arrived(Update(vector=vector, **facts)))
    model: Vector = state.model
    return model


def run(options: Options, tally: Tally) -> None:
    """Run federations until there were `trials` kills; --only is the number of a federation."""
    count = number = 0
    if options.only is not None:
        number, options = options.only, Options(1, options.seed, options.only)
    while count < options.trials:
        most = KILLS if options.only is not None else min(KILLS, options.trials - count)
        for result in federation(number, options.seed, most):
            tally.add(number, result)
            count += 1
        number += 1


if __name__ == "__main__":
    main("server_kills", run, 500, "Kill a server; every acknowledged update still counts.")
