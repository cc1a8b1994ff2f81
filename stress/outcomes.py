"""Outcomes of trials, and their counts."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

# The maximum number of printed failures of one kind; all failures are counted.
SHOWN = 20


class Outcome(StrEnum):
    """The outcome of a trial; only WRONG fails a part."""

    IDENTICAL = "identical"  # to the bytes or the state of an undisturbed run
    ACCEPTED = "accepted"  # an input that is valid, or a load that stayed within its bounds
    CLEAR_ERROR = "clear error"  # names the file and a remedy, and nothing was lost
    WRONG = "wrong"  # silently different, a traceback, something lost, or a hang


class Result(NamedTuple):
    """The outcome of one trial; `detail` says what happened if it is wrong."""

    kind: str  # row of the table
    outcome: Outcome
    detail: str = ""


def wrong(kind: str, detail: str) -> Result:
    return Result(kind, Outcome.WRONG, detail)


@dataclass
class Tally:
    """Counts by kind and outcome; failures are printed when they happen."""

    part: str
    seed: int
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: int = 0

    def add(self, trial: int, result: Result) -> None:
        self.counts.setdefault(result.kind, Counter())[result.outcome] += 1
        if result.outcome is not Outcome.WRONG:
            return
        self.wrong += 1
        if self.counts[result.kind][Outcome.WRONG] <= SHOWN:
            head = f"WRONG {self.part} --seed {self.seed} --only {trial} ({result.kind})"
            print(f"{head}\n    {result.detail.strip().replace(chr(10), chr(10) + '    ')}")
            sys.stdout.flush()


def table(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Format one row per kind of each part, and a sum for each part."""
    head = ["part", "kind", "trials", *Outcome]
    rows = [head]
    for part, kinds in counts.items():
        total: Counter[str] = Counter()
        for kind, found in kinds.items():
            total.update(found)
            if len(kinds) > 1:
                rows.append(_row(part, kind, found))
        rows.append(_row(part, "all", total))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(part: str, kind: str, found: Mapping[str, int]) -> list[str]:
    numbers = [sum(found.values()), *(found.get(outcome, 0) for outcome in Outcome)]
    return [part, kind, *(f"{number:,}" for number in numbers)]


def _line(row: list[str], widths: list[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
    numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join([*words, *numbers])


@dataclass(frozen=True)
class Options:
    trials: int
    seed: int
    only: int | None  # run only this trial

    @property
    def numbers(self) -> range:
        """The trials to run."""
        return range(self.trials) if self.only is None else range(self.only, self.only + 1)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder for small files, in memory if possible: a kill keeps the page cache."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="fedraw-stress-", dir=memory if usable else None) as at:
        yield Path(at)


# Runs a part's trials and adds their results to the tally.
Part = Callable[[Options, Tally], None]


def main(name: str, part: Part, trials: int, description: str) -> None:
    """Run one part from the command line, print its table, and exit with 1 after a failure."""
    parser = argparse.ArgumentParser(prog=f"python -m stress.{name}", description=description)
    parser.add_argument("--trials", type=int, default=trials, help=f"default {trials:,}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="TRIAL", help="run this trial alone")
    parser.add_argument("--counts", type=Path, help="also write the counts to this JSON file")
    given = parser.parse_args()
    tally = Tally(name, given.seed)
    begun = time.monotonic()
    part(Options(given.trials, given.seed, given.only), tally)
    counts = {name: {kind: dict(found) for kind, found in sorted(tally.counts.items())}}
    print(f"\n{table(counts)}\n{name}: {time.monotonic() - begun:.0f} s")
    if given.counts is not None:
        given.counts.write_text(json.dumps(counts), encoding="utf-8")
    sys.exit(1 if tally.wrong else 0)
