"""The document of the training-free values."""

from __future__ import annotations

from fedraw_studies.artefacts import Artefact, PaperValue
from fedraw_studies.dynamics import DynamicsResults
from fedraw_studies.outcomes import Finding
from fedraw_studies.render import dynamics_markdown, dynamics_summary

TABLE = Artefact("Table IV", "rare clients slow", "Why it is so. " * 12, ())


def results(*found: Finding, made: str = "") -> DynamicsResults:
    return DynamicsResults(2, made, found)


def finding(printed: str | None, *values: float | None, row: str = "2x, FedFa") -> Finding:
    paper = None if printed is None else PaperValue.of(printed)
    return Finding.of("Table IV", row, "BufPres", paper, dict(enumerate(values)))


def test_a_document_has_its_origin_a_verdict_and_a_table() -> None:
    found = [finding("67.6", 60, 64), finding("61.0", 60, 64, row="2x, FedRAW")]
    text = dynamics_markdown([TABLE], results(*found, made="made by hand, today"))
    assert text.startswith("# Buffer dynamics")
    assert "\nmade by hand, today\n" in text
    assert "**1 of the paper's 2 distinct figures are inside.**" in text
    assert "## Table IV: rare clients slow\n" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in rows[0].split("|")] == [
        "", "", "metric", "paper", "ours", "least to most", "away", "inside", "",
    ]  # fmt: skip
    assert rows[2].split(" | ")[1:] == [
        "BufPres", "67.6 ", "62.0 ± 2.0", "60.0 to 64.0 ", "+2.8", "**no** |",
    ]  # fmt: skip
    assert rows[3].endswith("| -0.5 | yes    |")
    assert len({len(row) for row in rows}) == 1
    assert max(map(len, text.splitlines())) <= 120


def test_what_is_outside_is_said_in_full() -> None:
    text = dynamics_summary(results(finding("67.6", 60, 64)))
    said = "- Table IV, 2x, FedFa: BufPres is 67.6 in the paper and 62.0 ± 2.0 here"
    assert f"These figures are outside:\n\n{said}" in text
    assert "furthest" not in text


def test_of_those_inside_the_furthest_are_named_first() -> None:
    found = [finding("62.5", 60, 64, row="near"), finding("65.0", 60, 64, row="far")]
    text = dynamics_summary(results(*found))
    assert "are outside" not in text
    assert text.index("far") < text.index("near")


def test_figures_keep_the_paper_s_decimals() -> None:
    found = [
        finding("336", 400, 500),
        finding("0.353", 0.347, 0.349),
        finding(None, 0.3, 0.3),
        finding(None, 80, 90),
        finding("1.0", 1.0, None),
    ]
    text = dynamics_markdown([TABLE], results(*found))
    for words in ("450.0 ± 50.0", "0.348 ± 0.001", "0.300 ± 0.000", "85.0 ± 5.0", "undefined"):
        assert words in text
    assert "**2 of the paper's 2 figures" not in text
