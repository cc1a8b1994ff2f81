"""The report page in a real browser: it loads without errors, sorts tables and copies numbers."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from tests.browser import Tab, started
from tests.report.hand_made import write_run

from fedraw.experiment.demo import demo_specs
from fedraw.experiment.log_records import row_name
from fedraw.experiment.simulate import simulate
from fedraw.report.page import write_report

NASTY = "</style><script>console.error('executed')</script>" + "long" * 40
ROWS = "[...document.querySelectorAll('#comparison tbody th')].map(head => head.textContent)"
HEAD = (
    "[...document.querySelectorAll('#comparison [data-column]')]"
    ".find(head => head.textContent == 'AvgRare')"
)
COPY = "document.querySelector('[data-copies=recall-csv]')"
AXE = (
    os.environ.get("AXE_CORE", ""),
    "node_modules/axe-core/axe.min.js",
    ".venv/axe.min.js",
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield Tab(browser)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for seed in (42, 7):
        write_run(folder, "fedraw", seed, rare=NASTY)
        write_run(folder, "fedfa", seed, [(60.0, 0.0), (80.0, 0.0)], rare=NASTY)
        write_run(folder, "fedbuff", seed, [(60.0, 5.0)], rare=NASTY)
    write_run(folder, "ca2fl", 42, [(70.0, None)], rare=NASTY, finished=False)
    write_report([folder], folder / "report.html", title=NASTY, lead="By hand.")
    return folder / "report.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page with more methods and labels than fit on a narrow screen."""
    folder = tmp_path_factory.mktemp("large")
    for number in range(9):
        write_run(folder, f"method-with-a-long-name-{number}", 1, labels_beside=45)
    write_report([folder], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of short runs of every method of the demo on digits."""
    folder = tmp_path_factory.mktemp("real")
    for spec in demo_specs([1, 2]):
        short = replace(spec, run=replace(spec.run, events=60, evaluate_every=20))
        simulate(short, out=folder / row_name(spec.strategy))
    write_report([folder], folder / "report.html")
    return folder / "report.html"


def test_a_page_of_real_runs_opens_sorts_and_copies(tab: Tab, real: Path) -> None:
    tab.open(real)
    assert tab.complaints == []
    assert tab.requests == [real.as_uri()]
    assert tab.evaluate("document.querySelectorAll('figure svg[role=img]').length") == 8
    assert len(tab.evaluate(ROWS)) == len(demo_specs())
    tab.evaluate(f"{HEAD}.querySelector('button').click()")
    column = tab.evaluate(f"Number({HEAD}.dataset.column)")
    shown = tab.evaluate(
        "[...document.querySelectorAll('#comparison tbody tr')]"
        f".map(row => row.cells[{column}].textContent)"
    )
    values = [float(text.removeprefix("★ ").split(" ")[0]) for text in shown]
    assert values == sorted(values, reverse=True)
    tab.allow("clipboard-read", "granted")
    tab.allow("clipboard-write", "granted")
    assert copied(tab) == "Copied."
    head, *rows = csv.reader(io.StringIO(tab.evaluate("navigator.clipboard.readText()")))
    assert len(head) == 2 + len(demo_specs())
    assert [row[:2] for row in rows[:3]] == [["8", "rare"], ["9", "rare"], ["0", ""]]
    cells = "[...document.querySelectorAll('#recall tbody td')].map(c => Number(c.textContent))"
    numbers = [round(float(value), 1) for row in rows for value in row[2:]]
    assert tab.evaluate(cells) == pytest.approx(numbers, abs=0.06)
    assert real.stat().st_size < 3_000_000


def test_the_page_loads_without_errors_or_requests(tab: Tab, page: Path) -> None:
    tab.open(page)
    assert tab.complaints == []
    assert tab.requests == [page.as_uri()]
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate("document.querySelector('h1').textContent") == NASTY
    assert tab.evaluate("document.querySelectorAll('figure svg[role=img]').length") == 8


def test_a_forbidden_script_is_reported(tab: Tab, page: Path, tmp_path: Path) -> None:
    """Without this, the test above could not fail."""
    bad = page.read_text().replace("</body>", "<script>1</script><img src='http://a.test/'></body>")
    (tmp_path / "bad.html").write_text(bad)
    tab.open(tmp_path / "bad.html")
    assert len(tab.complaints) == 2


def test_a_click_on_a_head_sorts_and_sets_aria_sort(tab: Tab, page: Path) -> None:
    tab.open(page)
    assert tab.evaluate(ROWS) == ["ca2fl interrupted", "fedbuff", "fedfa collapsed", "fedraw"]
    tab.evaluate(f"{HEAD}.querySelector('button').click()")
    assert tab.evaluate(ROWS) == ["fedraw", "fedbuff", "fedfa collapsed", "ca2fl interrupted"]
    assert tab.evaluate(f"{HEAD}.getAttribute('aria-sort')") == "descending"
    tab.evaluate(f"{HEAD}.querySelector('button').click()")
    rising = ["fedfa collapsed", "fedbuff", "fedraw", "ca2fl interrupted"]
    assert tab.evaluate(ROWS) == rising, "undefined stays last"
    sorts = "[...document.querySelectorAll('#comparison [aria-sort]')].map(h => h.ariaSort)"
    assert sorted(set(tab.evaluate(sorts))) == ["ascending", "none"]


def test_the_keyboard_reaches_all_controls_and_sorts(tab: Tab, page: Path) -> None:
    tab.open(page)
    reached = []
    for _ in range(400):
        tab.press("Tab")
        reached.append(
            tab.evaluate(
                "(e => [e.tagName, e.className, e.closest('table')?.id ?? '',"
                " e.textContent.slice(0, 9)])(document.activeElement)"
            )
        )
        if reached[-1] == ["BUTTON", "sort", "comparison", "AvgRare"]:
            tab.press("Enter")
        if reached[-1][0] == "BODY":
            break
    tags = {entry[0] for entry in reached}
    assert {"A", "BUTTON", "SUMMARY", "DIV"} <= tags, "links, buttons, folds, boxes that scroll"
    copies = [entry for entry in reached if entry[1] == "copy"]
    assert len(copies) == 7, "those beside what is not folded"
    assert tab.evaluate(ROWS)[0] == "fedraw"


def copied(tab: Tab) -> str:
    """Return the status text beside the recall table after a click on its button."""
    tab.evaluate(f"{COPY}.click()")
    tab.evaluate("new Promise(done => setTimeout(done, 100))")
    return str(tab.evaluate(f"{COPY}.nextElementSibling.textContent"))


@pytest.mark.parametrize("setting", ["granted", "denied"])
def test_numbers_can_be_copied(tab: Tab, page: Path, setting: str) -> None:
    tab.open(page)
    tab.allow("clipboard-read", "granted")
    tab.allow("clipboard-write", "granted")
    tab.evaluate("navigator.clipboard.writeText('something else')")
    tab.allow("clipboard-write", setting)
    assert copied(tab) == "Copied."
    rows = list(csv.reader(io.StringIO(tab.evaluate("navigator.clipboard.readText()"))))
    assert rows[0] == ["label", "rare", "ca2fl", "fedbuff", "fedfa", "fedraw"]
    assert rows[1] == [NASTY, "rare", "", "5.0", "0.0", "35.0"]
    shown = tab.evaluate(
        "[...document.querySelectorAll('#recall tbody tr:first-child td')].map(c => c.textContent)"
    )
    assert shown == ["–", "5.0", "0.0", "35.0"], "the table itself"


@pytest.mark.parametrize("without", ["clipboard: undefined", "clipboard: {}"])
def test_without_a_clipboard_the_numbers_are_selected(tab: Tab, page: Path, without: str) -> None:
    tab.open(page)
    value = without.removeprefix("clipboard: ")
    tab.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {value} }}); 0")
    tab.evaluate("document.execCommand = () => false; 0")
    assert copied(tab) == "Selected: copy it with Ctrl+C or Cmd+C."
    assert tab.evaluate("document.activeElement.id") == "recall-csv"
    assert tab.evaluate("document.activeElement.value == getSelection().toString()")


def test_without_scripts_all_content_is_shown(tab: Tab, page: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page)
        assert tab.evaluate("document.querySelectorAll('button:not([hidden])').length") == 0
        assert tab.evaluate(ROWS) == ["ca2fl interrupted", "fedbuff", "fedfa collapsed", "fedraw"]
        assert "fedraw" in tab.evaluate("document.getElementById('recall-csv').value")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("width", [360, 1280, 1920])
@pytest.mark.parametrize("which", ["page", "large"])
def test_only_boxes_scroll_sideways(
    tab: Tab, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    tab.open(request.getfixturevalue(which), width=width)
    tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") == width


ENTRY = "document.querySelector('.legend [data-series=\"3\"]')"


def faded(tab: Tab) -> set[tuple[str, bool]]:
    """Return the numbers of the methods whose lines are faded."""
    tab.evaluate("new Promise(done => setTimeout(done, 300))")
    lines = "[...document.querySelectorAll('g[data-series]')]"
    found = tab.evaluate(f"{lines}.map(g => [g.dataset.series, getComputedStyle(g).opacity < 0.5])")
    return {(number, pale) for number, pale in found}


def test_a_method_is_highlighted_by_pointer_focus_and_click(tab: Tab, page: Path) -> None:
    tab.open(page)
    whole = {(str(n), False) for n in range(4)}
    alone = {(str(n), n != 3) for n in range(4)}
    assert faded(tab) == whole
    tab.evaluate(f"{ENTRY}.focus()")
    assert faded(tab) == alone
    tab.evaluate(f"{ENTRY}.blur()")
    assert faded(tab) == whole
    tab.evaluate(f"{ENTRY}.dispatchEvent(new PointerEvent('pointerenter'))")
    assert faded(tab) == alone
    tab.evaluate(f"{ENTRY}.dispatchEvent(new PointerEvent('pointerleave'))")
    assert faded(tab) == whole
    tab.evaluate(f"{ENTRY}.click()")
    assert faded(tab) == alone, "it stays"
    assert tab.evaluate(f"{ENTRY}.getAttribute('aria-pressed')") == "true"
    tab.evaluate("document.querySelector('.legend [data-series=\"1\"]').click()")
    assert faded(tab) == {(str(n), n not in (1, 3)) for n in range(4)}, "two can be compared"


def test_on_a_phone_the_rare_labels_come_first_and_nothing_is_clipped(
    tab: Tab, large: Path
) -> None:
    tab.open(large, width=390)
    panels = "[...document.querySelectorAll('#curves ~ figure .panel')]"
    sides = "(r => [r.left, r.right, r.top, r.bottom])(p.getBoundingClientRect())"
    first, second = tab.evaluate(f"{panels}.map(p => {sides})")
    title = "document.querySelector('#curves ~ figure .panel p').textContent"
    assert tab.evaluate(title) == "Rare labels (AvgRare, %)"
    assert second[2] >= first[3], "one below the other"
    for left, right, *_ in (first, second):
        assert 0 <= left < right <= 390
    boxes = "[...document.querySelectorAll('figure .box')]"
    assert tab.evaluate(f"{boxes}.filter(b => b.scrollWidth > b.clientWidth + 1).length") == 0
    words = "[...document.querySelectorAll('figure text')].map(t => t.getBoundingClientRect())"
    assert tab.evaluate(f"Math.min(...{words}.map(r => r.left))") >= 0
    assert tab.evaluate(f"Math.max(...{words}.map(r => r.right))") <= 390
    captions = "[...document.querySelectorAll('caption span')].map(c => c.getBoundingClientRect())"
    assert tab.evaluate(f"Math.max(...{captions}.map(r => r.right))") <= 390


def test_text_and_figures_use_the_width_of_a_desktop(tab: Tab, page: Path) -> None:
    tab.open(page, width=1280)
    wide = "getBoundingClientRect().width"
    assert tab.evaluate(f"document.querySelector('header p').{wide}") > 1100
    assert tab.evaluate(f"document.querySelector('#curves ~ figure .box').{wide}") > 1100


def test_a_large_heat_map_keeps_its_labels_visible(tab: Tab, large: Path) -> None:
    tab.open(large, width=360)
    box = "document.querySelector('#recall').closest('.box')"
    assert tab.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    assert tab.evaluate(f"{box}.scrollHeight > {box}.clientHeight")
    tab.evaluate(f"{box}.scrollTo(300, 600)")
    where = "getBoundingClientRect()"
    assert 0 <= tab.evaluate(f"document.querySelector('#recall tbody th').{where}.left") < 40
    head = tab.evaluate(f"document.querySelector('#recall thead th').{where}.top")
    assert 0 <= head - tab.evaluate(f"{box}.{where}.top") < 3
    text = "getComputedStyle(document.querySelector('#recall td')).fontSize"
    assert float(tab.evaluate(text).removesuffix("px")) >= 12


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_renders_at_every_width(
    tab: Tab, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    tab.open(page, width=width, dark=dark)
    tab.screenshot(tmp_path / "shot.png")
    image = imread(tmp_path / "shot.png")[..., :3]
    assert image.shape == (900, width, 3)
    ground = image[2, 2]
    assert (ground.mean() < 0.2) == dark
    assert 0.02 < (abs(image - ground).max(axis=2) > 0.3).mean() < 0.5, "there is text on it"


def axe() -> str:
    root = Path(__file__).parents[2]
    for place in filter(None, AXE):
        if (root / place).is_file():
            return (root / place).read_text(encoding="utf-8")
    reason = "no axe-core: 'make browser' fetches it with npm, or AXE_CORE names axe.min.js"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_serious_problem(tab: Tab, page: Path, width: int, dark: bool) -> None:
    script = axe()
    tab.open(page, width=width, dark=dark)
    tab.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    tab.evaluate(f"{script}; 0")
    found: list[dict[str, Any]] = tab.evaluate("axe.run().then(result => result.violations)")
    serious = [
        (problem["id"], [node["html"][:200] for node in problem["nodes"][:3]])
        for problem in found
        if problem["impact"] in ("serious", "critical")
    ]
    assert serious == []
