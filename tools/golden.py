"""Golden runs, which show that a code change does not change any decision of any method.

    python tools/golden.py                   compare this checkout with the pins
    python tools/golden.py --against COMMIT  compare it with another commit, byte for byte
    python tools/golden.py --pin             pin the hashes of the logs, and new runs

Two things are pinned, in tests/golden:

traces.json.xz  The decision trace of each run: which client arrived when, how stale its update was,
                which clients received the model next, which were in the buffer with which weight,
                and the evaluations. It has no field names and does not depend on the format of
                the log. A pinned trace never changes.
logs.json       The SHA-256 of events.jsonl of each run without training. A commit that changes a
                record on purpose pins these again.

Training may give different bytes on another processor. A pinned trace of a trained run therefore
must agree in all whole numbers and names, and in weights and evaluations within the tolerances
below. On one machine trained runs repeat to the byte, which --against checks: it compares the
traces and the bytes of the final models.

Every run is made from the tables of a version-1 spec, and its trace is read from its log alone.
When names change, adapt the table of fields, `decision_trace`, `simulate` and `serve`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import lzma
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "golden" / "traces.json.xz"
LOGS = ROOT / "tests" / "golden" / "logs.json"

# The names in the current log of the fields that a trace is made of.
KIND = "kind"
ARRIVAL, REFUSED, EVALUATION = "arrival", "rejected", "evaluation"
EVENT, CLIENT, VERSION = "event", "client", "version"
STALENESS_IN_EVENTS, STALENESS_IN_VERSIONS = "staleness_events", "staleness_versions"
MEMBERS, WEIGHTS = "buffer", "weights"
METRICS, RECALL = "metrics", "recall"
METRIC_NAMES = (
    "GlobalAcc", "AvgRare", "MacroF1", "RareF1", "RareF2",
    "Worst10", "LocalRare", "LocalCommon", "MeanClient", "Jain",
)  # fmt: skip

# How far a trained run may be from its pinned trace. With SSE instead of AVX2 on one processor,
# weights changed by less than 4e-8 and no evaluation changed. Each label has about 36 test images,
# so one image is 2.8 percentage points of its recall.
WEIGHT_TOLERANCE = 1e-5
EVALUATION_TOLERANCE = 3.0

Row = list[Any]
Trace = list[Row]
Pins = dict[str, Trace]


def decision_trace(log: Path) -> Trace:
    """Return the decisions of a run, in the order of its log.

    ["arrival", event, client, staleness in events, staleness in versions, version after it,
     receivers, buffer members, weights]
    ["refused", event, client, receivers]
    ["evaluation", event, version, metrics, recall of each label]

    The receivers of an event are the clients whose next arrival started at that event. Clients that
    are still training at the end are therefore missing. The row ["start", receivers] comes first.
    """
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    receivers: dict[int, list[str]] = {}
    for record in records:
        if record[KIND] == ARRIVAL:
            handed_out = record[EVENT] - record[STALENESS_IN_EVENTS]
            receivers.setdefault(handed_out, []).append(str(record[CLIENT]))
    trace: Trace = [["start", sorted(receivers.get(0, ()))]]
    for record in records:
        event = record.get(EVENT)
        if record[KIND] == ARRIVAL:
            stale = [record[STALENESS_IN_EVENTS], record[STALENESS_IN_VERSIONS]]
            members = [str(client) for client in record[MEMBERS]]
            who = [str(record[CLIENT]), *stale, record[VERSION], sorted(receivers.get(event, ()))]
            trace.append(["arrival", event, *who, members, record[WEIGHTS]])
        elif record[KIND] == REFUSED:
            trace.append(["refused", event, str(record[CLIENT]), sorted(receivers.get(event, ()))])
        elif record[KIND] == EVALUATION:
            metrics = [record[METRICS].get(name) for name in METRIC_NAMES]
            recall = list(record[RECALL].values())
            trace.append(["evaluation", event, record[VERSION], metrics, recall])
    return trace


# The runs

# The demo's federation: digits on 30 clients, labels 8 and 9 on two slow clients each.
DEMO: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"kind": "coverage", "clients": 30, "rare_labels": [8, 9]},
    "speeds": {"kind": "correlated", "arrivals": "poisson"},
    "strategy": {"name": "fedraw"},
    "training": {"kind": "sgd", "model": "mlp", "epochs": 2, "batch": 16, "lr": 0.1},
    "run": {"events": 300, "evaluate_every": 50, "seeds": [42]},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "qfedavg": {"name": "qfedavg"},
    "fedasync": {"name": "fedasync"},
    "fedbuff": {"name": "fedbuff"},
    "fedfa": {"name": "fedfa"},
    "ca2fl": {"name": "ca2fl"},
    "fedraw-dedup-only": {"name": "fedraw", "weighting": "uniform"},
    "fedraw-weight-only": {"name": "fedraw", "dedup": False},
    "fedraw": {"name": "fedraw"},
    "fedraw-replay": {"name": "fedraw-replay"},
}
ATTACK = {"label": 8, "form": "paper", "share": 0.9}
RECORDED = {"arrivals": "recorded", "trace": "durations.csv"}
# Variants of the demo, each with one more part of the simulator; all train.
SCENARIOS: dict[str, dict[str, dict[str, Any]]] = {
    "drift": {"drift": {"kind": "move", "label": 9, "at": 0.5, "declared": "again"}},
    "attack": {"misreport": ATTACK},
    "attack-capped": {
        "misreport": ATTACK,
        "strategy": {"cap": "water-filling", "cap_at": 0.3},
    },
    "attack-checked": {
        "misreport": {**ATTACK, "support": 0.05},
        "strategy": {"labels": "checked"},
    },
    "inferred-labels": {"strategy": {"labels": "inferred"}},
    "private-summaries": {
        "summaries": {"mechanism": "randomised-response", "epsilon": 4.0, "unit": "label"}
    },
    "label-noise": {"label_noise": {"share": 0.4, "clients": "all"}},
    "bounded-concurrency": {"run": {"concurrency": 10, "receivers": "rare-first"}},
    "recorded-times": {"speeds": RECORDED},
}
# The variants that are also run without training.
TRAINING_FREE = ("attack", "private-summaries", "bounded-concurrency", "recorded-times")


@dataclass(frozen=True)
class Run:
    """A run; `make` runs it in an empty working directory and returns the folder it wrote."""

    make: Callable[[], Path]
    trained: bool


@dataclass(frozen=True)
class Outcome:
    trace: Trace
    log: str  # SHA-256
    model: str | None  # SHA-256 of the numbers in the final model's file; None: there is no model


def golden_runs() -> dict[str, Run]:
    runs = {}
    for name, strategy in METHODS.items():
        tables = {**DEMO, "strategy": strategy}
        runs[name] = Run(partial(simulate, tables), trained=True)
        runs[f"{name}, no training"] = Run(partial(simulate, _untrained(tables)), trained=False)
    for name, changes in SCENARIOS.items():
        tables = _changed(DEMO, changes)
        runs[name] = Run(partial(simulate, tables), trained=True)
        if name in TRAINING_FREE:
            runs[f"{name}, no training"] = Run(partial(simulate, _untrained(tables)), trained=False)
    # Models and differences: the two ways in which methods treat batch-norm statistics.
    for method in ("fedraw", "fedbuff"):
        tables = _changed(DEMO, {"strategy": METHODS[method], "run": {"events": 100}})
        runs[f"batch-norm, {method}"] = Run(partial(simulate, tables, conv_bn_net), trained=True)
    for method in ("fedraw", "fedraw-replay"):
        runs[f"server, {method}"] = Run(partial(serve, method), trained=False)
    return runs


def outcome_of(run: Run) -> Outcome:
    """Make a run in its own directory, to which all its paths are relative."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        _write_durations(Path(str(RECORDED["trace"])))
        made = run.make()
        log, model = made / "events.jsonl", made / "model.safetensors"
        final = _sha256(_numbers_of(model.read_bytes())) if model.exists() else None
        return Outcome(decision_trace(log), _sha256(log.read_bytes()), final)


