"""The page in a real browser: it opens without a complaint and shows its numbers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from matplotlib.image import imread
from tests.report.hand_made import write_run

from fedraw.report.page import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
)
DARK = "--blink-settings=preferredColorScheme=0"
NASTY = "<script>console.error('executed')</script>" + "long" * 40


def browser() -> str:
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    reason = f"no browser: none of {', '.join(BROWSERS)} is installed"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for seed in (42, 7):
        write_run(folder, "fedraw", seed, rare=NASTY)
        write_run(folder, "fedfa", seed, [(60.0, 0.0), (80.0, 0.0)], rare=NASTY)
    write_report([folder], folder / "report.html", title=NASTY, lead="By hand.")
    return folder / "report.html"


def opened(page: Path, profile: Path, *options: str) -> str:
    """What the browser prints on standard output; a message on its console is a failure."""
    own = f"--user-data-dir={profile}"
    command = [browser(), *QUIET, own, *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert "CONSOLE" not in done.stderr
    return done.stdout


def test_the_browser_shows_every_table_and_the_figure(page: Path, tmp_path: Path) -> None:
    dom = opened(page, tmp_path, "--dump-dom")
    cells = [unescape(re.sub("<[^>]+>", "", c)) for c in re.findall(r"<td.*?</td>", dom)]
    assert "★ 90.0 ± 0.0" in cells
    assert "0.50 × 16.7 % against 33.3 %" in cells
    assert dom.count("<table") == 3
    assert "Rare labels (AvgRare, %)</text>" in dom
    assert "<script>" not in dom
    assert "&lt;script&gt;" in dom


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_seen(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    shot = tmp_path / "shot.png"
    options = [f"--window-size={width},900", f"--screenshot={shot}", *([DARK] if dark else [])]
    opened(page, tmp_path / "profile", *options)
    image = imread(shot)[..., :3]
    assert image.shape == (900, width, 3)
    ground = image[2, 2]
    assert (ground.mean() < 0.2) == dark
    assert 0.02 < (abs(image - ground).max(axis=2) > 0.3).mean() < 0.5, "there is text on it"


def test_a_narrow_page_does_not_scroll_sideways(page: Path, tmp_path: Path) -> None:
    # The page forbids scripts; a copy without that rule stands in a frame and measures itself.
    script = "parent.postMessage(document.documentElement.scrollWidth + ' px', '*')"
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(encoding="utf-8"))
    copy = text.replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "copy.html").write_text(copy, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<script>onmessage = event => { document.title = event.data }</script>"
        '<iframe src="copy.html" style="width: 360px; border: 0"></iframe>',
        encoding="utf-8",
    )
    dom = opened(frame, tmp_path / "profile", "--virtual-time-budget=2000", "--dump-dom")
    assert "<title>360 px</title>" in dom
