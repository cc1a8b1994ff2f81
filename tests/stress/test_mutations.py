from __future__ import annotations

import ast
import multiprocessing
from pathlib import Path

import pytest
from stress.mutate import equivalent, relevant_tests, sample, worker_pool
from stress.mutations import Mutant, mutants

SOURCE = '''\
"""A module."""

LIMIT = 10


def clipped(values: list[float], low: float, negate: bool = False):
    """The sum, at least `low`."""
    total = 0.0
    for value in values:
        if not value < LIMIT and value != 3:
            raise ValueError(f"{value + 1} is too much")
        total += value * 2
    return max(low, pow(-total if negate else total, 3))
'''


def found(tmp_path: Path) -> list[Mutant]:
    path = tmp_path / "clipped.py"
    path.write_text(SOURCE)
    return mutants(path, "core/clipped.py")


def test_every_kind_of_change_is_made_where_it_can_be(tmp_path: Path) -> None:
    changes = [(m.line, m.kind, m.after) for m in found(tmp_path)]
    assert changes == [
        (3, "constant", "LIMIT = 11"),
        (6, "constant", "def clipped(values: list[float], low: float, negate: bool = True):"),
        (8, "constant", "total = 1.0"),
        (10, "and, or", "if (not value < LIMIT or value != 3):"),
        (10, "dropped not", "if (value < LIMIT) and value != 3:"),
        (10, "negated condition", "if (not (not value < LIMIT and value != 3)):"),
        (10, "comparison", "if not (value <= LIMIT) and value != 3:"),
        (10, "comparison", "if not value < LIMIT and (value == 3):"),
        (10, "constant", "if not value < LIMIT and value != 4:"),
        (11, "dropped statement", "pass"),
        (12, "arithmetic", "total -= value * 2"),
        (12, "dropped statement", "pass"),
        (12, "arithmetic", "total += (value / 2)"),
        (12, "constant", "total += value * 3"),
        # The order of the arguments of max does not matter.
        (13, "swapped arguments", "return max(low, pow(3, -total if negate else total))"),
        (13, "dropped minus", "return max(low, pow((total) if negate else total, 3))"),
        (13, "negated condition", "return max(low, pow(-total if (not negate) else total, 3))"),
        (13, "constant", "return max(low, pow(-total if negate else total, 4))"),
    ]  # fmt: skip


def test_a_mutant_changes_its_place_and_nothing_else(tmp_path: Path) -> None:
    for mutant in found(tmp_path):
        changed = mutant.applied(SOURCE.encode()).decode()
        ast.parse(changed)
        pairs = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        assert [i for i, (one, two) in enumerate(pairs, 1) if one != two] == [mutant.line]


def test_a_sample_is_drawn_again_the_same() -> None:
    first = sample(["eventlog"], 5, seed=3)
    assert first == sample(["eventlog"], 5, seed=3)
    assert first != sample(["eventlog"], 5, seed=4)
    assert {mutant.path.split("/")[0] for mutant in first} == {"eventlog"}


def test_the_tests_of_a_module_come_first() -> None:
    assert relevant_tests("strategies/fedbuff.py")[0] == "tests/strategies/test_fedbuff.py"
    scoring = "tests/strategies/scoring/test_evidence.py"
    assert relevant_tests("strategies/scoring/evidence.py")[0] == scoring
    assert scoring not in relevant_tests("strategies/fedraw.py")  # takes long


def test_equivalent_mutants_have_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "equivalent.txt"
    path.write_text("# words\n\ncore/a.py\n- x = 1\n+ x = 2\nbecause x is not read\n")
    assert equivalent(path) == {("core/a.py", "x = 1", "x = 2")}
    path.write_text("core/a.py\nx = 1\n+ x = 2\nbecause x is not read\n")
    with pytest.raises(ValueError, match="not a block"):
        equivalent(path)


def test_the_committed_list_still_names_lines_of_the_source() -> None:
    root = Path(__file__).parents[2] / "src" / "fedraw"
    known = {(m.path, m.before, m.after) for p in ("core", "strategies", "eventlog", "server")
             for file in (root / p).rglob("*.py")
             for m in mutants(file, file.relative_to(root).as_posix())}  # fmt: skip
    assert equivalent() <= known


def exit_code_of_a_process() -> int | None:
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    return process.exitcode


def test_a_worker_may_start_processes_as_some_tests_do(tmp_path: Path) -> None:
    with worker_pool(1, tmp_path) as pool:
        assert pool.submit(exit_code_of_a_process).result() == 0
