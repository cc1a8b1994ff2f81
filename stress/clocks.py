"""Tests that jumps of the wall clock and floods from one site do not disturb a server.

clock: The wall clock jumps by an hour or a day, backwards and forwards, while the server runs and
    while it is down. In true time, sites train, fail, back off and return as usual. The updates
    that the server accepts, its snapshots and its end must be the same as without the jumps.
flood: One site sends 100,000 labels or a name of 10 MB in each reply, adds 1e30 to every weight, or
    claims impossible test results; or hundreds of sites leave at once. The log, the memory, the
    model and the time of a restart must stay within bounds, and the other sites' updates must
    still count.

Run: python -m stress.clocks --trials 120 --seed 1
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.server.engine import COUNTS, Engine, failing

from fedraw.server.tasks import EvaluateReply, LabelSummary, Reply, Task, TrainReply
from stress.forked import Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong
from stress.server_kills import STRATEGIES

HOUR, DAY = 3600.0, 86400.0
JUMPS = (-DAY, -HOUR, HOUR, DAY)
TURNS, STEP = 240, 0.5
# Bounds for a flood: bytes of the log, bytes of memory, and processor seconds of a restart.
LOG_BYTES, MEMORY, RESTART_SECONDS = 2_000_000, 64 << 20, 5.0
# Honest updates move a weight by about 1, about 30 times.
LARGEST_WEIGHT = 1e4

Rng = np.random.Generator


# The clock


def jump(engine: Engine, seconds: float) -> None:
    """Move the wall clock; the training times of sites do not change.

    Only this function knows how the test engine passes the time to the coordinator.
    """
    engine.wall_shift += seconds


@dataclass(frozen=True)
class Script:
    """The events of a run, by turn; the undisturbed run has no jumps."""

    strategy: int
    jumps: Mapping[int, float]
    fails: Mapping[int, str]  # a site fails from this turn on, until it is repaired
    repaired: int
    restarts: Mapping[int, float]  # the jump of the clock during each restart
    seconds: float | None  # the federation's time limit

    @classmethod
    def draw(cls, rng: Rng) -> Script:
        turns = rng.choice(np.arange(20, TURNS - 40), 4, replace=False).tolist()
        jumps = {int(turns[0]): float(rng.choice(JUMPS))}
        if rng.random() < 0.5:
            jumps[int(turns[1])] = float(rng.choice(JUMPS))
        restarts = {int(turns[2]): float(rng.choice((0.0, *JUMPS)))} if rng.random() < 0.5 else {}
        begun = int(rng.integers(10, 150))
        return cls(
            strategy=int(rng.integers(len(STRATEGIES))),
            jumps=jumps,
            fails={begun: str(rng.choice(list(COUNTS)))},
            repaired=begun + int(rng.integers(5, 40)),
            restarts=restarts,
            seconds=float(rng.integers(60, 110)) if rng.random() < 0.3 else None,
        )


def course(folder: Path, script: Script, *, with_jumps: bool) -> Callable[[Send], None]:
    """Return a function that plays the script and prints the federation's result."""

    def work(send: Send) -> None:
        engine = Engine(
            folder,
            STRATEGIES[script.strategy],
            arrivals=10_000,
            seconds=script.seconds,
            snapshot_every=5.0,
            back_off=4.0,
            patience=3,
            quarantine=15.0,
            absence=6.0,
        )
        snapshots, ended = set(), None
        for turn in range(TURNS):
            if turn in script.jumps and with_jumps:
                jump(engine, script.jumps[turn])
            if turn in script.restarts:
                if with_jumps:
                    jump(engine, script.restarts[turn])
                engine.restart(away=2.0)
            for site in engine.sites:
                if script.fails.get(turn) == site:
                    engine.sites[site].reply = failing
                elif turn == script.repaired:
                    engine.sites[site].reply = None
            engine.now += STEP
            engine.turn()
            if engine.coordinator.finished is not None:
                ended = ended or turn
            snapshots |= {path.name for path in (folder / "checkpoint").glob("*[0-9]")}
        records = engine.log("arrival", "joined", "left", "rejected")
        history = [[record["kind"], record["client"]] for record in records]
        model = engine.coordinator._store.strategy_state.model.tobytes().hex()
        for line in (history, len(snapshots), ended, model):
            print(json.dumps(line))

    return work


