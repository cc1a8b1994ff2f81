"""Kills servers whose sites send sums, and `fedraw server forget`: one digest comes out of all.

The same four sites send their sums to one server after the other. Their order and their speeds
are random; sites go offline and fail. The server's process is killed at random moments, around each
of its file operations, and in the middle of a write, and continues from its folder. When every site
was heard, `forget` removes one of them. It is killed in the same ways and called again until it has
finished. One trial is one kill. This part compares:

* the totals of each server and its model, to the bit, with those of the samples themselves
* the totals after `forget` and the model with those of a server that never heard the site
* the bytes of the site's sums, of all totals that contain them and of their models, with those of
  every file that is left

Run: python -m stress.sums_kills --trials 500 --seed 1
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tests.server.sums_engine import COUNTS, SHAPE, SumsEngine, totals_of

from fedraw.core.linear_head import LinearHead
from fedraw.core.sums import digest
from fedraw.server.coordinator import Coordinator
from fedraw.server.forgetting import forget
from fedraw.server.tasks import Failure, Reply, Task, TrainReply
from fedraw.server.verification import verify_folder
from stress.forked import Ended, Kill, Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong

# Kills of the server, and of `forget`, in one federation.
SERVER_KILLS, FORGET_KILLS = 12, 4
SETTINGS: dict[str, Any] = {
    "sites": tuple(COUNTS),
    "snapshot_every": 2.0,
    "absence": 3.0,
    "back_off": 1.0,
    "keep_best": "GlobalAcc",
    "rollback_points": 2,
}
TURNS = 2000


class Sites(SumsEngine):
    """Sites that answer one incarnation of the server in a random order, go offline, and fail."""

    def __init__(self, folder: Path, seeds: Sequence[int], begun: float) -> None:
        self.rng, self._begun = np.random.default_rng(seeds), begun
        settings = {key: value for key, value in SETTINGS.items() if key != "sites"}
        super().__init__(folder, only=SETTINGS["sites"], **settings)
        for site in self.sites.values():
            site.seconds = float(self.rng.uniform(0.5, 8.0))
            site.reply = self._reply

    def open(self) -> Coordinator:
        self.now = self._begun
        return super().open()

    def _reply(self, task: Task, honest: TrainReply) -> Reply:
        return Failure("the client app crashed") if self.rng.random() < 0.1 else honest

    def turn(self) -> None:
        self.now += 0.5
        if self.rng.random() < 0.05:
            self.online = set(self.sites) - {str(self.rng.choice(list(self.sites)))}
        elif self.rng.random() < 0.2:
            self.online = set(self.sites)
        super().turn()


def serve(folder: Path, seeds: tuple[int, ...], life: int) -> Callable[[Send], None]:
    """Return one incarnation of the server, as a function for a forked child."""

    def work(send: Send) -> None:
        engine = Sites(folder, [*seeds, life], 1_000_000.0 + 10_000 * life)
        for _ in range(TURNS):
            if engine.coordinator.finished is not None:
                break
            engine.turn()
        else:
            raise AssertionError(f"not finished within {TURNS} turns")
        engine.coordinator.close(engine.now)

    return work


def forgetting(folder: Path, site: str) -> Callable[[Send], None]:
    """Return a call of `forget`, as a function for a forked child."""

    def work(send: Send) -> None:
        forget(folder, site)

    return work


def state_of(folder: Path) -> Callable[[Send], None]:
    """Return a function for a forked child that opens the folder and sends what is in it."""

    def work(send: Send) -> None:
        engine = SumsEngine(folder, only=SETTINGS["sites"])
        state: Any = engine.coordinator._store.strategy_state
        found = {
            "totals": digest(state.totals),
            "model": state.model.tobytes().hex(),
            "heard": sorted(state.messages),
        }
        send(json.dumps(found).encode())

    return work


def next_kill(rng: np.random.Generator, calls: int, seconds: float) -> Kill:
    """Draw a random kill, mostly early in the lifetime of a process."""
    share = float(rng.random()) ** 2
    match rng.integers(4):
        case 0:
            return Kill("moment", share * seconds)
        case 1:
            return Kill("torn", int(np.exp(rng.uniform(np.log(50), np.log(20_000)))))
        case _:
            return Kill("call", 1 + int(share * calls))


def killed(
    work: Callable[[int], Callable[[Send], None]],
    draw: Callable[[], Kill],
    most: int,
    done: list[str],
    name: str,
) -> Ended:
    """Run the work in one process after the other, of which up to `most` are killed."""
    life = 0
    while True:
        life += 1
        kill = draw() if life <= most else None
        ended = run_forked(work(life), kill)
        if not (kill is not None and ended.was_killed):
            return ended
        done.append(f"{name}: {kill.kind}")


def problems_of(folder: Path, names: list[str]) -> Iterator[str]:
    """Compare a stopped federation with the samples of the sites that it has heard."""
    expected = totals_of(names)
    model = LinearHead().solve(SHAPE, expected)
    opened = run_forked(state_of(folder))
    if opened.code != 0:
        yield f"the folder cannot be opened: {opened.problem}"
        return
    found = json.loads(opened.sent)
    if found["heard"] != sorted(names):
        yield f"heard {found['heard']}, not {sorted(names)}"
    if found["totals"] != digest(expected):
        yield "the totals differ from those of the samples"
    if found["model"] != model.tobytes().hex():
        yield "the model differs from the one that the samples give"
    written = load_file(folder / "model.safetensors")
    if np.concatenate([own.ravel() for own in (written["weight"], written["bias"])]).tobytes() != (
        model.tobytes()
    ):
        yield "model.safetensors differs from the model that the samples give"
    for check in verify_folder(folder):
        yield from map(str, check.problems)


def left_of(folder: Path, site: str) -> Iterator[str]:
    """Find files that still have a site's sums, totals with its sums, or a model of such totals."""
    others = [name for name in COUNTS if name != site]
    parts: list[Any] = []
    for size in range(len(COUNTS)):
        for some in combinations(others, size):
            totals = totals_of([site, *some])
            model = LinearHead().solve(SHAPE, totals)
            parts += [SHAPE.sums(totals), SHAPE.triangle(totals), model[: SHAPE.sums(totals).size]]
    wanted = [part.tobytes() for part in parts]
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if any(part in content for part in wanted):
            yield f"{path.relative_to(folder)} still has what {site} has sent"


