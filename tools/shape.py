"""Measures the shape of the code: size, cohesion, call paths, documentation and start-up.

    python tools/shape.py            print the table
    python tools/shape.py --check    print the packages alone; fail if one is above its ceiling
    python tools/shape.py --json     print the figures as one JSON document
    python tools/shape.py --details  also list the counted items

Every figure comes from the sources of this checkout. The functions entered are counted by running
a small simulation and a small server in this process. Start-up times are the median of several new
processes, relative to a reference command that runs alternately with them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "src" / "fedraw"
STUDIES = ROOT / "studies" / "src"
SHORT = 60  # lines of a short file
LONG_BODY = 60  # lines of a long function body, without its docstring
WIDE = 100  # characters of a wide line in the documentation
REPEATS = 9

# Lines of each package: the budget of the design (docs/explanation/design.md says what a package is
# for) and today's ceiling. A change that makes a package smaller lowers its ceiling, down to 110 %
# of the budget. Budgets include the lines of one pass, which came after the design. The ceiling of
# core rose when the rules of all settings moved there.
BUDGETS = {
    "core": (2_500, 3_200),
    "strategies": (3_600, 4_700),
    "storage": (800, 1_170),
    "eventlog": (2_590, 3_770),
    "simulation": (1_850, 2_800),
    "data": (2_700, 3_880),
    "learning": (2_900, 3_510),
    "experiment": (3_900, 7_520),
    "auditing": (2_950, 4_550),
    "server": (3_500, 5_110),
    "flower": (1_100, 1_880),
    "flare": (650, 1_070),
    "report": (1_250, 3_030),
    "dashboard": (800, 1_330),
    "cli": (1_350, 2_110),
    "privacy": (360, 650),
    "export": (400, 800),
    "pages": (190, 190),
}

AIMS = {
    "library files": 155,
    "library lines": 34_000,
    "library and studies lines": 39_000,
    "class names defined twice": 0,
    "functions with a body over 60 lines": 0,
    "functions to the first step": 150,
    "files to the first step": 35,
    "functions of a simulated arrival": 45,
    "files of a simulated arrival": 12,
    "import fedraw / import numpy": 1.5,
    "fedraw --help / python -c pass": 20,
    "public names with a docstring (%)": 100.0,
}
AT_LEAST = {"public names with a docstring (%)"}


class Source(NamedTuple):
    """One parsed source file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def sources(folder: Path) -> list[Source]:
    """Parse all Python files below a folder."""
    paths = sorted(folder.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [Source(path, text, ast.parse(text)) for path, text in zip(paths, texts, strict=True)]


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the library."""
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(source: Source) -> int:
    """Count the lines that are neither blank nor comments nor docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    prose: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            prose.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return sum(
        number not in prose and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(source.text.splitlines(), start=1)
    )


def single_importers(library: list[Source]) -> list[str]:
    """Return the modules that exactly one other module of the library imports."""
    names = {module_name(source.path) for source in library}
    importers: dict[str, set[str]] = defaultdict(set)
    for source in library:
        own = module_name(source.path)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                targets = {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                joined = {f"{node.module}.{name.name}" for name in node.names}
                targets = {node.module} | (joined & names)
            else:
                continue
            for target in (targets & names) - {own}:
                importers[target].add(own)
    return sorted(name for name, found in importers.items() if len(found) == 1)


def repeated_classes(library: list[Source]) -> list[str]:
    """Return the names of classes that the library defines more than once."""
    found = Counter(
        node.name
        for source in library
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in found.items() if count > 1)


def long_functions(library: list[Source]) -> list[str]:
    """Return the functions whose body without the docstring has more than LONG_BODY lines."""
    found = []
    for source in library:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            has_docstring = ast.get_docstring(node) is not None
            body = node.body[1:] if has_docstring else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > LONG_BODY:
                found.append(f"{source.path.relative_to(ROOT)}: {node.name}")
    return found


def public_definitions(source: Source) -> Iterator[tuple[str, bool]]:
    """Yield every public module, class, function and method, and whether it has a docstring.

    Methods that a Protocol or a base class documents, and dunder methods, are left out.
    """
    where = str(source.path.relative_to(ROOT))
    if source.path.name != "__init__.py" or source.text.strip():
        yield where, ast.get_docstring(source.tree) is not None

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, bool]]:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_") or _is_overload(node):
                continue
            name = f"{prefix}{node.name}"
            yield f"{where}: {name}", ast.get_docstring(node) is not None
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{name}.")

    yield from walk(source.tree.body, "")


