"""The documents of the study "Lost, or late?": one Markdown file and the figure of the README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedraw.errors import MissingExtra
from fedraw.eventlog.compare import Stat, mean_and_sd
from fedraw.eventlog.goals import RARE_GOALS
from fedraw.report.drawing import INK, Drawing, LineStyle, legend, line_styles, on_white, svg_of
from fedraw.storage.files import atomic_write
from fedraw_studies.artefacts import Scale
from fedraw_studies.cells import CellRecord
from fedraw_studies.execute import Machine
from fedraw_studies.late import DEMO, late_file, late_rows
from fedraw_studies.late_results import (
    HARD,
    LateResults,
    LateScore,
    for_good,
    late_results,
    reached_by,
)
from fedraw_studies.late_standings import complete_standings
from fedraw_studies.markdown import NOTHING, WIDTH, interval_text, pipe_table
from fedraw_studies.outcomes import Outcome
from fedraw_studies.render import UNFINISHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW_TO_READ = """\
Recall is AvgRare with GlobalAcc in brackets, the mean of the last five evaluations: first at the \
arena's length, then at ten times that length. "To 50 %" is the median number of arrivals, and the \
virtual time, until AvgRare passed 50 %: the first of five consecutive evaluations whose mean is \
above it. A run that never gets there counts as later than all others; brackets say how many got \
there if not all did. "Kept" means within the arena's length, "late" within ten times that length, \
"lost" not within it.\
"""
CAUGHT_UP = """\
FedFa's AvgRare at ten times the length minus that of another method, seed by seed, with the 95 % \
interval. FedFa has caught up unless the interval lies entirely below -5 points.\
"""
STANDING = """\
The audit computes the standing of each rare label under each method from label counts and times. \
The table has the fit of log10(arrivals to 50 %) = a + b log10(standing) over methods (without \
FedAvg), settings, seeds and rare labels. A label that did not get there is a censored value. The \
standard error is that of a bootstrap over seeds. Spread is the standard deviation of the errors, \
as a factor. The rows by family were added after the first look at the results.\
"""
FOR_GOOD = '"For good" is from when on no five consecutive evaluations have a mean below 50 %.'
# The curve of a method that waits, over the arrivals that others get in the same time.
BY_TIME = "FedAvg, by time"
# The limits of the figure's axis, in arrivals.
_FIRST, _LAST = 50, 20_000


def is_of_late(outcome: Outcome) -> bool:
    """Return whether an outcome belongs to this study, which has its own documents."""
    return outcome.name.startswith("late-")


def write_late(outcomes: Sequence[Outcome], scale: Scale, out: Path, machine: Machine) -> str:
    """Write late.md and the figure of the demo, and return the text."""
    by_name = {own.name: own for own in outcomes}
    begun = {
        dataset: own
        for dataset in late_file()["datasets"]
        if (own := by_name[f"late-{dataset}"]).artefact.rows and own.is_begun
    }
    runs = [
        (row, seed)
        for dataset, own in begun.items()
        for row in late_rows(dataset, scale)
        for seed in own.row(row.label).records
    ]
    standings = complete_standings(out, runs, machine)
    results = [late_results(dataset, scale, own, standings) for dataset, own in begun.items()]
    text = late_markdown(results, by_name[DEMO])
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "late.md", text.encode())
    if by_name[DEMO].is_begun:
        figures = out / "figures"
        figures.mkdir(exist_ok=True)
        try:
            svg = on_white(svg_of(demo_drawing(by_name[DEMO])))
        except MissingExtra:
            return text
        atomic_write(figures / f"{DEMO}.svg", svg.encode())
    return text