def federation(number: int, seed: int, calls: tuple[int, int], seconds: float) -> Iterator[Result]:
    """Kill the server of one federation, then `forget`; yield the result of each kill."""
    rng = np.random.default_rng([seed, number])
    site = list(COUNTS)[number % len(COUNTS)]
    others = [name for name in COUNTS if name != site]
    done: list[str] = []
    with scratch() as root:
        folder = root / "federation"
        draw = partial(next_kill, rng, calls[0] // 4, seconds / 4)
        ended = killed(
            lambda life: serve(folder, (seed, number), life), draw, SERVER_KILLS, done, "server"
        )
        problems = [] if ended.code == 0 else [f"the server did not continue: {ended.problem}"]
        problems += problems or problems_of(folder, list(COUNTS))
        if not problems:
            draw = partial(next_kill, rng, calls[1], seconds / 4)
            again = killed(
                lambda life: forgetting(folder, site), draw, FORGET_KILLS, done, "forget"
            )
            if again.code != 0 and "has sent nothing" not in again.errors:
                problems = [f"forget did not continue: {again.problem}"]
            problems += problems or [*problems_of(folder, others), *left_of(folder, site)]
    done = done or ["none"]
    yield from (Result(kind, Outcome.IDENTICAL) for kind in (done[:-1] if problems else done))
    if problems:
        yield wrong(done[-1], f"kills {done}\n" + "\n".join(problems))


def undisturbed(seed: int) -> tuple[tuple[int, int], float]:
    """Return the file operations of a server and of `forget`, and the seconds of a server."""
    with scratch() as root:
        begun = time.monotonic()
        server = run_forked(serve(root / "calm", (seed,), 0), count_calls=True)
        seconds = time.monotonic() - begun
        found = list(left_of(root / "calm", "west")) if server.code == 0 else []
        assert len(found) > 2, "the search finds sums, snapshots and models where they are"
        removed = run_forked(forgetting(root / "calm", "west"), count_calls=True)
        for ended in (server, removed):
            if ended.code != 0:
                raise AssertionError(f"the undisturbed federation failed: {ended.problem}")
    return (server.calls, removed.calls), seconds


def run(options: Options, tally: Tally) -> None:
    """Run federations until there were `trials` kills; --only is the number of a federation."""
    calls, seconds = undisturbed(options.seed)
    count = number = 0
    if options.only is not None:
        number, options = options.only, Options(1, options.seed, options.only)
    begun = number
    kinds: Counter[str] = Counter()
    while count < options.trials:
        for result in federation(number, options.seed, calls, seconds):
            tally.add(number, result)
            kinds[result.kind.partition(":")[0]] += 1
            count += 1
        number += 1
    if not tally.wrong:
        print(
            f"{number - begun} federations, {kinds['server']} kills of servers and "
            f"{kinds['forget']} of forget: every server has the totals {digest(totals_of(COUNTS))}"
        )


if __name__ == "__main__":
    main("sums_kills", run, 500, "Kill servers that add up sums; one digest comes out of all.")
