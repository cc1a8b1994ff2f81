from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.eventlog import federation_log
from tests.eventlog.logs import rewrite
from tests.report.hand_made import COMMON, RARE, write_run

from fedraw.errors import BadInput
from fedraw.report.page import write_report

NASTY = "</style></textarea><script>alert(1)</script>" + "long" * 50


class Outline(HTMLParser):
    """Collects the tags in order, and the text of each table cell."""

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
        write_run(tmp_path, "fedraw", seed, [(60.0, 20.0)] * 3 + [(90.0, last)] * 5)
        write_run(tmp_path, "fedfa", seed, [(60.0, 0.0)] * 3 + [(80.0, 0.0)] * 5)
    return written(tmp_path, title="Hand-made", lead="By hand.", command="fedraw report x")


def test_the_page_has_the_results_of_the_logs(two_methods: str) -> None:
    cells = Outline(two_methods).cells
    assert "90.0 ± 0.0" in cells, "without a star, because the only other method has collapsed"
    assert "60.0 ± 14.1" in cells
    assert "3, 0 s" in cells, "the seeds pass 50 % at their second and fourth evaluation"
    assert cells.count("not within 2") == 6, "80 %, and both marks of fedfa; also for the label"
    assert "60.0" in cells, "the recall of the rare label, mean over the seeds"
    # b weighs 1/4, and 2/3 of its samples are rare: 1/6 against 2 of 6 samples.
    assert cells.count("0.50 × 16.7 % against 33.3 %") == 2
    assert f"{RARE} rare" in cells


def test_the_caption_says_what_the_numbers_are(two_methods: str) -> None:
    assert "Mean ± sd over 2 seeds, mean of the last five evaluations." in two_methods


def test_the_page_has_spec_machine_and_date(two_methods: str) -> None:
    assert "seeds = [7, 42]" in two_methods
    assert "run on 2031-02-03 · page by fedraw 0." in two_methods
    assert "<code>fedraw report x</code>" in two_methods
    assert "Run on z80, 1 core, Python 3.11.1." in two_methods
    assert "digits · 2 clients · 2 events · 2 methods · 2 seeds · rare: scarce" in two_methods


def test_the_page_needs_no_other_file(two_methods: str) -> None:
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in two_methods
    for reference in ("http://", "https://", "src=", "url(", "@import", "javascript:", "eval("):
        assert reference not in two_methods, reference
    assert set(re.findall(r'href="([^#][^"]*)"', two_methods)) == {"data:,"}