def simulate(
    tables: Mapping[str, Any],
    model: Callable[[tuple[int, ...], int], nn.Module] | None = None,
) -> Path:
    import fedraw

    out = Path("run")
    fedraw.simulate(fedraw.Spec.from_dict(tables), out=out, model=model)
    return next(out.glob("seed-*"))


def serve(method: str) -> Path:
    """Run a server that is killed twice and recovers from its snapshots and its journal."""
    sys.path.insert(0, str(ROOT))  # for the engine of the server's tests
    try:
        from tests.server.engine import SIZE, Engine
    finally:
        sys.path.remove(str(ROOT))
    import numpy as np

    import fedraw
    from fedraw.server.results import Recall

    counts = {
        "north": {"cat": 6, "dog": 4},
        "south": {"cat": 5, "dog": 5},
        "east": {"dog": 8},
        "west": {"owl": 3, "cat": 1},
        "centre": {"dog": 7, "cat": 2},
    }
    strategies: dict[str, Any] = {
        "fedraw": fedraw.FedRAW(buffer=3),
        "fedraw-replay": fedraw.Replay(buffer=3),
    }
    trainings = [0] * len(counts)
    sends_model = {"fedraw": True, "fedraw-replay": False}[method]

    def trained(order: Any, reply: Any) -> Any:
        """Train a site towards its own model, which varies a little each time."""
        site = list(counts).index(order.site)
        trainings[site] += 1
        own = np.random.default_rng([site, trainings[site]]).normal(site % 3, 0.1, SIZE)
        difference = 0.3 * (own - order.model)
        vector = order.model + difference if sends_model else difference
        return replace(reply, vector=np.asarray(vector, np.float32))

    def recall(model: Any) -> Recall:
        """Count more samples as recognised the larger the model's four numbers are."""
        total = {"cat": 1000, "dog": 1000, "owl": 1000}
        steps = zip(total, (0.002, 0.004, 0.008), strict=True)
        right = {label: sum(_levels(x, step) for x in model.tolist()) for label, step in steps}
        return Recall(right, total)

    limits: dict[str, Any] = {"arrivals": 60, "evaluate_every": 5, "snapshot_every": 7.0}
    engine = Engine(Path("federation"), strategies[method], counts, recall, **limits)
    for site in engine.sites.values():
        site.reply = trained
    for arrivals in (17, 41):
        engine.accept(arrivals)
        engine.restart()
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    return Path("federation")


