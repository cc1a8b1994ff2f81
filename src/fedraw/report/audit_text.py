"""An audit on the terminal: what is at risk, who weighs how much, what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import SHOWN, Verdict
from fedraw.analysis.what_if import WhatIf
from fedraw.core.text import one_line
from fedraw.report.audit_words import replay, shown

MOST_LABELS = 15
MOST_CLIENTS = 5
ESTIMATED = ("fedfa", "fedraw")  # FedBuff's influence is FedFa's, the others' needs no times
IN_BUFFER = ("fedfa", "fedraw")  # FedBuff's presence is FedFa's, and so is CA2FL's
STYLE: dict[Verdict, str] = {"lost": "bold red", "at risk": "yellow", "kept": "green"}
VERDICTS = "Verdicts go by standing: influence beside other labels, and the holders' weight."


def audit_text(audit: Audit, times: str, notes: Sequence[str] = ()) -> Iterator[RenderableType]:
    """The whole audit, part by part."""
    yield Text(at_a_glance(audit, times))
    for note in notes:
        yield Text(f"note: {note}", style="dim")
    yield _titled("Labels, worst first: influence as a multiple of the fair share", _labels(audit))
    yield Text(VERDICTS, style="dim")
    title = "Clients with most and with least weight under FedRAW, in percent"
    yield _titled(title, _clients(audit))
    yield _titled("What if: the worst label's standing, by method and buffer size", _grid(audit))
    if audit.slower:
        than = "than measured" if audit.times_known else "than all others"
        title = f"What if holders of rare labels were slower {than}: the worst standing"
        yield _titled(title, _slower(audit))
    yield Text("\nRecommendation\n" + str(audit.recommendation))


def at_a_glance(audit: Audit, times: str) -> str:
    """The federation in a few lines."""
    cap = "" if audit.cap is None else f", cap {audit.cap:g}"
    who = f"{_count(len(audit.clients), 'client')}, {_count(len(audit.labels), 'label')}"
    samples = _count(int(audit.samples.sum()), "sample")
    lines = [f"{who}, {samples}; K={audit.buffer_size}{cap}; {times}"]
    if not audit.rare_labels:
        lines.append("No label is rare: none is held by at most half as many as the median one.")
        return "\n".join([*lines, replay(audit)])
    holding = int(audit.holds_rare.sum())
    rare = _some([str(label) for label in audit.rare_labels], 12)
    rule = " (at most half the median coverage)" if audit.rare_by_coverage else ""
    lines.append(f"Rare labels{rule}: {rare}; held by {_count(holding, 'client')}.")
    chances = [f"{SHOWN[m]} {audit.rare_presence[m]:.1f} %" for m in IN_BUFFER]
    lines.append(f"One of these is in the buffer: {', '.join(chances)} of the time.")
    lines.append(f"Each of them comes back after {audit.rare_staleness:,.0f} arrivals on average.")
    return "\n".join([*lines, replay(audit)])


def _labels(audit: Audit) -> Table:
    table = _table("label", "held", "time", *(SHOWN[m] for m in METHODS), "verdict")
    table.padding = (0, 0, 0, 0)  # room for the verdict
    order = audit.worst_first()
    rare = set(audit.rare_labels)
    first = [i for i in order if audit.labels[i] in rare][:MOST_LABELS]
    first = [i for i in order if i in {*first, *order[: MOST_LABELS - len(first)]}]
    for i in first:
        table.add_row(
            _name(audit.labels[i]),
            f"{audit.coverage[i]:,}",
            f"x{audit.holders_slowness[i]:.2f}",
            *(_share(audit, method, i) for method in METHODS),
            Text(audit.in_words(i)),
        )
    more = f"{_count(len(order) - len(first), 'more label')} in --json. "
    time = "; time: the holders' mean, by everyone's" if audit.times_known else ""
    table.caption = (more if len(order) > len(first) else "") + "held: by so many clients" + time
    return table


def _share(audit: Audit, method: str, label: int) -> Text:
    text = f"{audit.label_influence[method][label]:.2f}"
    if audit.label_interval is not None and method in ESTIMATED:
        interval = audit.label_interval[method]
        text += f"\n{interval.low[label]:.2f}-{interval.high[label]:.2f}"
    return Text(text, style=STYLE[audit.verdicts[method][label]])


def _clients(audit: Audit) -> Table:
    order = np.argsort(-audit.influence["fedraw"], kind="stable")
    few = min(MOST_CLIENTS, -(-len(order) // 2))
    table = _table("client", "samples", "seconds", "score", *(SHOWN[m] for m in METHODS))
    for position, i in enumerate([*order[:few], *order[max(few, len(order) - few) :]]):
        if position == few and len(order) > 2 * few:
            table.add_row("…")
        table.add_row(
            _name(audit.clients[i]),
            f"{audit.samples[i]:,}",
            f"{audit.seconds[i]:.3g}" if audit.times_known else "",
            f"{audit.scores[i]:.3g}",
            *(f"{100 * audit.influence[m][i]:.3g}" for m in METHODS),
        )
    return table


def _grid(audit: Audit) -> Table:
    sizes = sorted({setting.buffer_size for setting in audit.what_if})
    table = _table("", *(f"K={size}" for size in sizes))
    at = {(s.method, s.cap, s.buffer_size): s for s in audit.what_if}
    for method, cap in dict.fromkeys((s.method, s.cap) for s in audit.what_if):
        cells = [at.get((method, cap, size)) for size in sizes]
        table.add_row(shown(method, cap), *(_cell(audit, cell) for cell in cells))
    table.caption = "percent; * the recommendation; a cap below 1/K is impossible"
    return table


def _cell(audit: Audit, setting: WhatIf | None) -> Text:
    if setting is None:
        return Text("-")
    chosen = audit.recommendation
    own = (setting.method, setting.buffer_size, setting.cap)
    star = "*" if own == (chosen.method, chosen.buffer_size, chosen.cap) else ""
    return _judged(float(setting.standing.min()), setting.verdict, star)


def _slower(audit: Audit) -> Table:
    rare = [audit.labels.index(label) for label in audit.rare_labels]
    table = _table("times", *(f"{row.ratio:g}" for row in audit.slower))
    for method in METHODS:
        worst = [(row, *row.worst(method, rare)) for row in audit.slower]
        cells = (_judged(float(row.standing[method][i]), word) for row, i, word in worst)
        table.add_row(SHOWN[method], *cells)
    for method in IN_BUFFER:
        present = (f"{row.rare_presence[method]:.1f} %" for row in audit.slower)
        table.add_row(f"in {SHOWN[method]}'s", *present)
    table.caption = (
        "in: how often a holder of a rare label is in the buffer. Replay weighs it the same however"
        " slow it is; what it takes until it is heard grows with the times"
    )
    return table


def _judged(standing: float, word: Verdict, mark: str = "") -> Text:
    return Text(f"{100 * standing:.3g}{mark} {word}", style=STYLE[word])


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption_justify = "left"
    for position, column in enumerate(columns):
        numbers = position > 0 and column != "verdict"
        table.add_column(column, overflow="fold", no_wrap=numbers, min_width=len(column))
        table.columns[-1].justify = "right" if numbers else "left"
    return table


def _titled(title: str, table: Table) -> Table:
    table.title, table.title_justify, table.title_style = f"\n{title}", "left", "bold"
    return table


def _name(thing: object, most: int = 24) -> Text:
    words = one_line(str(thing))
    return Text(words if len(words) <= most else words[: most - 1] + "…")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def _some(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