def clock_trial(folder: Path, rng: Rng) -> Result:
    script = Script.draw(rng)
    kind = "clock, restarts" if script.restarts else "clock"
    found = []
    for name, with_jumps in (("undisturbed", False), ("jumps", True)):
        ended = run_forked(course(folder / name, script, with_jumps=with_jumps))
        if ended.code != 0:
            return wrong(kind, f"{name}: {ended.problem}\n{script}")
        found.append([json.loads(line) for line in ended.printed.splitlines()])
    plain, disturbed = found
    if plain == disturbed:
        return Result(kind, Outcome.IDENTICAL)
    facts = ("members and arrivals", "snapshots", "turn of the end", "model")
    differ = [
        f"{fact}: {_short(two)}, not {_short(one)}"
        for fact, one, two in zip(facts, plain, disturbed, strict=True)
        if one != two
    ]
    return wrong(kind, "\n".join([*differ, str(script)]))


def _short(value: Any) -> str:
    return f"{len(value)} records" if isinstance(value, list) else str(value)[:40]


# Floods


class Flood(NamedTuple):
    """The replies of one site, and the settings of the federation."""

    reply: Callable[[Task, TrainReply, int], Reply]
    settings: Mapping[str, Any] = {}
    replies: int = 6


def many_labels(task: Task, honest: TrainReply, turn: int) -> Reply:
    counts = {f"label {turn} {i}": 1 for i in range(100_000)}  # as many samples as before
    return TrainReply(honest.site, honest.task, honest.version, honest.vector, 10, 0.5, counts)


def long_label(task: Task, honest: TrainReply, turn: int) -> Reply:
    counts = {chr(97 + turn % 26) * 10_000_000: 10}
    return TrainReply(honest.site, honest.task, honest.version, honest.vector, 10, 0.5, counts)


def long_name(task: Task, honest: TrainReply, turn: int) -> Reply:
    name = "\x1b[31m" + chr(97 + turn % 26) * 10_000_000
    return TrainReply(name, honest.task, honest.version, honest.vector, 10, 0.5)


def huge_update(task: Task, honest: TrainReply, turn: int) -> Reply:
    vector = np.asarray(honest.vector + np.float32(1e30), np.float32)
    return TrainReply(honest.site, honest.task, honest.version, vector, 10, 0.5)


def honest_answer(task: Task, honest: TrainReply, turn: int) -> Reply:
    return honest


FLOODS: Mapping[str, Flood] = {
    "100,000 labels": Flood(many_labels),
    "label of 10 MB": Flood(long_label),
    "name of 10 MB": Flood(long_name),
    "updates of 1e30": Flood(huge_update, replies=25),
    "test results": Flood(
        honest_answer,
        {"federated_evaluation": True, "evaluate_every": 3, "target": 99.0},
    ),
    "departures": Flood(honest_answer, {"absence": 3.0}),
}


class Flooded(Engine):
    """A federation with four honest sites, one that floods, and possibly many that leave."""

    def __init__(self, folder: Path, strategy: int, name: str) -> None:
        self.flood, self.sent_replies, self.kind = FLOODS[name], 0, name
        sites: dict[str, Mapping[str, int]] = {**COUNTS, "flood": {"cat": 50_000, "dog": 50_000}}
        if name == "departures":
            sites |= {f"site {i}": {"cat": 5, f"label {i % 7}": 3} for i in range(400)}
        settings: dict[str, Any] = {"snapshot_every": 5.0, "patience": 3, "back_off": 0.5}
        settings |= {"quarantine": 3.0, **self.flood.settings}
        super().__init__(folder, STRATEGIES[strategy], sites, min_clients=len(sites), **settings)
        self.sites["flood"].reply = self._answer
        self.sites["flood"].seconds = 0.4  # the first to reply

    def _answer(self, task: Task, honest: TrainReply) -> Reply:
        self.sent_replies += 1
        return self.flood.reply(task, honest, self.sent_replies)

    def _serve(self, task: Task, message_id: str) -> None:
        if task.node != self.sites["flood"].node or self.kind != "test results":
            super()._serve(task, message_id)
        elif task.kind == "evaluate":
            self.sent_replies += 1
            claimed = {f"label {self.sent_replies} {i}": 100_000 for i in range(50_000)}
            reply = EvaluateReply("flood", task.number, claimed, claimed)
            self.replies.append((self.now, message_id, reply))
        else:
            super()._serve(task, message_id)