def _levels(value: float, step: float) -> int:
    """Return how many of 250 levels a value exceeds."""
    return sum(value > level * step for level in range(250))


def conv_bn_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    from torch import nn

    side = math.isqrt(math.prod(shape))
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)) if len(shape) == 1 else nn.Identity(),
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * (side // 2) ** 2, classes),
    )


def _write_durations(path: Path) -> None:
    """Write three trainings of each client, which then repeat; all clients differ."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["client", "seconds"])
        for client in range(30):
            for training in range(3):
                table.writerow([client, 1 + 0.37 * client % 5 + 0.11 * training])


def _changed(tables: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    sections = {**tables, **changes}
    return {name: {**tables.get(name, {}), **changes.get(name, {})} for name in sections}


def _untrained(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {**tables, "training": {"kind": "none"}}


def _numbers_of(content: bytes) -> bytes:
    """Return the content of a safetensors file after its header."""
    return content[8 + int.from_bytes(content[:8], "little") :]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# The pins


def pinned_traces() -> Pins:
    if not TRACES.exists():
        return {}
    traces: Pins = json.loads(lzma.decompress(TRACES.read_bytes()))
    return traces


def pinned_logs() -> dict[str, str]:
    if not LOGS.exists():
        return {}
    hashes: dict[str, str] = json.loads(LOGS.read_text(encoding="utf-8"))
    return hashes


def difference(pinned: Trace, found: Trace, exact: bool) -> str | None:
    """Return the first row in which two traces differ; None if there is none."""
    for before, after in zip_longest(pinned, found):
        if before is None or after is None:
            which = "is missing" if after is None else "was not there before"
            return f"{_text(before or after)} {which}"
        if not _agree(before, after, _tolerance(before, exact)):
            return f"{_text(before)} became {_text(after)}"
    return None


def _tolerance(row: Row, exact: bool) -> float:
    if exact:
        return 0.0
    return EVALUATION_TOLERANCE if row[0] == "evaluation" else WEIGHT_TOLERANCE


def _agree(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(
            _agree(a, b, tolerance) for a, b in zip(before, after, strict=True)
        )
    if isinstance(before, float) and isinstance(after, float):
        return before == after or abs(before - after) <= tolerance
    return type(before) is type(after) and bool(before == after)


def _text(row: Row | None) -> str:
    return json.dumps(row, separators=(",", ":"))


def check() -> int:
    """Print how each run compares with its pin; return the number of differences."""
    traces, logs, failed = pinned_traces(), pinned_logs(), 0
    for name, run in golden_runs().items():
        outcome = outcome_of(run)
        if name not in traces:
            result = "DIFFERS: its trace is not pinned; run with --pin"
        elif problem := difference(traces[name], outcome.trace, exact=not run.trained):
            result = f"DIFFERS: {problem}"
        elif not run.trained and logs.get(name) != outcome.log:
            result = "DIFFERS: the decisions are the same, but the bytes of events.jsonl are not"
        elif outcome.trace == traces[name]:
            result = "same"
        else:
            result = "same within the tolerance of another processor"
        failed += result.startswith("DIFFERS")
        print(f"{name}: {result}", flush=True)
    gone = [name for name in traces if name not in golden_runs()]
    for name in gone:
        print(f"{name}: DIFFERS: it is pinned and no longer run")
    return failed + len(gone)


def pin() -> int:
    """Pin the logs' hashes and the traces of new runs; refuse if a pinned trace has changed."""
    runs, traces = golden_runs(), pinned_traces()
    outcomes = {name: outcome_of(run) for name, run in runs.items()}
    changed = {
        name: problem
        for name, outcome in outcomes.items()
        if name in traces
        and (problem := difference(traces[name], outcome.trace, exact=not runs[name].trained))
    }
    for name, problem in changed.items():
        print(f"{name}: DIFFERS: {problem}")
    if changed:
        print("Nothing was pinned: a pinned decision trace must not change.")
        return len(changed)
    new = {name: outcome.trace for name, outcome in outcomes.items() if name not in traces}
    if new:
        content = json.dumps({**traces, **new}, separators=(",", ":")).encode()
        TRACES.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    hashes = {name: outcome.log for name, outcome in outcomes.items() if not runs[name].trained}
    before = pinned_logs()
    LOGS.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    others = sum(hashes[name] != before.get(name) for name in hashes)
    print(f"{len(new)} traces are new; {others} of {len(hashes)} hashes of logs have changed.")
    return 0