def late_markdown(results: Sequence[LateResults], demo: Outcome) -> str:
    """Write all finished runs as one Markdown document."""
    parts = [f"# {late_file()['title']}\n", fill(HOW_TO_READ, WIDTH) + "\n"]
    if demo.is_begun:
        parts += _demo(demo)
    for own in results:
        parts += _dataset(own)
    if any(list(own.caught_up()) for own in results):
        parts += ["## Does FedFa catch up?\n", fill(CAUGHT_UP, WIDTH) + "\n", _caught_up(results)]
    if results:
        parts += ["## Arrivals and standing\n", fill(STANDING, WIDTH) + "\n", _standing(results)]
    return "\n".join(parts)


def _demo(outcome: Outcome) -> Iterator[str]:
    yield "## The federation of the demo\n"
    yield _finished(outcome)
    lengths = (3000, 6000, 10_000, 20_000)
    lines = []
    for row in (row for row in outcome.rows if row.records):
        by_length = [Stat.of([_at(own, n) for own in row.records.values()]) for n in lengths]
        half, most = RARE_GOALS
        marks = reached_by(row.records, half), for_good(row.records, half)
        reached = [*map(str, marks), str(reached_by(row.records, most))]
        lines.append([row.label, *map(_one, by_length), *reached])
    head = [
        "AvgRare after",
        *(f"{n:,} arrivals" for n in lengths),
        "to 50 %",
        "for good",
        "to 80 %",
    ]
    yield pipe_table(head, lines, left=1)
    seeds = len(outcome.rows[0].seeds)
    said = f"Default rates, {seeds} seeds, mean ± sample standard deviation. {FOR_GOOD}"
    yield fill(said, WIDTH) + "\n"


def _at(record: CellRecord, arrivals: int) -> float | None:
    last = [rare for event, _, rare in record.curve if event <= arrivals][-5:]
    known = [value for value in last if value is not None]
    return sum(known) / len(known) if known else None


def _dataset(own: LateResults) -> Iterator[str]:
    rows = [score.row for score in own.scores]
    short, long = rows[0].early, rows[0].spec.run.events
    yield f"## {own.title}\n"
    if own.missing:
        yield f"{UNFINISHED} {own.missing} runs are missing.**\n"
    hard = own.dataset in HARD
    head = ["", "", "seeds", f"{short:,}", f"{long:,}", "to 50 %", "to 80 %", "verdict"]
    lines = [_line(score, hard) for score in own.scores]
    yield pipe_table(head + ["to half of the best", "verdict"] * hard, lines, left=2)


def _line(score: LateScore, hard: bool) -> list[str]:
    row = score.row
    return [
        row.setting.name,
        row.method.name,
        str(len(score.late_by_seed)),
        f"{_one(score.early)} ({score.accuracy_early.mean:.1f})",
        f"{_one(score.late)} ({score.accuracy_late.mean:.1f})",
        *(str(score.reached[goal]) for goal in RARE_GOALS),
        score.verdict,
        *([str(score.half), score.half_verdict] if hard else []),
    ]


def _one(stat: Stat) -> str:
    return mean_and_sd(stat) or NOTHING


def _caught_up(results: Sequence[LateResults]) -> str:
    cells = {
        (own.title, setting, other): interval
        for own in results
        for setting, other, interval in own.caught_up()
    }
    others = list(dict.fromkeys(other for *_, other in cells))
    places = list(dict.fromkeys((title, setting) for title, setting, _ in cells))
    lines = [
        [title, setting, *(interval_text(cells.get((title, setting, other))) for other in others)]
        for title, setting in places
    ]
    return pipe_table(["", "", *(f"FedFa − {other}" for other in others)], lines, left=2)


def _standing(results: Sequence[LateResults]) -> str:
    lines = []
    for own in results:
        got, every = own.labels
        if not own.fits:
            lines.append([own.title, "all", f"{got} of {every}", *["too few"] * 3])
        for fit in own.fits:
            error = "(one seed)" if fit.error is None else f"± {fit.error:.2f}"
            slope = f"{fit.slope:.2f} {error}"
            numbers = [slope, f"{fit.at_tenth:,.0f}", f"× {fit.spread:.1f}"]
            lines.append([own.title, fit.family, f"{fit.reached} of {fit.labels}", *numbers])
    head = ["", "methods", "labels that got to 50 %", "exponent b", "arrivals at 0.1", "spread"]
    return pipe_table(head, lines, left=2)


