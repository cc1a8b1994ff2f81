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
# The variant of each peer that its channels-last run repeats in the other memory format.
DEFAULT_FORMAT = {"bare": "foreach", "flower": "sync", "appfl": "gc-off"}
CHANNELS_LAST = "channels-last"
OURS = ("inline", "processes")  # fedraw's executors for one core and for more
PARTS_HEAD = (
    "| who | cores | time / fedraw's | (min to max) | framework | memory format |",
    "|---|--:|--:|--:|--:|--:|",
)
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
    found = [
        _table(job, cores, [r for r in every if r.key[:2] == (job, cores)]) for job, cores in groups
    ]
    divided = parts(rounds)
    if divided:
        title = "**The parts of fedraw's advantage: framework × memory format**"
        found.append("\n".join([title, "", *PARTS_HEAD, *map(_parts_line, divided)]))
    return "\n\n".join(found)


class Parts(NamedTuple):
    """A peer's time per step divided by fedraw's, in every round, and its two factors."""

    key: Key
    whole: list[float]
    framework: list[float]  # the peer with channels last, divided by fedraw
    memory_format: list[float]  # the peer as it is, divided by the peer with channels last


def parts(rounds: Sequence[Round]) -> list[Parts]:
    """Divide the ratio of each peer to fedraw into the framework's part and the memory format's.

    fedraw always trains in the memory format channels last. A round that lacks one of a peer's
    three measurements is left out.
    """
    per_step = {(number, key_of(m)): m.per_step for number, m in rounds}
    found: dict[Key, Parts] = {}
    for (number, key), fast in per_step.items():
        if key.variant != CHANNELS_LAST:
            continue
        slow = per_step.get((number, key._replace(variant=DEFAULT_FORMAT.get(key.peer, ""))))
        ours = [
            per_step[number, reference]
            for reference in (key._replace(peer="fedraw", variant=variant) for variant in OURS)
            if (number, reference) in per_step
        ]
        if slow is not None and ours:
            row = found.setdefault(key, Parts(key, [], [], []))
            row.whole.append(slow / ours[0])
            row.framework.append(fast / ours[0])
            row.memory_format.append(slow / fast)
    return sorted(found.values(), key=lambda row: (row.key.cores, median(row.whole)))


def _parts_line(row: Parts) -> str:
    cells = (
        row.key._replace(variant=DEFAULT_FORMAT.get(row.key.peer, "")).name,
        str(row.key.cores),
        f"**{multiples_of(median(row.whole))}**",
        f"{multiples_of(min(row.whole))} to {multiples_of(max(row.whole))}",
        multiples_of(median(row.framework)),
        multiples_of(median(row.memory_format)),
    )
    return f"| {' | '.join(cells)} |"


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
