"""Own parts that a SPEC.toml names through its `plugins` list."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedraw
from fedraw.cli.app import app
from fedraw.errors import BadInput
from fedraw.experiment.plugins import import_plugin

MODULE = """
import dataclasses
import numpy as np
import fedraw
import torch
from torch import nn

@dataclasses.dataclass(frozen=True)
class Half(fedraw.FedFa):
    half: bool = True

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def in_turn(labels, classes, rng):
    return [np.arange(i, len(labels), 8) for i in range(8)]

def train(model, data, context):
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for inputs, labels in data:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()

def some():
    rng = np.random.default_rng(0)
    return rng.random((200, 1, 8, 8), np.float32), np.arange(200) % 10
"""
SPEC = """
plugins = ["{module}"]
[data]
name = "{module}:some"
[strategy]
name = "{module}:Half"
buffer = 3
[partition]
kind = "{module}:in_turn"
[speeds]
kind = "equal"
[training]
kind = "{module}:train"
model = "{module}:net"
[run]
events = 20
evaluate_every = 20
seeds = [1, 2]
"""


@pytest.fixture
def spec(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A spec beside its plugin; each test has a module of its own."""
    name = f"plugin_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "spec.toml").write_text(SPEC.format(module=name))
    yield tmp_path / "spec.toml"
    sys.modules.pop(name, None)


def module_of(spec: Path) -> Path:
    return next(spec.parent.glob("plugin_*.py"))


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)
    return f"{done.output}{done.exception or ''}"


def logs(folder: Path) -> list[bytes]:
    return [log.read_bytes() for log in sorted(folder.glob("seed-*/events.jsonl"))]


def test_a_run_with_plugins_is_run_again_resumed_and_compared(spec: Path, tmp_path: Path) -> None:
    first = fedraw.simulate(fedraw.Spec.from_file(spec), out=tmp_path / "first")
    assert first.name == "half"
    assert first.spec["strategy"] == {
        "name": f"{module_of(spec).stem}:Half",
        "buffer": 3,
        "half": True,
    }
    assert "parts" not in first.spec
    again = fedraw.Spec.from_file(tmp_path / "first" / "seed-1" / "spec.toml")
    fedraw.simulate(again, out=tmp_path / "again")
    assert logs(tmp_path / "again") == logs(tmp_path / "first")[:1]
    kept = fedraw.simulate(fedraw.Spec.from_file(spec), out=tmp_path / "first", resume=True)
    assert kept.summary == first.summary
    (row,) = fedraw.compare([tmp_path / "first"])
    assert (row.name, row.seeds) == ("half", (1, 2))


def test_a_changed_plugin_is_found_when_its_run_is_resumed(spec: Path, tmp_path: Path) -> None:
    fedraw.simulate(fedraw.Spec.from_file(spec), out=tmp_path / "run", seeds=1)
    module = module_of(spec)
    module.write_text(MODULE.replace("nn.Flatten(), nn", "nn.Flatten(),  nn"))
    del sys.modules[module.stem]
    with pytest.raises(BadInput, match="the source of one of its own parts"):
        fedraw.simulate(fedraw.Spec.from_file(spec), out=tmp_path / "run", seeds=1, resume=True)


def test_nothing_is_imported_that_is_not_listed(spec: Path) -> None:
    module = module_of(spec)
    module.write_text("raise AssertionError('imported')")
    spec.write_text(SPEC.format(module=module.stem).replace("plugins = [", "# ["))
    with pytest.raises(BadInput, match=rf'not listed; write plugins = \["{module.stem}"\]'):
        fedraw.Spec.from_file(spec)
    assert module.stem not in sys.modules


def test_the_command_line_runs_plugins_and_says_what_is_wrong_with_them(spec: Path) -> None:
    module = module_of(spec)
    assert "8" in command("run", spec, "--dry-run", "--seeds", "1", "--set", "run.events=1")
    text = SPEC.format(module=module.stem)
    for wrong, message in [
        (text.replace(":net", ":nett"), "has no 'nett'; did you mean 'net'?"),
        (text.replace("buffer = 3", "bufer = 3"), "unknown key 'bufer'; did you mean 'buffer'?"),
        (
            text.replace('plugins = ["', 'plugins = ["no_such_module", "'),
            "no module 'no_such_module'",
        ),
        (text.replace('plugins = ["', 'plugins = ["../x", "'), "give the names of modules"),
        (text.replace("plugins = [", "plugins = 3 # ["), "plugins = 3 must be a list of modules"),
    ]:
        spec.write_text(wrong)
        with pytest.raises(BadInput, match=message.replace("?", r"\?")):
            fedraw.Spec.from_file(spec)


def test_a_plugin_that_fails_is_named_with_its_error(spec: Path) -> None:
    module_of(spec).write_text("import no_such_package")
    with pytest.raises(BadInput, match=r"failed \(ModuleNotFoundError: No module"):
        fedraw.Spec.from_file(spec)


def test_two_plugins_of_one_name_are_not_mixed_up(spec: Path, tmp_path: Path) -> None:
    module = module_of(spec)
    import_plugin(module.stem, str(spec.parent))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / module.name).write_text(MODULE)
    with pytest.raises(BadInput, match=r"is already imported from .*; rename one of them"):
        import_plugin(module.stem, str(tmp_path / "other"))


@pytest.mark.filterwarnings("ignore:the test set has labels that no client holds")
def test_the_command_line_refuses_a_run_whose_parts_only_python_has(tmp_path: Path) -> None:
    fedraw.simulate(
        partition=lambda labels, classes, rng: [range(9), range(9, 20)],
        strategy="fedavg",
        speeds=fedraw.Equal(),
        train="none",
        events=9,
        seeds=1,
        out=tmp_path / "run",
    )
    text = '[strategy]\nname = "fedavg"\n[speeds]\nkind = "equal"\n[training]\nkind = "none"\n'
    (tmp_path / "spec.toml").write_text(text)
    for spec in (tmp_path / "run/seed-1/spec.toml", tmp_path / "spec.toml"):
        told = command("run", spec, "--seeds", "1", "-o", tmp_path / "run", "--resume")
        assert "given in Python: partition ('<lambda>')" in told
        assert "plugins setting" in told
