"""The examples of docs/how-to/data.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"
OWN_DATA, FEATURES = PAGE.read_text().split("## Features, ")
BEGINNING, *EXAMPLES = re.findall(r"```python\n(.*?)```", OWN_DATA, re.DOTALL)
SPEC = Spec.from_dict(
    {
        "partition": {"kind": "iid", "clients": 3},
        "speeds": {"kind": "uniform"},
        "strategy": {"name": "fedfa", "buffer": 2},
        "training": {"kind": "none"},
        "run": {"events": 6, "seeds": [1]},
    }
)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_own_data_runs(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "import datasets" in example:
        pytest.importorskip("datasets", reason="Hugging Face's library is not installed")
    names: dict[str, Any] = {}
    exec(BEGINNING + example, names)
    given = {key: names[key] for key in ("data", "test", "partition", "speeds") if key in names}
    assert "data" in given
    summary = run_seed(SPEC, 1, parts=Parts(**given)).summary
    assert summary["events"] == 6


def test_every_form_has_an_example() -> None:
    assert len(EXAMPLES) == 14


def test_the_examples_of_features_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", FEATURES, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "docs_features"}
    results = []
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        results.append(names["result"])
    (seed,) = results[0]
    assert any("feature map own, 8 features" in note for note in seed.summary["notes"])
    assert (tmp_path / "map.safetensors").exists()
