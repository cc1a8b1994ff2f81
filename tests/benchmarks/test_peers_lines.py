"""The count of lines of benchmarks/peers/task, and what counts as a complete run."""

from pathlib import Path

import pytest
from benchmarks.peers import lines
from benchmarks.peers.lines import FRAMEWORKS, HERE, Lines, Ran, count, final_accuracy, table

SCRIPT = '''"""What it does,
in two lines."""

import sys
from os import (
    path,
)

# A remark.
TEXT = """two
lines"""


def act(
    what,  # an argument
):
    """Say it."""
    print(what, path)
'''


def test_lines_with_code_and_imports_are_counted_separately() -> None:
    # TEXT is two lines, the head of act three, and its body one.
    assert count(SCRIPT) == Lines(code=6, imports=4)


def test_scripts_of_all_frameworks_have_the_same_network() -> None:
    networks = set()
    for framework in FRAMEWORKS:
        text = "".join((HERE / file).read_text() for file in framework.files)
        start = text.index("class Net(nn.Module):")
        networks.add(text[start : text.index("hidden(x)))", start)])
    assert len(networks) == 1


def test_a_table_without_all_evaluations_is_refused() -> None:
    rows = [[n, *[50.0] * 9, n] for n in (0, 10, 20, 30, 40, 50, 60)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    assert final_accuracy(text) == pytest.approx((9 * 50 + 60) / 10)
    with pytest.raises(SystemExit, match="6 rows of 10 labels"):
        final_accuracy(text.rpartition("\n")[0])


def test_a_model_that_is_no_better_than_chance_is_refused() -> None:
    text = "\n".join(",".join(map(str, [n, *[10.0] * 10])) for n in (10, 20, 30, 40, 50, 60))
    with pytest.raises(SystemExit, match=r"10\.0 % accuracy, less than 50 %"):
        final_accuracy(text)
    with pytest.raises(SystemExit, match="nan % accuracy"):
        final_accuracy(text.replace("10.0", "nan"))


def test_a_run_is_stored_until_script_or_arrays_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HERE", tmp_path)
    monkeypatch.setattr(lines, "STORED", tmp_path / "lines.json")
    pfl = next(each for each in FRAMEWORKS if each.name == "pfl")
    script, task = tmp_path / "in_pfl.py", tmp_path / "task.npz"
    script.write_text("import sys\n\nprint(sys.argv)\n")
    task.write_bytes(b"arrays")
    ran = Ran(Lines(1, 1), "0.6.0", "2026-11-17", 91.25)
    assert lines.stored(pfl, task) is None
    lines.store(pfl, task, ran)
    assert lines.stored(pfl, task) == ran
    task.write_bytes(b"others")
    assert lines.stored(pfl, task) is None
    task.write_bytes(b"arrays")
    script.write_text("print()\n")
    assert lines.stored(pfl, task) is None


def test_a_script_that_did_not_run_is_not_counted() -> None:
    ran = Ran(Lines(33, 7), "1.0", "2026-11-17", 91.25)
    text = table({"fedraw": ran, "FLGo": "no pip", "pfl": ran, "Flower": ran}, "today")
    assert "| fedraw 1.0 | **33** | 7 | 1 | training loop | 91.2 % | 2026-11-17 |" in text
    assert "| FLGo | not run: no pip | | | | | |" in text
