"""Tables of mistakes: what the rare labels are taken for, and whole confusion matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedraw.eventlog.compare import Group
from fedraw.pages.html import cell, column_head, csv_text, details, note, row_head, table, text
from fedraw.report.drawing import short
from fedraw.report.formatting import UNDEFINED
from fedraw.report.report_data import rare_labels

# More cells of confusion matrices would make the page too large.
MOST_CELLS = 30_000
# How many wrong labels are named for a rare label.
MOST_MISTAKES = 2


class Confusion(NamedTuple):
    """Test samples of all seeds by true label and by predicted label.

    Only counts above zero are kept, because there may be very many labels.
    """

    labels: Sequence[str]
    counts: Mapping[str, Mapping[str, int]]

    def shares(self, label: str) -> dict[str, float]:
        """Return what the label's test samples are taken for, in percent; empty without samples."""
        row = self.counts.get(label, {})
        total = sum(row.values())
        return {other: 100 * count / total for other, count in row.items()}

    @property
    def cells(self) -> int:
        """The number of cells of the whole matrix."""
        return len(self.labels) ** 2


def confusions(groups: Sequence[Group]) -> dict[str, Confusion]:
    """Return the confusion of each group's last model; an interrupted run has none."""
    found = {group.name: _confusion(group) for group in groups}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def taken_for(matrices: Mapping[str, Confusion], groups: Sequence[Group]) -> str:
    """Return the most frequent mistakes for each rare label under each method; may be empty."""
    rare = [
        label for label in rare_labels(groups) if any(label in m.labels for m in matrices.values())
    ]
    if not rare:
        return ""
    lines = [
        row_head(name) + "".join(_mistakes_cell(matrix, label) for label in rare)
        for name, matrix in matrices.items()
    ]
    heads = "".join(
        column_head(label, "name guess", column=n) for n, label in enumerate(rare, start=1)
    )
    head = f"<tr>{column_head('Method', 'corner', column=0)}{heads}</tr>"
    caption = (
        "The share of a rare label's test samples that is recognised and, in small print, the"
        " labels they are taken for most often, in percent. Last model, all seeds together."
    )
    csv = csv_text(["name", "label", "taken_for", "percent"], _share_rows(matrices, rare))
    return table("mistaken", caption, head, lines, csv=csv)


def whole(matrices: Mapping[str, Confusion], groups: Sequence[Group]) -> str:
    """Return all matrices in collapsed blocks, as many as the page can hold."""
    rare = set(rare_labels(groups))
    shown, cells = [], 0
    for number, (name, matrix) in enumerate(matrices.items()):
        cells += matrix.cells
        if cells <= MOST_CELLS:
            shown.append(details(name, "", _matrix(f"confusion-{number}", name, matrix, rare)))
    left_out = len(matrices) - len(shown)
    if left_out:
        shown.append(note(f"{left_out} more are too large for this page; they are in the logs."))
    return details("Confusion matrices", "of all labels", "\n".join(shown))


def _confusion(group: Group) -> Confusion | None:
    known = [run.content["confusion"] for run in group.runs]
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
        f"{short(name)}. Rows: the true label. Columns: the label that the last model predicted, in"
        " percent of the row; blank is none. All seeds together. The CSV has counts of samples."
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
