"""What residual replay was to reach, and whether it has: made from the tables beyond the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from fedraw_studies.cells import CellRecord
from fedraw_studies.outcomes import TAIL, Outcome, RowOutcome
from fedraw_studies.rules import Interval

OURS, OTHERS = "Replay", ("FedRAW", "CA2FL")
# GlobalAcc may be so much lower than the better of the two.
COST = 0.5
FEWEST = 2
SPEEDS = {"beyond-headline": ("2x",), "beyond-slow": ("10x", "20x")}
HEAD = """\
| | speed | seeds | AvgRare − FedRAW | AvgRare − CA2FL | GlobalAcc − the better | goal |
| --- | --- | --: | --: | --: | --: | --- |
"""
CAPTION = (
    "Replay minus another method, seed by seed, in points: the mean difference and its 95 % "
    "interval; bold where that excludes zero. Goals, set before the runs: more AvgRare than both "
    "at 2x and 10x, at 20x at least CA2FL's, and a GlobalAcc at most 0.5 below the better of the "
    "two. The goal is judged by the means."
)


def goals_markdown(outcomes: Sequence[Outcome]) -> str | None:
    """None until there are two seeds of all three methods somewhere."""
    by_name = {outcome.artefact: outcome for outcome in outcomes}
    parts = []
    for title, tail in (("The last model", False), ("The mean of the last five evaluations", True)):
        lines = [line for name in SPEEDS if name in by_name for line in _lines(by_name[name], tail)]
        if lines:
            parts.append(f"## {title}\n\n{HEAD}{''.join(lines)}")
    cat_dog = _cat_dog(by_name.get("beyond-cat-dog"))
    if not parts:
        return None
    title = "# Residual replay: goals and what came of them\n"
    return "\n".join([title, fill(CAPTION, 100) + "\n", *parts, *cat_dog])


def _lines(outcome: Outcome, tail: bool) -> list[str]:
    lines = []
    for dataset in dict.fromkeys(row.dataset for row in outcome.rows):
        for speed in SPEEDS[outcome.artefact]:
            rows = {row.method: row for row in outcome.rows if _is(row, dataset, speed)}
            if all(method in rows for method in (OURS, *OTHERS)):
                lines += _line(rows, speed, tail)
    return lines


def _is(row: RowOutcome, dataset: str, speed: str) -> bool:
    ratio = row.spec["speeds"].get("ratio")
    return row.dataset == dataset and speed == ("2x" if ratio is None else f"{ratio:g}x")


def _line(rows: dict[str, RowOutcome], speed: str, tail: bool) -> list[str]:
    ours = rows[OURS]
    seeds = [seed for seed in ours.seeds if all(seed in rows[m].seeds for m in OTHERS)]
    if len(seeds) < FEWEST:
        return []
    rare = {m: _less(ours, rows[m], "AvgRare", seeds, tail) for m in OTHERS}
    means = {m: _mean(rows[m], "GlobalAcc", seeds, tail) for m in OTHERS}
    better = max(means, key=lambda method: means[method])
    accuracy = _less(ours, rows[better], "GlobalAcc", seeds, tail)
    needed = ("CA2FL",) if speed == "20x" else OTHERS
    met = {
        "AvgRare": all(rare[m].mean > 0 or (speed == "20x" and rare[m].mean >= 0) for m in needed),
        "GlobalAcc": accuracy.mean >= -COST,
    }
    missed = [name for name, reached in met.items() if not reached]
    verdict = f"missed: {', '.join(missed)}" if missed else "met"
    title = ours.label.split(",")[0]
    cells = [title, speed, str(len(seeds)), *(_shown(rare[m]) for m in OTHERS), _shown(accuracy)]
    return [f"| {' | '.join([*cells, verdict])} |\n"]


def _cat_dog(outcome: Outcome | None) -> list[str]:
    """The worse of two like labels should have at least half of the better one's recall."""
    if outcome is None or not outcome.is_begun:
        return []
    lines = ["| | | seeds | worse label | better label | worse / better |\n"]
    lines.append("| --- | --- | --: | --: | --: | --: |\n")
    for row in outcome.rows:
        last = [_pair(record, record.recall) for record in row.records.values()]
        lines += _ratio(row.label, "last model", last)
        if all(record.recall_tail for record in row.records.values()):
            tail = [_pair(record, record.recall_tail) for record in row.records.values()]
            lines += _ratio("", "last five", tail)
    words = (
        "Recall of the worse and the better of the two, by seed, then their means over seeds; the "
        "goal is 0.5."
    )
    return [f"## Cat and dog\n\n{fill(words, 100)}\n\n{''.join(lines)}"]


def _pair(record: CellRecord, recall: Mapping[str, float | None]) -> list[float]:
    return sorted(recall[label] or 0.0 for label in record.rare_labels)


def _ratio(method: str, measure: str, pairs: Sequence[Sequence[float]]) -> list[str]:
    if not pairs:
        return []
    worse, better = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, -1))
    ratio = f"{worse / better:.2f}" if better else "–"
    cells = [method, measure, str(len(pairs)), f"{worse:.1f}", f"{better:.1f}", ratio]
    return [f"| {' | '.join(cells)} |\n"]


def _values(row: RowOutcome, metric: str, seeds: Sequence[int], tail: bool) -> list[float]:
    name = TAIL + metric if tail else metric
    known = dict(zip(row.metrics[name].seeds, row.metrics[name].ours.values, strict=True))
    return [known[seed] or 0.0 for seed in seeds]


def _less(
    one: RowOutcome, other: RowOutcome, metric: str, seeds: Sequence[int], tail: bool
) -> Interval:
    pairs = zip(_values(one, metric, seeds, tail), _values(other, metric, seeds, tail), strict=True)
    return Interval.of([a - b for a, b in pairs])


def _mean(row: RowOutcome, metric: str, seeds: Sequence[int], tail: bool) -> float:
    return sum(_values(row, metric, seeds, tail)) / len(seeds)


def _shown(interval: Interval) -> str:
    mean, low, high = interval
    text = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text
