"""The examples run, and the README shows them as they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("spec", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_example_specs_are_ready_to_run(spec: Path) -> None:
    read = Spec.from_toml(spec)
    scenario = Scenario.of(read, read.run.seeds[0])
    with executor_of(scenario, Options()) as executor:
        assert scenario.simulation(executor).step().event == 1


def run_example(name: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _split(line: str) -> tuple[str, str]:
    name, _, rest = line.partition(" ")
    return name, rest


def test_quickstart_shows_the_failure_and_its_cure() -> None:
    shown = {
        name: ast.literal_eval(rest) for name, rest in map(_split, run_example("quickstart.py"))
    }
    assert list(shown) == ["fedfa", "fedraw"]
    assert shown["fedfa"]["AvgRare"] < 5
    assert shown["fedraw"]["AvgRare"] > 35
    assert shown["fedraw"]["GlobalAcc"] > shown["fedfa"]["GlobalAcc"]


def test_own_data_keeps_the_label_of_one_site() -> None:
    lines = run_example("own_data.py")
    assert [line.split(":")[0] for line in lines] == ["calm", "storm", "hail"]
    recall = int(lines[2].split()[1])
    assert recall > 50


def test_own_strategy_runs_like_the_built_in_ones() -> None:
    (line,) = run_example("own_strategy.py")
    assert line.startswith("median: AvgRare ")


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    code = (EXAMPLES / "quickstart.py").read_text().split('"""\n', 1)[1].strip()
    assert code in (ROOT / "README.md").read_text()
