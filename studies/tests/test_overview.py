"""The verdicts of several scales in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedraw.errors import BadInput
from fedraw_studies.overview import overview_markdown, write_overview
from fedraw_studies.render import fill_includes


def claim(name: str, verdict: str, *parts: str) -> dict[str, Any]:
    judged = [{"verdict": part} for part in parts]
    return {"name": name, "claim": f"{name} is true", "where": "Table I", "verdict": verdict} | {
        "parts": judged
    }


LEVEL = [
    claim("a", "not run yet", "holds", "not run yet"),
    claim("b", "not run yet", "not run yet"),
    claim("c", "partly", "holds", "does not hold"),
]
CPU = [claim("a", "holds", "holds", "holds"), claim("d", "partly", "partly")]


def lines(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_claim_has_one_line_with_its_verdict_at_every_scale() -> None:
    table = lines(overview_markdown({"level": LEVEL, "cpu": CPU}))[4:]

    assert table[0] == ["claim", "where", "`level`", "`cpu`"]
    assert table[2:] == [
        ["a is true", "Table I", "1 of 2 parts (holds: 1)", "**holds**"],
        ["b is true", "Table I", "–", "–"],
        ["c is true", "Table I", "**partly** (holds: 1, does not hold: 1)", "–"],
        ["d is true", "Table I", "–", "**partly**"],
    ]


def test_verdicts_are_counted_for_each_scale() -> None:
    head, _, level, cpu = lines(overview_markdown({"level": LEVEL, "cpu": CPU}))[:4]

    assert dict(zip(head, level, strict=True)) == {
        "scale": "`level`, corrected", "claims": "3", "holds": "0", "partly": "1",
        "does not hold": "0", "cannot be compared": "0", "waiting": "2",
        "parts": "holds: 2, does not hold: 1, not run yet: 2",
    }  # fmt: skip
    assert cpu[:4] == ["`cpu`", "2", "1", "1"]


def test_one_scale_alone_needs_no_overview(tmp_path: Path) -> None:
    write(tmp_path, "cpu", CPU)

    write_overview(tmp_path)

    assert not (tmp_path / "claims.md").exists()


@pytest.mark.parametrize("damaged", ["{", "[]", "{}", '{"claims": [{}]}'])
def test_a_damaged_summary_is_named_with_the_command_that_mends_it(
    tmp_path: Path, damaged: str
) -> None:
    write(tmp_path, "cpu", CPU)
    write(tmp_path, "level", LEVEL)
    (tmp_path / "level" / "summary.json").write_text(damaged)

    with pytest.raises(BadInput, match=r"level/summary\.json .*--render --scale level"):
        write_overview(tmp_path)


def test_a_page_includes_the_overview_whatever_scale_is_rendered(tmp_path: Path) -> None:
    write(tmp_path, "cpu", CPU)
    write(tmp_path, "level", LEVEL)
    page = "<!-- include all claims 1 -->\n<!-- /include -->"

    write_overview(tmp_path)

    assert "`level`, corrected" in fill_includes(page, "level", tmp_path / "level")
    assert fill_includes(page, "cpu", tmp_path / "cpu") == fill_includes(
        page, "level", tmp_path / "level"
    )


def write(results: Path, scale: str, claims: list[dict[str, Any]]) -> None:
    (results / scale).mkdir()
    (results / scale / "summary.json").write_text(json.dumps({"claims": claims}))


def test_the_committed_overview_is_what_the_summaries_say() -> None:
    results = Path(__file__).parents[1] / "results"
    scales = ("level", "ham10000", "cpu")
    judged = {s: json.loads((results / s / "summary.json").read_text())["claims"] for s in scales}

    assert (results / "claims.md").read_text(encoding="utf-8") == overview_markdown(judged)
