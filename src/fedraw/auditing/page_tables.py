"""The tables of the audit page: labels, the what-if grids, clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedraw.auditing.methods import METHODS, Verdict, title
from fedraw.auditing.page_figure import CSS_CLASS, SIGN
from fedraw.auditing.view import AuditView, LabelRow, LabelUnderMethod, WorstLabel
from fedraw.auditing.words import (
    TIED,
    UNKNOWN,
    multiple,
    percent,
    plain_number,
    standing_percent,
    times,
)
from fedraw.pages.html import cell, column_head, csv_text, details, table, text

MOST = 10  # clients at either end
COMPARED = ("fedfa", "fedraw")
CSV_ROWS = 1000


def label_table(view: AuditView, rows: Sequence[LabelRow]) -> str:
    """The numbers of the figure."""
    heads = ["Label", "Held by", "Holders' time", *map(title, METHODS), "Verdict"]
    clients = len(view.audit.clients)
    lines = [
        _name_head(row.label, "rare" if row.rare else "")
        + cell(f"{row.coverage:,}", percent(100 * row.coverage / clients))
        + cell(times(row.holders_slowness))
        + "".join(_under(row.methods[method]) for method in METHODS)
        + f'<td class="words">{text(row.verdict)}</td>'
        for row in rows
    ]
    caption = (
        "The same in numbers, worst first. Held by: number of clients with the label. Holders'"
        " time: mean update time of these clients relative to all clients. Under each method: the"
        " label's standing, which decides its verdict, and below it the share of fair."
    )
    if view.audit.label_interval is not None:
        caption += (
            " The last line is the 95 % interval of that share, given the uncertainty of the times."
        )
    return table("label-numbers", caption, _heads(heads), lines)


def labels_as_csv(view: AuditView) -> str:
    """The labels as CSV, worst first, in a collapsed block."""
    numbers = [f"{method}_{what}" for method in METHODS for what in ("standing", "of_fair")]
    head = ["label", "rare", "coverage", "fair_share", "holders_time", *numbers, "verdict"]
    rows = [
        [
            row.label,
            "rare" if row.rare else "",
            row.coverage,
            *_finite([row.fair_share, row.holders_slowness]),
            *_finite(
                value
                for found in row.methods.values()
                for value in (found.standing, found.influence)
            ),
            row.verdict,
        ]
        for row in view.worst_first[:CSV_ROWS]
    ]
    which = "Every label" if len(rows) == len(view.labels) else f"The worst {CSV_ROWS:,} labels"
    area = (
        '<textarea id="labels-csv" rows="10" readonly spellcheck="false" '
        f'aria-label="{which} as CSV">{text(csv_text(head, rows))}</textarea>'
    )
    return details(f"{which} as CSV", "to copy into a spreadsheet", area)


def what_if_table(view: AuditView) -> str:
    """Methods and caps down, buffer sizes across."""
    sizes, rows = view.grid()
    given = "as given"
    lines = [
        f'<th scope="row">{text(title(method, cap))}</th>' + "".join(map(_worst, cells))
        for (method, cap), cells in rows.items()
    ]
    heads = "".join(
        f'<th scope="col">K = {size:,}{_small(given if size == view.audit.buffer else "")}</th>'
        for size in sizes
    )
    presence = (
        ", and how often at least one holder of a rare label is in the buffer"
        if view.audit.rare_labels
        else ""
    )
    impossible = any(cell is None for cells in rows.values() for cell in cells)
    caption = (
        "The worst label in each setting: its standing, its verdict and its name; in small print"
        f" its share of fair{presence}."
        f"{' A dash: a cap below 1/K is impossible.' if impossible else ''}"
    )
    head = f'<tr><th scope="col" class="corner">Method</th>{heads}</tr>'
    return table("what-if-grid", caption, head, lines, kind="grid")


def slower_table(view: AuditView) -> str:
    """Methods down, slowness of the holders of rare labels across; empty if no label is rare."""
    if not view.slower:
        return ""
    lines = [
        f'<th scope="row">{title(method)}</th>'
        + "".join(_worst(column.worst[method]) for column in view.slower)
        for method in METHODS
    ]
    now = "as given" if view.audit.times_known else "as fast as all"
    heads = "".join(
        f'<th scope="col">{column.ratio:g}{TIED}×{_small(now if column.ratio == 1 else "")}</th>'
        for column in view.slower
    )
    caption = (
        "What happens if the holders of rare labels take this many times as long, with K ="
        f" {view.audit.buffer:,}: the worst rare label, its standing, its share of fair, and how"
        " often a holder is in the buffer."
    )
    head = f'<tr><th scope="col" class="corner">Method</th>{heads}</tr>'
    return table("slower-grid", caption, head, lines, kind="grid")


def client_tables(view: AuditView) -> list[str]:
    """The clients with the most and the least weight per sample, or all if there are few."""
    if len(view.audit.clients) <= 2 * MOST:
        order = view.clients_by("fedfa", per_sample=True).tolist()
        caption = f"All clients, by their weight per sample under FedFa.{_client_words(view)}"
        return [_clients(view, "all-clients", caption, _client_rows(view, order))]
    return [_extremes(view, method) for method in COMPARED]


def _extremes(view: AuditView, method: str) -> str:
    order = view.clients_by(method, per_sample=True)
    span = len(_client_heads(view))

    def group(words: str) -> str:
        inner = f"<span>{text(words)}</span>"
        return f'<th scope="colgroup" colspan="{span}" class="group">{inner}</th>'

    lines = [
        group(f"Most weight per sample under {title(method)}"),
        *_client_rows(view, order[:MOST].tolist()),
        group(f"Least weight per sample under {title(method)}"),
        *_client_rows(view, order[-MOST:].tolist()),
    ]
    caption = (
        f"Under {title(method)}: the {MOST} clients with the most and the {MOST} with the least"
        f" weight per sample, of {len(view.audit.clients):,}.{_client_words(view)}"
    )
    return _clients(view, f"clients-{method}", caption, lines)


def _client_words(view: AuditView) -> str:
    seconds = " Seconds: mean time of one update." if view.audit.times_known else ""
    return (
        f" Rare: the client holds a rare label. Score: how rare its labels are.{seconds} Under each"
        " method: the client's weight in the model as a multiple of its share of the samples; below"
        " it the weight itself, and how often an update from the client is in the buffer."
    )


def _clients(view: AuditView, identity: str, caption: str, lines: Iterable[str]) -> str:
    return table(identity, caption, _heads(_client_heads(view)), lines)


def _client_heads(view: AuditView) -> list[str]:
    seconds = ["Seconds"] if view.audit.times_known else []
    return ["Client", "Samples", "Score", *seconds, *map(title, METHODS)]


def _client_rows(view: AuditView, positions: Iterable[int]) -> Iterator[str]:
    for i in positions:
        row = view.client(i)
        yield (
            _name_head(row.client, "rare" if row.rare else "")
            + cell(f"{row.samples:,}", percent(100 * row.share))
            + cell(plain_number(row.score))
            + ("" if row.seconds is None else cell(plain_number(row.seconds)))
            + "".join(
                cell(
                    times(row.influence[method] / row.share),
                    f"weight{TIED}{percent(100 * row.influence[method])} "
                    f"in{TIED}buffer{TIED}{percent(100 * row.presence[method])}",
                    kind="two",
                )
                for method in METHODS
            )
        )


def _name_head(name: object, tag: str = "") -> str:
    note = f' <span class="tag">{text(tag)}</span>' if tag else ""
    return f'<th scope="row"><bdi>{text(name)}</bdi>{note}</th>'


def _under(found: LabelUnderMethod) -> str:
    between = ""
    if found.interval is not None:
        between = _small(" to ".join(map(multiple, found.interval)))
    standing = standing_percent(found.standing, found.method)
    share = _small(f"{multiple(found.influence)} of fair")
    kind = CSS_CLASS[found.verdict]
    return f'<td class="{kind}"><b>{standing}</b>{_word(found.verdict)}{share}{between}</td>'


def _worst(found: WorstLabel | None) -> str:
    """A cell of a grid: the worst label and its fate."""
    if found is None:
        return f"<td>{UNKNOWN}</td>"
    kind = CSS_CLASS[found.verdict] + (" chosen" if found.recommended else "")
    advice = '<span class="advice">recommended</span> ' if found.recommended else ""
    presence = found.rare_presence
    present = "" if presence is None else _small(f"{percent(presence)} present")
    name = f' <small class="short">label <bdi>{text(found.label)}</bdi></small>'
    standing = standing_percent(found.standing, found.method)
    return (
        f'<td class="{kind}">{advice}<b>{standing}</b>{_word(found.verdict)}{name}'
        f"{_small(f'{multiple(found.influence)} of fair')}{present}</td>"
    )


def _word(found: Verdict) -> str:
    return f' <span class="verdict">{SIGN[found]} {found}</span>'


def _small(words: str) -> str:
    return f" <small>{text(words)}</small>" if words else ""


def _heads(names: Sequence[str]) -> str:
    kinds = ["corner", *("left" if name == "Verdict" else "" for name in names[1:])]
    cells = (column_head(name, kind) for name, kind in zip(names, kinds, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
