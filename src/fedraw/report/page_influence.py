"""Tables of influence: what clients and labels weigh in the model, against their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedraw.core.types import ClientId
from fedraw.eventlog.compare import Group, Stat
from fedraw.pages.html import cell, csv_text, row_head, table
from fedraw.report.formatting import UNDEFINED, span
from fedraw.report.page_tables import names_head
from fedraw.report.report_data import ReportData, RunHistory, labels, mean_over, rare_labels

CLIENT_KINDS: dict[str, Callable[[RunHistory], set[ClientId]]] = {
    "rare clients": lambda history: set(history.rare) - {history.attacker},
    "other clients": lambda history: set(history.samples) - {*history.rare, history.attacker},
    "misreporting client": lambda h: set() if h.attacker is None else {h.attacker},
}


class InfluenceRatio(NamedTuple):
    """Influence on the model and share of the samples, each the mean over the seeds."""

    influence: float
    fair_share: float

    @property
    def ratio(self) -> float:
        """The influence as a multiple of the fair share."""
        return self.influence / self.fair_share


def client_influence(data: ReportData) -> str:
    """Return the influence of groups of clients; empty if nothing was aggregated."""
    kinds = {kind: [_of_clients(data, g, kind) for g in data.groups] for kind in CLIENT_KINDS}
    shown = {kind: column for kind, column in kinds.items() if any(column)}
    if not shown:
        return ""
    caption = (
        f"Influence of {_how_many(data)}: the weight they have in the model together, as a"
        " multiple of their share of all samples. Mean over aggregations and seeds."
    )
    return _ratio_table("clients", caption, data.names, shown, "clients")


def label_influence(groups: Sequence[Group]) -> str:
    """Return the influence of the rare labels; empty without any, or if nothing was aggregated."""
    shown = {label: [_of_label(group, label) for group in groups] for label in rare_labels(groups)}
    shown = {label: column for label, column in shown.items() if any(column)}
    caption = (
        "Label influence, how much of the model a label speaks for, as a multiple of the label's"
        " share of all samples. The mark is that fair share, 1 ×; below it, the label has less"
        " influence than samples. The small print gives both shares. Mean over the seeds."
    )
    names = [group.name for group in groups]
    return _ratio_table("influence", caption, names, shown, "label") if shown else ""


def every_label_influence(groups: Sequence[Group]) -> str:
    """Return the influence of every label under each method; empty if nothing was aggregated."""
    rare = rare_labels(groups)
    rows = {label: [_of_label(group, label) for group in groups] for label in labels(groups)}
    rows = {label: row for label, row in rows.items() if any(row)}
    if not rows:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "")
        + "".join(cell(UNDEFINED if own is None else f"{own.ratio:.2f} ×") for own in row)
        for label, row in rows.items()
    ]
    caption = "Label influence over fair share, for every label; 1 × is fair. Mean over the seeds."
    names = [group.name for group in groups]
    numbers = [
        [name, label, "rare" if label in rare else "", *own, own.ratio]
        for label, row in rows.items()
        for name, own in zip(names, row, strict=True)
        if own is not None
    ]
    csv = csv_text(["name", "label", "rare", "influence", "fair_share", "ratio"], numbers)
    head = names_head("Label", names, "narrow")
    return table("every-label", caption, head, lines, csv=csv, kind="tall")


def _of_label(group: Group, label: str) -> InfluenceRatio | None:
    def mean(key: str) -> float | None:
        return mean_over(group, lambda run: run.content["label_influence"].get(label, {}).get(key))

    return _ratio(mean("influence"), mean("fair_share"))


def _of_clients(data: ReportData, group: Group, kind: str) -> InfluenceRatio | None:
    own, fair = [], []
    for run, history in zip(group.runs, data.histories[group.name], strict=True):
        members, influence = CLIENT_KINDS[kind](history), run.content["influence"]
        whole = sum(history.samples.values())
        if members and whole and run.content["label_influence"]:
            own.append(sum(influence.get(str(client), 0.0) for client in members))
            fair.append(sum(history.samples[client] for client in members) / whole)
    if len(own) < len(group.runs):
        return None
    return _ratio(Stat.of(own).mean, Stat.of(fair).mean)


def _ratio(influence: float | None, fair_share: float | None) -> InfluenceRatio | None:
    if influence is None or not fair_share:
        return None
    return InfluenceRatio(influence, fair_share)


def _how_many(data: ReportData) -> str:
    """Say, for example, "4 rare clients of 30", with a range if seeds or methods differ."""
    histories = [history for some in data.histories.values() for history in some]
    rare = span([len(history.rare) for history in histories])
    clients = "client" if rare == "1" else "clients"
    return f"{rare} rare {clients} of {span([len(history.samples) for history in histories])}"


def _ratio_table(
    identity: str,
    caption: str,
    names: Sequence[str],
    columns: Mapping[str, Sequence[InfluenceRatio | None]],
    what: str,
) -> str:
    """Return a table of methods and labels or groups of clients, with a bar in each cell."""
    widest = max(2.0, *(own.ratio for column in columns.values() for own in column if own))
    lines = [
        row_head(name) + "".join(_ratio_cell(column[n], widest) for column in columns.values())
        for n, name in enumerate(names)
    ]
    numbers = [
        [name, other, *own, own.ratio]
        for n, name in enumerate(names)
        for other, column in columns.items()
        if (own := column[n]) is not None
    ]
    csv = csv_text(["name", what, "influence", "fair_share", "ratio"], numbers)
    return table(identity, caption, names_head("Method", list(columns), "weight"), lines, csv=csv)


def _ratio_cell(own: InfluenceRatio | None, widest: float) -> str:
    if own is None:
        return cell(UNDEFINED, kind="left")
    bar = f"--part: {100 * own.ratio / widest:.1f}%; --fair: {100 / widest:.1f}%"
    words = f"{100 * own.influence:.1f} % against {100 * own.fair_share:.1f} %"
    return cell(f"{own.ratio:.2f} ×", words, kind="weight", style=bar)