def flooded(folder: Path, strategy: int, name: str) -> Callable[[Send], None]:
    def work(send: Send) -> None:
        engine = Flooded(folder, strategy, name)
        engine.run(lambda: engine.coordinator.accepted >= 5 or _is_over(engine))
        before = _resident()
        size = (folder / "events.jsonl").stat().st_size
        if name == "departures":
            engine.online = set(COUNTS)
            engine.sent_replies = engine.flood.replies
        engine.run(lambda: _enough(engine))
        grown = (folder / "events.jsonl").stat().st_size - size
        gc.collect()
        _bounded("log", grown, LOG_BYTES, "bytes")
        _bounded("memory", _resident() - before, MEMORY, "bytes")
        _judge_end(engine)
        begun = time.process_time()
        engine.restart()
        _bounded("restart", time.process_time() - begun, RESTART_SECONDS, "processor seconds")
        engine.accept(engine.coordinator.accepted + 4)

    return work


def _enough(engine: Flooded) -> bool:
    """Return whether the flood has come and honest sites were accepted, or it was refused long."""
    honest = engine.coordinator.accepted
    return _is_over(engine) or honest >= (
        20 if engine.sent_replies >= engine.flood.replies else 100
    )


def _is_over(engine: Engine) -> bool:
    return engine.coordinator.finished is not None


def _judge_end(engine: Flooded) -> None:
    log = (engine.settings.folder / "events.jsonl").read_text(encoding="utf-8")
    assert "Infinity" not in log and "NaN" not in log, "a number in the log is not finite"
    assert "\x1b" not in log, "an escape in the log"
    largest = float(np.abs(engine.coordinator._store.strategy_state.model).max())
    assert largest < LARGEST_WEIGHT, f"the model has a weight of {largest:.3g}"
    assert not _is_over(engine), f"one site ended it: {engine.coordinator.finished}"


def _bounded(what: str, value: float, most: float, unit: str) -> None:
    assert value <= most, f"{what} grew by {value:,.1f} {unit}, above the bound of {most:,.0f}"


def _resident() -> int:
    """Return the bytes of memory in use on Linux; 0 on other systems."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def flood_trial(folder: Path, rng: Rng, name: str) -> Result:
    kind = f"flood: {name}"
    strategy = int(rng.integers(len(STRATEGIES)))
    ended = run_forked(flooded(folder / "federation", strategy, name))
    if ended.code != 0:
        lines = ended.problem.splitlines()
        return wrong(kind, f"{type(STRATEGIES[strategy]).__name__}: {lines[0]}; {lines[-1][:300]}")
    return Result(kind, Outcome.ACCEPTED)


def introduction_trial(folder: Path, rng: Rng) -> Result:
    """Let a node send huge introductions, before and after training begins."""
    kind = "flood: introductions"

    def work(send: Send) -> None:
        engine = Engine(folder / "federation", STRATEGIES[int(rng.integers(len(STRATEGIES)))])
        leader, before = engine.coordinator, _resident()
        for i in range(12):
            engine.turn()
            engine.now += 400
            leader.online({999, *(s.node for s in engine.sites.values())}, engine.now)
            for task in leader.tasks(engine.now):
                if task.node != 999:
                    leader.not_sent(task, "busy", engine.now)
                    continue
                message_id = f"introduction {i}"
                leader.sent(task, message_id)
                label = {f"label {i} {k}": 1 for k in range(100_000)}
                summary = (
                    LabelSummary(f"new {i}", label)
                    if i % 2
                    else LabelSummary("n" * 10_000_000, {"a": 1})
                )
                leader.receive(message_id, summary, engine.now)
        log = folder / "federation" / "events.jsonl"
        size = log.stat().st_size if log.exists() else 0
        _bounded("log", size, LOG_BYTES, "bytes")
        gc.collect()
        _bounded("memory", _resident() - before, MEMORY, "bytes")

    ended = run_forked(work)
    if ended.code != 0:
        lines = ended.problem.splitlines()
        return wrong(kind, f"{lines[0]}; {lines[-1][:300]}")
    return Result(kind, Outcome.ACCEPTED)


def run(options: Options, tally: Tally) -> None:
    names = list(FLOODS)
    with scratch() as root:
        for number in options.numbers:
            rng = np.random.default_rng([options.seed, number])
            folder = root / str(number)
            folder.mkdir()
            if number % 3:
                result = clock_trial(folder, rng)
            elif (flood := number // 3 % (len(names) + 1)) == len(names):
                result = introduction_trial(folder, rng)
            else:
                result = flood_trial(folder, rng, names[flood])
            tally.add(number, result)


if __name__ == "__main__":
    main("clocks", run, 120, "Jumps of the wall clock, and floods from one site.")