def _finished(outcome: Outcome) -> str:
    done, needed = outcome.runs
    return (
        f"All {needed} runs.\n" if done == needed else f"{UNFINISHED} {done} of {needed} runs.**\n"
    )


def demo_drawing(outcome: Outcome) -> Drawing:
    """Return AvgRare and GlobalAcc of the demo's federation over a logarithmic axis of arrivals."""
    runs = {row.label: row.records for row in outcome.rows if row.records}
    title = "Recall of the rare labels and accuracy on all labels, over up to 20,000 arrivals"
    return Drawing(DEMO, title, lambda: _draw(runs))


def _draw(runs: Mapping[str, Mapping[int, CellRecord]]) -> Figure:
    from matplotlib.figure import Figure

    names = [*runs, *([BY_TIME] if "FedAvg" in runs and len(runs) > 1 else [])]
    keys = [name.lower().replace("replay", "fedraw-replay") for name in names]
    styles = dict(zip(names, line_styles(keys), strict=True))
    if BY_TIME in styles:  # the same method and colour, dashed
        styles[BY_TIME] = styles["FedAvg"]._replace(dash=":", marker="")
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (column, words) in zip(
        axes, {2: "Rare labels (AvgRare, %)", 1: "All labels (GlobalAcc, %)"}.items(), strict=True
    ):
        for name, style in styles.items():
            records = runs["FedAvg" if name == BY_TIME else name]
            x, mean, low, high = _curve(records, column)
            if name == BY_TIME:
                x = _in_the_same_time(records, runs)
            _draw_line(ax, style, x, mean, low, high)
        _format(ax, words)
    legend(figure, styles, 4)
    return figure


def _curve(
    records: Mapping[int, CellRecord], column: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrivals, and the mean and the extremes of the seeds of five evaluations each."""
    raw = np.array([[point[column] or 0.0 for point in own.curve] for own in records.values()])
    window = np.lib.stride_tricks.sliding_window_view(raw, 5, axis=1).mean(axis=2)
    events = np.array([point[0] for point in next(iter(records.values())).curve])
    return events[: window.shape[1]], window.mean(axis=0), window.min(axis=0), window.max(axis=0)


def _in_the_same_time(
    records: Mapping[int, CellRecord], runs: Mapping[str, Mapping[int, CellRecord]]
) -> np.ndarray:
    """Return how many arrivals an asynchronous server has had at each of FedAvg's evaluations."""
    other = next(own for name, own in runs.items() if name != "FedAvg")
    rate = np.mean([own.curve[-1][0] / own.times[-1] for own in other.values()])
    times = np.mean([own.times for own in records.values()], axis=0)
    return np.asarray(times[: len(times) - 4] * rate)


def _draw_line(
    ax: Axes, style: LineStyle, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray
) -> None:
    options = style.options() | {"markevery": 0.12, "clip_on": False}
    # On a logarithmic axis, most of the evaluations would lie on top of each other.
    marks = np.geomspace(x[0], min(x[-1], _LAST), 80)
    at = np.unique(np.searchsorted(x, marks).clip(max=len(x) - 1))
    ax.plot(x[at], mean[at], **options)
    band = ax.fill_between(x[at], low[at], high[at], linewidth=0)
    band.set(color=style.colour, alpha=0.1, zorder=1)


def _format(ax: Axes, title: str) -> None:
    ax.set_xscale("log")
    ticks = [_FIRST, 150, 500, 1500, 5000, _LAST]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.set(xlim=(_FIRST, _LAST), ylim=(0, 100), yticks=range(0, 101, 20), title=title)
    ax.set_xlabel("arrivals (logarithmic)")
    ax.axhline(50, color=INK, alpha=0.3, linewidth=1, linestyle=":")
    ax.grid(axis="y", clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, colors=INK)