def against(commit: str) -> int:
    """Compare decision traces and final models with another commit's, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        add = [*git, "add", "--quiet", "--detach", str(other), commit]
        if subprocess.run(add, check=False).returncode:  # git has printed the reason
            return 1
        try:
            if not (other / "tools" / "golden.py").exists():  # older than this tool
                (other / "tools").mkdir(exist_ok=True)
                shutil.copy(__file__, other / "tools" / "golden.py")
            before, after = _outcomes_in(other, folder), _outcomes_in(ROOT, folder)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    failed = 0
    for name in {**before, **after}:
        if name not in before or name not in after:
            result = f"only {'here' if name in after else 'there'}"
        elif problem := difference(before[name][0], after[name][0], exact=True):
            result = f"DIFFERS: {problem}"
        elif before[name][1] != after[name][1]:
            result = "DIFFERS: the decisions are the same, but the final model is not"
        else:
            result = "same"
        failed += result.startswith("DIFFERS")
        print(f"{name}: {result}")
    return failed


def _outcomes_in(checkout: Path, folder: str) -> dict[str, tuple[Trace, str | None]]:
    """Return the outcomes of a checkout by its own version of this tool, which knows its log."""
    result = Path(folder) / "outcomes.json"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    script = checkout / "tools" / "golden.py"
    subprocess.run(
        [sys.executable, str(script), "--write", str(result)], env=environment, check=True
    )
    outcomes: dict[str, tuple[Trace, str | None]] = json.loads(result.read_text(encoding="utf-8"))
    return outcomes


def write(path: Path) -> int:
    outcomes = {name: outcome_of(run) for name, run in golden_runs().items()}
    content = {name: [outcome.trace, outcome.model] for name, outcome in outcomes.items()}
    path.write_text(json.dumps(content), encoding="utf-8")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--pin", action="store_true", help="pin the logs' hashes and new runs")
    choice.add_argument("--against", metavar="COMMIT", help="compare with another commit")
    choice.add_argument("--write", metavar="FILE", type=Path, help="write all outcomes as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.write is not None:
        return write(chosen.write.absolute())
    failed = pin() if chosen.pin else against(chosen.against) if chosen.against else check()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
