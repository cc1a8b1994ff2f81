"""Comparisons: documents of paired differences between rows of artefacts, as data.

`paper/levels.toml` and `beyond/beyond-goals.toml` are such documents. A document has tables, a
table has groups of lines, and a line has cells. `each` repeats a group for every combination of
its entries, whose names stand in braces in texts, rows and metrics. A cell is one of

    "{dataset}"                             a text; {seeds} and {goal} are filled in last
    { a = row, b = rows, metric = m }       A − B by seed; of several B the one with the best mean
    { mean = row, metric = m }              the mean over the seeds
    { paper = row, metric = m }             what the paper prints
    { ratio = row, metric = [m, n] }        the ratio of two means

A difference may have a goal: `above` or `least` bounds its mean, and `goal` names it in {goal}.
A line appears once all its rows have `fewest` seeds in common and its means are defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from statistics import fmean
from textwrap import fill
from typing import Any

from fedraw_studies.artefacts import study_file
from fedraw_studies.markdown import NOTHING, WIDTH, interval_text
from fedraw_studies.outcomes import Outcome, Values
from fedraw_studies.rules import MeanInterval

NAMES = ("levels", "steady", "open-questions", "beyond-goals")
# Cells refer to rows under these keys.
_ROWS = ("a", "b", "mean", "paper", "ratio")

CellTemplate = str | Mapping[str, Any]


def comparison_markdown(name: str, outcomes: Sequence[Outcome]) -> str | None:
    """Write a comparison as Markdown; None until one of its lines can be written."""
    file, by_name = study_file(name), {outcome.name: outcome for outcome in outcomes}
    parts = []
    for table in file["tables"]:
        words = {"measure": table.get("measure", "")}
        lines = [
            line
            for group in file["groups"][table["groups"]]
            if group["artefact"] in by_name
            for line in _lines(group, by_name[group["artefact"]], words, table.get("fewest", 2))
        ]
        if lines:
            title = f"## {table['title']}\n\n" if "title" in table else ""
            text = f"{fill(table['text'], WIDTH)}\n\n" if "text" in table else ""
            parts.append(f"{title}{text}{table['head']}{''.join(lines)}")
    if not parts:
        return None
    return "\n".join([f"# {file['title']}\n", fill(file["caption"], WIDTH) + "\n", *parts])


def _lines(
    group: Mapping[str, Any], outcome: Outcome, words: Mapping[str, str], fewest: int
) -> Iterator[str]:
    each = group["each"]
    for entries in product(*each.values()):
        filled = {**words, **dict(zip(each, entries, strict=True))}
        for cells in group["lines"]:
            line = _Line(outcome, [_filled(cell, filled) for cell in cells])
            if line.is_ready(fewest):
                yield f"| {' | '.join(line.texts())} |\n"


def _filled(cell: Any, words: Mapping[str, str]) -> Any:
    """Fill the entries of `each` into every text of a cell.

    >>> _filled({"a": ["{x}, FedRAW"], "least": 0.5}, {"x": "EMNIST"})
    {'a': ['EMNIST, FedRAW'], 'least': 0.5}
    """
    if isinstance(cell, str):
        for name, entry in words.items():
            cell = cell.replace(f"{{{name}}}", entry)
        return cell
    if isinstance(cell, Mapping):
        return {key: _filled(value, words) for key, value in cell.items()}
    return [_filled(value, words) for value in cell] if isinstance(cell, list) else cell


@dataclass(frozen=True)
class _Line:
    outcome: Outcome
    cells: Sequence[CellTemplate]

    @property
    def labels(self) -> list[str]:
        """The rows that its cells refer to."""
        named = [c[key] for c in self.cells if not isinstance(c, str) for key in _ROWS if key in c]
        return [label for entry in named for label in _listed(entry)]

    @property
    def seeds(self) -> list[int]:
        """The seeds that all of its rows have."""
        first, *others = [self.outcome.row(label).seeds for label in self.labels]
        return [seed for seed in first if all(seed in own for own in others)]

    def is_ready(self, fewest: int) -> bool:
        known = {row.label for row in self.outcome.rows}
        if not known.issuperset(self.labels) or len(self.seeds) < fewest:
            return False
        means = [c for c in self.cells if not isinstance(c, str) and ("mean" in c or "ratio" in c)]
        return all(
            None not in self._values(cell.get("mean", cell.get("ratio")), metric).values()
            for cell in means
            for metric in _listed(cell["metric"])
        )

    def texts(self) -> list[str]:
        missed: dict[str, None] = {}
        texts = [c if isinstance(c, str) else self._text(c, missed) for c in self.cells]
        goal = f"missed: {', '.join(missed)}" if missed else "met"
        return [t.replace("{seeds}", str(len(self.seeds))).replace("{goal}", goal) for t in texts]

    def _text(self, cell: Mapping[str, Any], missed: dict[str, None]) -> str:
        if "paper" in cell:
            printed = self.outcome.row(cell["paper"]).metrics[cell["metric"]].paper
            return NOTHING if printed is None else printed.printed
        if "mean" in cell:
            return f"{self._mean(cell['mean'], cell['metric']):.1f}"
        if "ratio" in cell:
            one, other = (self._mean(cell["ratio"], metric) for metric in cell["metric"])
            return f"{one / other:.2f}" if other else NOTHING
        interval = self._difference(cell)
        if interval is None:
            return NOTHING
        above, least = cell.get("above"), cell.get("least")
        if (above is not None and interval.mean <= above) or (
            least is not None and interval.mean < least
        ):
            missed[cell["goal"]] = None
        return interval_text(interval)

    def _difference(self, cell: Mapping[str, Any]) -> MeanInterval | None:
        metric, others = cell["metric"], _listed(cell["b"])
        best = others[0] if len(others) == 1 else max(others, key=lambda b: self._mean(b, metric))
        one, other = self._values(cell["a"], metric), self._values(best, metric)
        pairs = [(one[seed], other[seed]) for seed in self.seeds]
        known = [a - b for a, b in pairs if a is not None and b is not None]
        return MeanInterval.of(known) if len(known) > 1 else None

    def _mean(self, label: str, metric: str) -> float:
        known = [v for v in self._values(label, metric).values() if v is not None]
        return fmean(known) if known else -inf

    def _values(self, label: str, metric: str) -> Values:
        values = self.outcome.row(label).values(metric)
        return {seed: values[seed] for seed in self.seeds}


def _listed(entry: str | Sequence[str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)
