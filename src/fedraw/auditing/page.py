"""The audit page: a single HTML file that opens offline and runs no script.

All standings are in percent, because the verdicts depend on them. Explanations are collapsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

from fedraw.auditing.methods import (
    BY_METHOD,
    COLUMNS,
    ENOUGH_UPDATES,
    THRESHOLDS,
    VERDICTS,
    Verdict,
    title,
)
from fedraw.auditing.view import (
    COST_CAPTION,
    COST_COLUMNS,
    AuditView,
    LabelRow,
    LabelUnderMethod,
    WorstLabel,
    cap_words,
    cost_cells,
    grid_title,
    verdict_bounds,
)
from fedraw.auditing.words import (
    TIED,
    UNKNOWN,
    Name,
    Words,
    enumeration,
    percent,
    plain_number,
    standing_percent,
    standing_text,
)
from fedraw.core.text import counted
from fedraw.core.types import Floats
from fedraw.pages.html import (
    cell,
    column_head,
    csv_text,
    details,
    fill,
    note,
    section,
    table,
    text,
    write_page,
)

SHOWN_LABELS = 25
SHOWN_RARE = 75  # rare labels beyond these, so that the page stays small
RARE_NAMED = 12
CSV_ROWS = 1000
MOST_CLIENTS = 5  # at either end
SORTED_BY = ("fedfa", "fedraw")  # the tables of clients
# The methods with different weights of clients: FedBuff's weights are FedFa's, and CA2FL's are all
# equal.
CLIENT_METHODS = ("fedfa", "fedraw", "fedraw-replay")

# Empty, half and full circles, which are distinguishable without colour.
SIGN: dict[Verdict, str] = {"lost": "○", "at risk": "◐", "late": "◔", "kept": "●"}
CSS_CLASS: dict[Verdict, str] = {"lost": "lost", "at risk": "risk", "late": "risk", "kept": "kept"}
BANDS: tuple[Verdict, ...] = ("lost", "at risk", "kept")  # of standing
CHOSEN = "★"

# The axis of the figure.
LOW, HIGH = 0.001, 3.0
TICKS = (0.001, 0.01, 0.1, 1.0)
NARROW = ' class="between"'  # hidden if a lane is narrow
LANE = 100 / len(COLUMNS)  # percent of the height
EDGE = 9.0  # percent of free space at both ends, so that no mark is cut off

# The mark of a method: a path around (0, 0) in pixels, and a colour on a light and on a dark
# page. Methods take these in the order of the catalogue, starting over if there are more.
STYLES = (
    ("M-6-5H6L0 6Z", "#7a6a00", "#d6c34a"),
    ("M0-6 6 5H-6Z", "#0a78b8", "#56b4e9"),
    ("M-5-5H5V5H-5Z", "#00805c", "#2ebf94"),
    ("M0-7 7 0 0 7-7 0Z", "#b0568f", "#e394c2"),
    ("M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z", "#c25500", "#f58a3d"),
    ("M-6-2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z", "#6a51c7", "#a796f0"),
)
METHOD_STYLES = dict(zip(COLUMNS, cycle(STYLES), strict=False))
BEYOND = {"below": "M-8-4V4L-13 0Z", "above": "M8-4V4L13 0Z"}

CAPTION = (
    "Below each label: how many clients hold it. Standing in percent on a logarithmic axis up to"
    " 300 %: each line is ten times the one to its left. The thresholds between lost, at risk and"
    " kept depend on the method, so each lane has its own. A small arrow marks a standing beyond"
    " the axis."
)


def write_audit_page(view: AuditView, out: Path) -> None:
    """Write the page."""
    # A file's name may contain bytes that are not valid text.
    write_page(out, render_page(view).encode("utf-8", "replace").decode("utf-8"))


def render_page(view: AuditView) -> str:
    """Return the page as text; its size does not depend on the number of clients."""
    sections = _federation(view), _labels(view), _what_if(view), _clients(view)
    return fill(
        "fedraw.auditing",
        "page.html",
        title=text(view.name),
        method_styles=_method_styles(),
        headline=text(view.headline),
        lead=markup(view.lead),
        answer=_answer(view),
        horizon=_horizon(view),
        methods="\n".join(_tile(view, method) for method in COLUMNS),
        definitions=_definitions(),
        sections="\n".join(sections),
        bounds=text("; ".join(verdict_bounds())),
        fair=text(_fair_share(view)),
        method_terms=_method_terms(),
        enough=str(ENOUGH_UPDATES),
    )


def markup(words: Words) -> str:
    """Return a sentence as HTML; names are isolated from the surrounding text direction."""
    return "".join(
        f"<bdi>{text(part)}</bdi>" if isinstance(part, Name) else text(part) for part in words
    )


def speeds(least: float, most: float) -> str:
    """Describe how long updates take.

    >>> speeds(0.5, 1.0)
    '0.5 to 1 seconds per update: the slowest client takes 2 times as long as the fastest'
    >>> speeds(1.0, 1.0)
    '1 second per update: the slowest client takes as long as the fastest'
    """
    ends = plain_number(least), plain_number(most)
    span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    factor = plain_number(most / least)
    longer = "" if least == most else "about " if factor == "1" else f"{factor} times "
    unit = "second" if span == "1" else "seconds"
    return f"{span} {unit} per update: the slowest client takes {longer}as long as the fastest"


def _answer(view: AuditView) -> str:
    """Return the recommendation in the colour of its verdict."""
    advice = view.recommendation
    method = BY_METHOD[advice.method]
    bound = "" if advice.cap is None else f"; no client has more than {100 * advice.cap:g} % weight"
    words = f"{method.title} {method.description}{bound}. K is the size of the server's buffer."
    return (
        f'<div class="answer {CSS_CLASS[advice.verdict]}">'
        f"<p>{SIGN[advice.verdict]} Recommended: <strong>{text(advice.setting)}: </strong>"
        f"{markup(advice.words)}.</p>\n<pre><code>{text(advice.toml)}</code></pre>\n"
        f'<p class="note">{text(words)}</p>\n<p>{text(view.one_pass)}</p></div>'
    )


def _horizon(view: AuditView) -> str:
    """Return the horizon, and what was not calibrated for it."""
    listed = "".join(f"<li>{text(words)}</li>" for words in view.audit.cautions)
    cautions = f'<ul class="cautions">{listed}</ul>' if listed else ""
    return f'<p class="note">{text(f"{view.horizon} {view.waiting}".strip())}</p>{cautions}'


def _tile(view: AuditView, method: str) -> str:
    """Return a method with its number of labels for each verdict."""
    many = view.tally(method)
    words = (f"{SIGN[word]} {many[word]:,} {word}" for word in VERDICTS if many[word])
    count = "".join(f"<span>{word}</span> " for word in words)
    return f'<li><h2>{_icon(method)} {title(method)}</h2>\n<p class="count">{count}</p></li>'


def _federation(view: AuditView) -> str:
    audit = view.audit
    facts = {
        "Clients": f"{len(audit.clients):,}",
        "Labels": f"{len(audit.labels):,}",
        "Samples": f"{view.samples:,}",
        "Rare labels": _rare(view),
        "Buffer": f"K = {counted(audit.buffer, 'update')}",
        "Cap": cap_words(audit.cap),
        "Times": text(view.source),
    }
    if audit.times_known:
        facts["Speeds"] = speeds(*_ends(audit.seconds))
    if audit.rare_labels:
        each = ", ".join(f"{title(m)} {percent(audit.rare_presence[m])}" for m in COLUMNS)
        facts["Rare labels in the buffer"] = (
            f"{each} <small>how often at least one of their holders is in it</small>"
        )
        facts["Staleness"] = f"{view.staleness} <small>not part of the verdicts</small>"
    facts["Replay"] = text(view.replay)
    listed = "".join(f"<div><dt>{name}</dt><dd>{words}</dd></div>" for name, words in facts.items())
    extra = "".join(f"<li>{text(words)}</li>" for words in view.notes)
    cautions = f'<ul class="cautions">{extra}</ul>' if extra else ""
    heading = "The federation at a glance"
    return section("federation", heading, f'<dl class="facts-list">{listed}</dl>', cautions)


def _rare(view: AuditView) -> str:
    rare = view.audit.rare_labels
    if not rare:
        return f"none {text(view.rare_rule)}"
    held = view.rare_clients
    share = percent(100 * held / len(view.audit.clients))
    which = "it" if len(rare) == 1 else "one of them"
    return (
        f"{len(rare):,}: {markup(enumeration(rare, RARE_NAMED))}"
        f" <small>{text(view.rare_rule)}; {counted(held, 'client')} ({share})"
        f" {'holds' if held == 1 else 'hold'} {which}</small>"
    )


def _ends(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())


# The labels: a figure with one card for each label and one lane for each method.


def _labels(view: AuditView) -> str:
    worst, rare, others = _drawn(view)
    words = []
    if rare or others:
        more = f", and {counted(len(rare), 'more rare label')}" if rare else ""
        words.append(
            f"Shown are the {len(worst)} labels with the lowest standing under "
            f"{title(view.headline_method)}{more}."
        )
    if others:
        words.append(_not_drawn(others))
    caption = CAPTION
    if view.audit.standing_interval is not None:
        caption += (
            " A line through a mark is the 95 % interval, given the uncertainty of the times."
        )
    cards = "\n".join(_card(view, row) for row in [*worst, *rare])
    return section(
        "labels",
        "Standing of the labels by method",
        note(" ".join(words)) if words else "",
        f'<figure>\n{_key()}\n<ul class="cards">\n{cards}\n</ul>\n'
        f"<figcaption>{text(caption)}</figcaption>\n</figure>",
        _labels_as_csv(view),
    )


def _drawn(view: AuditView) -> tuple[list[LabelRow], list[LabelRow], list[LabelRow]]:
    """Return the worst labels, the rare labels not among them, and the labels left out."""
    worst, rest = view.worst_first[:SHOWN_LABELS], view.worst_first[SHOWN_LABELS:]
    rare = [row for row in rest if row.rare]
    return [*worst], rare[:SHOWN_RARE], [r for r in rest if not r.rare] + rare[SHOWN_RARE:]


def _not_drawn(others: Sequence[LabelRow]) -> str:
    risky = sum(any(row.methods[m].verdict != "kept" for m in COLUMNS) for row in others)
    if len(others) == 1:
        return f"1 more label is not shown; it is {'lost or at risk' if risky else 'kept'}."
    fate = f"{risky:,} of them lost or at risk" if risky else "all of them kept"
    return f"{len(others):,} more labels are not shown, {fate}."


def place(standing: float) -> float:
    """Return the position of a standing on the logarithmic axis, in percent, clipped to its ends.

    >>> [round(place(standing), 1) for standing in (0.0, 0.001, 0.1, 1.0, 3.0, 9.0)]
    [9.0, 9.0, 56.2, 79.7, 91.0, 91.0]
    """
    inside = min(standing, HIGH) if standing > LOW else LOW
    return EDGE + (100 - 2 * EDGE) * math.log(inside / LOW) / math.log(HIGH / LOW)


def _method_styles() -> str:
    """Return the colours of the methods and the rows of their lanes, as CSS."""
    light = " ".join(f"--{name}: {own};" for name, (_, own, _) in METHOD_STYLES.items())
    dark = " ".join(f"--{name}: {own};" for name, (_, _, own) in METHOD_STYLES.items())
    rules = (f".{n} {{ fill: var(--{n}); stroke: var(--{n}); }}" for n in METHOD_STYLES)
    in_the_dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    last = len(COLUMNS) + 1
    rows = [f".r{n} {{ grid-row: {n}; }}" for n in range(1, last)]
    rows.append(f".plot {{ grid-row: 1 / {last}; height: {1.5 * len(COLUMNS):g}rem; }}")
    rows.append(f".axis {{ grid-row: {last}; }}")
    return "\n".join([f":root {{ {light} }}", in_the_dark, *rules, *rows])


def _definitions() -> str:
    """Return the definitions of all marks, once per page."""
    marks = "".join(
        f'<path id="mark-{name}" d="{d}"/>' for name, (d, _, _) in METHOD_STYLES.items()
    )
    beyond = "".join(f'<path id="{end}" d="{d}"/>' for end, d in BEYOND.items())
    return f'<svg class="defs" aria-hidden="true"><defs>{marks}{beyond}</defs></svg>'


def _icon(method: str) -> str:
    """Return the mark of a method, to show next to its name."""
    use = f'<use href="#mark-{method}" class="{method}" x="50%" y="50%"/>'
    return f'<svg class="mark" aria-hidden="true">{use}</svg>'


def _key() -> str:
    swatches = "".join(
        f'<li><svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" '
        f'class="{CSS_CLASS[word]}"/></svg> {SIGN[word]} {word}</li>'
        for word in VERDICTS
    )
    methods = "".join(f"<li>{_icon(method)} {title(method)}</li>" for method in COLUMNS)
    return f'<ul class="key" aria-label="Key">{methods}{swatches}</ul>'


def _card(view: AuditView, row: LabelRow) -> str:
    rare = ' <span class="tag">rare</span>' if row.rare else ""
    share = percent(100 * row.coverage / len(view.audit.clients))
    held = f"{counted(row.coverage, 'client')} ({share})"
    if view.audit.times_known:
        held += f", {plain_number(row.holders_slowness)}{TIED}× the mean time"
    held += f", {plain_number(row.updates)} updates"
    found = [row.methods[method] for method in COLUMNS]
    lanes = "".join(_lane_words(one, n) for n, one in enumerate(found, 1))
    bands = "".join(_bands(method, n) for n, method in enumerate(COLUMNS))
    marks = "".join(_lane_mark(one, n) for n, one in enumerate(found))
    ticks = "".join(
        f'<line x1="{at:.1f}%" x2="{at:.1f}%" y1="0" y2="100%" class="tick"/>'
        for at in map(place, TICKS)
    )
    axis = "".join(
        f'<text x="{place(tick):.1f}%" y="80%"{NARROW if tick == 0.1 else ""}>'
        f"{100 * tick:g}{' %' if tick == 1 else ''}</text>"
        for tick in TICKS
    )
    return (
        f'<li><p class="who"><bdi>{text(row.label)}</bdi>{rare}</p>\n<p class="note">{held}</p>\n'
        f'<div class="lanes">{lanes}<svg class="plot" aria-hidden="true">{bands}{ticks}{marks}'
        f'</svg><svg class="axis" aria-hidden="true">{axis}</svg></div></li>'
    )


def _lane_words(found: LabelUnderMethod, row: int) -> str:
    standing = standing_percent(found.standing, found.method)
    return (
        f'<span class="method r{row}">{_icon(found.method)} {title(found.method)}</span> '
        f'<span class="value r{row}"><b>{standing}</b> {SIGN[found.verdict]} {found.verdict}</span>'
        " "
    )


def _bands(method: str, row: int) -> str:
    """Return the ranges of standing that are lost, at risk and kept, from left to right."""
    top = LANE * row
    edges = [0.0, *(place(limit) for limit in THRESHOLDS[method]), 100.0]
    return "".join(
        f'<rect class="{CSS_CLASS[word]}" x="{left:.1f}%" y="{top + 1.5:g}%" '
        f'width="{right - left:.1f}%" height="{LANE - 3:g}%"/>'
        for word, left, right in zip(BANDS, edges, edges[1:], strict=False)
    )


def _lane_mark(found: LabelUnderMethod, row: int) -> str:
    """Return the mark at a standing, its interval, and an arrow if it is beyond the axis."""
    method, standing, y = found.method, found.standing, f"{LANE * (row + 0.5):g}%"
    between = ""
    if found.interval is not None:
        left, right = map(place, found.interval)
        between = (
            f'<line class="{method}" x1="{left:.1f}%" x2="{right:.1f}%" y1="{y}" y2="{y}" '
            'stroke-width="2"/>'
        )
    at = f'x="{place(standing):.1f}%" y="{y}"'
    end = "below" if standing < LOW else "above" if standing > HIGH else ""
    arrow = f'<use href="#{end}" class="{method}" {at}/>' if end else ""
    return f'{between}<use href="#mark-{method}" class="{method}" {at}/>{arrow}'


def _labels_as_csv(view: AuditView) -> str:
    """Return the labels as CSV, worst first."""
    numbers = [f"{method}_{what}" for method in COLUMNS for what in ("standing", "of_fair")]
    head = ["label", "rare", "coverage", "fair_share", "holders_time", *numbers, "verdict"]
    rows = [
        [
            row.label,
            "rare" if row.rare else "",
            row.coverage,
            *_finite([row.fair_share, row.holders_slowness]),
            *_finite(
                value
                for found in map(row.methods.__getitem__, COLUMNS)
                for value in (found.standing, found.influence)
            ),
            row.verdict,
        ]
        for row in view.worst_first[:CSV_ROWS]
    ]
    which = "Every label" if len(rows) == len(view.labels) else f"The worst {CSV_ROWS:,} labels"
    return _csv("labels-csv", which, csv_text(head, rows))


def _csv(identity: str, which: str, content: str) -> str:
    """Return CSV text to copy, in a collapsed block."""
    area = (
        f'<textarea id="{identity}" rows="10" readonly spellcheck="false" '
        f'aria-label="{which} as CSV">{text(content)}</textarea>'
    )
    return (
        f'<div class="csv">{details(f"{which} as CSV", "to copy into a spreadsheet", area)}</div>'
    )


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


# The what-if tables: the worst label under other settings.


def _what_if(view: AuditView) -> str:
    sizes, rows = view.grid()
    given = f" <small>{text('as given')}</small>"
    grid = table(
        "what-if-grid",
        f"Standing in percent of the worst label, by method and buffer size. {CHOSEN} marks the"
        " recommendation."
        + (
            " A cap below 1/K is impossible."
            if any(None in cells for cells in rows.values())
            else ""
        ),
        _grid_head(f"K = {size:,}{given if size == view.audit.buffer else ''}" for size in sizes),
        [_grid_row(grid_title(method, cap), cells) for (method, cap), cells in rows.items()],
        kind="grid",
    )
    tables = grid, _slower_table(view), _cost_table(view), _grid_as_csv(view)
    return section("what-if", "What if", *tables)


def _cost_table(view: AuditView) -> str:
    """Return the table of what each method requires."""
    return table(
        "costs",
        f"What each method requires, and its merit. {COST_CAPTION}",
        _grid_head(column[0].upper() + column[1:] for column in COST_COLUMNS),
        [
            f'<th scope="row">{text(title(cost.method))}</th>'
            + "".join(map(cell, cost_cells(cost)))
            for cost in view.costs
        ],
        kind="grid",
    )


def _slower_table(view: AuditView) -> str:
    """Return the table of methods by slowness of rare holders; empty if no label is rare."""
    if not view.slower:
        return ""
    now = f" <small>{'as given' if view.audit.times_known else 'as fast as others'}</small>"
    return table(
        "slower-grid",
        "Standing in percent of the worst rare label if the holders of rare labels take this many"
        f" times as long, with K = {view.audit.buffer:,}.",
        _grid_head(
            f"{column.ratio:g}{TIED}×{now if column.ratio == 1 else ''}" for column in view.slower
        ),
        [_grid_row(title(m), [column.worst[m] for column in view.slower]) for m in COLUMNS],
        kind="grid",
    )


def _grid_head(columns: Iterable[str]) -> str:
    heads = "".join(f'<th scope="col">{words}</th>' for words in columns)
    return f'<tr><th scope="col" class="corner">Method</th>{heads}</tr>'


def _grid_row(name: str, cells: Iterable[WorstLabel | None]) -> str:
    return f'<th scope="row">{text(name)}</th>' + "".join(map(_grid_cell, cells))


def _grid_cell(found: WorstLabel | None) -> str:
    """Return a cell with a standing and its verdict."""
    if found is None:
        return f"<td>{UNKNOWN}</td>"
    kind = CSS_CLASS[found.verdict] + (" chosen" if found.recommended else "")
    star = f"{CHOSEN}{TIED}" if found.recommended else ""
    standing = standing_text(found.standing, found.method)
    word = f"{SIGN[found.verdict]}{TIED}{found.verdict.replace(' ', TIED)}"
    return f'<td class="{kind}"><b>{star}{standing}</b> <span class="verdict">{word}</span></td>'


def _grid_as_csv(view: AuditView) -> str:
    head = ["method", "buffer", "cap", "worst_label", "verdict", "standing", "of_fair"]
    rows = [
        [s.method, s.buffer, s.cap, s.label, s.verdict, *_finite([s.standing, s.influence])]
        for s in view.settings
    ]
    return _csv("what-if-csv", "Every setting", csv_text(head, rows))


# The clients with the most and the least weight.


def _clients(view: AuditView) -> str:
    total = counted(len(view.audit.clients), "client")
    words = (
        f"{total} in total. Weights in percent of the model, next to each client's share of all"
        " samples. FedBuff weights clients as FedFa does; CA2FL weights all clients equally."
    )
    return section("clients", "Clients", note(words), *_client_tables(view))


def _client_tables(view: AuditView) -> Iterator[str]:
    """Yield tables of the clients with the most and the least weight per sample, or of all."""
    seconds = ["Seconds"] if view.audit.times_known else []
    names = ["Client", *seconds, "Score", "Samples", *map(title, CLIENT_METHODS)]
    kinds = ["corner", *[""] * (len(names) - 1)]
    head = f"<tr>{''.join(column_head(n, kind) for n, kind in zip(names, kinds, strict=True))}</tr>"
    if len(view.audit.clients) <= 2 * MOST_CLIENTS:
        order = view.clients_by("fedfa", per_sample=True).tolist()
        caption = "All clients, by their weight per sample under FedFa."
        yield table("all-clients", caption, head, _client_rows(view, order), kind="grid")
        return

    def group(words: str) -> str:
        return f'<th scope="colgroup" colspan="{len(names)}" class="group">{text(words)}</th>'

    for method in SORTED_BY:
        order_ = view.clients_by(method, per_sample=True)
        rows = [
            group("Most weight per sample"),
            *_client_rows(view, order_[:MOST_CLIENTS].tolist()),
            group("Least weight per sample"),
            *_client_rows(view, order_[-MOST_CLIENTS:].tolist()),
        ]
        caption = f"Under {title(method)}: {MOST_CLIENTS} clients at either end."
        yield table(f"clients-{method}", caption, head, rows, kind="grid")


def _client_rows(view: AuditView, positions: Iterable[int]) -> Iterator[str]:
    for i in positions:
        row = view.client(i)
        tag = ' <span class="tag">rare</span>' if row.rare else ""
        weights = (row.share, *(row.influence[method] for method in CLIENT_METHODS))
        yield (
            f'<th scope="row"><bdi>{text(row.client)}</bdi>{tag}</th>'
            + ("" if row.seconds is None else cell(plain_number(row.seconds)))
            + cell(plain_number(row.score))
            + "".join(cell(percent(100 * weight).removesuffix(f"{TIED}%")) for weight in weights)
        )


def _method_terms() -> str:
    """Return the descriptions of the methods, for the list of terms."""
    does = {BY_METHOD[method].title: BY_METHOD[method].description for method in COLUMNS}
    return "\n".join(
        f"<dt>{text(name)}</dt><dd>{text(words[0].upper())}{text(words[1:])}.</dd>"
        for name, words in does.items()
    )


def _fair_share(view: AuditView) -> str:
    least, most = (percent(100 * end) for end in _ends(view.audit.fair_share))
    each = "" if view.audit.fair_share.size == 1 else " for each label"
    return f"it ranges from {least} to {most}" if least != most else f"it is {least}{each}"
