"""Where the numbers come from: one line for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedraw.eventlog.records import FORMAT
from fedraw.pages.html import cell, column_head, csv_text, row_head, table
from fedraw.report.cells import UNDEFINED
from fedraw.report.material import Material, interruption

HEADS = ("Method", "Seed", "Events", "State", "Data (sha256)", "Finished on", "Seconds")
WORDS = ("State", "Data (sha256)", "Finished on")


def provenance(material: Material) -> str:
    """From the logs, and from the timing that lies beside each; it may be missing."""
    lines, numbers = [], []
    for name, run in material.runs:
        timing = timing_of(run.folder)
        sha = str((run.start.data or {}).get("sha256") or "")
        seed = run.start.seed
        seconds = timing.get("seconds")
        took = f"{seconds:.1f}" if isinstance(seconds, int | float) else UNDEFINED
        unfinished = "not finished" if run.start.is_server else "interrupted"
        state = unfinished if interruption(run) else "finished"
        date = str(timing.get("date") or "")
        facts = [UNDEFINED if seed is None else str(seed), str(run.content["events"]), state]
        cells = [*facts, sha[:12] or UNDEFINED, date[:10] or UNDEFINED, took]
        lines.append(row_head(name) + "".join(map(cell, cells)))
        numbers.append([name, seed, *facts[1:], sha, date, seconds])
    head = "".join(
        column_head(words, "" if n else "corner", column=n, by_words=words in WORDS)
        for n, words in enumerate(HEADS)
    )
    csv = csv_text(["name", "seed", "events", "state", "sha256", "date", "seconds"], numbers)
    caption = "Each run as its event log has it; date and duration from the timing beside it."
    return table("runs", caption, f"<tr>{head}</tr>", lines, csv=csv, kind="tall")


def machines(material: Material) -> str:
    """Dates and machines of all runs, in a line."""
    timings = [timing for _, run in material.runs if (timing := timing_of(run.folder))]
    dates = sorted(str(t["date"])[:10] for t in timings if "date" in t)
    days = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    known = dict.fromkeys(_machine(timing) for timing in timings)
    made = f"Run on {days}" if days else "From event logs"
    return "; ".join([made, *known]) + f". Page by fedraw {_version()}, log format {FORMAT}."


def timing_of(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    try:
        content = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _machine(timing: Mapping[str, Any]) -> str:
    cores = timing.get("cores", "?")
    words = "1 core" if cores == 1 else f"{cores} cores"
    return f"{timing.get('machine', '?')}, {words}, Python {timing.get('python', '?')}"


def _version() -> str:
    try:
        return version("fedraw")
    except PackageNotFoundError:  # from a checkout that was never installed
        return "(not installed)"
