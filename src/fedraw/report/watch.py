"""Renders one frame of `fedraw watch`: the list of runs, and one run in detail.

Every line fits the width of the screen, so no number is wrapped or cut. On a screen with few rows,
less important parts are left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fedraw.core.text import counted, duration, one_line
from fedraw.core.types import ClientId
from fedraw.eventlog.live import BufferSlot, Incident, LabelTrend, RunDetail, RunStatus
from fedraw.eventlog.state import TREND
from fedraw.report.formatting import (
    SPARK_WIDTH,
    SPARKS,
    UNDEFINED,
    fitted,
    number,
    signed,
    spark,
    speed,
)

WIDEST = 100
ASCII = str.maketrans({**dict(zip(SPARKS, "_.:-=+*#", strict=True)), "━": "#", "─": "-", "–": "-",
                       "−": "-", "…": "~", "·": "|", "×": "x"})  # fmt: skip
# If there are too few rows for all runs, the runs in these states come first.
ORDER = {"running": 0, "starting": 1, "stopped": 2, "finished": 3}
# The width of the heading of a part, in columns.
HEAD = 14
# The number of other labels, the worst ones, that are shown after those that fall behind.
WORST = 2
# The largest number of clients that a list names.
MOST_NAMED = 8
STYLE = {"running": "green", "finished": "bold", "stopped": "bold red", "starting": "yellow"}


class Limits(NamedTuple):
    """The largest number of lines of each part."""

    labels: int
    slots: int  # rows of buffer slots
    reasons: int
    blanks: bool  # whether parts are separated by blank lines


# From the most detailed to the shortest; the first one that fits the screen is used.
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
        # A live display does not set the height, so the height of the screen is used.
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
            detail = list(_detail_lines(self.shown, self.detail, width, limits))
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
        if cell_len(name) > wide:  # a name may contain numbers, so it is never cut
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
    return (seed, run.state, _percent(run), *(number(k, v) for k, v in run.metrics.items()), left)


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


def _detail_lines(run: RunStatus, detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    """Yield the lines of one run: its head, then every part that has data."""
    yield from _head(run, width)
    parts = [
        list(_accuracy(detail, width, run.state == "finished")),
        list(_labels(detail, width, limits)),
        list(_at_risk(detail, width)),
        list(_buffer(detail, width, limits)),
        list(_participation(detail, width)),
        list(_members(detail, width, limits)),
        list(_rejected(detail, width, limits)),
        list(_doubted(detail, width)),
        list(_inferred(detail, width)),
        list(_notes(detail, width, limits)),
    ]
    for part in filter(None, parts):
        if limits.blanks:
            yield Text()
        yield from part


def _percent(run: RunStatus) -> str:
    """Format the progress of a run in percent."""
    return f"{100 * _progress(run):.0f} %" if run.events else UNDEFINED


def _progress(run: RunStatus) -> float:
    return min(1.0, run.event / run.events) if run.events else 0.0


def _head(run: RunStatus, width: int) -> Iterator[Text]:
    seed = "" if run.seed is None else f"  seed {run.seed}"
    name = one_line(run.name) + seed
    title = Text.assemble((name, "bold"), "  ", (run.state, STYLE[run.state]))
    space = width - cell_len(title.plain) - 3
    folder = one_line(str(run.folder))
    if len(folder) > space:
        folder = "…" + folder[1 - space :] if space > 12 else ""
    gap = max(1, width - cell_len(title.plain) - cell_len(folder))
    yield title + Text(" " * gap + folder if folder else "", style="dim")
    yield _progress_line(run, width)
    if run.state == "stopped":
        yield from _stopped(run, width)


def _progress_line(run: RunStatus, width: int) -> Text:
    wanted = UNDEFINED if run.events is None else str(run.events)
    endless = run.is_server and run.events is None  # a time limit or a target ends the run
    done = f"event {run.event}" if endless else f"event {run.event} of {wanted}"
    words = [] if endless else [_percent(run)]
    if run.unread:
        words.append(f"reading the log, {run.unread / 1e6:.1f} MB left")
    elif run.state in {"running", "starting"}:
        words += [speed(run.rate), *([] if endless else [f"{duration(run.seconds_left)} left"])]
        if run.quiet >= 5:
            words.append(f"quiet for {duration(run.quiet)}")
    elif run.state == "finished":
        words.append(f"{duration(run.quiet)} ago")
    tail = "  ".join(words)
    space = width - len(done) - len(tail) - 4
    if space < 5 or endless:
        return Text(f"{done}  {tail}".rstrip())
    full = round(space * _progress(run))
    bar = Text.assemble(("━" * full, "green"), ("─" * (space - full), "dim"))
    return Text.assemble(done, "  ", bar, "  ", tail)


def _stopped(run: RunStatus, width: int) -> Iterator[Text]:
    since = datetime.fromtimestamp(run.written)
    form = "%H:%M:%S" if run.quiet < 12 * 3600 else "%Y-%m-%d %H:%M"
    quiet = f"nothing written since {since:{form}}, {duration(run.quiet)} ago"
    if run.checkpoint is None:
        yield Text(f"{quiet}; no checkpoint", style="red")
        return
    yield Text(f"{quiet}; checkpoint at event {run.checkpoint}", style="red")
    if run.is_server:
        yield Text("to continue, start the server app again with this folder; nothing is lost")
        return
    out = shlex.quote(one_line(str(run.folder.parent)))
    long, short = f"fedraw run SPEC.toml --out {out} --resume", "fedraw run … --resume"
    goes_on = " continues from there"
    yield Text((long if cell_len(long + goes_on) <= width else short) + goes_on)


def _accuracy(detail: RunDetail, width: int, finished: bool) -> Iterator[Text]:
    if not detail.curve:
        yield _headed("accuracy", "never evaluated" if finished else "no evaluation yet")
        return
    last = detail.curve[-1]
    notes = (f"at event {last.event}", _against(len(detail.curve)))
    for (key, change), note in zip(detail.changes.items(), notes, strict=True):
        points = [(point.event, point.metrics.get(key)) for point in detail.curve]
        yield Text.assemble(
            (key.ljust(HEAD), "bold"),
            (number(key, last.metrics.get(key)).rjust(5), "bold"),
            ("  " + spark(points) + "  ", "cyan"),
            signed(change).rjust(6),
            (f"  {note}".rstrip(), "dim"),
        )


def _against(evaluations: int) -> str:
    """Return which evaluations a change compares, as text."""
    span = min(TREND, evaluations // 2)
    return f"last {span} against {span} before" if span else ""


def _labels(detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    if not detail.labels or detail.mean_recall is None:
        return
    behind = [trend for trend in detail.labels if _is_behind(trend)]
    rare = sum(trend.rare for trend in behind)
    verb = "falls" if len(behind) < 2 else "fall"
    count = f"{len(behind)} of {len(detail.labels)}" if behind else "none"
    title = f"{count} {verb} behind" + f", {rare} of them rare" * bool(rare)
    mean = number("", detail.mean_recall)
    style = "bold red" if rare else "yellow" if behind else ""
    yield _headed("labels", title, style) + Text(f"; mean recall {mean}", style="dim")
    shown = _noteworthy(detail.labels)[: limits.labels]
    wide = min(20, max(cell_len(one_line(trend.label)) for trend in shown))
    notes = [_note(trend) for trend in shown]
    used = 8 + wide + max(6, HEAD - 3 - wide) + 2 + 2 + 6 + 2 + max(map(len, notes))
    for trend, note in zip(shown, notes, strict=True):
        points = [(point.event, point.recall.get(trend.label)) for point in detail.curve]
        curve = spark(points, min(SPARK_WIDTH, max(4, width - used)))
        yield _label_line(trend, wide, curve, note)
    rest = [trend for trend in detail.labels if trend not in shown]
    if rest:
        low, high = number("", rest[0].recall), number("", rest[-1].recall)
        between = low if low == high else f"{low} to {high}"
        yield Text(f"  {len(rest)} other{'s' * (len(rest) > 1)}: {between}", style="dim")


def _at_risk(detail: RunDetail, width: int) -> Iterator[Text]:
    """Yield the labels that are at risk for other reasons than their recall."""
    named = []
    for risk in detail.at_risk:
        others = [reason for reason in risk.reasons if "recall" not in reason]
        if others:
            holder = "" if risk.last_holder is None else f", {one_line(str(risk.last_holder))}"
            named.append(f"{one_line(risk.label)} ({others[0]}{holder})")
    if named:
        yield from _folded("at risk", _few(named), width, style="bold red")


def _is_behind(trend: LabelTrend) -> bool:
    return trend.behind or trend.falling


def _noteworthy(labels: Sequence[LabelTrend]) -> list[LabelTrend]:
    """Return labels that fall behind (rare ones first), other rare labels, and the worst others."""
    order = sorted(labels, key=lambda trend: (not _is_behind(trend), not trend.rare, trend.recall))
    return order[: sum(_is_behind(trend) or trend.rare for trend in labels) + WORST]


def _note(trend: LabelTrend) -> str:
    words = ("far below mean" if trend.behind else "", "falling" if trend.falling else "")
    return ", ".join(word for word in words if word)


def _label_line(trend: LabelTrend, wide: int, curve: str, note: str) -> Text:
    return Text.assemble(
        ("  " + fitted(trend.label, wide), "bold" if trend.rare else ""),
        "  rare" if trend.rare else "      ",
        number("", trend.recall).rjust(max(6, HEAD - 3 - wide)),
        (f"  {curve}  ", "cyan"),
        signed(trend.change).rjust(6),
        (f"  {note}".rstrip(), "yellow"),
    )


def _buffer(detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    if not limits.slots:
        return
    slots = detail.buffer
    if not slots:
        yield _headed("buffer", "empty")
        return
    filling = slots[0].weight is None
    of = f" of {detail.capacity}" if filling and detail.capacity is not None else ""
    noun = "slot" if len(slots) == 1 and not of else "slots"
    facts = [f"{len(slots)}{of} {noun} filled" if filling else f"{len(slots)} {noun}"]
    if detail.aggregated_at is not None:
        facts.append(f"{'last ' * filling}aggregated at event {detail.aggregated_at}")
    yield from _folded("buffer", [*facts, f"version {detail.version}"], width)
    yield from _slots(slots, width, limits.slots)


def _slots(slots: Sequence[BufferSlot], width: int, rows: int) -> Iterator[Text]:
    """Yield blocks of three lines with one column per slot."""
    wide = 1 + max(cell_len(text) for slot in slots for text in _slot_cells(slot))
    per_row = max(1, (width - 10) // wide)
    shown = list(range(len(slots)))
    if len(slots) > rows * per_row:
        heavy = sorted(shown, key=lambda n: (-(slots[n].weight or 0), not slots[n].rare))
        shown = sorted(heavy[: rows * per_row])
    weighed = any(slot.weight is not None for slot in slots)
    for start in range(0, len(shown), per_row):
        block = [slots[n] for n in shown[start : start + per_row]]
        for position, head in enumerate(("  client  ", "  weight %", "  age     ")):
            if position == 1 and not weighed:
                continue
            line = Text(head, style="dim")
            for slot in block:
                text = _slot_cells(slot)[position]
                style = "bold magenta" if slot.rare else "not dim"
                line.append(" " * (wide - cell_len(text)) + text, style=style)
            yield line
    if len(shown) < len(slots):
        yield Text(f"  the heaviest {len(shown)} of {len(slots)} slots", style="dim")


def _slot_cells(slot: BufferSlot) -> tuple[str, str, str]:
    weight = UNDEFINED if slot.weight is None else f"{100 * slot.weight:.1f}"
    age = UNDEFINED if slot.age is None else str(slot.age)
    return _client(slot.client, slot.rare), weight, age


def _client(client: ClientId, rare: bool) -> str:
    return one_line(str(client)) + "*" * rare


def _participation(detail: RunDetail, width: int) -> Iterator[Text]:
    measured, rare = detail.participation, detail.rare_clients
    if rare:
        of_clients = number("", 100 * len(rare) / detail.clients)
        facts = [
            f"{len(rare)} of {detail.clients} ({of_clients} %)",
            f"{number('', measured.get('RarePart'))} % of arrivals",
            f"buffer presence {number('', measured.get('BufPres'))} %",
        ]
        yield from _folded("rare clients*", facts, width)
    silent = detail.unheard
    asked = detail.clients if detail.members is None else detail.members
    if len(silent) and len(silent) < asked:
        names = [_client(client, client in rare) for client in silent]
        first = f"{len(silent)} of {asked} clients: {names[0]}"
        yield from _folded("no update yet", _few([first, *names[1:]]), width)


def _members(detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    """Yield the changes of the membership, and the restarts of the server."""
    history, rare = detail.history, detail.rare_clients
    if history.changed:
        gone = [_client(site.client, site.client in rare) for site in history.away if site.client]
        facts = [f"{detail.members} now", f"{detail.clients} ever"]
        if gone and limits.reasons:
            facts += _few([f"{len(gone)} left: {gone[0]}", *gone[1:]])
        elif gone:
            facts.append(f"{len(gone)} left")
        yield from _folded("members", facts, width)
        yield from _reasons(history.away[: limits.reasons], width, " left")
    if history.last_restarts:
        last = history.last_restarts[0]
        facts = [
            counted(history.restarts, "restart"),
            f"last at event {last.event} after {duration(last.gap)}",
            f"{last.reasked} asked again",
        ]
        yield from _folded("server", facts, width, style="yellow")


def _notes(detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    history = detail.history
    if not history.notes and not history.quarantined:
        return
    facts = [counted(history.notes, "note")]
    if history.quarantined:
        facts.append(f"{history.quarantined} × quarantine")
    yield from _folded("notes", facts, width, style="yellow" if history.quarantined else "")
    known = set(history.away[: limits.reasons])  # shown above
    shown = [incident for incident in history.last_notes if incident not in known]
    yield from _reasons(shown[: limits.reasons], width)


def _reasons(incidents: Iterable[Incident], width: int, what: str = "") -> Iterator[Text]:
    for event, client, words in incidents:
        whom = "" if client is None else f", client {one_line(str(client))}"
        head = f"  event {event}{whom}{what}: "
        yield Text.assemble((head, "dim"), fitted(words, width - cell_len(head)).rstrip())


def _rejected(detail: RunDetail, width: int, limits: Limits) -> Iterator[Text]:
    counts = sorted(detail.rejected.items(), key=lambda item: -item[1])
    if not counts:
        yield _headed("rejected", "none")
        return
    total = sum(detail.rejected.values())
    clients = [f"client {one_line(client)} ×{count}" for client, count in counts]
    first = f"{counted(total, 'update')}: {clients[0]}"
    yield from _folded("rejected", _few([first, *clients[1:]]), width, style="red")
    yield from _reasons(detail.refusals[: limits.reasons], width)


def _doubted(detail: RunDetail, width: int) -> Iterator[Text]:
    """Yield the clients whose updates contradict their label claims."""
    named = [
        f"client {one_line(c)}: {', '.join(map(one_line, _few(list(labels))))}"
        for c, labels in detail.doubted.items()
    ]
    if named:
        yield from _folded("doubted", _few(named), width, style="red")


def _inferred(detail: RunDetail, width: int) -> Iterator[Text]:
    """Yield the holders of the labels that few clients have, if labels are inferred."""
    named = [
        f"{one_line(label)} ({', '.join(one_line(str(client)) for client in clients)})"
        for label, clients in detail.inferred.items()
    ]
    if named:
        yield from _folded("held by few", _few(named), width)


def _few(parts: list[str]) -> list[str]:
    more = len(parts) - MOST_NAMED
    return parts if more <= 0 else [*parts[:MOST_NAMED], f"{more} more"]


def _headed(head: str, text: str, style: str = "") -> Text:
    return Text.assemble((head.ljust(HEAD), "bold"), (text, style))


def _folded(head: str, facts: Iterable[str], width: int, style: str = "") -> Iterator[Text]:
    """Yield a heading and its facts; a fact that does not fit moves to the next line as a whole."""
    line = ""
    for fact in facts:
        if line and HEAD + cell_len(f"{line}, {fact},") > width:
            yield _headed(head, f"{line},", style)
            head, line = "", fact
        else:
            line = f"{line}, {fact}" if line else fact
    yield _headed(head, line, style)
