"""Mutation testing: changes one line of the source, and checks whether a test fails.

A seeded sample of mutants (see `mutations`) is tried in copies of the tree, two at a time. For each
mutant the doctests of its module come first, then the tests of its module, then those of its
package, then the others; the first failure kills it. Survivors are printed with the source line
before and after. Those known to be equivalent are in `equivalent_mutants.txt` and do not count.

Each run of the tests is forked from a process that has already imported pytest, NumPy and torch.

Run: python -m stress.mutate --sample 200 --seed 1
     python -m stress.mutate --package server --sample 200 --seed 1
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from stress.forked import RAISED, Ended, Send, run_forked
from stress.mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
COPIED = (
    "src",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "conftest.py",
    "pyproject.toml",
    "README.md",
)
# Folders of tests that can kill a mutant of a package, besides those with its name.
TESTS = {
    "core": ("strategies", "eventlog", "simulation"),
    "strategies": ("simulation",),
    "eventlog": ("report", "simulation"),
    "server": (),
}
# Long tests, and the modules that they test; they are left out for other modules.
LONG: dict[str, Sequence[str]] = {
    "test_evidence.py": ("evidence", "scorer", "checked", "inferred", "output_layer"),
    "test_aggregation.py": ("aggregation", "weighting"),
    "test_dynamics_of_the_paper.py": (),
    "test_attack_of_the_paper.py": (),
}
# In percent of the mutants that are not equivalent.
AIMS = {"server": 90.0}
AIM = 97.0
# A mutant whose tests take longer than this many processor seconds counts as killed.
PROCESSOR_SECONDS, WALL_SECONDS = 240, 1200
# Imported before the forks, without fedraw, which each fork imports with its mutant.
WARM = ("pytest", "hypothesis", "numpy", "torch", "sklearn.datasets", "safetensors.numpy", "typer")


class Verdict(NamedTuple):
    mutant: Mutant
    killed: str | None  # the failure; None: the mutant survived
    seconds: float


def sample(packages: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """Draw from all mutants of the packages; return them in the order of files and lines."""
    found: list[Mutant] = []
    for package in packages:
        for path in sorted((ROOT / "src" / "fedraw" / package).rglob("*.py")):
            found += mutants(path, path.relative_to(ROOT / "src" / "fedraw").as_posix())
    drawn = random.Random(seed).sample(range(len(found)), min(size, len(found)))
    return [found[i] for i in sorted(drawn)]


def equivalent(path: Path = EQUIVALENT) -> set[tuple[str, str, str]]:
    """Return the file, the line and the mutated line of each mutant that no test can kill.

    The file has blocks of four lines: the file, "- " and the line, "+ " and its mutant, "because"
    and the reason.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    known = set()
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        name, before, after, reason = lines
        if not (before.startswith("- ") and after.startswith("+ ") and reason.strip()):
            raise ValueError(f"{path}: not a block of file, -, + and because: {name}")
        known.add((name, before[2:], after[2:]))
    return known


def relevant_tests(name: str) -> list[str]:
    """Return the test files for a module, the most likely to fail first."""
    package, module = Path(name).parts[0], Path(name).stem
    tests = ROOT / "tests"
    own = sorted((tests / package).rglob("test_*.py"))
    own.sort(key=lambda path: (module not in path.stem, path.name))
    others = [p for other in TESTS[package] for p in sorted((tests / other).rglob("test_*.py"))]
    others.sort(key=lambda path: module not in path.stem)
    found = [path for path in (*own, *others) if module in LONG.get(path.name, (module,))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def pytest_in(tree: Path, files: Sequence[str]) -> Callable[[Send], int]:
    """Return a run of tests in a copy of the tree, as a function for a forked child."""

    def work(send: Send) -> int:
        import pytest

        gc.enable()
        # Processes that a test spawns import the parent's main module, which is not in the tree.
        sys.modules["__main__"] = ModuleType("__main__")
        os.chdir(tree)
        sys.path[:] = [str(tree / "src"), str(tree), *(p for p in sys.path if p and p != str(ROOT))]
        os.environ["PYTHONPATH"] = str(tree / "src")
        words = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of modules already imported
        return int(pytest.main([*words, "--hypothesis-seed=1", *files]))

    return work


def run_tests(tree: Path, files: Sequence[str]) -> Ended:
    work = pytest_in(tree, files)
    return run_forked(work, processor_seconds=PROCESSOR_SECONDS, wall_seconds=WALL_SECONDS)


_tree: Path | None = None


def _prepare(folder: Path) -> None:
    """Give this worker a copy of the tree."""
    global _tree  # noqa: PLW0603 - a process pool has no other place for it
    _tree = folder / str(os.getpid())
    _tree.mkdir()
    copy_tree(_tree)
    sys.dont_write_bytecode = True  # a mutant may have the size and the second of the original


def copy_tree(tree: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)


def examine(mutant: Mutant) -> Verdict:
    """Try one mutant in this worker's copy."""
    assert _tree is not None
    begun = time.monotonic()
    path = _tree / "src" / "fedraw" / mutant.path
    original = path.read_bytes()
    try:
        path.write_bytes(mutant.applied(original))
        files = relevant_tests(mutant.path)
        first = [f for f in files if Path(mutant.path).stem in Path(f).stem]
        rest = [f for f in files if f not in first]
        killed = None
        for some in ([path.relative_to(_tree).as_posix()], first, rest):
            killed = killed or (noticed(run_tests(_tree, some)) if some else None)
    finally:
        path.write_bytes(original)
    return Verdict(mutant, killed, time.monotonic() - begun)


def worker_pool(workers: int, folder: Path) -> ProcessPoolExecutor:
    """Start forked workers, each with a copy of the tree in the folder.

    Workers of `multiprocessing.Pool` are daemons, which may not start processes. Tests that start
    one would fail in them for every mutant.
    """
    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _prepare, (folder,))


