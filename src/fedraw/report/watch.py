"""Draws one frame of `fedraw watch`: the list of runs, and one run in detail.

Every line fits the width of the screen, so no number is wrapped or cut. If the screen has few rows,
less important parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fedraw.core.text import one_line
from fedraw.eventlog.status import RunDetail, RunStatus
from fedraw.report.formatting import SPARKS, UNDEFINED, duration, number
from fedraw.report.watch_detail import STYLE, Limits, detail_lines, percent

WIDEST = 100
ASCII = str.maketrans({**dict(zip(SPARKS, "_.:-=+*#", strict=True)), "━": "#", "─": "-", "–": "-",
                       "−": "-", "…": "~", "·": "|", "×": "x"})  # fmt: skip
# If there are too few rows for all runs, the runs in these states come first.
ORDER = {"running": 0, "starting": 1, "stopped": 2, "finished": 3}

# From everything to the least: the first that fits the screen is used.
LIMITS = (
    Limits(12, 4, 5, True),
    Limits(8, 2, 3, True),
    Limits(6, 1, 2, True),
    Limits(5, 1, 1, True),
    Limits(4, 1, 1, False),
    Limits(3, 1, 0, False),
    Limits(2, 0, 0, False),
)


@dataclass(frozen=True)
class Frame:
    """The whole screen: one line for each run if there are several, and the details of one run."""

    runs: Sequence[RunStatus]
    shown: RunStatus
    detail: RunDetail

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A live display does not pass the height on, so the height of the screen is used.
        rows = options.size.height if console.is_alt_screen else options.height
        for line in self.lines(min(options.max_width, WIDEST), rows):
            if options.ascii_only:
                plain = line.plain.translate(ASCII).encode("ascii", "replace").decode()
                line = Text(plain, spans=line.spans)  # noqa: PLW2901 - the same, in ASCII
            yield line

    def lines(self, width: int = 80, rows: int | None = None) -> list[Text]:
        """Return the lines of the frame, at most `rows` if that is possible."""
        listed: list[Text] = []
        if len(self.runs) > 1:
            spare = None if rows is None else max(4, rows - 17)
            listed = [*_run_list(self.runs, width, spare), Text()]
        left = None if rows is None else rows - len(listed)
        detail = [Text()]
        for limits in LIMITS:
            detail = list(detail_lines(self.shown, self.detail, width, limits))
            if left is None or len(detail) <= left:
                break
        return [*listed, *detail]


def _run_list(runs: Sequence[RunStatus], width: int, rows: int | None) -> Iterator[Text]:
    shown = runs
    if rows is not None and len(runs) + 1 > rows:
        first = sorted(runs, key=lambda run: (ORDER[run.state], -run.written))[: rows - 2]
        shown = [run for run in runs if run in first]
    heads = ("seed", "state", "progress", "GlobalAcc", "AvgRare", "left")
    rows_of_cells = [_cells(run) for run in shown]
    columns = list(zip(heads, *rows_of_cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = width - sum(widths) - 2 * len(widths)
    names = [one_line(run.name) for run in shown]
    wide = min(room, max(map(cell_len, ["run", *names])))
    yield Text(_row("run", heads, wide, widths), style="dim")
    for run, name, cells in zip(shown, names, rows_of_cells, strict=True):
        if cell_len(name) > wide:  # a name may contain numbers, so it is not cut
            yield Text(name, overflow="fold")
            name = ""  # noqa: PLW2901
        line = Text(_row(name, cells, wide, widths))
        line.highlight_words([run.state], STYLE[run.state])
        yield line
    if len(shown) < len(runs):
        yield Text(_others([run for run in runs if run not in shown]), style="dim")


def _cells(run: RunStatus) -> tuple[str, ...]:
    seed = UNDEFINED if run.seed is None else str(run.seed)
    left = duration(run.seconds_left) if run.state == "running" else ""
    return (seed, run.state, percent(run), *(number(k, v) for k, v in run.metrics.items()), left)


def _row(name: str, cells: Sequence[str], wide: int, widths: Sequence[int]) -> str:
    state = 1
    padded = [
        cell.ljust(width) if position == state else cell.rjust(width)
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join([set_cell_size(name, wide), *padded]).rstrip()


def _others(hidden: Sequence[RunStatus]) -> str:
    states = [run.state for run in hidden]
    counts = [f"{states.count(state)} {state}" for state in ORDER if state in states]
    return f"and {', '.join(counts)}"
