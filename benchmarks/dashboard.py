"""Measures the dashboard on a log of a million arrivals, and its cost to a run that it follows.

The log has 30 clients, a buffer of ten and an evaluation every 1,000 arrivals. `first page` is the
time from the start of `fedraw dashboard` until it returns the curves of the whole run, and `whole
log` the time until every line is read and verified. Memory is the largest resident size of the
process. CPU seconds are those of the process, which other jobs on the machine affect less.
`followed` is a training-free simulation with a dashboard that follows it, and `alone` the same
simulation without it; the two alternate.
Run: python -m benchmarks.dashboard [ARRIVALS]
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import headline

from fedraw.eventlog.log_file import Chain
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord, JoinedRecord, StartRecord

CLIENTS, SLOTS, EVERY = 30, 10, 1000
# The number of pairs of runs, alone and followed, and the arrivals of each run.
PAIRS, FOLLOWED = 5, 50_000


def write_log(path: Path, arrivals: int) -> None:
    """Write a synthetic event log with this number of arrivals."""
    chain, rng = Chain(), random.Random(1)
    labels = [str(label) for label in range(10)]
    with path.open("wb") as file:
        start = StartRecord(
            origin="simulation", name="fedraw", seed=1, events=arrivals, labels=labels,
            rare_labels=["8", "9"], spec={"strategy": {"buffer": SLOTS}},
        )  # fmt: skip
        file.write(chain.encode(start))
        for client in range(CLIENTS):
            held = labels if client < 4 else labels[:8]
            counts = dict.fromkeys(held, 20)
            file.write(chain.encode(JoinedRecord(event=0, time=0.0, client=client, counts=counts)))
        buffer: list[int] = []
        for event in range(1, arrivals + 1):
            client = rng.randrange(CLIENTS)
            others = [other for other in buffer if other != client]
            buffer = [*others[1 - SLOTS :], client]
            arrival = ArrivalRecord(
                event=event, time=0.37 * event, client=client, start_time=0.37 * event - 10,
                start_version=max(0, event - 30), version=event, staleness_events=30,
                staleness_versions=29, aggregated=True, buffer=list(buffer),
                weights=[1 / len(buffer)] * len(buffer),
            )  # fmt: skip
            file.write(chain.encode(arrival))
            if event % EVERY == 0:
                recall = {label: 90 * rng.random() for label in labels}
                evaluation = EvaluationRecord(
                    event=event, time=0.37 * event, version=event, server_models=12.0,
                    metrics={"GlobalAcc": 80.0, "AvgRare": 40.0}, recall=recall,
                )  # fmt: skip
                file.write(chain.encode(evaluation))


def fetch_json(url: str) -> Any:
    """Return the JSON document at this URL."""
    with urllib.request.urlopen(url, timeout=600) as reply:
        return json.loads(reply.read())


def process_usage(pid: int) -> tuple[float, float]:
    """Return the CPU seconds and the largest resident size in MB of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return (int(fields[11]) + int(fields[12])) / 100, int(peak[1]) / 1024 if peak else 0.0


def measure(folder: Path) -> list[tuple[str, float, float, float]]:
    """Return wall seconds, CPU seconds and peak MB until the first page and the whole log."""
    start, rows = time.monotonic(), []
    process, url = start_dashboard(folder)
    try:
        for name, is_there in (("first page", has_curve), ("whole log", is_read)):
            while not is_there(fetch_json(f"{url}api/runs")["runs"]):
                time.sleep(0.1)
            rows.append((name, time.monotonic() - start, *process_usage(process.pid)))
    finally:
        stop_dashboard(process)
    return rows


def start_dashboard(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a dashboard over a folder; return its process and its address."""
    command = [sys.executable, "-m", "fedraw", "dashboard", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found is not None
    return process, found[0]


def stop_dashboard(process: subprocess.Popen[str]) -> None:
    """Stop a dashboard."""
    process.terminate()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


SIMULATION = """
import sys
from pathlib import Path
from benchmarks.arrivals import scene
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from dataclasses import replace
spec, parts = scene(30)
short = replace(spec, run=replace(spec.run, events=int(sys.argv[2])))
run_seed(short, 1, Path(sys.argv[1]), parts, Options())
"""


def simulate(folder: Path, events: int) -> float:
    """Return the CPU seconds of a run that writes its log to this folder."""
    command = [sys.executable, "-c", SIMULATION, str(folder), str(events)]
    _, status, used = os.wait4(subprocess.Popen(command).pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def run_followed(folder: Path, events: int) -> tuple[float, float]:
    """Return the CPU seconds of a run that a dashboard follows, and those of the dashboard."""
    process, url = start_dashboard(folder.parent)
    try:
        before = process_usage(process.pid)[0]
        own = simulate(folder, events)
        while not is_finished(fetch_json(f"{url}api/runs")["runs"]):
            time.sleep(0.1)
        return own, process_usage(process.pid)[0] - before
    finally:
        stop_dashboard(process)


def has_curve(runs: list[Any]) -> bool:
    """Return whether the curves reach the end of the run."""
    return bool(runs) and bool(runs[0]["curve"]) and runs[0]["event"] == runs[0]["events"]


def is_read(runs: list[Any]) -> bool:
    """Return whether the whole log is read."""
    return has_curve(runs) and runs[0]["unread"] == 0


def is_finished(runs: list[Any]) -> bool:
    """Return whether the run is finished."""
    return bool(runs) and runs[0]["state"] == "finished"


def main() -> None:
    arrivals = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(headline())
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "events.jsonl"
        write_log(log, arrivals)
        print(f"{arrivals:,} arrivals, {log.stat().st_size / 1e6:.0f} MB")
        print("| | wall s | CPU s | peak MB |\n|---|--:|--:|--:|")
        for name, wall, cpu, memory in measure(Path(place)):
            print(f"| {name} | {wall:.1f} | {cpu:.1f} | {memory:.0f} |")
        measure_cost_to_a_run(Path(place), min(arrivals, FOLLOWED))


def measure_cost_to_a_run(place: Path, events: int) -> None:
    """Print the CPU seconds of alternating runs alone and followed, and their ratio."""
    alone, both, own = [], [], []
    for pair in range(PAIRS):
        alone.append(simulate(place / f"alone-{pair}", events))
        run, dashboard = run_followed(place / f"followed-{pair}" / "seed-1", events)
        both.append(run)
        own.append(dashboard)
    print(f"\n| CPU s of {events:,} arrivals | median | lowest | highest |\n|---|--:|--:|--:|")
    for name, values in (("alone", alone), ("followed", both), ("the dashboard itself", own)):
        print(f"| {name} | {median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")
    ratios = [two / one for one, two in zip(alone, both, strict=True)]
    print(f"| followed / alone | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")


if __name__ == "__main__":
    main()
