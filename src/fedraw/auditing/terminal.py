"""The audit as text and tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent, wrap

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedraw.auditing.methods import COLUMNS, Verdict, title
from fedraw.auditing.view import (
    COST_CAPTION,
    COST_COLUMNS,
    AuditView,
    LabelRow,
    LabelUnderMethod,
    WorstLabel,
    cost_cells,
    grid_title,
    verdict_bounds,
)
from fedraw.auditing.words import about, enumeration, plain_number, plain_text, standing_text
from fedraw.core.text import counted, one_line

MOST_LINES = 25  # of the short form
MOST_LABELS = 15
MOST_CLIENTS = 5
RARE_NAMED = 12
ESTIMATED = ("fedfa", "fedraw")  # FedBuff's standing is FedFa's; the others need no times
IN_BUFFER = ("fedfa", "fedraw")  # FedBuff and CA2FL have the presence of FedFa
SETTINGS = "Settings of a spec (in a Flower run config, with fedraw. before each):"
PERCENT = "%: expected recall"
STYLE: dict[Verdict, str] = {
    "lost": "bold red",
    "at risk": "yellow",
    "late": "magenta",
    "kept": "green",
}


def brief_parts(view: AuditView, width: int) -> Iterator[RenderableType]:
    """Yield the verdict, the advice and the worst labels in at most `MOST_LINES` lines."""
    advice = view.recommendation
    lines = [*_wrapped(view.headline, width, "bold"), *_wrapped(plain_text(view.lead), width)]
    caution = "" if advice.verdict == "kept" else "yellow"
    lines += _wrapped(f"Recommendation: {advice}.", width, caution)
    lines += [Text(f"  {line}") for line in advice.toml.splitlines()]
    lines += _wrapped(view.one_pass, width)
    for words in view.audit.cautions:
        lines += _wrapped(f"Caution: {words}", width, "yellow")
    if advice.method == view.audit.baseline and view.waiting:
        lines += _wrapped(view.waiting, width)
    last = [_more(view, 0)]
    heard = f"{PERCENT}; updates: from its holders{view.under}. {view.horizon}"
    below = _wrapped(heard, width, "dim")
    room = MOST_LINES - len(lines) - len(last) - len(below) - 3  # the head of the table
    for words in view.notes:
        noted = _wrapped(f"note: {words}", width, "dim")
        if len(noted) < room:
            lines, room = lines + noted, room - len(noted)
    yield from lines[:MOST_LINES]
    if room > 0:
        yield _worst_labels(view, room)
        yield from below
        last = [_more(view, len(view.labels) - room)]
    yield from last[: MOST_LINES - len(lines)]


def _more(view: AuditView, left_out: int) -> Text:
    """Say how many labels are not shown, and how to see them."""
    words = "-v shows everything, and --json prints it as one document."
    if left_out > 0:
        words = f"{counted(left_out, 'label')} left out; -v shows more, and --json has everything."
    return Text(words, style="dim")


def _wrapped(words: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style=style) for line in wrap(words, width)]


def _worst_labels(view: AuditView, most: int) -> Table:
    """Return the worst labels under the method of the headline and the recommended setting."""
    best, method = view.recommended, view.headline_method
    position = {label: i for i, label in enumerate(view.audit.labels)}
    same = (best.method, best.buffer) == (method, view.audit.buffer)
    others = [] if same else [view.recommendation.setting]
    table = _table("label", "held by", "updates", title(method), *others)
    for row in view.worst_first[:most]:
        own, i = row.methods[method], position[row.label]
        then = [] if same else [_outcome(best.verdicts[i], float(best.recall[i]))]
        updates = plain_number(float(view.audit.horizon.updates(method)[i]))
        name = _name(row.label, most=20)
        outcome = _outcome(own.verdict, own.recall)
        table.add_row(name, f"{row.coverage:,}", updates, outcome, *then)
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return table


def _outcome(found: Verdict, recall: float) -> Text:
    return Text(f"{found}, {about(recall)}", style=STYLE[found])


def terminal_parts(view: AuditView) -> Iterator[RenderableType]:
    """Yield all parts of the audit: the verdict and the advice first, then the tables."""
    yield Text(view.headline, style="bold")
    yield Text(f"{plain_text(view.lead)}\n")
    advice = view.recommendation
    yield Text(f"Recommendation\n{advice}", style="" if advice.verdict == "kept" else "yellow")
    yield Text(f"{SETTINGS}\n{indent(advice.toml, '  ')}\n")
    yield Text(f"{view.one_pass}\n")
    for words in view.audit.cautions:
        yield Text(f"Caution: {words}", style="yellow")
    yield Text(at_a_glance(view))
    for note in view.notes:
        yield Text(f"note: {note}", style="dim")
    horizon = f"Labels within {counted(view.audit.arrivals, 'arrival')}, worst first{view.under}"
    yield _titled(f"{horizon}; {PERCENT}", _worst_labels(view, MOST_LABELS))
    yield _titled(f"Labels, worst first{view.under}: standing in percent", _labels(view))
    bounds = "; ".join(verdict_bounds())
    yield Text(
        "Standing combines a label's influence relative to other labels with the weight of the "
        f"clients that hold it. {bounds}.",
        style="dim",
    )
    yield _titled(
        "Clients with the most and the least weight under FedRAW, in percent", _clients(view)
    )
    yield _titled("What if: the worst label's standing, by method and buffer size", _grid(view))
    if view.slower:
        than = "than measured" if view.audit.times_known else "than all other clients"
        name = f"What if holders of rare labels were slower {than}: the worst standing"
        yield _titled(name, _slower(view))
    yield _titled("What each method requires, and its merit", _costs(view))


def at_a_glance(view: AuditView) -> str:
    """Summarise the federation in a few lines."""
    audit = view.audit
    cap = "" if audit.cap is None else f", cap {audit.cap:g}"
    size = (
        f"{counted(len(audit.clients), 'client')}, {counted(len(audit.labels), 'label')}, "
        f"{counted(view.samples, 'sample')}"
    )
    lines = [f"{size}; K={audit.buffer}{cap}; {view.source}", view.horizon]
    lines += [view.waiting] if view.waiting else []
    if not audit.rare_labels:
        lines.append("No label is rare: none has at most half the coverage of the median label.")
        return "\n".join([*lines, view.replay])
    rare = plain_text(enumeration(audit.rare_labels, RARE_NAMED))
    rule = " (at most half the median coverage)" if audit.rare_by_coverage else ""
    lines.append(f"Rare labels{rule}: {rare}; held by {counted(view.rare_clients, 'client')}.")
    chances = [f"{audit.rare_presence[m]:.1f} % under {title(m)}" for m in IN_BUFFER]
    lines.append(f"Share of the time with one of them in the buffer: {', '.join(chances)}.")
    return "\n".join([*lines, view.staleness, view.replay])


def _labels(view: AuditView) -> Table:
    table = _table("label", "held", "time", *map(title, COLUMNS), "verdict")
    table.padding = (0, 0, 0, 0)  # room for the verdict
    rows = _shown(view)
    for row in rows:
        table.add_row(
            _name(row.label),
            f"{row.coverage:,}",
            f"x{row.holders_slowness:.2f}",
            *(_standing(row.methods[method]) for method in COLUMNS),
            Text(row.verdict),
        )
    left_out = len(view.labels) - len(rows)
    parts = [f"{counted(left_out, 'more label')} in --json."] if left_out else []
    parts.append("held: number of clients with the label")
    if view.audit.times_known:
        parts[-1] += "; time: holders' mean update time relative to all clients"
    table.caption = " ".join(parts)
    return table


def _shown(view: AuditView) -> list[LabelRow]:
    """Return the rare labels and the worst of the others, worst first."""
    rare = [row for row in view.worst_first if row.rare][:MOST_LABELS]
    worst = view.worst_first[: MOST_LABELS - len(rare)]
    chosen = {id(row) for row in (*rare, *worst)}
    return [row for row in view.worst_first if id(row) in chosen]


def _standing(found: LabelUnderMethod) -> Text:
    words = standing_text(found.standing, found.method)
    if found.interval is not None and found.method in ESTIMATED:
        ends = (100 * end for end in found.interval)
        words += "\n" + "-".join(f"{end:.0f}" if end >= 10 else f"{end:.2g}" for end in ends)
    return Text(words, style=STYLE[found.verdict])


def _clients(view: AuditView) -> Table:
    order = view.clients_by("fedraw", per_sample=False).tolist()
    few = min(MOST_CLIENTS, -(-len(order) // 2))
    table = _table("client", "samples", "seconds", "score", *map(title, COLUMNS))
    for position, i in enumerate([*order[:few], *order[max(few, len(order) - few) :]]):
        if position == few and len(order) > 2 * few:
            table.add_row("…")
        row = view.client(i)
        table.add_row(
            _name(row.client),
            f"{row.samples:,}",
            "" if row.seconds is None else f"{row.seconds:.3g}",
            f"{row.score:.3g}",
            *(f"{100 * row.influence[m]:.3g}" for m in COLUMNS),
        )
    return table


def _grid(view: AuditView) -> Table:
    sizes, rows = view.grid()
    table = _table("", *(f"K={size}" for size in sizes))
    for (method, cap), cells in rows.items():
        table.add_row(grid_title(method, cap), *(_worst(cell) for cell in cells))
    table.caption = "in percent; * marks the recommendation; a cap below 1/K is impossible"
    return table


def _slower(view: AuditView) -> Table:
    table = _table("times", *(f"{column.ratio:g}" for column in view.slower))
    for method in COLUMNS:
        table.add_row(title(method), *(_worst(column.worst[method]) for column in view.slower))
    for method in IN_BUFFER:
        present = (f"{column.worst[method].rare_presence:.1f} %" for column in view.slower)
        table.add_row(f"in {title(method)}'s", *present)
    table.caption = (
        "in: how often a holder of a rare label is in the buffer. Replay gives a holder the same "
        "weight however slow it is, but a slower holder takes longer to send enough updates."
    )
    return table


def _costs(view: AuditView) -> Table:
    table = _table("", *COST_COLUMNS)
    for cost in view.costs:
        table.add_row(title(cost.method), *cost_cells(cost))
    table.caption = COST_CAPTION
    return table


def _worst(cell: WorstLabel | None) -> Text:
    if cell is None:
        return Text("-")
    mark = "*" if cell.recommended else ""
    words = f"{standing_text(cell.standing, cell.method)}{mark} {cell.verdict}"
    return Text(words, style=STYLE[cell.verdict])


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption_justify = "left"
    for position, column in enumerate(columns):
        numbers = position > 0 and column != "verdict"
        table.add_column(column, overflow="fold", no_wrap=numbers, min_width=len(column))
        table.columns[-1].justify = "right" if numbers else "left"
    return table


def _titled(name: str, table: Table) -> Table:
    table.title, table.title_justify, table.title_style = f"\n{name}", "left", "bold"
    return table


def _name(thing: object, most: int = 24) -> Text:
    words = one_line(str(thing))
    return Text(words if len(words) <= most else words[: most - 1] + "…")