def test_only_the_page_s_own_script_may_run(two_methods: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", two_methods, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in two_methods, "the policy allows it"


def test_the_page_is_accessible(two_methods: str) -> None:
    outline = Outline(two_methods)
    assert ("html", {"lang": "en"}) in outline.tags
    assert any(attrs.get("name") == "viewport" for _, attrs in outline.tags)
    headings = [tag for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert headings == ["h1"] + ["h2"] * 11
    assert outline.count("table") == outline.count("caption") == 11
    assert all("scope" in attrs for tag, attrs in outline.tags if tag == "th")
    names = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(names) == len(set(names))
    links = [str(attrs["href"]) for tag, attrs in outline.tags if tag == "a"]
    assert len(links) == 11
    assert {link.removeprefix("#") for link in links} <= set(names)


def numbers(page: str, identity: str) -> list[list[str]]:
    """Return the text that the button beside a table or figure copies."""
    found = re.search(f'<textarea id="{identity}-csv"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    assert found is not None
    return list(csv.reader(io.StringIO(unescape(found[1]))))


def test_every_table_can_be_copied_as_csv(two_methods: str) -> None:
    head, fedfa, fedraw = numbers(two_methods, "comparison")
    assert dict(zip(head, fedraw, strict=True))["AvgRare_mean"] == "60.0"
    assert [fedfa[0], fedraw[0]] == ["fedfa", "fedraw"]
    recall = [["label", "rare", "fedfa", "fedraw"]]
    assert numbers(two_methods, "recall")[:1] == recall
    assert numbers(two_methods, "recall")[1] == [RARE, "rare", "0.0", "60.0"]
    assert ["fedraw", RARE, COMMON, "75.0"] in numbers(two_methods, "mistaken")
    assert numbers(two_methods, "confusion-0")[2] == [RARE, "6", "2"], "two seeds together"
    assert ["AvgRare", "fedraw", "8.0", "60.0", "50.0", "70.0"] in numbers(
        two_methods, "curve-points"
    )


def test_influence_of_clients_relative_to_their_samples(two_methods: str) -> None:
    # b weighs 1/4 and holds 3 of 6 samples; a weighs 3/4 and holds the others.
    rows = numbers(two_methods, "clients")
    assert ["fedraw", "rare clients", "0.25", "0.5", "0.5"] in rows
    assert ["fedraw", "other clients", "0.75", "0.5", "1.5"] in rows
    assert "Influence of 1 rare client of 2" in two_methods


def test_the_history_of_each_seed_can_be_copied(two_methods: str) -> None:
    rows = numbers(two_methods, "history")
    assert rows[1] == ["fedfa", "7", "0.5", "1.0", "100.0", "1.0", "75.0", "25.0"]
    assert len(rows) == 1 + 4 * 2


def test_staleness_of_rare_and_other_clients_is_shown(two_methods: str) -> None:
    rows = numbers(two_methods, "stale")
    assert rows[1] == ["fedfa", "common", *["4"] * 6, "4.0", "2"]
    assert rows[2] == ["fedfa", "rare", *["8"] * 6, "8.0", "2"]


def test_the_default_lead_names_the_method_that_keeps_the_rare_labels(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, [(90.0, 50.0)])
    assert (
        "fedraw reaches 90.0 % on all labels and 50.0 % on the rare ones after 2 arrivals."
        in written(tmp_path)
    )
    write_run(tmp_path, "fedfa", 42, [(80.0, 0.0)])
    page = written(tmp_path)
    assert "Of 2 methods, fedraw recognises the rare labels best: 50.0 %" in page
    assert "1 recognises less than half of them, while reaching 80.0 % on all labels." in page


def test_a_collapsed_model_has_no_headline_and_no_star(tmp_path: Path) -> None:
    """The made-up metrics are the best, but the model recognises no label."""
    write_run(tmp_path, "fedraw", 42, [(90.0, 50.0)], labels_beside=8)
    write_run(tmp_path, "wild", 42, [(99.0, 0.0)], labels_beside=8)
    log = tmp_path / "wild/seed-42/events.jsonl"
    rewrite(log, lambda text: text.replace("90.0", "0.0"))
    rewrite(log, lambda text: text.replace('"AvgRare":0.0', '"AvgRare":99.0'))
    page = written(tmp_path)
    assert "Of 2 methods, fedraw recognises the rare labels best: 50.0 %" in page
    cells = Outline(page).cells
    assert "wild collapsed" in cells
    assert "99.0" in cells
    assert "★ 90.0" not in cells, "nothing is left to be ahead of"
    assert "wild collapsed: the last model is no better than one that" in page
    first = page[page.index("<svg") : page.index("</svg>")]
    assert first.index(">fedraw<") < first.index(">wild (collapsed)<"), "sound models come first"
    shutil.rmtree(tmp_path / "fedraw")
    assert "Every method has collapsed" in written(tmp_path)


def test_the_same_logs_give_the_same_page(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    assert written(tmp_path) == written(tmp_path)


def test_given_text_is_never_executed(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, rare=NASTY, note="</code><b>$title")
    page = written(tmp_path, title=NASTY, lead=NASTY)
    outline = Outline(page)
    assert outline.count("script") == 1, "the page's own"
    assert outline.count("b") == 0
    assert any(NASTY in cell for cell in outline.cells), "but it is shown"
    assert "&lt;/code&gt;&lt;b&gt;$title" in page


def test_a_training_free_run_has_dynamics_and_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, [])
    write_run(tmp_path, "fedfa", 42, [])
    page = written(tmp_path)
    outline = Outline(page)
    labels = [a["aria-label"] for tag, a in outline.tags if tag == "svg" and "role" in a]
    assert [str(label).split(" (")[0] for label in labels] == [
        "Aggregations with a rare client in the buffer",
        "Rare clients in the buffer",
        "Rare clients together",
        "The client with the largest weight",
        "Staleness of the updates of rare and of other clients, method by method",
    ]
    assert "last model" not in page
    assert "BufPres" in outline.cells
    assert "GlobalAcc" not in outline.cells
    assert outline.count("table") == 6


def test_rows_of_one_method_have_different_names(tmp_path: Path) -> None:
    write_run(tmp_path / "five", "fedraw", 42, buffer=5)
    write_run(tmp_path / "ten", "fedraw", 42, buffer=10)
    cells = Outline(written(tmp_path)).cells
    assert {"fedraw buffer=5", "fedraw buffer=10"} <= set(cells)


@pytest.mark.parametrize("timing", [None, "", "[]", '{"date": 3}', "\ud800"])
def test_an_unusable_timing_is_ignored(tmp_path: Path, timing: str | None) -> None:
    file = write_run(tmp_path, "fedraw", 42) / "seed-42" / "timing.json"
    file.unlink()
    if timing is not None:
        file.write_bytes(timing.encode("utf-8", "surrogatepass"))
    assert "</footer>" in written(tmp_path)


def test_an_unfinished_run_is_shown_and_marked(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, finished=False, events_wanted=9)
    write_run(tmp_path, "fedfa", 42)
    page = written(tmp_path)
    assert "fedraw, seed 42: interrupted at event 2 of 9." in page
    cells = Outline(page).cells
    assert "fedraw interrupted" in cells
    assert "fedfa" in cells
    assert "50.0" in cells, "what it had reached"


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs"):
        write_report([], tmp_path / "report.html")


def test_an_unwritable_path_is_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    with pytest.raises(BadInput, match=r"fedraw is a folder"):
        write_report([tmp_path], tmp_path / "fedraw")
    assert not list(tmp_path.glob("*.part"))


def test_a_run_without_aggregations_is_shown(tmp_path: Path) -> None:
    log = write_run(tmp_path, "fedraw", 42, finished=False) / "seed-42/events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))  # nothing arrived yet
    page = written(tmp_path)
    assert "interrupted at event 0 of 2" in page
    assert Outline(page).count("svg") == 0


def test_a_real_federation_has_no_seed_and_no_data_but_changes(tmp_path: Path) -> None:
    log = [*federation_log.STORY, federation_log.END]
    federation_log.write(tmp_path / "federation" / "events.jsonl", log)
    page = written(tmp_path, title="Real")
    assert "3 clients · 5 events · 1 method · 1 run · rare: owl" in page
    assert (
        "fedraw: north joined later; east and west left; east came back; north declared new label"
        " counts; the server was restarted once, after 1 min 15 s." in page
    )
    assert "One run, mean of the last five evaluations." in page
    assert "None" not in page
    assert "fedraw run" not in page
    assert "deadline = 900.0" in page


def test_real_federations_are_compared(tmp_path: Path) -> None:
    story = [*federation_log.STORY[1:], federation_log.END]
    for name in ("fedraw", "fedfa"):
        server = {"folder": f"/srv/{name}"}
        spec = {"strategy": {"name": name}, "server": server}
        labels = ["cat", "owl"] if name == "fedraw" else ["owl", "cat"]  # who came first
        start = replace(federation_log.START, name=name, labels=labels, spec=spec)
        for again in ("one", "two"):
            federation_log.write(tmp_path / name / again / "events.jsonl", [start, *story])
    page = written(tmp_path)
    assert "2 methods · 2 runs" in page
    write_run(tmp_path, "simulated", 1)
    with pytest.raises(BadInput, match="because their data differ: those of a real federation and"):
        written(tmp_path)


def test_a_running_federation_is_marked_as_not_finished(tmp_path: Path) -> None:
    federation_log.write(tmp_path / "events.jsonl", federation_log.STORY)
    page = written(tmp_path)
    assert "fedraw: not finished, at event 5. Its numbers are from its last" in page


def test_the_caption_is_correct_if_rare_labels_are_recognised_better(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, [(70.0, 80.0)])
    write_run(tmp_path, "fedfa", 42, [(80.0, 20.0)])
    page = written(tmp_path)
    assert "fedraw recognises the rare labels better than all labels together" in page
    shutil.rmtree(tmp_path / "fedraw")
    assert "better than all labels" not in written(tmp_path)


def test_rows_with_different_budgets_have_a_note(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    write_run(tmp_path, "fedraw", 7)
    write_run(tmp_path, "fedfa", 42)
    assert "different seeds: 42 in fedfa; 7, 42 in fedraw" in written(tmp_path)


def test_the_rare_labels_are_the_first_panel_and_runs_are_collapsed(two_methods: str) -> None:
    plots = [str(attrs["aria-label"]) for tag, attrs in Outline(two_methods).tags
             if tag == "svg" and "role" in attrs]  # fmt: skip
    assert plots[1:3] == ["Rare labels (AvgRare, %)", "All labels (GlobalAcc, %)"]
    assert re.search(r'<h2 id="provenance">[^<]*</h2>\s*<details>', two_methods)
