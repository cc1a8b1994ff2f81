"""Counts the lines of code of the same task in four frameworks: `python -m benchmarks.peers.lines`.

The task has a custom model and optimiser (AdamW, clipped gradients), FedBuff with K = 10 and
staleness discounts, 30 clients with their own data and training times, and the accuracy of every
label after every 10 of 60 aggregations, as CSV. All scripts in `task/` read the same arrays and
write the same format. Each script runs in the environment of its framework, which
`sh benchmarks/peers/setup.sh` makes; a script that does not run is not counted. With `--only`, the
other rows come from earlier runs of the same scripts on the same arrays, if there are any.

Blank lines, comments and docstrings are not counted; imports are counted separately.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from datetime import date
from pathlib import Path
from shutil import copy
from statistics import fmean
from typing import NamedTuple

import numpy as np
from benchmarks.peers.job import ROOT
from benchmarks.peers.table import between_markers

from fedraw.experiment.cells import cores

HERE = Path(__file__).parent / "task"
PEERS = ROOT / ".peers"
PAGE = ROOT / "benchmarks" / "README.md"
STORED = PEERS / "lines.json"  # the results of earlier runs
CLIENTS, LABELS = 30, 10
MIN_ACCURACY = 50  # percent; chance is 10
EVALUATIONS = [10, 20, 30, 40, 50, 60]
TIMEOUT = 1_200  # seconds
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


# One thread per process, no telemetry, and a separate Ray cluster for Flower, even if another one
# runs on the machine.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
}

# FLGo's datasets need a shim for the torch version of this benchmark; the shim is not counted.
_SHIMMED = f"""
import runpy, sys
sys.path[0] = {str(ROOT)!r}
from benchmarks.peers.shims import allow_plain_subsets
allow_plain_subsets()
sys.path[0] = ""
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Framework(NamedTuple):
    """A framework and its script."""

    name: str
    package: str
    files: tuple[str, ...]  # the first one is run
    by_hand: str  # the parts that the framework lacks, which the script implements


FRAMEWORKS = (
    Framework("fedraw", "fedraw", ("in_fedraw.py",), "training loop"),
    Framework(
        "FLGo",
        "flgo",
        ("in_flgo.py", "flgo_data.py"),
        "training loop, partition by owner, accuracy of each label; data and model in a file of "
        "their own",
    ),
    Framework(
        "pfl",
        "pfl",
        ("in_pfl.py",),
        "FedBuff, staleness, delays and order of arrivals, evaluation of each label",
    ),
    Framework(
        "Flower",
        "flwr",
        ("in_flower.py",),
        "training loop, FedBuff, staleness, delays and order of arrivals, evaluation",
    ),
)


class Lines(NamedTuple):
    """The number of lines with code, without imports, and the number of lines with imports."""

    code: int
    imports: int


class Ran(NamedTuple):
    """The result of a run of a script."""

    lines: Lines
    version: str
    day: str
    accuracy: float  # mean over the labels after the last aggregation


def count(source: str) -> Lines:
    r"""Count the lines with code; docstrings, comments and blank lines have none.

    >>> count('"doc"\nimport sys\n\n# a remark\nprint(\n    sys.argv,  # two\n)\n')
    Lines(code=3, imports=1)
    """
    tree = ast.parse(source)
    docstrings, imports = set[int](), set[int]()
    for node in ast.walk(tree):
        lines = range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.update(lines)
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(lines)
    with_code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    with_code -= docstrings
    return Lines(len(with_code - imports), len(with_code & imports))


