"""Sequence diagrams in Markdown become drawings that need no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs" / "_ext")!r})
extensions = ["myst_parser", "sequence"]
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst"]  # links to other pages
"""


def build(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site with this one page."""
    pytest.importorskip("myst_parser", reason="the site is built with the extra 'docs'")
    (folder / "conf.py").write_text(CONF, encoding="utf-8")
    (folder / "index.md").write_text(page, encoding="utf-8")
    words = ["-m", "sphinx", "--quiet", "--fail-on-warning", ".", "out"]
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_walks_of_an_update_are_drawn(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    done = build(page, tmp_path)
    assert done.returncode == 0, done.stderr
    simulator, server = (tmp_path / "out" / "index.html").read_text().split('<svg class="seq')[1:]
    drawn = simulator.split("</svg>")[0]
    for text in ("runner.py", "loop.py", "strategies/", "step(state,", "Arrived(update))"):
        assert f">{text}</text>" in drawn
    assert drawn.count('class="life"') == 6
    assert ">coordinator.py</text>" in server.split("</svg>")[0]


def test_the_files_of_the_walks_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    lines = [line.split(" as ")[1] for line in page.splitlines() if "    participant " in line]
    assert len(lines) == 12
    for name in (line.replace("<br/>", "") for line in lines):
        assert (ROOT / "src" / "fedraw" / name).exists(), name


def test_a_line_that_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    fence = (
        "# A page\n\n```mermaid\nsequenceDiagram\n    participant A as a\n    loop forever\n```\n"
    )
    done = build(fence, tmp_path)
    assert done.returncode != 0
    assert "line 3 of the diagram is not supported: 'loop forever'" in done.stderr
