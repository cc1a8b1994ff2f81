"""The tables of the page: metrics, recall, mistakes, influence, staleness, and every run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedraw.core.types import ClientId
from fedraw.eventlog.compare import ComparisonRow, Group, SeedRun, Stat, reached_of
from fedraw.eventlog.goals import MARKS, Goal
from fedraw.eventlog.metrics import PARTICIPATION, VALUES_OF
from fedraw.eventlog.state import RunState
from fedraw.pages.html import (
    cell,
    column_head,
    csv_text,
    details,
    note,
    row_head,
    sortable,
    table,
    text,
)
from fedraw.report import tables
from fedraw.report.drawing import short
from fedraw.report.formatting import UNDEFINED, number, span
from fedraw.report.report_data import (
    QUANTILES,
    ReportData,
    interruption,
    labels,
    mean_over,
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
    "Rare clients at the server": PARTICIPATION,
}
STALENESS_HEADS = ("5 %", "25 %", "median", "75 %", "95 %", "most", "mean", "updates")
RUN_HEADS = ("Method", "Seed", "Events", "State", "Data (sha256)", "Finished on", "Seconds")
# The columns of the table of runs that are sorted as text.
RUN_TEXT_COLUMNS = ("State", "Data (sha256)", "Finished on")
# The largest number of cells of confusion matrices on one page.
MOST_CELLS = 30_000
# The number of wrong labels that are listed for a rare label.
MOST_MISTAKES = 2
CLIENT_KINDS: dict[str, Callable[[RunState], set[ClientId]]] = {
    "rare clients": lambda state: state.rare - {state.attacker},
    "other clients": lambda state: set(state.counts) - {*state.rare, state.attacker},
    "misreporting client": lambda state: set() if state.attacker is None else {state.attacker},
}


def comparison(groups: Sequence[Group], last: bool) -> str:
    """Return the table of all metrics, with one row per method."""
    rows = [group.row for group in groups]
    families = _families(grid(rows))
    by_metric = {column.metric: column for column in grid(rows)}
    columns = [by_metric[metric] for members in families.values() for metric in members]
    first_of_family = {members[0] for members in families.values()}
    lines = [
        row_head(group.name, ", ".join(_warnings(group)), "warn")
        + "".join(_metric_cell(c.cells[position], c.metric in first_of_family) for c in columns)
        for position, group in enumerate(groups)
    ]
    caption = _comparison_caption(rows, columns, last)
    return table("comparison", caption, _comparison_head(columns), lines, csv=tables.csv(rows))


def recall(groups: Sequence[Group], last: bool) -> str:
    """Return the recall of each label under each method; empty if nothing was evaluated."""
    rare = rare_labels(groups)
    means = recall_means(groups, last)
    if not means:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "") + "".join(map(_recall_cell, row))
        for label, row in means.items()
    ]
    caption = (
        f"Recall in percent, {VALUES_OF[last]}, mean over the seeds."
        " A stronger colour means a lower recall."
    )
    names = [group.name for group in groups]
    numbers = [[label, "rare" if label in rare else "", *row] for label, row in means.items()]
    csv = csv_text(["label", "rare", *names], numbers)
    head = names_head("Label", names, "narrow")
    return table("recall", caption, head, lines, csv=csv, kind="tall")


def arrivals(groups: Sequence[Group]) -> str:
    """Return when each rare label was recognised; empty if no run measured one."""
    goals = [Goal(label, float(mark)) for label in rare_labels(groups) for mark in MARKS]
    found = {
        goal: [reached_of(goal, [run.summary for run in group.runs]) for group in groups]
        for goal in goals
    }
    found = {goal: row for goal, row in found.items() if any(row)}
    if not found:
        return ""
    lines = [
        row_head(f"{goal.metric}, {goal.value:g} %")
        + "".join(cell(UNDEFINED if own is None else str(own)) for own in row)
        for goal, row in found.items()
    ]
    caption = (
        "Arrivals until the recall of a rare label passed 50 and 80 %: the first evaluation from"
        " which the mean of five consecutive ones is at least that. Median over the seeds; in"
        " brackets, how many got there."
    )
    names = [group.name for group in groups]
    numbers = [
        [goal.metric, f"{goal.value:g}", *(own and own.median("arrivals") for own in row)]
        for goal, row in found.items()
    ]
    csv = csv_text(["label", "recall", *names], numbers)
    return table("arrivals", caption, names_head("Rare label", names, "narrow"), lines, csv=csv)


def staleness(data: ReportData) -> str:
    """Return a table with the numbers of the staleness figure."""
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
        "Staleness in events: the number of updates of other clients that arrived between a"
        " client's start and its own arrival. A quarter of the updates has at most the staleness in"
        " the 25 % column. All seeds together."
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
    """Return a table with one row for each run, from its log and its `timing.json`, if any."""
    lines, numbers = [], []
    for name, run in data.runs:
        timing = timing_of(run)
        sha = str((run.start.data or {}).get("sha256") or "")
        seed = run.start.seed
        seconds = timing.get("seconds")
        took = f"{seconds:.1f}" if isinstance(seconds, int | float) else UNDEFINED
        unfinished = "not finished" if run.start.is_server else "interrupted"
        state = unfinished if interruption(run) else "finished"
        date = str(timing.get("date") or "")
        facts = [UNDEFINED if seed is None else str(seed), str(run.summary["events"]), state]
        cells = [*facts, sha[:12] or UNDEFINED, date[:10] or UNDEFINED, took]
        lines.append(row_head(name) + "".join(map(cell, cells)))
        numbers.append([name, seed, *facts[1:], sha, date, seconds])
    head = "".join(
        column_head(words, "" if n else "corner", column=n, by_words=words in RUN_TEXT_COLUMNS)
        for n, words in enumerate(RUN_HEADS)
    )
    csv = csv_text(["name", "seed", "events", "state", "sha256", "date", "seconds"], numbers)
    caption = "The runs, from their event logs; date and duration are from timing.json."
    return table("runs", caption, f"<tr>{head}</tr>", lines, csv=csv, kind="tall")


def machines(data: ReportData) -> str:
    """Return the machines of all runs in one sentence."""
    timings = [timing for _, run in data.runs if (timing := timing_of(run))]
    known = list(dict.fromkeys(_machine(timing) for timing in timings))
    return f"Run on {'; '.join(known)}." if known else ""


def days_of(data: ReportData) -> str:
    """Return the first and the last day on which a run was finished; empty if unknown."""
    timings = [timing_of(run) for _, run in data.runs]
    dates = sorted(str(timing["date"])[:10] for timing in timings if "date" in timing)
    return " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""


def timing_of(run: SeedRun) -> dict[str, Any]:
    """Return the content of the run's timing.json; empty if it cannot be read."""
    try:
        content = json.loads((run.folder / "timing.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _warnings(group: Group) -> Iterator[str]:
    if any(map(interruption, group.runs)):
        yield "interrupted"
    if group.row.collapsed:
        yield "collapsed"


def _comparison_caption(
    rows: Sequence[ComparisonRow], columns: Sequence[MetricColumn], last: bool
) -> str:
    present = {column.metric for column in columns}
    alone = seeds_of(rows).replace("1 ", "One ")
    spread = f"Mean ± sd over {seeds_of(rows)}" if has_spread(rows) else alone
    model = f", {VALUES_OF[last]}" if present & HIGHER_IS_BETTER else ""
    units = {"Jain": "Jain (0 to 1)", "RareMeanStale": "staleness (events)"}
    others = " and ".join(words for metric, words in units.items() if metric in present)
    percent = "Percent" + (f", except {others}" if others else "")
    marked = any(cell.best for column in columns for cell in column.cells)
    return (
        f"{spread}{model}. {percent}."
        + " ★ ahead of every other row, seed by seed (95 %)." * marked
    )


def _comparison_head(columns: Sequence[MetricColumn]) -> str:
    present = [column.metric for column in columns]
    families = _families(columns)
    first_of_family = {members[0] for members in families.values()}
    top = "".join(
        f'<th scope="colgroup" colspan="{len(members)}">{text(name)}</th>'
        for name, members in families.items()
    )
    names = "".join(
        column_head(metric, "first" if metric in first_of_family else "", column=n)
        for n, metric in enumerate(present, start=1)
    )
    corner = f'<th scope="col" rowspan="2" class="corner"{sortable(0)}>Method</th>'
    return f"<tr>{corner}{top}</tr>\n<tr>{names}</tr>"


def _families(columns: Sequence[MetricColumn]) -> dict[str, list[str]]:
    """Return the metrics of each family of columns; the user's own metrics are the last family."""
    present = [column.metric for column in columns if not column.is_goal]
    goals = [column.metric for column in columns if column.is_goal]
    known = {name: [m for m in members if m in present] for name, members in FAMILIES.items()}
    users = [m for m in present if not any(m in members for members in known.values())]
    first, *others = known
    every = {first: known[first], "Until AvgRare passes": goals}
    every |= {name: known[name] for name in others} | {"Own metrics": users}
    return {name: members for name, members in every.items() if members}


def _metric_cell(value: MetricCell, first: bool) -> str:
    words = f"★ {value.mean}" if value.best else value.mean
    kind = ("first " if first else "") + ("best" if value.best else "")
    return cell(words, f"± {value.sd}" if value.sd else "", kind=kind)


def _recall_cell(mean: float | None) -> str:
    if mean is None:
        return cell(UNDEFINED)
    return cell(number("", mean), kind="heat", style=f"--recall: {mean:.0f}")


def _machine(timing: Mapping[str, Any]) -> str:
    cores = timing.get("cores", "?")
    words = "1 core" if cores == 1 else f"{cores} cores"
    return f"{timing.get('machine', '?')}, {words}, Python {timing.get('python', '?')}"


class Confusion(NamedTuple):
    """Test samples of all seeds by true label and by predicted label.

    Only counts above zero are kept, because there may be very many labels.
    """

    labels: Sequence[str]
    counts: Mapping[str, Mapping[str, int]]

    def shares(self, label: str) -> dict[str, float]:
        """Return the predictions for the label's test samples in percent; empty without samples."""
        row = self.counts.get(label, {})
        total = sum(row.values())
        return {other: 100 * count / total for other, count in row.items()}

    @property
    def cells(self) -> int:
        """The number of cells of the matrix."""
        return len(self.labels) ** 2


def confusions(groups: Sequence[Group]) -> dict[str, Confusion]:
    """Return the confusion of each group's last model; an interrupted run has none."""
    found = {group.name: _confusion(group) for group in groups}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def frequent_mistakes(matrices: Mapping[str, Confusion], groups: Sequence[Group]) -> str:
    """Return a table of the most frequent mistakes for each rare label and method, if any."""
    rare = [
        label for label in rare_labels(groups) if any(label in m.labels for m in matrices.values())
    ]
    if not rare:
        return ""
    lines = [
        row_head(name) + "".join(_mistakes_cell(matrix, label) for label in rare)
        for name, matrix in matrices.items()
    ]
    head = names_head("Method", rare, "guess")
    caption = (
        "The share of a rare label's test samples that is recognised and, in small print, the most"
        " frequent wrong predictions, in percent. Last model, all seeds together."
    )
    csv = csv_text(["name", "label", "taken_for", "percent"], _share_rows(matrices, rare))
    return table("mistaken", caption, head, lines, csv=csv)


def confusion_tables(matrices: Mapping[str, Confusion], groups: Sequence[Group]) -> str:
    """Return the matrices in collapsed blocks, up to `MOST_CELLS` cells."""
    rare = set(rare_labels(groups))
    shown, cells = [], 0
    for n, (name, matrix) in enumerate(matrices.items()):
        cells += matrix.cells
        if cells <= MOST_CELLS:
            shown.append(details(name, "", _matrix(f"confusion-{n}", name, matrix, rare)))
    left_out = len(matrices) - len(shown)
    if left_out:
        shown.append(note(f"{left_out} more do not fit on this page; the logs have their numbers."))
    return details("Confusion matrices", "of all labels", "\n".join(shown))


def _confusion(group: Group) -> Confusion | None:
    known = [run.summary["confusion"] for run in group.runs]
    if not known or any(matrix is None for matrix in known):
        return None
    labels = [str(label) for label in group.runs[0].start.labels]
    position = {label: n for n, label in enumerate(labels)}
    total: dict[str, Counter[str]] = {}
    for matrix in known:
        for label, row in matrix.items():
            total.setdefault(label, Counter()).update(row)
    if not all({label, *row} <= position.keys() for label, row in total.items()):
        return None
    counts = {
        label: {other: row[other] for other in sorted(row, key=position.__getitem__)}
        for label, row in total.items()
    }
    return Confusion(labels, counts)


def _mistakes_cell(matrix: Confusion, label: str) -> str:
    if label not in matrix.labels:
        return cell(UNDEFINED)
    shares = matrix.shares(label)
    right = shares.pop(label, 0.0)
    others = sorted(shares, key=shares.__getitem__, reverse=True)
    words = [f"{short(other)} ({shares[other]:.0f} %)" for other in others[:MOST_MISTAKES]]
    return cell(f"{right:.1f}", ", ".join(words), kind="heat guess", style=f"--recall: {right:.0f}")


def _share_rows(matrices: Mapping[str, Confusion], rare: Sequence[str]) -> list[list[Any]]:
    return [
        [name, label, other, share]
        for name, matrix in matrices.items()
        for label in rare
        for other, share in matrix.shares(label).items()
    ]


def _matrix(identity: str, name: str, matrix: Confusion, rare: set[str]) -> str:
    heads = "".join(column_head(short(label)) for label in matrix.labels)
    head = f"<tr>{column_head('Label', 'corner')}{heads}</tr>"
    lines = []
    for label in matrix.labels:
        shares = matrix.shares(label)
        cells = (_share_cell(shares.get(other, 0.0), label == other) for other in matrix.labels)
        lines.append(row_head(label, "rare" if label in rare else "") + "".join(cells))
    caption = (
        f"{short(name)}. Rows: the true label. Columns: the prediction of the last model, in"
        " percent of the row; an empty cell is 0. All seeds together. The CSV has sample counts."
    )
    numbers = [
        [label, *(matrix.counts.get(label, {}).get(other, 0) for other in matrix.labels)]
        for label in matrix.labels
    ]
    csv = csv_text(["label", *matrix.labels], numbers)
    return table(identity, caption, head, lines, csv=csv, kind="tall matrix")


def _share_cell(share: float, diagonal: bool) -> str:
    kind = ' class="own"' if diagonal else ""
    if share == 0:
        return f"<td{kind}></td>"
    words = f"{share:.0f}" if share >= 0.5 else "<1"
    return f'<td{kind} style="--share: {share:.0f}">{text(words)}</td>'


class InfluenceRatio(NamedTuple):
    """The influence on the model and the share of the samples, as means over the seeds."""

    influence: float
    fair_share: float

    @property
    def ratio(self) -> float:
        """The influence as a multiple of the fair share."""
        return self.influence / self.fair_share


def client_influence(data: ReportData) -> str:
    """Return the influence of groups of clients; empty if nothing was aggregated."""
    kinds = {kind: [_client_ratio(data, g, kind) for g in data.groups] for kind in CLIENT_KINDS}
    shown = {kind: column for kind, column in kinds.items() if any(column)}
    if not shown:
        return ""
    caption = (
        f"Influence of {_rare_client_count(data)}: their total weight in the model, as a multiple"
        " of their share of all samples. Mean over aggregations and seeds."
    )
    return _ratio_table("clients", caption, data.names, shown, "clients")


def label_influence(groups: Sequence[Group]) -> str:
    """Return the influence of the rare labels; empty without any, or if nothing was aggregated."""
    shown = {
        label: [_label_ratio(group, label) for group in groups] for label in rare_labels(groups)
    }
    shown = {label: column for label, column in shown.items() if any(column)}
    caption = (
        "Label influence, the share of a label in the weighted data of the model, as a multiple of"
        " the label's share of all samples. The mark is that fair share, 1 ×; a label below it has"
        " less influence than its samples deserve. The small print has both shares. Mean over the"
        " seeds."
    )
    names = [group.name for group in groups]
    return _ratio_table("influence", caption, names, shown, "label") if shown else ""


def every_label_influence(groups: Sequence[Group]) -> str:
    """Return the influence of every label under each method; empty if nothing was aggregated."""
    rare = rare_labels(groups)
    rows = {label: [_label_ratio(group, label) for group in groups] for label in labels(groups)}
    rows = {label: row for label, row in rows.items() if any(row)}
    if not rows:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "")
        + "".join(cell(UNDEFINED if value is None else f"{value.ratio:.2f} ×") for value in row)
        for label, row in rows.items()
    ]
    caption = "Label influence over fair share, for every label; 1 × is fair. Mean over the seeds."
    names = [group.name for group in groups]
    numbers = [
        [name, label, "rare" if label in rare else "", *value, value.ratio]
        for label, row in rows.items()
        for name, value in zip(names, row, strict=True)
        if value is not None
    ]
    csv = csv_text(["name", "label", "rare", "influence", "fair_share", "ratio"], numbers)
    head = names_head("Label", names, "narrow")
    return table("every-label", caption, head, lines, csv=csv, kind="tall")


