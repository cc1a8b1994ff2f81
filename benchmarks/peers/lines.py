"""Lines of code of the same task in four frameworks: `python -m benchmarks.peers.lines`.

The task: a model and an optimiser of one's own (AdamW, clipped gradients), FedBuff with K = 10 and
staleness discounts, 30 clients of which each has its own data and takes its own time, and the
accuracy of every label each 10 of 60 aggregations, as CSV. All scripts in `task/` read the same
arrays and write the same form. Each runs in the environment of its framework, which
`sh benchmarks/peers/setup.sh` makes; a script that did not run is not counted. With `--only`, the
other rows come from earlier runs of the same scripts on the same arrays, if there were any.

Lines with code count: no blank lines, comments or docstrings; imports are counted apart.
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
KEPT = PEERS / "lines.json"  # what earlier runs gave
CLIENTS, LABELS = 30, 10
LEARNT = 50  # percent; by chance it would be 10
EVALUATIONS = [10, 20, 30, 40, 50, 60]
PATIENCE = 1_200  # seconds
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


# Small steps gain nothing from threads, nobody needs to know of these runs, and Flower gets a Ray
# of its own, also where another one runs on the machine.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
}

# FLGo's data sets need a shim under the torch that all frameworks here share; it is not counted.
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
    name: str
    package: str
    files: tuple[str, ...]  # the first one is run
    by_hand: str  # what the framework has not got, so that the script has it


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
    """How many lines of a script have code, and how many of them are imports."""

    code: int
    imports: int


class Ran(NamedTuple):
    """What a run of a script gave."""

    lines: Lines
    version: str
    day: str
    accuracy: float  # the mean over the labels after the last aggregation


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
    """Write the arrays of the task: digits with uneven labels at 30 clients, and their seconds."""
    from sklearn.datasets import load_digits  # the rest of this module does without

    rng = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    images, labels = (pixels[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    train, test = slice(400, None), slice(400)
    owner = np.zeros(len(labels[train]), np.int64)
    for label in range(LABELS):
        (own,) = np.nonzero(labels[train] == label)
        owner[own] = rng.choice(CLIENTS, len(own), p=rng.dirichlet(np.full(CLIENTS, 0.5)))
    for client in range(CLIENTS):  # nobody is without data
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
    """Run a script in the environment of its framework; SystemExit says why it could not."""
    own = PEERS / framework.files[0].removeprefix("in_").removesuffix(".py") / "bin" / "python"
    python = Path(sys.executable) if framework.name == "fedraw" else own
    if not python.exists():
        raise SystemExit(f"not set up: sh benchmarks/peers/setup.sh {python.parts[-3]}")
    with tempfile.TemporaryDirectory() as folder:
        for file in framework.files:  # some frameworks import from the current folder
            copy(HERE / file, folder)
        out = Path(folder) / "out.csv"
        start = [str(python), "-c", _SHIMMED] if framework.name == "FLGo" else [str(python)]
        done = subprocess.run(
            [*start, framework.files[0], str(task), str(out)],
            cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
            env={**os.environ, **_SETTINGS},
        )  # fmt: skip
        if done.returncode or not out.exists():
            last = (done.stderr.strip() or "no output").splitlines()[-1]
            raise SystemExit(f"exit code {done.returncode}: {last}")
        accuracy = final_accuracy(out.read_text())
    asked = f"import importlib.metadata as m; print(m.version('{framework.package}'))"
    version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    return Ran(lines_of(framework), version.stdout.strip(), str(date.today()), accuracy)


def lines_of(framework: Framework) -> Lines:
    """The lines of all files of a framework."""
    lines = [count((HERE / file).read_text()) for file in framework.files]
    return Lines(sum(own.code for own in lines), sum(own.imports for own in lines))


def digest(framework: Framework, task: Path) -> str:
    """A hash of the scripts and of the arrays they read."""
    files = [*(HERE / file for file in framework.files), task]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def keep(framework: Framework, task: Path, ran: Ran) -> None:
    """Note a complete run for later tables."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    known[framework.name] = [digest(framework, task), ran.version, ran.day, ran.accuracy]
    KEPT.write_text(json.dumps(known, indent=1))


def kept(framework: Framework, task: Path) -> Ran | None:
    """The last complete run, unless a script or the arrays have changed since."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    source, *rest = known.get(framework.name, [""])
    return Ran(lines_of(framework), *rest) if source == digest(framework, task) else None


def final_accuracy(text: str) -> float:
    """The mean of the labels in the last row; SystemExit for a run that is not complete.

    A complete run has all evaluations, and its last model has learnt something.
    """
    rows = [[float(cell) for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    rows = [row for row in rows if row[0] > 0]  # some evaluate the first model as well
    if [row[0] for row in rows] != EVALUATIONS or {len(row) for row in rows} != {1 + LABELS}:
        raise SystemExit(f"its table has not {len(EVALUATIONS)} rows of {LABELS} labels")
    accuracy = fmean(rows[-1][1:])
    if not accuracy >= LEARNT:
        raise SystemExit(f"its last model has {accuracy:.1f} % accuracy, less than {LEARNT} %")
    return accuracy


def table(results: dict[str, Ran | str], when: str) -> str:
    """The table in Markdown; a script that could not be run has its reason instead of a count."""
    lines = [
        f"python -m benchmarks.peers.lines: {when}.",
        "",
        "| | lines of code | imports | files | written by hand | accuracy, mean of labels | run |",
        "|---|--:|--:|--:|---|--:|---|",
    ]
    for framework in FRAMEWORKS:
        own = results[framework.name]
        if isinstance(own, str):
            lines.append(f"| {framework.name} | not run: {own} | | | | | |")
            continue
        cells = (
            f"{framework.name} {own.version}", f"**{own.lines.code}**", str(own.lines.imports),
            str(len(framework.files)), framework.by_hand, f"{own.accuracy:.1f} %", own.day,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.lines", description=__doc__)
    parser.add_argument("--only", default="", help="frameworks, with commas")
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    given = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    task = PEERS / "task.npz"
    prepare(task)
    results: dict[str, Ran | str] = {}
    for framework in FRAMEWORKS:
        if given.only and framework.name.lower() not in given.only.lower().split(","):
            results[framework.name] = kept(framework, task) or "not asked for"
            continue
        try:
            results[framework.name] = ran = run(framework, task)
            keep(framework, task, ran)
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            results[framework.name] = str(reason)
        print(f"  {framework.name}: {results[framework.name]}", file=sys.stderr)
    text = table(results, f"{date.today()}, {cores()} cores, Python {sys.version.split()[0]}")
    print(text)
    if given.write:
        PAGE.write_text(between_markers(PAGE.read_text(), "lines", text))


if __name__ == "__main__":
    main()
