"""The document of the study of one pass: recalls, paired differences, arrivals and hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from fedraw.eventlog.compare import Stat, mean_and_sd
from fedraw.eventlog.goals import RARE_GOALS
from fedraw.storage.files import atomic_write
from fedraw_studies.artefacts import Scale
from fedraw_studies.late_results import reached_by
from fedraw_studies.markdown import NOTHING, WIDTH, interval_text, pipe_table
from fedraw_studies.one_pass import OnePassRow, one_pass_file, one_pass_rows
from fedraw_studies.outcomes import Outcome, RowOutcome
from fedraw_studies.rules import MeanInterval

FIRST = "One pass"
NOT_RUN = "not run"
HOW_TO_READ = """\
AvgRare with GlobalAcc in brackets, mean over the seeds ± sample standard deviation: of one pass \
the final values, of methods that train the mean of the last five evaluations, at the arena's \
length and at ten times that length. Without rare labels (Dirichlet, IID) the recall of the worst \
label stands in place of AvgRare. "One pass minus": the difference by seed with its 95 % interval, \
bold if it excludes zero. "To 50 %" is the median of the arrivals, and the virtual time, until \
AvgRare passed 50 %. An asterisk after the data set: the batch-norm statistics of the features are \
estimated from the images of all clients and of the test set, which is pooled knowledge.\
"""


def is_of_one_pass(outcome: Outcome) -> bool:
    """Return whether an outcome belongs to this study, which has its own document."""
    return outcome.name.startswith("one-pass-")


def write_one_pass(outcomes: Sequence[Outcome], scale: Scale, out: Path) -> str:
    """Write one-pass.md and return its text."""
    text = one_pass_markdown(outcomes, scale)
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "one-pass.md", text.encode())
    return text


def one_pass_markdown(outcomes: Sequence[Outcome], scale: Scale) -> str:
    """Write all finished runs as one Markdown document."""
    parts = [f"# {one_pass_file()['title']}\n", fill(HOW_TO_READ, WIDTH) + "\n"]
    for outcome in outcomes:
        rows = one_pass_rows(outcome.name.removeprefix("one-pass-"), scale)
        known = {row.label: outcome.row(row.label) for row in rows}
        if any(own.records for own in known.values()):
            parts += _part(outcome, rows, known)
    return "\n".join(parts)


def _part(
    outcome: Outcome, rows: Sequence[OnePassRow], known: Mapping[str, RowOutcome]
) -> Iterator[str]:
    yield f"## {outcome.name.removeprefix('one-pass-')}\n"
    lines = []
    for row in rows:
        first = known[row._replace(method=FIRST).label]
        lines.append(_line(row, known[row.label], first))
    head = ["", "", "", "seeds", "AvgRare (GlobalAcc)", "one pass minus", "to 50 %", "to 80 %"]
    yield pipe_table(head, lines, left=3)


def _line(row: OnePassRow, own: RowOutcome, first: RowOutcome) -> list[str]:
    features = row.spec.features
    pooled = features is not None and features.statistics == "estimated"
    named = [row.dataset + " *" * pooled, row.setting, row.method]
    if not own.records:
        return [*named, "0", NOT_RUN, NOTHING, NOTHING, NOTHING]
    metric = "TailAvgRare" if row.has_rare else "TailWorseRare"
    rare, everywhere = own.values(metric), own.values("TailGlobalAcc")
    recall = mean_and_sd(Stat.of(list(rare.values()))) or NOTHING
    accuracy = Stat.of(list(everywhere.values())).mean
    shown = f"{recall} ({accuracy:.1f})" if accuracy is not None else recall
    difference = NOTHING
    if row.method != FIRST:
        difference = interval_text(_minus(first.values(metric), rare))
    reached = [
        str(reached_by(own.records, goal)) if _has_times(own) and row.has_rare else NOTHING
        for goal in RARE_GOALS
    ]
    return [*named, str(len(own.records)), shown, difference, *reached]


def _minus(
    one: Mapping[int, float | None], other: Mapping[int, float | None]
) -> MeanInterval | None:
    """Return one minus the other over the seeds that both have."""
    pairs = [(one.get(seed), value) for seed, value in other.items()]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return MeanInterval.of(known) if len(known) > 1 else None


def _has_times(own: RowOutcome) -> bool:
    """Return whether the cells know the time of each evaluation; older ones do not."""
    return all(record.times for record in own.records.values())
