"""Makes the tables of measurements: time per SGD step in multiples of the bare loop."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.peers.result import Measured

UNIT = ("bare", "optim")
JOBS = {
    "digits": "digits, MLP 64-64-10, batch 16, 2 epochs",
    "cnn": "28x28, CNN, batch 64, 1 epoch",
}
HEAD = (
    "| who | updates | ms per step | × bare | (min to max) | CPU × bare | MB |",
    "|---|--:|--:|--:|--:|--:|--:|",
)


class Key(NamedTuple):
    """The job, the cores and the simulator of a measurement."""

    job: str
    cores: int
    peer: str
    variant: str

    @property
    def name(self) -> str:
        """The simulator and its variant."""
        return f"{self.peer}, {self.variant}" if self.variant else self.peer


class Round(NamedTuple):
    """A measurement and its round; ratios are computed within a round."""

    number: int
    measured: Measured


def key_of(measured: Measured) -> Key:
    """Return the key of a measurement."""
    return Key(measured.job, measured.cores, measured.peer, measured.variant)


class Row(NamedTuple):
    """All rounds of one simulator and job, with ratios to the bare loop of the same round."""

    key: Key
    measured: list[Measured]
    wall: list[float]
    cpu: list[float]


def rows(rounds: Sequence[Round]) -> list[Row]:
    """Return the rows, ordered by the time per step relative to the bare loop."""
    units = {(number, m.job, m.cores): m for number, m in rounds if (m.peer, m.variant) == UNIT}
    found: dict[Key, Row] = {}
    for number, m in rounds:
        unit = units.get((number, m.job, m.cores))
        if unit is not None:
            row = found.setdefault(key_of(m), Row(key_of(m), [], [], []))
            row.measured.append(m)
            row.wall.append(m.per_step / unit.per_step)
            row.cpu.append(m.cpu_per_step / unit.cpu_per_step)
    return sorted(found.values(), key=lambda row: median(row.wall))


def tables(rounds: Sequence[Round]) -> str:
    """Return a table for each job and number of cores."""
    every = rows(rounds)
    groups = sorted(
        {(r.key.job, r.key.cores) for r in every}, key=lambda g: (g[0] != "digits", g[1])
    )
    return "\n\n".join(
        _table(job, cores, [r for r in every if r.key[:2] == (job, cores)]) for job, cores in groups
    )


def _table(job: str, cores: int, its_rows: list[Row]) -> str:
    noun = "core" if cores == 1 else "cores"
    return "\n".join([f"**{JOBS[job]}, {cores} {noun}**", "", *HEAD, *map(_line, its_rows)])


def _line(row: Row) -> str:
    cells = (
        row.key.name,
        f"{row.measured[0].updates:,}",
        f"{1000 * median(m.per_step for m in row.measured):.3g}",
        f"**{multiples_of(median(row.wall))}**",
        f"{multiples_of(min(row.wall))} to {multiples_of(max(row.wall))}",
        multiples_of(median(row.cpu)),
        f"{max(m.peak_mb for m in row.measured):,}",
    )
    return f"| {' | '.join(cells)} |"


def multiples_of(ratio: float) -> str:
    """Format a ratio."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def between_markers(page: str, name: str, text: str) -> str:
    """Return the page with `text` between `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} and {end}; add both markers")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
