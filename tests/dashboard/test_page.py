"""The dashboard in a real browser: live, at two widths, in light and dark, with hostile names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Tab, installed, started
from tests.dashboard.process import Dashboard, dashboard
from tests.dashboard.test_dashboard import NASTY
from tests.eventlog.federation_log import STORY, write
from tests.eventlog.logs import as_bytes, record
from tests.report.hand_made import write_run
from tests.report.test_browser import AXE

ROWS = "[...document.querySelectorAll('#sites-table tbody th')].map(h => h.firstChild.textContent)"


class Page:
    """An address in the form that `Tab.open` accepts."""

    def __init__(self, url: str) -> None:
        self.url = url

    def as_uri(self) -> str:
        return self.url


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield Tab(browser)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dashboard, Path]]:
    installed()
    folder = tmp_path_factory.mktemp("runs")
    for name, late in (("fedraw", 80.0), ("fedfa", 0.0)):
        write_run(folder / "runs", name, 1, [(60.0, 30.0), (80.0, late)], rare=NASTY)
    log = write(folder / "runs/server/events.jsonl", STORY[:7])
    with dashboard("runs", cwd=folder) as process:
        yield process, log


def until(tab: Tab, script: str, wanted: Any) -> None:
    end = time.monotonic() + 60
    while (found := tab.evaluate(script)) != wanted:
        assert time.monotonic() < end, found
        time.sleep(0.1)


def test_the_page_follows_a_server_without_a_reload(tab: Tab, seen: tuple[Dashboard, Path]) -> None:
    process, log = seen
    server = next(run["id"] for run in process.until(process.runs) if run["server"])
    tab.open(Page(f"{process.url}#{server}"))  # type: ignore[arg-type]
    until(tab, "document.getElementById('live').textContent", "live")
    until(tab, ROWS, ["north", "east", "west"])  # rare first, then who is silent for longest
    with log.open("ab") as file:
        file.write(as_bytes(STORY[7:], after=log))
    until(tab, ROWS, ["west", "north", "east"])
    cautions = "document.querySelector('#run .cautions')?.textContent"
    until(tab, cautions, "Rare label owl: the last holder, north, has left.")
    assert tab.complaints == []
    with log.open("ab") as file:
        file.write(as_bytes([record("joined", event=5, client="<i>x</i>")], after=log))
    until(tab, f"{ROWS}.includes('<i>x</i>')", True)
    assert tab.evaluate("document.querySelectorAll('main i:not(.bar i)').length") == 0


def test_hostile_names_stay_text_and_runs_can_be_selected(
    tab: Tab, seen: tuple[Dashboard, Path]
) -> None:
    process, _ = seen
    tab.open(Page(process.url))  # type: ignore[arg-type]
    until(tab, "document.querySelectorAll('#runs-table tbody tr').length", 3)
    assert tab.evaluate("document.scripts.length") == 1
    pick = "[...document.querySelectorAll('.pick')].find(b => b.textContent.startsWith('fedfa'))"
    tab.evaluate(f"{pick}.click()")
    until(tab, "document.getElementById('run-title')?.textContent.trim()", "fedfa, seed 1")
    labels = "document.querySelector('#labels-table tbody th').firstChild.textContent"
    until(tab, labels, NASTY)
    assert tab.complaints == []


def test_runs_without_a_curve_are_named_with_the_reason(tab: Tab, tmp_path: Path) -> None:
    installed()
    for seed in range(14):
        write_run(tmp_path, "fedraw", seed)
    (tmp_path / "fedraw/seed-2/events.jsonl").write_bytes(b"no log")
    write_run(tmp_path, "fedfa", 1, [])
    with dashboard(".", cwd=tmp_path) as process:
        process.until(lambda: len(process.runs()) == 15)
        tab.open(Page(process.url))  # type: ignore[arg-type]
        words = "document.getElementById('undrawn')?.textContent"
        until(
            tab,
            words,
            "Not drawn, no evaluation yet: fedfa, seed 1. Not drawn, cannot be read: seed-2. "
            "Not drawn, only 12 runs are drawn: fedraw, seed 13.",
        )
        until(tab, "document.getElementById('loading').hidden", True)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_the_screen_and_axe_finds_no_problem(
    tab: Tab, seen: tuple[Dashboard, Path], width: int, dark: bool
) -> None:
    axe = next((Path(name) for name in AXE if name and Path(name).is_file()), None)
    process, _ = seen
    tab.open(Page(process.url), width=width, dark=dark)  # type: ignore[arg-type]
    until(tab, "document.querySelectorAll('#sites-table tbody tr').length > 0", True)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    if axe is None:
        pytest.skip("no axe-core: make browser fetches it with npm")
    tab.evaluate(axe.read_text())
    found = tab.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
        "v => v.id + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')))"
    )
    assert found == []