def _label_ratio(group: Group, label: str) -> InfluenceRatio | None:
    def mean(key: str) -> float | None:
        return mean_over(group, lambda run: run.summary["label_influence"].get(label, {}).get(key))

    return _ratio(mean("influence"), mean("fair_share"))


def _client_ratio(data: ReportData, group: Group, kind: str) -> InfluenceRatio | None:
    influences, fair_shares = [], []
    for run, history in zip(group.runs, data.histories[group.name], strict=True):
        members, influence = CLIENT_KINDS[kind](history.state), run.summary["influence"]
        samples = history.samples
        total = sum(samples.values())
        if members and total and run.summary["label_influence"]:
            influences.append(sum(influence.get(str(client), 0.0) for client in members))
            fair_shares.append(sum(samples[client] for client in members) / total)
    if len(influences) < len(group.runs):
        return None
    return _ratio(Stat.of(influences).mean, Stat.of(fair_shares).mean)


def _ratio(influence: float | None, fair_share: float | None) -> InfluenceRatio | None:
    if influence is None or not fair_share:
        return None
    return InfluenceRatio(influence, fair_share)


def _rare_client_count(data: ReportData) -> str:
    """Return, for example, "4 rare clients of 30", with a range if seeds or methods differ."""
    histories = [history for some in data.histories.values() for history in some]
    rare = span([len(history.state.rare) for history in histories])
    clients = "client" if rare == "1" else "clients"
    return f"{rare} rare {clients} of {span([len(history.state.counts) for history in histories])}"


