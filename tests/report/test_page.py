from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.hand_made import RARE, write_run

from fedraw.errors import BadInput
from fedraw.report.page import write_report

NASTY = "<script>alert(1)</script>" + "long" * 50


class Outline(HTMLParser):
    """Which tags there are, in order, and the text of each table cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self.cells.append("")

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def written(folder: Path, **words: str) -> str:
    out = folder / "deep" / "er" / "report.html"
    write_report([folder], out, **words)
    assert [path.name for path in out.parent.iterdir()] == ["report.html"], "no draft is left"
    return out.read_text(encoding="utf-8")


@pytest.fixture
def two_methods(tmp_path: Path) -> str:
    for seed, last in ((42, 50.0), (7, 70.0)):
        write_run(tmp_path, "fedraw", seed, [(60.0, 20.0), (90.0, last)])
        write_run(tmp_path, "fedfa", seed, [(60.0, 0.0), (80.0, 0.0)])
    return written(tmp_path, title="Hand-made", lead="Two methods, by hand.")


def test_the_page_holds_what_the_logs_come_to(two_methods: str) -> None:
    cells = Outline(two_methods).cells
    assert "★ 90.0 ± 0.0" in cells
    assert "★ 60.0 ± 10.0" in cells
    assert "60.0" in cells, "the recall of the rare label, mean over the seeds"
    # b weighs 1/4, and 2/3 of its samples are rare: 1/6 against 2 of 6 samples.
    assert cells.count("0.50 × 16.7 % against 33.3 %") == 2
    assert f"{RARE} rare" in cells


def test_the_caption_says_what_the_numbers_are(two_methods: str) -> None:
    assert "Mean ± population sd over 2 seeds, values of the last model." in two_methods


def test_spec_machine_and_date_are_given(two_methods: str) -> None:
    assert "seeds = [7, 42]" in two_methods
    assert "Run on 2031-02-03; z80, 1 core, Python 3.11.1." in two_methods
    assert "digits · 2 clients · 2 events · 2 methods · 2 seeds · rare: scarce" in two_methods


def test_it_needs_nothing_from_outside(two_methods: str) -> None:
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in two_methods
    for reference in ("http://", "https://", "src=", "url(", "@import", "<script", "javascript:"):
        assert reference not in two_methods, reference
    assert set(re.findall(r'href="([^#][^"]*)"', two_methods)) == {"data:,"}


def test_it_can_be_read_without_seeing_it(two_methods: str) -> None:
    outline = Outline(two_methods)
    assert ("html", {"lang": "en"}) in outline.tags
    assert any(attrs.get("name") == "viewport" for _, attrs in outline.tags)
    headings = [tag for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert headings == ["h1"] + ["h2"] * 5
    assert outline.count("table") == outline.count("caption") == 3
    assert all("scope" in attrs for tag, attrs in outline.tags if tag == "th")
    names = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(names) == len(set(names))


def test_the_same_logs_give_the_same_page(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    assert written(tmp_path) == written(tmp_path)


def test_nothing_that_was_given_is_executed(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, rare=NASTY, note="</code><b>$title")
    page = written(tmp_path, title=NASTY, lead=NASTY)
    outline = Outline(page)
    assert outline.count("script") == outline.count("b") == 0
    assert any(NASTY in cell for cell in outline.cells), "but it is shown"
    assert "&lt;/code&gt;&lt;b&gt;$title" in page


def test_a_training_free_run_has_dynamics_and_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, [])
    write_run(tmp_path, "fedfa", 42, [])
    page = written(tmp_path)
    outline = Outline(page)
    assert outline.count("svg") == outline.count("figure") == 0
    assert "last model" not in page
    assert "BufPres" in outline.cells
    assert "GlobalAcc" not in outline.cells
    assert outline.count("table") == 2


def test_rows_of_one_method_are_told_apart_as_in_a_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "five", "fedraw", 42, buffer=5)
    write_run(tmp_path / "ten", "fedraw", 42, buffer=10)
    cells = Outline(written(tmp_path)).cells
    assert {"fedraw buffer=5", "fedraw buffer=10"} <= set(cells)


@pytest.mark.parametrize("timing", [None, "", "[]", '{"date": 3}', "\ud800"])
def test_an_unusable_timing_is_passed_over(tmp_path: Path, timing: str | None) -> None:
    file = write_run(tmp_path, "fedraw", 42) / "seed-42" / "timing.json"
    file.unlink()
    if timing is not None:
        file.write_bytes(timing.encode("utf-8", "surrogatepass"))
    assert "</footer>" in written(tmp_path)


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, finished=False)
    with pytest.raises(BadInput, match="seed-42 is not finished"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_without_runs_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs"):
        write_report([], tmp_path / "report.html")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    with pytest.raises(BadInput, match=r"cannot write .*fedraw: Is a directory"):
        write_report([tmp_path], tmp_path / "fedraw")
    assert not list(tmp_path.glob("*.part"))