def _is_overload(node: ast.stmt) -> bool:
    """Return whether this is an overload, which the function itself documents."""
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(own, ast.Name) and own.id == "overload" for own in decorators)


class Entered:
    """A context that records the functions of the library that are entered inside it."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self._prefix = str(LIBRARY) + os.sep

    def __enter__(self) -> Entered:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Comprehensions and class bodies are not functions that a reader looks up.
        is_ours = event == "call" and code.co_filename.startswith(self._prefix)
        if is_ours and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def counts(self) -> tuple[int, int]:
        """The number of functions and the number of files."""
        return len(self.functions), len({file for file, _ in self.functions})

    def listed(self) -> list[str]:
        """Return the functions by file, for --details."""
        return sorted(f"{Path(file).relative_to(LIBRARY)}: {name}" for file, name in self.functions)


def simulated_path() -> tuple[Entered, Entered]:
    """Record the functions of a run up to its first arrival, and those of a later arrival."""
    from fedraw.simulation.loop import Simulation

    first, arrival = Entered(), Entered()
    inner = Simulation.step

    def counted(self: Simulation) -> Any:
        if self.timeline.event == 0:
            first.__exit__()
        if self.timeline.event != 29:
            return inner(self)
        with arrival:
            return inner(self)

    Simulation.step = counted  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_small_simulation(Path(folder), first)
    finally:
        sys.setprofile(None)
        Simulation.step = inner  # type: ignore[method-assign]
    return first, arrival


def run_small_simulation(folder: Path, first: Entered) -> None:
    """Run FedRAW on the embedded digits with the spec's defaults, one seed, in this process."""
    import fedraw

    tables = {
        "partition": {"rare_labels": [8, 9]},
        "run": {"events": 40, "evaluate_every": 40, "seeds": [1]},
        "training": {"epochs": 1, "model": "linear"},
    }
    for _ in range(2):  # The first run only imports modules and fills caches.
        spec = fedraw.Spec.from_dict(tables)
        with first:
            first.functions.clear()
            fedraw.simulate(spec, out=folder / str(time.monotonic_ns()))


def served_path() -> Entered:
    """Record the functions from a reply to the next task of a server's coordinator."""
    import numpy as np

    from fedraw.core.layout import Layout
    from fedraw.server.coordinator import Coordinator, open_federation
    from fedraw.server.settings import ServerSettings
    from fedraw.server.tasks import LabelSummary, Reply, Task, TrainReply
    from fedraw.strategies.fedraw import FedRAW

    layout = Layout.of([("weight", (3, 4)), ("bias", (3,))])

    def answer(task: Task) -> Reply:
        site = f"site {task.node}"
        if task.kind == "summary":
            return LabelSummary(site, {"common": 10, f"label {task.node % 3}": 5})
        vector = np.random.default_rng(task.number).normal(size=layout.size)
        return TrainReply(site, task.number, task.version, vector.astype(np.float32), 10)

    entered, now = Entered(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(Path(folder), min_clients=4, arrivals=10**6, evaluate_every=0)
        start = np.zeros(layout.size, np.float32)
        coordinator: Coordinator = open_federation(
            FedRAW(buffer=3), lambda: start, settings, layout
        )
        waiting: list[Task] = []
        while not entered.functions:
            now += 1.0
            coordinator.online(range(1, 5), now)
            for task in coordinator.tasks(now):
                coordinator.sent(task, f"message {task.number}")
                waiting.append(task)
            task = waiting.pop(0)
            reply = answer(task)
            if coordinator.accepted < 20:
                coordinator.receive(f"message {task.number}", reply, now)
                continue
            with entered:
                coordinator.receive(f"message {task.number}", reply, now)
                coordinator.tasks(now)
        coordinator.close(now)
    return entered


def relative_time(command: list[str], yardstick: list[str]) -> float:
    """Return the median time of a command relative to a reference; both run alternately."""
    taken: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(REPEATS):
        for i, run in enumerate((command, yardstick)):
            start = time.perf_counter()
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            taken[i].append(time.perf_counter() - start)
    return round(statistics.median(taken[0]) / statistics.median(taken[1]), 2)


def wide_lines() -> list[str]:
    """Return the Markdown lines over WIDE characters, except rows of tables and pictures."""
    words = ["git", "ls-files", "README.md", "CHANGELOG.md", "docs/*.md"]  # not what a build writes
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.splitlines()]
    return [
        f"{file.relative_to(ROOT)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > WIDE and not line.lstrip().startswith("|")
    ]


