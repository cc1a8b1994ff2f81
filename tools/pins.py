"""What the redesign of the library must not change, beside the decisions that tests/golden pins.

    python -m tools.pins --pin    write what this checkout gives to tests/pins/pins.json.xz

specs      The TOML of the template and of every spec in examples/, and one hash for all specs of
           each study at each scale.
summaries  summary.json of the golden runs without training.
views      What the commands show of a federation and of four runs: FedBuff, which weighs a buffer,
           FedRAW, CA2FL, which has a cache, and a server that was killed.

A commit that changes one of these on purpose pins it again and says why.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tools.golden import RECORDED, _write_durations, golden_runs

import fedraw
from fedraw.dashboard.view import full, overview
from fedraw.dashboard.watcher import Watcher
from fedraw.experiment.spec import to_toml
from fedraw_studies.artefacts import ARENA, EVERY, LATE, ONE_PASS, Scale, scale_names
from fedraw_studies.plan import load_artefacts

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "tests" / "pins" / "pins.json.xz"
Pins = dict[str, dict[str, Any]]

UNTRAINED = {name: run for name, run in golden_runs().items() if not run.trained}
SHOWN = {
    "fedbuff": "fedbuff, no training",
    "fedraw": "fedraw, no training",
    "ca2fl": "ca2fl, no training",
    "server": "server, fedraw",
}
# Facts of a run that depend on the machine and on the clock.
OF_THE_MACHINE = {"written", "rate", "log_time", "silent", "id", "quiet"}
WRITTEN = 1_700_000_000  # the time at which logs were written, in seconds


def found() -> Pins:
    """Return what this checkout gives."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        summaries = _runs()
        views = {**_audits(), **_views()}
    return {"specs": _specs(), "summaries": summaries, "views": views}


def _specs() -> dict[str, str]:
    template = files("fedraw.experiment").joinpath("template.toml")
    texts = {"template": template.read_text(encoding="utf-8")}
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        if path.name != "pyproject.toml":
            spec = fedraw.Spec.from_file(path)
            texts[path.relative_to(ROOT).as_posix()] = to_toml(spec.to_dict()).replace(
                str(ROOT), "ROOT"
            )
    for scale in map(Scale.named, scale_names()):
        for artefact in load_artefacts([*EVERY, *ARENA, *LATE, *ONE_PASS], scale):
            specs = [json.dumps(row.spec.to_dict(), sort_keys=True) for row in artefact.rows]
            digest = hashlib.sha256("\n".join(specs).encode()).hexdigest()
            texts[f"{scale.name}/{artefact.name}"] = digest
    return texts


def _runs() -> dict[str, Any]:
    """Make the golden runs without training; keep those that are shown in folders of their own."""
    summaries = {}
    names = {run: name for name, run in SHOWN.items()}
    for name, run in UNTRAINED.items():
        folder = Path("runs" if name in names else "others") / names.get(name, name)
        folder.mkdir(parents=True)
        with chdir(folder):
            _write_durations(Path(str(RECORDED["trace"])))
            made = run.make().absolute()
        if not name.startswith("server"):  # whose summary `compare` shows
            summaries[name] = json.loads((made / "summary.json").read_text(encoding="utf-8"))
        os.utime(made / "events.jsonl", (WRITTEN, WRITTEN))
    return summaries


def _audits() -> dict[str, Any]:
    audit = ["audit", str(ROOT / "examples/audit/labels.csv")]
    times = ["--times", str(ROOT / "examples/audit/times.csv")]
    return {
        "audit --json": json.loads(_output(*audit, *times, "--json")),
        "audit": _output(*audit, *times),
        "audit -v": _output(*audit, *times, "-v"),
        "audit, no times": _output(*audit, "--arrivals", "300", "--from", "fedbuff"),
        "audit page": _page("audit.html", *audit, *times, "--out", "audit.html"),
    }


def _views() -> dict[str, Any]:
    watcher = Watcher([Path("runs")], clock=lambda: WRITTEN + 1.0)
    watcher.poll()
    return {
        "compare": _output("compare", *_folders()),
        "compare --json": json.loads(_output("compare", *_folders(), "--json")),
        "compare --format latex": _output("compare", *_folders(), "--format", "latex"),
        "watch --json": _steady(json.loads(_output("watch", "runs", "--json"))),
        "report": _page("report.html", "report", *_folders()[:3], "-o", "report.html"),
        "dashboard": _steady(overview(watcher.views(), watcher.problems)),
        "dashboard, runs": [_steady(full(view)) for view in watcher.views(sites=True)],
    }


def _folders() -> list[str]:
    return [f"runs/{name}" for name in SHOWN]


def _output(*arguments: str) -> str:
    """Return what a command prints at a width of 120 columns."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fedraw", *arguments]
    return subprocess.run(
        command, env=environment, check=True, text=True, capture_output=True
    ).stdout


def _page(file: str, *arguments: str) -> list[str]:
    """Return the words of the page that a command writes, without drawings and footer."""
    _output(*arguments)
    page = Path(file).read_text(encoding="utf-8")
    page = re.sub(r"(?s)<(style|script|svg|footer|head)\b.*?</\1>", " ", page)
    page = page.partition("Where the numbers come from")[0]  # followed by when, and how long
    words = unescape(re.sub(r"<[^>]+>", "\n", page)).replace(str(ROOT), "ROOT")
    lines = (" ".join(line.split()) for line in words.splitlines())
    return [line for line in lines if line and "page by fedraw" not in line]


def _steady(value: Any) -> Any:
    """Return a value without facts of the machine and of the clock."""
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if k not in OF_THE_MACHINE}
    if isinstance(value, list | tuple):
        return [_steady(item) for item in value]
    return value


def pinned() -> Pins:
    """Return what is pinned."""
    pins: Pins = json.loads(lzma.decompress(PINS.read_bytes()))
    return pins


def difference(pin: Any, now: Any, where: str = "") -> str | None:
    """Return where two values differ first; real numbers may differ in their last digits."""
    if isinstance(pin, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*pin, *now])
        pairs = ((pin.get(key), now.get(key), f"{where} / {key}") for key in keys)
    elif isinstance(pin, list) and isinstance(now, list) and len(pin) == len(now):
        both = zip(pin, now, strict=True)
        pairs = ((a, b, f"{where} / {i}") for i, (a, b) in enumerate(both))
    elif pin == now or (
        isinstance(pin, float) and isinstance(now, float) and math.isclose(pin, now, rel_tol=1e-9)
    ):
        return None
    else:
        return f"{where}: {str(pin)[:300]!r} became {str(now)[:300]!r}"
    return next((found for pair in pairs if (found := difference(*pair))), None)


if __name__ == "__main__":
    if sys.argv[1:] != ["--pin"]:
        sys.exit(__doc__)
    content = json.dumps(found(), separators=(",", ":")).encode()
    PINS.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
