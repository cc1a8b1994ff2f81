"""The documents of the arena: one Markdown file, one page, and the chosen rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from fedraw.eventlog.compare import Stat, mean_and_sd
from fedraw.storage.files import atomic_write
from fedraw_studies.arena_design import Arena, ArenaMethod, arena_at, artefact_names
from fedraw_studies.arena_page import arena_page
from fedraw_studies.arena_results import (
    ArenaResults,
    Difference,
    Score,
    arena_results,
    critical_difference,
    rates_toml,
)
from fedraw_studies.artefacts import Scale
from fedraw_studies.markdown import NOTHING, WIDTH, interval_text, pipe_table
from fedraw_studies.outcomes import Outcome
from fedraw_studies.render import UNFINISHED

HOW_TO_READ = """\
A cell is the mean of the last five evaluations over the test seeds, with its standard deviation. \
It is AvgRare, or the recall of the worst label if no label is rare (Dirichlet, IID). GlobalAcc \
stands in brackets. The best mean of a column is bold; a mean with a collapsed run never is. "†n" \
means that n runs end with a model no better than chance. "n of m" means that n of m runs are \
finished. The rates were chosen once for each data set, on other seeds. Models is the number of \
models that the server stores. Copies is the processor time of an arrival, in copies of a model \
with 11.2 million parameters.\
"""
DIFFERENCES = """\
Each value is one method minus another, seed by seed, in points: the mean difference and its 95 % \
interval. A bold interval excludes zero. "No release" is the same method with the same memory, but \
it replays updates in full.\
"""


def write_arena(outcomes: Sequence[Outcome], scale: Scale, out: Path) -> tuple[str, dict[str, Any]]:
    """Write arena.md, arena.html and arena-rates.toml; return the Markdown and the JSON content."""
    arena = arena_at(scale)
    every = [arena_results(arena, dataset, outcomes) for dataset in arena.datasets]
    begun = [own for own in every if own.is_begun]
    text = arena_markdown(arena, begun)
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "arena.md", text.encode())
    atomic_write(out / "arena-rates.toml", rates_toml(begun).encode())
    if any(own.runs()[0] for own in begun):
        atomic_write(out / "arena.html", arena_page(arena, begun).encode())
    return text, {"arena": [_json(own) for own in begun]}


def is_of_arena(outcome: Outcome) -> bool:
    """Return whether an outcome belongs to the arena, which has its own documents."""
    return outcome.name.startswith("arena-")


def arena_markdown(arena: Arena, results: Sequence[ArenaResults]) -> str:
    """Write all data sets with finished runs as one Markdown document."""
    settings = [f"- **{own.name}**: {own.text}." for own in arena.settings]
    parts = [
        f"# {arena.table['title']}\n",
        fill(HOW_TO_READ, WIDTH) + "\n",
        "\n".join(settings) + "\n",
    ]
    for own in results:
        parts += _dataset(own)
    return "\n".join(parts)


def _dataset(own: ArenaResults) -> Iterator[str]:
    scale = own.arena.scale
    spec = next(own.arena.rows(own.dataset))
    events = own.arena.spec(spec).run.events
    reduction = own.arena.setting_of(own.dataset).reduction
    yield f"## {own.title}\n"
    yield fill(f"Scale `{scale.name}`: {reduction}. In the arena: {events:,} events.", WIDTH) + "\n"
    yield _finished("comparison", own.runs())
    if own.runs()[0]:
        yield results_table(own)
        yield from _ranks(own)
        if differences := [d for d in own.differences() if d.rare is not None]:
            yield f"## {own.title}: replay minus other methods\n"
            yield fill(DIFFERENCES, WIDTH) + "\n"
            yield differences_table(differences)
    remedy = own.arena.remedy
    if own.runs(remedied=True)[0]:
        yield f"## {own.title}: with {remedy}\n"
        yield _finished(f"comparison with {remedy}", own.runs(remedied=True))
        yield results_table(own, remedied=True)
        found = [d for d in own.differences(remedied=True) if d.rare is not None]
        if found:
            yield differences_table(found)
    yield f"## {own.title}: tuning\n"
    yield _finished("tuning", own.tuning_runs)
    yield tuning_table(own)
    for problem in own.disagreements():
        yield fill(f"**{problem}.**", WIDTH) + "\n"


def results_table(own: ArenaResults, *, remedied: bool = False) -> str:
    """Write one row per method: its rate, its cost, and its scores in every setting."""
    scores = own.remedied if remedied else own.scores
    settings = list(dict.fromkeys(score.row.setting.name for score in scores))
    begun = {score.row.method.name for score in scores if score.done}
    methods = [method for method in own.arena.methods if method.name in begun]
    best = {setting: _best(scores, setting) for setting in settings}
    lines = []
    for method in methods:
        cells = []
        for setting in settings:
            score = own.score(setting, method.name, remedied)
            text = score_text(score)
            cells.append(f"**{text}**" if best[setting] is score else text)
        lines.append([method.name, rate_text(own, method), *cost_texts(method), *cells])
    head = ["", "rate", "models, N = 30", "N = 1,000", "copies", *settings]
    return pipe_table(head, lines, left=1)


def differences_table(differences: Sequence[Difference]) -> str:
    """Write paired differences, each with its interval."""
    lines = [
        [
            own.setting,
            f"{own.one} − {own.other}",
            str(own.seeds),
            interval_text(own.rare),
            interval_text(own.accuracy),
        ]
        for own in differences
    ]
    return pipe_table(["", "", "seeds", "rare or worst label", "GlobalAcc"], lines, left=2)


def tuning_table(own: ArenaResults) -> str:
    """Write the score of every value of the grid; the chosen one is bold, collapsed ones marked."""
    lines = []
    for method in (own for own in own.arena.methods if own.tuned is not None):
        tuning = own.tunings.get(method.name)
        if tuning is None:
            continue
        cells = []
        for value, point in zip(method.values, tuning.points, strict=True):
            mean = NOTHING if point.score.mean is None else f"{point.score.mean:.1f}"
            text = f"{value:g}: {mean}{' †' if point.collapsed else ''}"
            cells.append(f"**{text}**" if point is tuning.best else text)
        edge = "yes" if any("of the grid" in note for note in tuning.notes) else ""
        lines.append([method.name, str(method.tuned), *cells, edge])
    if not lines:
        return "No method has all of its tuning runs yet.\n"
    width = max(len(line) for line in lines)
    head = ["", "tuned", *[""] * (width - 3), "at the edge"]
    note = (
        "Each cell has a value and its score, the mean of GlobalAcc and AvgRare over the tuning "
        "seeds. The chosen value is bold. A value with † cannot be chosen, because a model "
        "collapsed. Methods that are not listed have no rate."
    )
    return pipe_table(head, lines, left=2) + "\n" + fill(note, WIDTH) + "\n"


def rate_text(own: ArenaResults, method: ArenaMethod) -> str:
    """Format the rate of a method for tables."""
    if method.tuned is None:
        return "no rate"
    rate, name = own.rate(method), "" if method.tuned == "server_lr" else f"{method.tuned} "
    return NOTHING if rate is None else f"{name}{rate:g}"


def cost_texts(method: ArenaMethod) -> list[str]:
    """Format the cost of a method for tables."""
    if not method.cost:
        return [NOTHING] * 3
    few, many, copies = method.cost
    return [f"{few:g}", f"{many:,g}", f"{copies:g}"]


def score_text(score: Score) -> str:
    """Format a score for tables."""
    if not score.done:
        return NOTHING
    text = f"{_stat(score.rare)} ({score.accuracy.mean or 0.0:.1f})"
    text += f" †{score.collapsed}" * bool(score.collapsed)
    return text if score.done == score.needed else f"{text}, {score.done} of {score.needed}"


def _ranks(own: ArenaResults) -> Iterator[str]:
    lines: dict[str, list[str]] = {}
    settings = 0
    for metric in ("rare", "accuracy"):
        found, settings = own.ranks(metric)
        for rank in found:
            lines.setdefault(rank.method, [rank.method]).append(f"{rank.rank:.1f}")
    if len(lines) < 2:
        return
    critical = critical_difference(len(lines), settings)
    yield f"## {own.title}: mean ranks over the settings\n"
    yield (
        fill(
            f"Rank 1 is the best of {len(lines)} methods in {settings} settings. Two methods whose "
            f"mean ranks differ by less than {critical:.1f} do not differ significantly (Nemenyi's "
            "test, 5 %).",
            WIDTH,
        )
        + "\n"
    )
    yield pipe_table(["", "rare or worst label", "GlobalAcc"], list(lines.values()), left=1)


def _finished(what: str, runs: tuple[int, int]) -> str:
    done, needed = runs
    if done == needed:
        return f"All {needed:,} runs of the {what} are finished.\n"
    return f"{UNFINISHED} {done:,} of {needed:,} runs of the {what}.**\n"


def _best(scores: Sequence[Score], setting: str) -> Score | None:
    own = [s for s in scores if s.row.setting.name == setting and not s.collapsed]
    own = [s for s in own if s.rare.mean is not None]
    return max(own, key=lambda score: score.rare.mean or 0.0, default=None)


def _stat(stat: Stat) -> str:
    return mean_and_sd(stat) or "undefined"


def _json(own: ArenaResults) -> dict[str, Any]:
    return {
        "dataset": own.dataset,
        "artefacts": list(artefact_names(own.dataset)),
        "runs": list(own.runs()),
        "tuning_runs": list(own.tuning_runs),
        "scores": [
            {
                "setting": score.row.setting.name,
                "method": score.row.method.name,
                "remedy": own.arena.remedy if score.row.remedied else None,
                "rate": own.rate(score.row.method),
                "metric": score.row.setting.metric,
                "rare": dict(score.rare_by_seed),
                "GlobalAcc": dict(score.accuracy_by_seed),
                "collapsed": score.collapsed,
                "runs": [score.done, score.needed],
            }
            for score in (*own.scores, *own.remedied)
        ],
    }
