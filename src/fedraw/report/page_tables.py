"""Tables of the page: all metrics, recall by label, staleness, and where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedraw.eventlog.compare import ComparisonRow, Group
from fedraw.eventlog.records import FORMAT
from fedraw.pages.html import (
    cell,
    column_head,
    csv_text,
    row_head,
    sortable,
    table,
    text,
)
from fedraw.report import tables
from fedraw.report.formatting import UNDEFINED, number
from fedraw.report.report_data import (
    QUANTILES,
    ReportData,
    interruption,
    rare_labels,
    recall_means,
    spreads,
)
from fedraw.report.tables import (
    HIGHER_IS_BETTER,
    MetricCell,
    MetricColumn,
    grid,
    has_spread,
    seeds_of,
)

FAMILIES = {
    "Global model": ("GlobalAcc", "AvgRare", "MacroF1", "RareF1", "RareF2"),
    "On the clients' own test data": ("Worst10", "LocalRare", "LocalCommon", "MeanClient", "Jain"),
    "Rare clients at the server": ("BufPres", "RarePart", "RareMeanStale", "RareMaxStale"),
}
STALENESS_HEADS = ("5 %", "25 %", "median", "75 %", "95 %", "most", "mean", "updates")
RUN_HEADS = ("Method", "Seed", "Events", "State", "Data (sha256)", "Finished on", "Seconds")
# The columns of the table of runs that are sorted by words.
RUN_WORDS = ("State", "Data (sha256)", "Finished on")


def comparison(groups: Sequence[Group]) -> str:
    """Return the table of all metrics, with one row per method."""
    rows = [group.row for group in groups]
    columns = grid(rows)
    firsts = _firsts(columns)
    lines = [
        row_head(group.name, ", ".join(_warnings(group)), "warn")
        + "".join(_metric_cell(c.cells[position], c.metric in firsts) for c in columns)
        for position, group in enumerate(groups)
    ]
    caption = _comparison_caption(rows, columns)
    return table("comparison", caption, _comparison_head(columns), lines, csv=tables.csv(rows))


def recall(groups: Sequence[Group]) -> str:
    """Return the recall of each label under each method; empty if nothing was evaluated."""
    rare = rare_labels(groups)
    means = recall_means(groups)
    if not means:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "") + "".join(map(_recall_cell, row))
        for label, row in means.items()
    ]
    caption = (
        "Recall of the last model, in percent, mean over the seeds."
        " The stronger the colour, the more of that label is missed."
    )
    names = [group.name for group in groups]
    numbers = [[label, "rare" if label in rare else "", *row] for label, row in means.items()]
    csv = csv_text(["label", "rare", *names], numbers)
    head = names_head("Label", names, "narrow")
    return table("recall", caption, head, lines, csv=csv, kind="tall")


def staleness(data: ReportData) -> str:
    """Return the numbers of the figure of staleness."""
    rows = [
        (name, kind, [*spread.values, spread.mean, spread.updates])
        for name, pair in spreads(data).items()
        for kind, spread in zip(("common", "rare"), pair, strict=True)
        if spread is not None
    ]
    head = "".join(
        column_head(name, "corner" if not n else "left" if n == 1 else "", column=n)
        for n, name in enumerate(["Method", "Clients", *STALENESS_HEADS])
    )
    lines = [
        row_head(name)
        + cell(kind, kind="left")
        + "".join(cell(f"{v:.1f}" if isinstance(v, float) else str(v)) for v in values)
        for name, kind, values in rows
    ]
    caption = (
        "Staleness in events: how many updates of others arrived between a client's start and its"
        " own arrival. A quarter of the updates is at or below the 25 % column. All seeds together."
    )
    columns = [f"q{100 * q:.0f}" for q in QUANTILES]
    numbers = [[name, kind, *values] for name, kind, values in rows]
    csv = csv_text(["name", "clients", *columns, "mean", "updates"], numbers)
    return table("stale", caption, f"<tr>{head}</tr>", lines, csv=csv)


def names_head(corner: str, names: Sequence[str], kind: str = "") -> str:
    """Return a head with one sortable column for each name."""
    heads = "".join(
        column_head(name, f"name {kind}", column=n) for n, name in enumerate(names, start=1)
    )
    return f"<tr>{column_head(corner, 'corner', column=0)}{heads}</tr>"


def provenance(data: ReportData) -> str:
    """Return one line for each run, from its log and from its `timing.json`, if there is one."""
    lines, numbers = [], []
    for name, run in data.runs:
        timing = _timing(run.folder)
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
        column_head(words, "" if n else "corner", column=n, by_words=words in RUN_WORDS)
        for n, words in enumerate(RUN_HEADS)
    )
    csv = csv_text(["name", "seed", "events", "state", "sha256", "date", "seconds"], numbers)
    caption = "Each run as its event log has it; date and duration from the timing beside it."
    return table("runs", caption, f"<tr>{head}</tr>", lines, csv=csv, kind="tall")


def machines(data: ReportData) -> str:
    """Return the dates and machines of all runs in one line."""
    timings = [timing for _, run in data.runs if (timing := _timing(run.folder))]
    dates = sorted(str(t["date"])[:10] for t in timings if "date" in t)
    days = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    known = dict.fromkeys(_machine(timing) for timing in timings)
    made = f"Run on {days}" if days else "From event logs"
    return "; ".join([made, *known]) + f". Page by fedraw {_version()}, log format {FORMAT}."


def _warnings(group: Group) -> Iterator[str]:
    if any(map(interruption, group.runs)):
        yield "interrupted"
    if group.row.collapsed:
        yield "collapsed"


def _comparison_caption(rows: Sequence[ComparisonRow], columns: Sequence[MetricColumn]) -> str:
    present = {column.metric for column in columns}
    alone = seeds_of(rows).replace("1 ", "One ")
    spread = f"Mean ± population sd over {seeds_of(rows)}" if has_spread(rows) else alone
    model = ", values of the last model" if present & HIGHER_IS_BETTER else ""
    units = {"Jain": "Jain (0 to 1)", "RareMeanStale": "staleness (events)"}
    others = " and ".join(words for metric, words in units.items() if metric in present)
    percent = "Percent" + (f", except {others}" if others else "")
    marked = any(cell.best for column in columns for cell in column.cells)
    return f"{spread}{model}. {percent}." + " ★ best mean of its column." * marked


def _comparison_head(columns: Sequence[MetricColumn]) -> str:
    present = [column.metric for column in columns]
    firsts = _firsts(columns)
    spans = {name: sum(m in present for m in members) for name, members in FAMILIES.items()}
    top = "".join(
        f'<th scope="colgroup" colspan="{span}">{text(name)}</th>'
        for name, span in spans.items()
        if span
    )
    names = "".join(
        column_head(metric, "first" if metric in firsts else "", column=n)
        for n, metric in enumerate(present, start=1)
    )
    corner = f'<th scope="col" rowspan="2" class="corner"{sortable(0)}>Method</th>'
    return f"<tr>{corner}{top}</tr>\n<tr>{names}</tr>"


def _firsts(columns: Sequence[MetricColumn]) -> set[str]:
    """Return the first metric of each family of columns."""
    present = [column.metric for column in columns]
    kept = [[m for m in members if m in present] for members in FAMILIES.values()]
    return {members[0] for members in kept if members}


def _metric_cell(value: MetricCell, first: bool) -> str:
    words = f"★ {value.mean}" if value.best else value.mean
    kind = ("first " if first else "") + ("best" if value.best else "")
    return cell(words, f"± {value.sd}" if value.sd else "", kind=kind)


def _recall_cell(mean: float | None) -> str:
    if mean is None:
        return cell(UNDEFINED)
    return cell(number("", mean), kind="heat", style=f"--recall: {mean:.0f}")


def _timing(folder: Path) -> dict[str, Any]:
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
    except PackageNotFoundError:  # a checkout that was never installed
        return "(not installed)"
