"""Kills simulator runs and resumes them: the results must equal those of an undisturbed run.

A run is killed one to four times: while its folder is being created, between two arrivals, around
a checkpoint, while it finishes, and in the middle of a write. Each time `--resume` continues it.
One trial is one kill. At the end the files of the run are compared, byte for byte, with those of an
undisturbed run. A run that can no longer be resumed is a failure, however clear the message is.

Run: python -m stress.simulator_kills --trials 500 --seed 1
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedraw.experiment import checkpoints
from fedraw.experiment.options import Options as RunOptions
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec
from stress.forked import Ended, Kill, Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong

SEED = 1
MOST_KILLS = 4
FILES = ("events.jsonl", "summary.json", "model.safetensors", "spec.toml")


def spec_of(name: str, *, trained: bool, events: int, **sections: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": name, **({"buffer": 4} if name == "fedraw" else {})},
            "training": {"kind": "sgd", "epochs": 1} if trained else {"kind": "none"},
            "run": {"events": events, "evaluate_every": 10, "seeds": [SEED]},
            **sections,
        }
    )


SPECS = {
    "no training": spec_of("fedraw", trained=False, events=100),
    "trained": spec_of("fedavg", trained=True, events=20),
    "no training, long log": spec_of("fedasync", trained=False, events=400),
    "sums": spec_of("one-pass", trained=True, events=8, features={"backbone": "relu", "width": 32}),
}


def checkpoint_often(every: int) -> None:
    """Write a checkpoint after every `every` events of this process, which is reproducible."""
    asked = itertools.count(1)
    checkpoints.Checkpoints.is_due = property(  # type: ignore[method-assign, assignment]
        lambda self: next(asked) % every == 0
    )


def simulate(spec: Spec, folder: Path, *, resume: bool) -> Callable[[Send], None]:
    """Return a run as a function for a forked child."""

    def work(send: Send) -> None:
        checkpoint_often(max(1, spec.run.events // 6))
        run_seed(spec, SEED, folder, options=RunOptions(resume=resume))

    return work


@dataclass(frozen=True)
class Undisturbed:
    """The results of a run that is not killed."""

    spec: Spec
    files: dict[str, bytes]
    calls: int

    @classmethod
    def of(cls, spec: Spec, folder: Path) -> Undisturbed:
        ended = run_forked(simulate(spec, folder, resume=False), count_calls=True)
        if ended.code != 0:
            raise AssertionError(f"the undisturbed run failed: {ended.problem}")
        return cls(spec, read_files(folder), ended.calls)


def read_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def next_kill(rng: np.random.Generator, whole: Undisturbed, log_bytes: int) -> Kill:
    """Draw a random kill: early, late, anywhere; around a call, in a write, at a moment."""
    match rng.integers(6):
        case 0:  # while the folder is being created
            return Kill("call", 1 + int(rng.integers(min(50, whole.calls))))
        case 1:
            return Kill("call", 1 + int(rng.integers(whole.calls)))
        case 2:  # while it finishes
            return Kill("call", max(1, whole.calls - int(rng.integers(60))))
        case 3:
            return Kill("moment", float(rng.random()) ** 2 * 0.5)
        case 4:  # the spec, a checkpoint, results
            return Kill("torn", int(np.exp(rng.uniform(np.log(20), np.log(20_000)))))
        case _:  # further down the log
            longest = len(whole.files["events.jsonl"])
            return Kill("torn", log_bytes + 1 + int(rng.integers(max(1, longest - log_bytes))))


def trial(number: int, seed: int, most: int, whole: Sequence[Undisturbed]) -> Iterator[Result]:
    rng = np.random.default_rng([seed, number])
    expected = whole[number % len(whole)]
    wanted = min(most, 1 + int(rng.integers(MOST_KILLS)))
    done: list[str] = []
    with scratch() as root:
        folder = root / "run"
        ended: Ended | None = None
        while ended is None or ended.was_killed:
            log = folder / "events.jsonl"
            size = log.stat().st_size if log.exists() else 0
            kill = next_kill(rng, expected, size) if len(done) < wanted else None
            resume = ended is not None
            ended = run_forked(simulate(expected.spec, folder, resume=resume), kill)
            if ended.was_killed and kill is not None:
                done.append(kill.kind if kill.kind != "call" else f"call {kill.at:.0f}")
        problem = _problem(folder, expected, ended)
    if not done and not problem:
        return  # the kill came too late
    for kind in done[:-1] if problem else done:
        yield Result(f"kill: {kind.split()[0]}", Outcome.IDENTICAL)
    if problem:
        last = done[-1].split()[0] if done else "none"
        yield wrong(f"kill: {last}", f"kills {done}: {problem}")


def _problem(folder: Path, expected: Undisturbed, ended: Ended) -> str:
    if ended.code != 0:
        left = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        return f"the run could not be resumed; files: {', '.join(left)}\n{ended.problem}"
    files = read_files(folder)
    if files != expected.files:
        names = [name for name in FILES if files.get(name) != expected.files.get(name)]
        return f"the bytes differ from those of an undisturbed run: {', '.join(names)}"
    return ""


def warm_up(specs: dict[str, Spec]) -> None:
    """Import and load everything once, with one thread, because threads do not survive a fork."""
    torch.set_num_threads(1)
    for spec in specs.values():
        run_seed(spec, SEED)


def run(options: Options, tally: Tally) -> None:
    """Make runs until there were `trials` kills; --only is the number of a run."""
    warm_up(SPECS)
    count = number = 0
    with scratch() as root:
        named = enumerate(SPECS.values())
        whole = [Undisturbed.of(spec, root / str(i)) for i, spec in named]
    if options.only is not None:
        number, options = options.only, Options(1, options.seed, options.only)
    while count < options.trials:
        most = MOST_KILLS if options.only is not None else options.trials - count
        for result in trial(number, options.seed, most, whole):
            tally.add(number, result)
            count += 1
        number += 1


if __name__ == "__main__":
    main("simulator_kills", run, 500, "Kill runs and resume them; the same bytes come out.")
