"""Table I of the documentation is what the methods of the catalogue do."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from fedraw.strategies.catalog import CATALOG
from fedraw_studies.artefacts import study_file
from fedraw_studies.cli import reproduce
from fedraw_studies.positioning import Profile, table1_markdown

METHODS = Path(__file__).parents[2] / "docs" / "explanation" / "method.md"


@pytest.fixture(scope="module")
def measured() -> dict[str, Profile]:
    """What the command prints."""
    with redirect_stdout(StringIO()) as output:
        reproduce(["table1"], json_=True)
    rows = json.loads(output.getvalue())["table1"]
    return {row["name"]: Profile(**row) for row in rows}


def test_the_documentation_has_the_table_of_this_catalogue(measured: dict[str, Profile]) -> None:
    text = table1_markdown(list(measured.values()))
    assert text in METHODS.read_text(encoding="utf-8"), "write `fedraw reproduce table1` into it"


def test_weights_that_are_known_by_hand(measured: dict[str, Profile]) -> None:
    # Clients 0 to 19 in turn, K = 10, scores 0.275 = 0.5/2 + 0.5/20 and 0.05 for the others. Of
    # 20 buffers 9 hold both rare clients, 1 only the first, 1 only the second.
    both, alone = 0.275 / (0.55 + 8 * 0.05), 0.275 / (0.275 + 9 * 0.05)
    rare = (9 * both + alone) / 20
    assert measured["fedraw"].rarity == pytest.approx(rare / ((1 - 2 * rare) / 18))
    assert measured["fedavg"].samples == pytest.approx(5)
    assert measured["ca2fl"].speed == pytest.approx(1, abs=0.05)
    assert measured["fedfa"].rarity == pytest.approx(1)
    assert measured["fedraw"].most == pytest.approx(10)
    assert measured["fedraw"].speed < 3
    assert measured["fedfa"].speed > 9
    assert measured["qfedavg"].asks == "their loss"


def test_what_the_paper_says_of_fedraw_is_what_it_does(measured: dict[str, Profile]) -> None:
    """Its row has No, Yes, Yes, Yes, Yes; arrival bias is reduced and not gone."""
    own, fedfa = measured["fedraw"], measured["fedfa"]
    assert own.samples == pytest.approx(1, abs=0.05)
    assert own.speed < fedfa.speed / 3
    assert own.most < fedfa.most / 3
    assert own.asks == "label counts"
    assert own.rarity > 2


def test_categories_name_methods_of_the_catalogue() -> None:
    named = [name for own in study_file("table1")["categories"] for name in own["methods"]]
    assert len(named) == len(set(named))
    assert set(named) <= set(CATALOG)


def test_a_dry_run_computes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(["table1", "bound"], dry_run=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "table1 has no stored runs" in told.err
    assert "bound has no stored runs" in told.err
