"""The three tables of the page: the comparison, recall by label, label influence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedraw.experiments.compare import Group, Row, Run, Stat
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
from fedraw.report.markup import cell, column_head, row_head, table, text

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


def comparison(rows: Sequence[Row]) -> str:
    columns = grid(rows)
    firsts = _firsts(columns)
    lines = [
        row_head(row.name)
        + "".join(_compared(c.cells[position], c.metric in firsts) for c in columns)
        for position, row in enumerate(rows)
    ]
    return table("comparison", _comparison_caption(rows, columns), _head(columns), lines)


def recall(groups: Sequence[Group]) -> str:
    """Labels down, methods across; empty if nothing was evaluated."""
    rare = rare_labels(groups)
    labels = [label for label in _labels(groups) if any(_recall(g, label) for g in groups)]
    if not labels:
        return ""
    lines = []
    for label in labels:
        means = [_recall(group, label) for group in groups]
        cells = [_heated(None if stat is None else stat.mean) for stat in means]
        lines.append(row_head(label, "rare" if label in rare else "") + "".join(cells))
    caption = (
        "Recall of the last model, in percent, mean over the seeds."
        " The stronger the colour, the more of that label is missed."
    )
    return table("recall", caption, _names_head("Label", [g.name for g in groups]), lines)


def influence(groups: Sequence[Group]) -> str:
    """Methods down, rare labels across; empty if there are none, or nothing was aggregated."""
    pairs = {label: [_influence(group, label) for group in groups] for label in rare_labels(groups)}
    rare = [label for label, column in pairs.items() if any(column)]
    if not rare:
        return ""
    ratios = [pair[0] / pair[1] for column in pairs.values() for pair in column if pair]
    widest = max(2.0, *ratios)
    lines = [
        row_head(group.name) + "".join(_weighed(pairs[label][position], widest) for label in rare)
        for position, group in enumerate(groups)
    ]
    caption = (
        "Label influence, how much of the model a label speaks for, as a multiple of the label's"
        " share of all samples. The mark is that fair share, 1 ×; short of it, the label has less"
        " say than samples. Below, both shares. Mean over the seeds."
    )
    return table("influence", caption, _names_head("Method", rare, "weight"), lines)


def rare_labels(groups: Sequence[Group]) -> list[str]:
    return _union(groups, "rare_labels")


def _labels(groups: Sequence[Group]) -> list[str]:
    return _union(groups, "labels")


def _union(groups: Sequence[Group], key: str) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    return list(dict.fromkeys(str(label) for run in runs for label in run.start.get(key, ())))


def _comparison_caption(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    present = {column.metric for column in columns}
    spread = f"Mean ± population sd over {seeds_of(rows)}" if has_spread(rows) else "One seed"
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
    names = "".join(column_head(m, "first" if m in firsts else "") for m in present)
    return f'<tr><th scope="col" rowspan="2" class="corner">Method</th>{top}</tr>\n<tr>{names}</tr>'


def _firsts(columns: Sequence[Column]) -> set[str]:
    """The metrics with which a family of columns begins."""
    present = [column.metric for column in columns]
    kept = [[m for m in members if m in present] for members in FAMILIES.values()]
    return {members[0] for members in kept if members}


def _compared(value: Cell, first: bool) -> str:
    words = f"★ {value.mean}" if value.best else value.mean
    kind = ("first " if first else "") + ("best" if value.best else "")
    return cell(words, f"± {value.sd}" if value.sd else "", kind=kind)


def _names_head(corner: str, names: Sequence[str], kind: str = "") -> str:
    heads = "".join(column_head(name, f"name {kind}") for name in names)
    return f"<tr>{column_head(corner, 'corner')}{heads}</tr>"


def _recall(group: Group, label: str) -> Stat | None:
    return _stat(group, lambda run: run.content["recall"].get(label))


def _heated(mean: float | None) -> str:
    if mean is None:
        return cell(UNDEFINED)
    return cell(number("", mean), kind="heat", style=f"--recall: {mean:.0f}")


def _influence(group: Group, label: str) -> tuple[float, float] | None:
    """Label influence and fair share, each the mean over the seeds."""

    def part(key: str) -> Stat | None:
        return _stat(group, lambda run: run.content["label_influence"].get(label, {}).get(key))

    own, fair = part("influence"), part("fair_share")
    if own is None or fair is None or own.mean is None or not fair.mean:
        return None
    return own.mean, fair.mean


def _weighed(pair: tuple[float, float] | None, widest: float) -> str:
    if pair is None:
        return cell(UNDEFINED)
    own, fair = pair
    ratio = own / fair
    bar = f"--part: {100 * ratio / widest:.1f}%; --fair: {100 / widest:.1f}%"
    words = f"{100 * own:.1f} % against {100 * fair:.1f} %"
    return cell(f"{ratio:.2f} ×", words, kind="weight", style=bar)


def _stat(group: Group, value: Callable[[Run], Any]) -> Stat | None:
    values = [value(run) for run in group.runs]
    return None if all(v is None for v in values) else Stat.of(values)
