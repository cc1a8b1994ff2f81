"""Measures the same two jobs in other simulators, in fedraw and in a bare loop, in one run.

`sh benchmarks/peers/setup.sh` makes the environments of the peers; a peer without one is listed as
absent. Every measurement is a separate process, and the measurements alternate. The results are
stored in .peers/results.jsonl; `--again` prints their tables without measuring, and `--repeat`
replaces a round that another job has disturbed.
Run: make bench-peers
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from benchmarks.machine import headline
from benchmarks.peers.job import ROOT
from benchmarks.peers.prepare import prepare
from benchmarks.peers.result import read
from benchmarks.peers.table import Round, between_markers, tables

PEERS = ROOT / ".peers"
RESULTS = PEERS / "results.jsonl"
PAGE = ROOT / "benchmarks" / "README.md"
START = str(Path(__file__).with_name("start.py"))
NAMES = ("pfl", "flower", "flsim", "appfl", "flgo")  # the peers with environments in .peers
UPDATES = {"digits": 2_000, "cnn": 300}
TIMEOUT = 1_800  # seconds


class Run(NamedTuple):
    """One job in one simulator."""

    peer: str
    job: str
    cores: int = 1
    variant: str = ""
    updates: int = 0  # 0: the default of the job
    once: bool = False  # whether the run is too slow to repeat

    def __str__(self) -> str:
        return " ".join(filter(None, (self.peer, self.variant, self.job, f"x{self.cores}")))


def runs() -> list[Run]:
    """Return all runs of a round."""
    digits = [
        *(Run("bare", "digits", 1, variant) for variant in ("optim", "foreach")),
        *(Run("fedraw", "digits", 1, variant) for variant in ("inline", "batched")),
        *(Run("flower", "digits", 1, variant) for variant in ("sync", "async")),
        *(Run(peer, "digits") for peer in ("pfl", "flsim", "flgo")),
        Run("appfl", "digits", 1, "gc-off"),
        Run("appfl", "digits", 1, "shipped", updates=30, once=True),
    ]
    cnn = []
    for cores in (1, 2):
        kinds = ("inline", "batched") if cores == 1 else ("processes",)
        cnn += [
            *(Run("bare", "cnn", cores, v) for v in ("optim", "foreach", "channels-last")),
            *(Run("fedraw", "cnn", cores, variant) for variant in kinds),
            *(Run("flower", "cnn", cores, variant) for variant in ("sync", "async")),
            *(Run(peer, "cnn", cores) for peer in ("pfl", "flsim", "flgo")),
            Run("appfl", "cnn", cores, "gc-off"),
            *(Run(peer, "cnn", cores, "channels-last") for peer in NAMES),
        ]
    return digits + cnn


def python_of(peer: str) -> Path | None:
    """Return the interpreter of the peer's environment; None if it does not exist."""
    if peer in ("bare", "fedraw"):
        return Path(sys.executable)
    python = PEERS / peer / "bin" / "python"
    return python if python.exists() else None


def measure(run: Run, share: float) -> str:
    """Return the result as a line of JSON; raise SystemExit with the reason if there is none."""
    python = python_of(run.peer)
    if python is None:
        raise SystemExit("not set up: sh benchmarks/peers/setup.sh " + run.peer)
    updates = run.updates or max(60, int(UPDATES[run.job] * share) // 20 * 20)
    arguments = ["--job", run.job, "--updates", str(updates), "--cores", str(run.cores)]
    arguments += ["--variant", run.variant] if run.variant else []
    command = [str(python), START, f"run_{run.peer}", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"not finished after {TIMEOUT} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if not lines:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise SystemExit(f"exit code {done.returncode}: {last}")
    return lines[-1]


def measure_all(
    rounds: Iterable[int], share: float, wanted: list[Run]
) -> Iterator[dict[str, object]]:
    """Yield the results of alternating runs, so that other load affects all of them equally."""
    absent: set[Run] = set()
    for number in rounds:
        for run in wanted:
            if run in absent or (run.once and number):
                continue
            try:
                line = measure(run, share)
            except SystemExit as reason:
                absent.add(run)
                print(f"  {run}: {reason}", file=sys.stderr)
                yield {"absent": str(run), "why": str(reason)}
                continue
            m = read(line)
            print(
                f"  round {number + 1}, {run}: {m.steps} steps in {m.seconds:.2f} s",
                file=sys.stderr,
            )
            yield {"round": number, "line": json.loads(line)}


def report(head: str, records: list[dict[str, object]]) -> str:
    """Return the tables and the absent runs in Markdown."""
    measured = [
        Round(int(str(r["round"])), read(json.dumps(r["line"]))) for r in records if "line" in r
    ]
    versions: dict[str, str] = {}
    for _, m in measured:
        versions |= {k: v for k, v in m.versions.items() if k not in ("python", "fedraw")}
    absent = [f"Absent: {r['absent']} ({r['why']})" for r in records if "absent" in r]
    absent += [f"Repeated: {r['repeated']}" for r in records if "repeated" in r]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    first = fill(f"{head}; {packages}.", 100)
    return "\n\n".join([first, tables(measured), *(fill(line, 100) for line in absent)])


def without(
    records: list[dict[str, object]], number: int, wanted: list[Run]
) -> list[dict[str, object]]:
    """Return the records without the measurements of these runs in this round."""
    names = {(run.peer, run.job, run.cores, run.variant) for run in wanted}

    def is_kept(record: dict[str, object]) -> bool:
        if "line" not in record or record["round"] != number:
            return True
        m = read(json.dumps(record["line"]))
        return (m.peer, m.job, m.cores, m.variant) not in names

    return [record for record in records if is_kept(record)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the updates, for a trial"
    )
    parser.add_argument(
        "--only", default="", help="peers, separated by commas; bare is always included"
    )
    parser.add_argument("--job", choices=tuple(UPDATES))
    parser.add_argument("--cores", type=int, choices=(1, 2))
    parser.add_argument(
        "--repeat", type=int, metavar="ROUND", help="measure this round again and replace it"
    )
    parser.add_argument("--again", action="store_true", help="print the tables of the last run")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/README.md")
    options = parser.parse_args()
    if not options.again:
        only = {"bare", *options.only.split(",")} if options.only else set()
        wanted = [r for r in runs() if not only or r.peer in only]
        wanted = [r for r in wanted if options.job in (None, r.job)]
        wanted = [r for r in wanted if options.cores in (None, r.cores)]
        prepare()
        rounds: Iterable[int] = range(options.rounds)
        records: list[dict[str, object]] = [{"head": headline().replace("__main__", "peers")}]
        if options.repeat is not None:
            rounds = [options.repeat - 1]
            records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
            records = without(records, options.repeat - 1, wanted)
            restricted = [f"--{key} {getattr(options, key)}" for key in ("job", "cores")]
            restricted = [text for text in restricted if not text.endswith("None")]
            records.append({"repeated": " ".join([f"round {options.repeat}", *restricted])})
        for record in measure_all(rounds, options.share, wanted):
            if record not in records:  # an absent run of a repeated round is listed already
                records.append(record)
            RESULTS.write_text("".join(json.dumps(r) + "\n" for r in records))
    head, *rest = map(json.loads, RESULTS.read_text().splitlines())
    text = report(head["head"], rest)
    print(text)
    if options.write:
        PAGE.write_text(between_markers(PAGE.read_text(), "peers", text))


if __name__ == "__main__":
    main()
