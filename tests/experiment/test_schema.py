"""The JSON Schema of a spec: it accepts every example, and marks the mistakes that people make."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from tests.cli.command import fedraw
from tests.pins.test_parity import outcome, tables

from fedraw.core.settings import keys, meanings
from fedraw.experiment.schema import spec_schema
from fedraw.experiment.sections import StrategySpec
from fedraw.experiment.spec import Spec, sections
from fedraw.strategies.catalog import CATALOG

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(p for p in (ROOT / "examples").rglob("*.toml") if p.name != "pyproject.toml")
VALIDATOR = Draft7Validator(spec_schema())


def errors(table: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(json.loads(json.dumps(table)))]


def test_it_is_a_schema() -> None:
    Draft7Validator.check_schema(spec_schema())
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_and_its_resolved_form_are_valid(path: Path) -> None:
    assert errors(tomllib.loads(path.read_text())) == []
    assert errors(Spec.from_file(path).to_dict()) == []


def test_the_template_is_valid() -> None:
    text = files("fedraw.experiment").joinpath("template.toml").read_text(encoding="utf-8")
    assert errors(tomllib.loads(text)) == []


@pytest.mark.parametrize("name", CATALOG)
def test_the_resolved_spec_of_every_method_is_valid(name: str) -> None:
    assert errors(Spec.from_dict({"strategy": {"name": name}}).to_dict()) == []


def test_what_fedraw_reads_is_valid() -> None:
    """The fuzz of the parity: the schema refuses nothing that the reader takes."""
    given = (table for table in islice(tables(), 6000) if None not in table[1].values())
    taken = [(s, t) for s, t in given if outcome(s, t)]
    assert len(taken) > 1000
    assert [(s, t) for s, t in taken if errors({s: t})] == []


def test_what_only_one_key_decides_is_refused_by_both() -> None:
    """The schema lets pass only what it cannot express: text, files, seeds and combinations."""
    passed = [s for s, t in islice(tables(), 6000) if not outcome(s, t) and not errors({s: t})]
    assert len(passed) < 60


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"training": {"lrr": 0.1}}, "'lrr' was unexpected"),
        ({"trainig": {}}, "'trainig' was unexpected"),
        ({"training": {"lr": -1}}, "-1 is less than or equal to the minimum of 0"),
        ({"training": {"lr": "0.1"}}, "'0.1' is not of type 'number'"),
        ({"run": {"events": 1.5}}, "1.5 is not of type 'integer'"),
        ({"speeds": {"kind": "slow"}}, "'slow' is not one of"),
        ({"speeds": {"kind": "ratio"}}, "'ratio' is a required property"),
        ({"speeds": {"ratio": 3}}, "should not be valid under {'required': ['ratio']}"),
        ({"training": {"tau": 0.5}}, "1.0 was expected"),
        ({"partition": {"kind": "covrage"}}, "'covrage' is not valid under any of the given"),
        ({"misreport": {}}, "'label' is a required property"),
        ({"strategy": {"name": "fedbuf"}}, "'fedbuf' is not valid under any of the given"),
        ({"strategy": {"name": "fedfa", "server_lr": 1}}, "'server_lr' was unexpected"),
        ({"strategy": {"server_lr": 1}}, "'server_lr' was unexpected"),
        ({"strategy": {"name": "fedraw-dedup-only", "weighting": "rarity"}}, "'uniform' was exp"),
        ({"strategy": {"cap_at": 0.3}}, "1.0 was expected"),
        ({"strategy": {"name": "one-pass", "epsilon": -1}}, "-1 is less than the minimum of 0.01"),
        ({"version": 2}, "1 was expected"),
    ],
)
def test_mistakes_are_marked(spec: dict[str, Any], words: str) -> None:
    assert any(words in message for message in errors(spec)), errors(spec)


def test_a_plugin_may_have_any_settings() -> None:
    assert errors({"plugins": ["mine"], "strategy": {"name": "mine:Own", "speed": 3}}) == []
    assert errors({"partition": {"kind": "mine:by_writer"}}) == []


@pytest.mark.parametrize("name", [n for n, kind in sections().items() if kind is not StrategySpec])
def test_every_key_is_explained(name: str) -> None:
    kind = sections()[name]
    assert meanings(kind).keys() >= keys(kind).keys()
    assert all(len(text) > 10 for text in meanings(kind).values())


def test_a_new_spec_names_the_schema_beside_it(tmp_path: Path) -> None:
    assert fedraw("new", "my.toml", cwd=tmp_path).returncode == 0
    first = (tmp_path / "my.toml").read_text().splitlines()[0]
    assert first == "#:schema ./fedraw.schema.json"
    assert json.loads((tmp_path / "fedraw.schema.json").read_text()) == spec_schema()
    assert Spec.from_file(tmp_path / "my.toml").partition.rare_labels == (8, 9)
    printed = fedraw("schema", cwd=tmp_path)
    assert json.loads(printed.stdout) == spec_schema()
    assert "place.json" in fedraw("schema", "-o", "no/such/place.json", cwd=tmp_path).stderr
