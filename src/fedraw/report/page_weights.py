"""What clients and labels weigh in the model, against what they hold of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedraw.core.types import ClientId
from fedraw.eventlog.compare import Group, Run, Stat
from fedraw.pages.html import cell, csv_text, row_head, table
from fedraw.report.cells import UNDEFINED
from fedraw.report.course import Course
from fedraw.report.material import Material
from fedraw.report.page_tables import labels, mean_of, names_head, rare_labels, stat_over

CLIENT_KINDS: dict[str, Callable[[Course], set[ClientId]]] = {
    "rare clients": lambda course: set(course.rare) - {course.attacker},
    "other clients": lambda course: set(course.samples) - set(course.rare) - {course.attacker},
    "misreporting client": lambda course: set() if course.attacker is None else {course.attacker},
}


class Weight(NamedTuple):
    """What part of the model someone has, and of the samples; each the mean over the seeds."""

    influence: float
    fair_share: float

    @property
    def ratio(self) -> float:
        return self.influence / self.fair_share


def label_influence(groups: Sequence[Group]) -> str:
    """Methods down, rare labels across; empty if there are none, or nothing was aggregated."""
    shown = {label: [_spoken(group, label) for group in groups] for label in rare_labels(groups)}
    shown = {label: column for label, column in shown.items() if any(column)}
    caption = (
        "Label influence, how much of the model a label speaks for, as a multiple of the label's"
        " share of all samples. The mark is that fair share, 1 ×; short of it, the label has less"
        " say than samples. Below, both shares. Mean over the seeds."
    )
    names = [group.name for group in groups]
    return _weights("influence", caption, names, shown, "label") if shown else ""


def client_influence(material: Material) -> str:
    """Methods down, groups of clients across; empty if nothing was aggregated."""
    kinds = {kind: [_held(material, g, kind) for g in material.groups] for kind in CLIENT_KINDS}
    shown = {kind: column for kind, column in kinds.items() if any(column)}
    if not shown:
        return ""
    caption = (
        f"Influence of {_how_many(material)}: the weight they have in the model together, as a"
        " multiple of their share of all samples. Mean over aggregations and seeds."
    )
    return _weights("clients", caption, material.names, shown, "clients")


def every_label_influence(groups: Sequence[Group]) -> str:
    """Labels down, methods across: by how much each label's say differs from its samples."""
    rare = rare_labels(groups)
    rows = {label: [_spoken(group, label) for group in groups] for label in labels(groups)}
    rows = {label: row for label, row in rows.items() if any(row)}
    if not rows:
        return ""
    lines = [
        row_head(label, "rare" if label in rare else "")
        + "".join(cell(UNDEFINED if w is None else f"{w.ratio:.2f} ×") for w in row)
        for label, row in rows.items()
    ]
    caption = "Label influence over fair share, for every label; 1 × is fair. Mean over the seeds."
    names = [group.name for group in groups]
    numbers = [
        [name, label, "rare" if label in rare else "", w.influence, w.fair_share, w.ratio]
        for label, row in rows.items()
        for name, w in zip(names, row, strict=True)
        if w is not None
    ]
    csv = csv_text(["name", "label", "rare", "influence", "fair_share", "ratio"], numbers)
    head = names_head("Label", names, "narrow")
    return table("every-label", caption, head, lines, csv=csv, kind="tall")


def _spoken(group: Group, label: str) -> Weight | None:
    """Label influence and fair share."""

    def part(key: str) -> float | None:
        def value(run: Run) -> Any:
            return run.content["label_influence"].get(label, {}).get(key)

        return mean_of(stat_over(group, value))

    return _weight(part("influence"), part("fair_share"))


def _weight(own: float | None, fair: float | None) -> Weight | None:
    return Weight(own, fair) if own is not None and fair else None


def _held(material: Material, group: Group, kind: str) -> Weight | None:
    """Influence and share of samples of a group of clients."""
    own, fair = [], []
    for run, course in zip(group.runs, material.courses[group.name], strict=True):
        members, influence = CLIENT_KINDS[kind](course), run.content["influence"]
        whole = sum(course.samples.values())
        if members and whole and run.content["label_influence"]:
            own.append(sum(influence.get(str(client), 0.0) for client in members))
            fair.append(sum(course.samples[client] for client in members) / whole)
    if len(own) < len(group.runs):
        return None
    return _weight(Stat.of(own).mean, Stat.of(fair).mean)


def _how_many(material: Material) -> str:
    """For example "4 rare clients of 30"; a range where seeds or methods differ."""
    courses = [course for some in material.courses.values() for course in some]

    def span(counts: Sequence[int]) -> str:
        few, many = min(counts), max(counts)
        return str(few) if few == many else f"{few} to {many}"

    rare = span([len(course.rare) for course in courses])
    clients = "client" if rare == "1" else "clients"
    return f"{rare} rare {clients} of {span([len(course.samples) for course in courses])}"


def _weights(
    identity: str,
    caption: str,
    names: Sequence[str],
    columns: Mapping[str, Sequence[Weight | None]],
    what: str,
) -> str:
    """Methods down, labels or groups of clients across, each as a bar against its fair share."""
    widest = max(2.0, *(weight.ratio for column in columns.values() for weight in column if weight))
    lines = [
        row_head(name) + "".join(_weighed(column[n], widest) for column in columns.values())
        for n, name in enumerate(names)
    ]
    numbers = [
        [name, other, weight.influence, weight.fair_share, weight.ratio]
        for n, name in enumerate(names)
        for other, column in columns.items()
        if (weight := column[n]) is not None
    ]
    csv = csv_text(["name", what, "influence", "fair_share", "ratio"], numbers)
    return table(identity, caption, names_head("Method", list(columns), "weight"), lines, csv=csv)


def _weighed(weight: Weight | None, widest: float) -> str:
    if weight is None:
        return cell(UNDEFINED, kind="left")
    bar = f"--part: {100 * weight.ratio / widest:.1f}%; --fair: {100 / widest:.1f}%"
    words = f"{100 * weight.influence:.1f} % against {100 * weight.fair_share:.1f} %"
    return cell(f"{weight.ratio:.2f} ×", words, kind="weight", style=bar)
