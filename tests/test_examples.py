"""The examples run, and the README shows them as they are."""

from __future__ import annotations

import ast
import io
import re
import runpy
from contextlib import chdir, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from examples.own_strategy import RareFresh, RareFreshState

import fedraw
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("spec", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_example_specs_are_ready_to_run(spec: Path) -> None:
    read = Spec.from_file(spec)
    scenario = Scenario.of(read, read.run.seeds[0])
    with executor_of(scenario, Options()) as executor:
        assert scenario.simulation(executor).step().event == 1


def run_example(name: str, folder: Path = ROOT) -> list[str]:
    printed = io.StringIO()
    with redirect_stdout(printed), chdir(folder):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue().splitlines()


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def test_quickstart_shows_the_failure_and_its_cure() -> None:
    head, *rows = run_example("quickstart.py")
    accuracy, rare = head.split().index("GlobalAcc"), head.split().index("AvgRare")
    cells = {row.split()[0]: row.split() for row in rows}
    assert list(cells) == ["fedfa", "fedraw", "fedraw-replay"]
    recalls = [float(row[rare]) for row in cells.values()]
    assert recalls[0] < 5
    assert 35 < recalls[1] < recalls[2]
    assert float(cells["fedraw"][accuracy]) > float(cells["fedfa"][accuracy])


def test_own_data_keeps_the_label_of_one_site() -> None:
    lines = run_example("own_data.py")
    assert [line.split(":")[0] for line in lines] == ["calm", "storm", "hail"]
    recall = int(lines[2].split()[1])
    assert recall > 50


def test_own_training_shows_both_rare_labels_under_both_methods() -> None:
    fedfa, fedraw = run_example("own_training.py")
    assert re.fullmatch(r"fedfa sandal \d+ % bag \d+ %", fedfa)
    assert re.fullmatch(r"fedraw sandal \d+ % bag \d+ %", fedraw)
    assert max(numbers(fedfa)) < 10
    assert min(numbers(fedraw)) > max(numbers(fedfa)) + 15


def test_the_text_classifier_knows_the_rare_topic() -> None:
    recall, sentence = run_example("text_classifier.py")
    assert re.fullmatch(r"music \d+ % weather \d+ % chess \d+ %", recall)
    assert min(numbers(recall)) > 80
    assert sentence == "then the knight was in the castle: chess"


def test_the_regression_is_good_on_the_rare_group_too() -> None:
    fedfa, fedraw, one_pass = run_example("tabular_regression.py")
    (_, fedfa_rare), (overall, rare) = numbers(fedfa), numbers(fedraw)
    assert fedraw.startswith("fedraw: mean absolute error ")
    assert rare < 0.8 * fedfa_rare
    assert overall < 200
    assert one_pass.startswith("one-pass: mean absolute error ")
    assert max(numbers(one_pass)) < 80


def test_own_strategy_keeps_more_of_the_rare_labels_than_its_rival() -> None:
    fedbuff, own = run_example("own_strategy.py")
    assert fedbuff.startswith("fedbuff: AvgRare ")
    assert own.startswith("rarefresh: AvgRare ")
    assert numbers(own)[0] > numbers(fedbuff)[0] + 5


def test_results_are_plotted_from_a_data_frame(tmp_path: Path) -> None:
    header, _, last = run_example("plot_results.py", tmp_path)
    assert header.split() == ["method", "fedfa", "fedraw", "fedraw-replay"]
    event, fedfa, fedraw, replay = numbers(last)
    assert event == 600
    assert fedfa < fedraw < replay
    png = (tmp_path / "rare_labels.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    code = (EXAMPLES / "quickstart.py").read_text().split('"""\n', 1)[1].strip()
    assert code in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/running.md"])
def test_the_pages_list_every_script(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [
        path.name for path in EXAMPLES.glob("*.py") if f"examples/{path.name}" not in text
    ] == []


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_imports_nothing_private_and_says_what_it_shows(script: Path) -> None:
    """Only `fedraw`, its documented `fedraw.strategies`, and libraries that users know."""
    usual = {"dataclasses", "datasets", "matplotlib", "numpy", "pandas", "torch"}
    tree = ast.parse(script.read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    ours = {name for name in imported if name.split(".")[0] not in usual}
    assert ours <= {"fedraw", "fedraw.strategies"}
    assert ast.get_docstring(tree)


TWO = fedraw.LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 1, "dog": 1}})


def own_strategy() -> tuple[RareFresh, RareFreshState]:
    strategy = RareFresh(buffer=2)
    state, receivers = strategy.start(fedraw.Setup(np.zeros(2, np.float32), TWO))
    assert list(receivers) == ["a", "b"]
    return strategy, state


def arrived(client: str, *values: float, version: int = 0) -> fedraw.Arrived:
    return fedraw.Arrived(fedraw.Update(client, version, np.array(values, np.float32), 1))


def test_own_strategy_weights_by_rarity_and_staleness() -> None:
    """S_a = 1/2 and S_b = 1/2 · 1/2 + 1/2 · 1 = 3/4."""
    strategy, state = own_strategy()
    state, receivers = strategy.step(state, arrived("a", 5, 0))
    assert receivers == ["a"]
    assert (state.version, state.contents.weights) == (0, [])
    state, _ = strategy.step(state, arrived("b", 0, 5))
    assert state.contents.clients == ["a", "b"]
    assert state.contents.weights == pytest.approx([0.4, 0.6])
    np.testing.assert_allclose(state.model, [2, 3], rtol=1e-6)
    # The next buffer: b started from version 0, so it counts 3/4 / sqrt(2) beside 1/2.
    state, _ = strategy.step(state, arrived("b", 0, 0))
    assert state.contents == (["b"], [])
    state, _ = strategy.step(state, arrived("a", 1, 1, version=1))
    stale = 0.75 / 2**0.5
    share = 0.5 / (0.5 + stale)
    assert state.contents.weights == pytest.approx([1 - share, share])
    np.testing.assert_allclose(state.model, [2 + share, 3 + share], rtol=1e-6)


def test_own_strategy_goes_on_after_a_refused_first_update() -> None:
    strategy, state = own_strategy()
    for bad, why in ((arrived("a", np.nan, 0), "NaN"), (arrived("c", 0, 0), "unknown")):
        with pytest.raises(fedraw.RefusedUpdate, match=why):
            strategy.step(state, bad)
    assert (state.version, state.contents) == (0, ([], []))
    state, _ = strategy.step(state, arrived("a", 1, 1))
    state, _ = strategy.step(state, arrived("a", 3, 3))
    assert state.model.tolist() == [2, 2]


def test_the_model_of_own_strategy_cannot_be_written_to() -> None:
    strategy, state = own_strategy()
    for client in ("a", "b"):
        state, _ = strategy.step(state, arrived(client, 1, 1))
    with pytest.raises(ValueError, match="read-only"):
        state.model[0] = 7