def examine_all(drawn: Sequence[Mutant], workers: int) -> list[Verdict]:
    """Try all mutants in `workers` processes, and print the verdict on each."""
    verdicts: list[Verdict] = []
    with (
        tempfile.TemporaryDirectory(prefix="fedraw-mutants-") as folder,
        worker_pool(workers, Path(folder)) as pool,
    ):
        for future in as_completed([pool.submit(examine, mutant) for mutant in drawn]):
            verdict = future.result()
            verdicts.append(verdict)
            mutant, result = verdict.mutant, verdict.killed or "SURVIVED"
            where = f"{mutant.path}:{mutant.line} {mutant.kind}"
            print(f"{len(verdicts)}/{len(drawn)} {where}: {result} ({verdict.seconds:.0f} s)")
            sys.stdout.flush()
    return verdicts


def noticed(ended: Ended) -> str | None:
    """Return the failure; None if everything passed or there was nothing to run."""
    if ended.code in (0, 5):
        return None
    if ended.code is None:
        return f"signal {ended.signal}"
    if ended.code == RAISED:
        raise RuntimeError(f"the tests could not be run:\n{ended.errors}")
    failed = [line for line in ended.printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else f"exit code {ended.code}"


def refuse_failing_tests(packages: Sequence[str]) -> None:
    """Refuse tests that fail without a mutant, because they would kill every mutant."""
    with tempfile.TemporaryDirectory(prefix="fedraw-mutants-") as folder:
        copy_tree(Path(folder))
        files = sorted({f for package in packages for f in relevant_tests(f"{package}/")})
        ended = run_tests(Path(folder), files)
    if ended.code != 0:
        print(ended.printed[-2000:] + ended.errors[-2000:])
        sys.exit("the tests fail without any mutant; fix them first")


def report(verdicts: Sequence[Verdict], packages: Sequence[str]) -> bool:
    """Print survivors and the kill rate; return whether the aim is reached."""
    known = equivalent()
    alive = [v.mutant for v in verdicts if v.killed is None]
    same = [m for m in alive if (m.path, m.before, m.after) in known]
    survivors = [m for m in alive if m not in same]
    for mutant in survivors:
        print(f"survived: src/fedraw/{mutant.path}:{mutant.line} ({mutant.kind})")
        print(f"    - {mutant.before}\n    + {mutant.after}")
    counted = len(verdicts) - len(same)
    rate = 100 * (counted - len(survivors)) / max(1, counted)
    aim = min(AIMS.get(package, AIM) for package in packages)
    by_package: Counter[str] = Counter(Path(v.mutant.path).parts[0] for v in verdicts)
    drawn = ", ".join(f"{n} of {package}" for package, n in by_package.items())
    print(
        f"{len(verdicts)} mutants ({drawn}): {counted - len(survivors)} killed, "
        f"{len(survivors)} survived, {len(same)} equivalent; "
        f"kill rate {rate:.1f} %, aim {aim:.0f} %"
    )
    return rate >= aim


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stress.mutate", description="Mutation tests.")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", action="append", choices=list(TESTS), help="may be repeated")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--file", help="only mutants of this file, such as core/buffer.py")
    parser.add_argument(
        "--tested", action="store_true", help="skip the check that the tests pass without a mutant"
    )
    given = parser.parse_args()
    packages = given.package or ["core", "strategies", "eventlog"]
    drawn = sample(packages, 10**9 if given.file else given.sample, given.seed)
    if given.file:
        own = [mutant for mutant in drawn if mutant.path == given.file]
        drawn = random.Random(given.seed).sample(own, min(given.sample, len(own)))
    begun = time.monotonic()
    for name in WARM:
        importlib.import_module(name)
    if not given.tested:
        refuse_failing_tests(packages)
    verdicts = examine_all(drawn, given.workers)
    reached = report(verdicts, packages)
    print(f"{(time.monotonic() - begun) / 60:.1f} minutes on {given.workers} workers")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