def prepare(path: Path) -> None:
    """Write the arrays of the task: digits with uneven labels on 30 clients, and their seconds."""
    from sklearn.datasets import load_digits  # not needed by the rest of this module

    rng = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    images, labels = (pixels[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    train, test = slice(400, None), slice(400)
    owner = np.zeros(len(labels[train]), np.int64)
    for label in range(LABELS):
        (own,) = np.nonzero(labels[train] == label)
        owner[own] = rng.choice(CLIENTS, len(own), p=rng.dirichlet(np.full(CLIENTS, 0.5)))
    for client in range(CLIENTS):  # every client has some data
        owner[rng.choice(len(owner), 8, replace=False)] = client
    np.savez(
        path,
        x=images[train],
        y=labels[train],
        owner=owner,
        x_test=images[test],
        y_test=labels[test],
        seconds=rng.integers(5, 60, CLIENTS),
    )


def run(framework: Framework, task: Path) -> Ran:
    """Run a script in the environment of its framework; raise SystemExit if it fails."""
    folder_name = framework.files[0].removeprefix("in_").removesuffix(".py")
    is_fedraw = framework.name == "fedraw"
    python = Path(sys.executable) if is_fedraw else PEERS / folder_name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"not set up: sh benchmarks/peers/setup.sh {python.parts[-3]}")
    with tempfile.TemporaryDirectory() as folder:
        for file in framework.files:  # some frameworks import from the current folder
            copy(HERE / file, folder)
        out = Path(folder) / "out.csv"
        start = [str(python), "-c", _SHIMMED] if framework.name == "FLGo" else [str(python)]
        done = subprocess.run(
            [*start, framework.files[0], str(task), str(out)],
            cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False,
            env={**os.environ, **_SETTINGS},
        )  # fmt: skip
        if done.returncode or not out.exists():
            last = (done.stderr.strip() or "no output").splitlines()[-1]
            raise SystemExit(f"exit code {done.returncode}: {last}")
        accuracy = final_accuracy(out.read_text())
    code = f"import importlib.metadata as m; print(m.version('{framework.package}'))"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Ran(lines_of(framework), version.stdout.strip(), str(date.today()), accuracy)


def lines_of(framework: Framework) -> Lines:
    """Return the number of lines in all files of a framework."""
    lines = [count((HERE / file).read_text()) for file in framework.files]
    return Lines(sum(n.code for n in lines), sum(n.imports for n in lines))


def digest(framework: Framework, task: Path) -> str:
    """Return a hash of the scripts and of the arrays that they read."""
    files = [*(HERE / file for file in framework.files), task]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def store(framework: Framework, task: Path, ran: Ran) -> None:
    """Store a complete run for later tables."""
    known = json.loads(STORED.read_text()) if STORED.exists() else {}
    known[framework.name] = [digest(framework, task), ran.version, ran.day, ran.accuracy]
    STORED.write_text(json.dumps(known, indent=1))


def stored(framework: Framework, task: Path) -> Ran | None:
    """Return the last complete run, unless a script or the arrays have changed since."""
    known = json.loads(STORED.read_text()) if STORED.exists() else {}
    source, *rest = known.get(framework.name, [""])
    return Ran(lines_of(framework), *rest) if source == digest(framework, task) else None


def final_accuracy(text: str) -> float:
    """Return the mean over the labels in the last row; raise SystemExit for an incomplete run.

    A complete run has all evaluations, and its last model is better than chance.
    """
    rows = [[float(cell) for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    rows = [row for row in rows if row[0] > 0]  # some frameworks also evaluate the initial model
    if [row[0] for row in rows] != EVALUATIONS or {len(row) for row in rows} != {1 + LABELS}:
        raise SystemExit(f"its table does not have {len(EVALUATIONS)} rows of {LABELS} labels")
    accuracy = fmean(rows[-1][1:])
    if not accuracy >= MIN_ACCURACY:
        raise SystemExit(
            f"its last model has {accuracy:.1f} % accuracy, less than {MIN_ACCURACY} %"
        )
    return accuracy


def table(results: dict[str, Ran | str], when: str) -> str:
    """Return the table in Markdown; a script that did not run has the reason instead of counts."""
    lines = [
        f"python -m benchmarks.peers.lines: {when}.",
        "",
        "| | lines of code | imports | files | written by hand | accuracy, mean of labels | run |",
        "|---|--:|--:|--:|---|--:|---|",
    ]
    for framework in FRAMEWORKS:
        ran = results[framework.name]
        if isinstance(ran, str):
            lines.append(f"| {framework.name} | not run: {ran} | | | | | |")
            continue
        cells = (
            f"{framework.name} {ran.version}", f"**{ran.lines.code}**", str(ran.lines.imports),
            str(len(framework.files)), framework.by_hand, f"{ran.accuracy:.1f} %", ran.day,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.lines", description=__doc__)
    parser.add_argument("--only", default="", help="frameworks, separated by commas")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/README.md")
    options = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    task = PEERS / "task.npz"
    prepare(task)
    results: dict[str, Ran | str] = {}
    for framework in FRAMEWORKS:
        if options.only and framework.name.lower() not in options.only.lower().split(","):
            results[framework.name] = stored(framework, task) or "not selected"
            continue
        try:
            results[framework.name] = ran = run(framework, task)
            store(framework, task, ran)
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            results[framework.name] = str(reason)
        print(f"  {framework.name}: {results[framework.name]}", file=sys.stderr)
    text = table(results, f"{date.today()}, {cores()} cores, Python {sys.version.split()[0]}")
    print(text)
    if options.write:
        PAGE.write_text(between_markers(PAGE.read_text(), "lines", text))


if __name__ == "__main__":
    main()