def _ratio_table(
    identity: str,
    caption: str,
    names: Sequence[str],
    columns: Mapping[str, Sequence[InfluenceRatio | None]],
    what: str,
) -> str:
    """Return a table of methods and labels or groups of clients, with a bar in each cell."""
    widest = max(2.0, *(value.ratio for column in columns.values() for value in column if value))
    lines = [
        row_head(name) + "".join(_ratio_cell(column[n], widest) for column in columns.values())
        for n, name in enumerate(names)
    ]
    numbers = [
        [name, other, *value, value.ratio]
        for n, name in enumerate(names)
        for other, column in columns.items()
        if (value := column[n]) is not None
    ]
    csv = csv_text(["name", what, "influence", "fair_share", "ratio"], numbers)
    return table(identity, caption, names_head("Method", list(columns), "weight"), lines, csv=csv)


def _ratio_cell(value: InfluenceRatio | None, widest: float) -> str:
    if value is None:
        return cell(UNDEFINED, kind="left")
    bar = f"--part: {100 * value.ratio / widest:.1f}%; --fair: {100 / widest:.1f}%"
    words = f"{100 * value.influence:.1f} % against {100 * value.fair_share:.1f} %"
    return cell(f"{value.ratio:.2f} ×", words, kind="weight", style=bar)
