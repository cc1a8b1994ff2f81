"""fedraw report on real runs: one page, its figures, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import SMALL, fedraw
from tests.eventlog.logs import rewrite

from fedraw.report.figures import write_figures
from fedraw.report.report_data import read_report_data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds each, as 'fedraw run' leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(SMALL)
    for name in ("fedraw", "fedfa"):
        change = ("--set", f"strategy.name={name}", "--out", name)
        done = fedraw("run", "small.toml", *change, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs, tmp_path / "copy")
    return tmp_path / "copy"


def test_run_writes_the_page_beside_its_seeds(runs: Path) -> None:
    page = (runs / "fedraw/report.html").read_text(encoding="utf-8")
    assert "<h1>small</h1>" in page
    assert "digits · 8 clients · 30 events · 1 method · 2 seeds · rare: 9" in page
    assert sorted(p.name for p in (runs / "fedraw").iterdir()) == [
        "report.html",
        "seed-1",
        "seed-2",
    ]


def test_one_page_of_several_runs(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "not/yet/there.html"
    done = fedraw("report", "fedraw", "fedfa", "-o", out, "--title", "Both <b>", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    page = out.read_text(encoding="utf-8")
    assert "<h1>Both &lt;b&gt;</h1>" in page
    assert "2 methods · 2 seeds" in page
    for section in ("glance", "compared", "curves", "labels", "mistakes", "shares", "buffer"):
        assert f'id="{section}"' in page
    assert page.count('role="img"') == 8, "two single figures, and three with two panels each"
    assert "<code>fedraw report fedraw fedfa -o " in page
    assert len(page) < 3_000_000
    table = json.loads(fedraw("compare", "fedraw", "fedfa", "--json", cwd=runs).stdout)
    mean = table["rows"][0]["metrics"]["GlobalAcc"]["mean"]
    assert f"{mean:.1f}" in page


def test_figures_for_papers(runs: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "one/figures", tmp_path / "two"
    page = tmp_path / "report.html"
    done = fedraw("report", ".", "-o", page, "--figures", first, cwd=runs)
    assert done.returncode == 0, done.stderr
    write_figures(read_report_data([runs]), again)
    names = {f"{name}.{form}" for name in FIGURES for form in ("svg", "pdf")}
    assert {file.name for file in first.iterdir()} == names
    for name in names:
        content = (first / name).read_bytes()
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"<svg")
        assert content == (again / name).read_bytes(), "the same bytes from the same runs"
        assert b"currentColor" not in content or b"color: #222" in content


FIGURES = ("gap", "curves", "buffer", "weights", "staleness", "recall")


def test_an_interrupted_run_is_shown_and_marked(copy: Path) -> None:
    log = copy / "fedraw/seed-2/events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    stop = next(n for n, line in enumerate(lines) if b'"event":23,' in line)
    log.write_bytes(b"".join(lines[:stop]) + lines[stop][:40])  # as a kill leaves it
    (log.parent / "summary.json").unlink()
    done = fedraw("report", "fedraw", "fedfa", cwd=copy)
    assert done.returncode == 0, done.stderr
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "fedraw, seed 2: interrupted at event 22 of 30." in page


def refused(*arguments: object, cwd: Path) -> str:
    done = fedraw("report", *arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (cwd / "report.html").exists()
    return done.stderr


def test_a_folder_without_logs_is_named(copy: Path) -> None:
    (copy / "nothing").mkdir()
    assert "nothing holds no run" in refused("fedraw", "nothing", cwd=copy)


def test_a_run_of_another_version_is_named(copy: Path) -> None:
    log = copy / "fedraw/seed-1/events.jsonl"
    log.write_text(log.read_text().replace('"format":3', '"format":7', 1))
    message = refused("fedraw", "fedfa", cwd=copy)
    assert "fedraw/seed-1/events.jsonl has format 7, and this fedraw reads format 3" in message


def test_runs_on_other_data_are_named_with_their_fingerprints(copy: Path) -> None:
    log = copy / "fedfa/seed-1/events.jsonl"
    start = json.loads(log.read_text().split("\n", 1)[0])
    was = start["data"]["sha256"]
    rewrite(log, lambda text: text.replace(was, "0" * 64, 1))
    (log.parent / "summary.json").unlink()
    message = refused("fedraw", "fedfa", cwd=copy)
    assert "fedraw/seed-1 and fedfa/seed-1 cannot be compared" in message
    assert was in message
    assert "0" * 64 in message


def test_a_place_that_cannot_be_written_is_named(runs: Path) -> None:
    done = fedraw("report", "fedraw", "-o", "small.toml/page.html", cwd=runs)
    assert done.returncode == 2
    assert "cannot write small.toml/page.html" in done.stderr


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.style"] = None
sys.argv = ["fedraw", *sys.argv[1:]]
from fedraw.cli.main import main
main()
"""


def without_matplotlib(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_MATPLOTLIB, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


def test_without_matplotlib_the_extra_is_named(copy: Path) -> None:
    done = without_matplotlib("report", "fedraw", cwd=copy)
    assert done.returncode == 2
    assert "this needs matplotlib: pip install 'fedraw[report]'" in done.stderr


def test_without_matplotlib_a_run_is_done_all_the_same(copy: Path) -> None:
    change = ("--set", "training.kind=none", "--jobs", "1", "--out", "bare")
    done = without_matplotlib("run", "small.toml", *change, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "report.html was not written: this needs matplotlib" in done.stderr
    assert (copy / "bare/seed-2/summary.json").exists()
