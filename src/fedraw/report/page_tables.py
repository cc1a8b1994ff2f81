"""Tables of the page: all metrics, recall by label, staleness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedraw.eventlog.compare import ComparisonRow, Group, Run, Stat
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
from fedraw.report.cells import (
    HIGHER_IS_BETTER,
    UNDEFINED,
    Cell,
    Column,
    grid,
    has_spread,
    number,
    seeds_of,
)
from fedraw.report.course import QUANTILES, Spread
from fedraw.report.interval_figures import spreads
from fedraw.report.material import Material, interruption

FAMILIES = {
    "Global model": ("GlobalAcc", "AvgRare", "MacroF1", "RareF1", "RareF2"),
    "On the clients' own test data": (
        "Worst10",
        "LocalRare",
        "LocalCommon",
        "MeanClient",
        "Jain",
    ),
    "Rare clients at the server": ("BufPres", "RarePart", "RareMeanStale", "RareMaxStale"),
}


def comparison(groups: Sequence[Group]) -> str:
    rows = [group.row for group in groups]
    columns = grid(rows)
    firsts = _firsts(columns)
    lines = [
        row_head(group.name, ", ".join(_warnings(group)), "warn")
        + "".join(_compared(c.cells[position], c.metric in firsts) for c in columns)
        for position, group in enumerate(groups)
    ]
    caption = _comparison_caption(rows, columns)
    return table("comparison", caption, _head(columns), lines, csv=tables.csv(rows))


def _warnings(group: Group) -> Iterator[str]:
    if any(map(interruption, group.runs)):
        yield "interrupted"
    if group.row.collapsed:
        yield "collapsed"


def recall(groups: Sequence[Group]) -> str:
    """Labels down, the rare ones first, methods across; empty if nothing was evaluated."""
    rare = rare_labels(groups)
    means = recall_means(groups)
    if not means:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "") + "".join(map(_heated, row))
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


def recall_means(groups: Sequence[Group]) -> dict[str, list[float | None]]:
    """Recall of each label that was measured, the rare ones first; one value for each group."""
    order = dict.fromkeys([*rare_labels(groups), *labels(groups)])
    means = {label: [mean_of(_recall(group, label)) for group in groups] for label in order}
    return {label: row for label, row in means.items() if any(v is not None for v in row)}


def staleness(material: Material) -> str:
    """The figure's numbers."""
    names = ("5 %", "25 %", "median", "75 %", "95 %", "most")
    rows = list(_stale_rows(spreads(material)))
    heads = ["Method", "Clients", *names, "mean", "updates"]
    head = "".join(
        column_head(name, "corner" if not n else "left" if n == 1 else "", column=n)
        for n, name in enumerate(heads)
    )
    lines = [
        row_head(name)
        + cell(kind, kind="left")
        + "".join(cell(str(value)) for value in spread.values)
        + cell(f"{spread.mean:.1f}")
        + cell(str(spread.updates))
        for name, kind, spread in rows
    ]
    caption = (
        "Staleness in events: how many updates of others arrived between a client's start and its"
        " own arrival. A quarter of the updates is at or below the 25 % column. All seeds together."
    )
    columns = [f"q{100 * q:.0f}" for q in QUANTILES]
    numbers = [
        [name, kind, *spread.values, spread.mean, spread.updates] for name, kind, spread in rows
    ]
    csv = csv_text(["name", "clients", *columns, "mean", "updates"], numbers)
    return table("stale", caption, f"<tr>{head}</tr>", lines, csv=csv)


def rare_labels(groups: Sequence[Group]) -> list[str]:
    """The rare labels of all runs, each once."""
    return _union(run.start.rare_labels for group in groups for run in group.runs)


def labels(groups: Sequence[Group]) -> list[str]:
    """The labels of all runs, each once."""
    return _union(run.start.labels for group in groups for run in group.runs)


def _union(labels: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(label for some in labels for label in some))


def _comparison_caption(rows: Sequence[ComparisonRow], columns: Sequence[Column]) -> str:
    present = {column.metric for column in columns}
    alone = seeds_of(rows).replace("1 ", "One ")
    spread = f"Mean ± population sd over {seeds_of(rows)}" if has_spread(rows) else alone
    model = ", values of the last model" if present & HIGHER_IS_BETTER else ""
    units = {"Jain": "Jain (0 to 1)", "RareMeanStale": "staleness (events)"}
    others = " and ".join(words for metric, words in units.items() if metric in present)
    percent = "Percent" + (f", except {others}" if others else "")
    marked = any(cell.best for column in columns for cell in column.cells)
    return f"{spread}{model}. {percent}." + " ★ best mean of its column." * marked


def _head(columns: Sequence[Column]) -> str:
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


def _firsts(columns: Sequence[Column]) -> set[str]:
    """The metrics with which a family of columns begins."""
    present = [column.metric for column in columns]
    kept = [[m for m in members if m in present] for members in FAMILIES.values()]
    return {members[0] for members in kept if members}


def _compared(value: Cell, first: bool) -> str:
    words = f"★ {value.mean}" if value.best else value.mean
    kind = ("first " if first else "") + ("best" if value.best else "")
    return cell(words, f"± {value.sd}" if value.sd else "", kind=kind)


def names_head(corner: str, names: Sequence[str], kind: str = "") -> str:
    heads = "".join(
        column_head(name, f"name {kind}", column=n) for n, name in enumerate(names, start=1)
    )
    return f"<tr>{column_head(corner, 'corner', column=0)}{heads}</tr>"


def _recall(group: Group, label: str) -> Stat | None:
    return stat_over(group, lambda run: run.content["recall"].get(label))


def mean_of(stat: Stat | None) -> float | None:
    return None if stat is None else stat.mean


def _heated(mean: float | None) -> str:
    if mean is None:
        return cell(UNDEFINED)
    return cell(number("", mean), kind="heat", style=f"--recall: {mean:.0f}")


def _stale_rows(
    spread: Mapping[str, tuple[Spread | None, Spread | None]],
) -> Iterator[tuple[str, str, Spread]]:
    for name, (common, rare) in spread.items():
        if common is not None:
            yield name, "common", common
        if rare is not None:
            yield name, "rare", rare


def stat_over(group: Group, value: Callable[[Run], Any]) -> Stat | None:
    values = [value(run) for run in group.runs]
    return None if all(v is None for v in values) else Stat.of(values)