def measure(details: dict[str, list[str]]) -> dict[str, float]:
    """Return all figures by name; `details` receives the counted items."""
    library, studies, tests = (sources(folder) for folder in (LIBRARY, STUDIES, ROOT / "tests"))
    tests += sources(ROOT / "studies" / "tests")
    names = [found for source in library for found in public_definitions(source)]
    lines = {
        name: sum(source.lines for source in found)
        for name, found in (("library", library), ("studies", studies), ("tests", tests))
    }
    first, arrival = simulated_path()
    served = served_path()
    details |= {
        "modules with one importer": single_importers(library),
        "class names defined twice": repeated_classes(library),
        "functions with a body over 60 lines": long_functions(library),
        "public names without a docstring": [name for name, documented in names if not documented],
        "functions to the first step": first.listed(),
        "functions of a simulated arrival": arrival.listed(),
        "functions of a server's arrival": served.listed(),
        "documentation lines over 100 characters": wide_lines(),
    }
    python = [sys.executable, "-c"]
    command = [sys.executable, "-m", "fedraw", "--help"]
    return {
        "library files": len(library),
        "library lines": lines["library"],
        "library lines of code": sum(map(code_lines, library)),
        "studies files": len(studies),
        "library and studies lines": lines["library"] + lines["studies"],
        "test lines": lines["tests"],
        "files of at most 60 lines": sum(source.lines <= SHORT for source in library),
        "modules with one importer": len(details["modules with one importer"]),
        "class names defined twice": len(details["class names defined twice"]),
        "functions with a body over 60 lines": len(details["functions with a body over 60 lines"]),
        "functions to the first step": first.counts[0],
        "files to the first step": first.counts[1],
        "functions of a simulated arrival": arrival.counts[0],
        "files of a simulated arrival": arrival.counts[1],
        "functions of a server's arrival": served.counts[0],
        "files of a server's arrival": served.counts[1],
        "documentation lines over 100 characters": len(wide_lines()),
        "public names with a docstring (%)": round(
            100 * statistics.fmean(documented for _, documented in names), 1
        ),
        "import fedraw / import numpy": relative_time(
            [*python, "import fedraw"], [*python, "import numpy"]
        ),
        "fedraw --help / python -c pass": relative_time(command, [*python, "pass"]),
    }


def package_lines(library: list[Source]) -> dict[str, int]:
    """Count the lines of each package of the library."""
    found: Counter[str] = Counter()
    for source in library:
        found[source.path.relative_to(LIBRARY).parts[0]] += source.lines
    return {name: found[name] for name in BUDGETS}


def print_packages() -> bool:
    """Print the lines of each package with its budget; return whether all keep their ceilings."""
    kept = True
    print(f"{'package':12} {'lines':>7} {'budget':>7} {'ceiling':>8}")
    for name, lines in package_lines(sources(LIBRARY)).items():
        budget, ceiling = BUDGETS[name]
        ceiling = max(ceiling, round(1.1 * budget))
        too_many = "" if lines <= ceiling else f"  {lines - ceiling:,} too many"
        print(f"{name:12} {lines:7,} {budget:7,} {ceiling:8,}{too_many}")
        kept = kept and not too_many
    return kept


def main() -> None:
    """Print the figures and their aims."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--details", action="store_true", help="list the counted items")
    parser.add_argument("--check", action="store_true", help="check the packages' ceilings")
    options = parser.parse_args()
    if options.check:
        sys.exit(not print_packages())
    details: dict[str, list[str]] = {}
    figures = measure(details)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':42} {'now':>8} {'aim':>10}")
    for name, value in figures.items():
        aim = AIMS.get(name)
        bound = "" if aim is None else f"{'≥' if name in AT_LEAST else '≤'} {aim:,}"
        print(f"{name:42} {value:8,} {bound:>10}")
    print()
    print_packages()
    if options.details:
        for name, found in details.items():
            print(f"\n{name}")
            print("\n".join(f"  {line}" for line in found))


if __name__ == "__main__":
    main()
