"""The tables of an audit's page: labels, the what-if grids, clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import SHOWN, Verdict
from fedraw.analysis.what_if import Slower, WhatIf
from fedraw.core.types import Floats
from fedraw.report.audit_words import (
    KIND,
    SIGN,
    TIED,
    UNKNOWN,
    in_percent,
    multiple,
    named,
    percent,
    plain,
    shown,
    times,
)
from fedraw.report.markup import cell, column_head, csv_text, details, table, text

MOST = 10  # clients at either end
COMPARED = ("fedfa", "fedraw")
CSV_ROWS = 1000
NOW = "as asked"


def name_head(name: object, tag: str = "") -> str:
    note = f' <span class="tag">{text(tag)}</span>' if tag else ""
    return f'<th scope="row">{named(name)}{note}</th>'


def labels(audit: Audit, positions: Sequence[int]) -> str:
    """The picture's numbers."""
    heads = ["Label", "Held by", "Holders' time", *map(shown, METHODS), "Verdict"]
    rare = set(audit.rare_labels)
    lines = [
        name_head(audit.labels[i], "rare" if audit.labels[i] in rare else "")
        + cell(f"{audit.coverage[i]:,}", _of_all(audit, i))
        + cell(times(float(audit.holders_slowness[i])))
        + "".join(_share(audit, method, i) for method in METHODS)
        + f'<td class="words">{text(audit.in_words(i))}</td>'
        for i in positions
    ]
    caption = (
        "The same in numbers, worst first. Held by: clients with samples of the label. Holders'"
        " time: how long they take for an update, over the mean of all clients. Under a method's"
        " name: the label's standing, by which it is judged; below, its share of fair."
    )
    if audit.label_interval is not None:
        caption += (
            " Last, from where to where the uncertainty of the times lets that share be, in 95 % of"
            " the federations that could have left such a log."
        )
    return table("label-numbers", caption, _heads(heads), lines)


def every_label(audit: Audit) -> str:
    """Folded away: the labels as CSV, worst first."""
    order, rare = audit.worst_first()[:CSV_ROWS], set(audit.rare_labels)
    numbers = [f"{method}_{what}" for method in METHODS for what in ("standing", "of_fair")]
    head = ["label", "rare", "coverage", "fair_share", "holders_time", *numbers, "verdict"]
    rows = [
        [
            audit.labels[i],
            "rare" if audit.labels[i] in rare else "",
            int(audit.coverage[i]),
            *_finite([audit.fair_share[i], audit.holders_slowness[i]]),
            *_finite(
                by_method[method][i]
                for method in METHODS
                for by_method in (audit.standing, audit.label_influence)
            ),
            audit.in_words(i),
        ]
        for i in order
    ]
    which = "Every label" if len(order) == len(audit.labels) else f"The worst {CSV_ROWS:,} labels"
    area = (
        '<textarea id="labels-csv" rows="10" readonly spellcheck="false" '
        f'aria-label="{which} as CSV">{text(csv_text(head, rows))}</textarea>'
    )
    return details(f"{which} as CSV", "to copy into a spreadsheet", area)


def what_if(audit: Audit) -> str:
    """Methods and caps down, buffers across; empty if nothing was asked."""
    at = {(s.method, s.cap, s.buffer_size): s for s in audit.what_if}
    sizes = sorted({size for _, _, size in at})
    rows = sorted(dict.fromkeys(key[:2] for key in at), key=_row_order)
    if not rows:
        return ""
    advice = audit.recommendation
    best = advice.method, advice.cap, advice.buffer_size
    lines = [
        f'<th scope="row">{text(shown(*row))}</th>'
        + "".join(_setting(audit, at.get((*row, size)), best) for size in sizes)
        for row in rows
    ]
    heads = "".join(
        f'<th scope="col">K = {size:,}{_small(NOW if size == audit.buffer_size else "")}</th>'
        for size in sizes
    )
    presence = (
        ", and how often at least one holder of a rare label is in the buffer"
        if audit.rare_labels
        else ""
    )
    dash = "" if len(at) == len(rows) * len(sizes) else " A dash: a cap below 1/K cannot be met."
    caption = (
        "The label worst off in each setting: its standing, what becomes of it, and its name; in"
        f" small print its share of fair{presence}.{dash}"
    )
    head = f'<tr><th scope="col" class="corner">Method</th>{heads}</tr>'
    return table("what-if-grid", caption, head, lines, kind="grid")


def slower(audit: Audit) -> str:
    """Methods down, how much slower the holders are across; empty if no label is rare."""
    if not audit.slower:
        return ""
    rare = set(audit.rare_labels)
    among = [i for i, label in enumerate(audit.labels) if label in rare]
    lines = [
        f'<th scope="row">{shown(method)}</th>'
        + "".join(_if_slower(audit, s, method, among) for s in audit.slower)
        for method in METHODS
    ]
    now = "as given" if audit.times_known else "as fast as all"
    heads = "".join(
        f'<th scope="col">{f"{s.ratio:g}{TIED}×"}{_small(now if s.ratio == 1 else "")}</th>'
        for s in audit.slower
    )
    caption = (
        f"If the holders of rare labels took this many times as long, with K = "
        f"{audit.buffer_size:,}: the rare label worst off, its standing, its share of fair,"
        " and how often a holder is in the buffer."
    )
    head = f'<tr><th scope="col" class="corner">Method</th>{heads}</tr>'
    return table("slower-grid", caption, head, lines, kind="grid")


def clients(audit: Audit) -> list[str]:
    """The clients that weigh most and least for their samples; all, where they are few."""
    if len(audit.clients) <= 2 * MOST:
        order = [int(i) for i in _by_say(audit, "fedfa")]
        caption = f"All clients, by their say under FedFa.{_client_words(audit)}"
        return [_clients(audit, "all-clients", caption, _client_rows(audit, order))]
    return [_extremes(audit, method) for method in COMPARED]


def say(audit: Audit, method: str) -> Floats:
    """Influence over share of samples, by client."""
    samples = audit.samples.astype(np.float64)
    return np.asarray(audit.influence[method] * (samples.sum() / samples), np.float64)


def _extremes(audit: Audit, method: str) -> str:
    order = _by_say(audit, method)
    most, least = [int(i) for i in order[:MOST]], [int(i) for i in order[-MOST:]]
    lines = [
        _group(audit, f"Most say under {SHOWN[method]}"),
        *_client_rows(audit, most),
        _group(audit, f"Least say under {SHOWN[method]}"),
        *_client_rows(audit, least),
    ]
    caption = (
        f"Under {SHOWN[method]}: the {MOST} with most and the {MOST} with least say for their"
        f" samples, of {len(audit.clients):,}.{_client_words(audit)}"
    )
    return _clients(audit, f"clients-{method}", caption, lines)


def _client_words(audit: Audit) -> str:
    seconds = " Seconds: for one update." if audit.times_known else ""
    return (
        f" Rare: holds a rare label. Score: how rare its labels are.{seconds} Under a method's"
        " name: its weight in the model as a multiple of its share of the samples; below, that"
        " weight, and how often an update of it is in the buffer."
    )


def _clients(audit: Audit, identity: str, caption: str, lines: Iterable[str]) -> str:
    return table(identity, caption, _heads(_client_heads(audit)), lines)


def _client_heads(audit: Audit) -> list[str]:
    times = ["Seconds"] if audit.times_known else []
    return ["Client", "Samples", "Score", *times, *map(shown, METHODS)]


def _group(audit: Audit, words: str) -> str:
    span = len(_client_heads(audit))
    return f'<th scope="colgroup" colspan="{span}" class="group"><span>{text(words)}</span></th>'


def _client_rows(audit: Audit, positions: Sequence[int]) -> Iterator[str]:
    total = float(audit.samples.sum(dtype=np.float64))
    for i in positions:
        share = float(audit.samples[i]) / total
        weights = [float(audit.influence[method][i]) for method in METHODS]
        yield (
            name_head(audit.clients[i], "rare" if audit.holds_rare[i] else "")
            + cell(f"{audit.samples[i]:,}", percent(100 * share))
            + cell(plain(float(audit.scores[i])))
            + (cell(plain(float(audit.seconds[i]))) if audit.times_known else "")
            + "".join(
                cell(
                    times(weight / share),
                    f"weight{TIED}{percent(100 * weight)} "
                    f"in{TIED}buffer{TIED}{percent(100 * float(audit.presence[method][i]))}",
                    kind="two",
                )
                for method, weight in zip(METHODS, weights, strict=True)
            )
        )


def _by_say(audit: Audit, method: str) -> Floats:
    """Positions, most first; ties in the clients' order."""
    return np.asarray(np.argsort(-say(audit, method), kind="stable"))


def _share(audit: Audit, method: str, label: int) -> str:
    found, between = audit.verdicts[method][label], ""
    if audit.label_interval is not None:
        interval = audit.label_interval[method]
        ends = (multiple(float(end[label])) for end in (interval.low, interval.high))
        between = _small(" to ".join(ends))
    standing = in_percent(float(audit.standing[method][label]), method)
    share = _small(_of_fair(float(audit.label_influence[method][label])))
    return f'<td class="{KIND[found]}"><b>{standing}</b>{_word(found)}{share}{between}</td>'


def _setting(audit: Audit, setting: WhatIf | None, best: tuple[str, float | None, int]) -> str:
    if setting is None:
        return f"<td>{UNKNOWN}</td>"
    return _judged(
        audit,
        setting.worst,
        setting.verdict,
        in_percent(float(setting.standing.min()), setting.method),
        float(setting.label_influence[setting.worst]),
        setting.rare_presence,
        chosen=(setting.method, setting.cap, setting.buffer_size) == best,
    )


def _if_slower(audit: Audit, slow: Slower, method: str, among: Sequence[int]) -> str:
    label, found = slow.worst(method, among)
    return _judged(
        audit,
        label,
        found,
        in_percent(float(slow.standing[method][label]), method),
        float(slow.label_influence[method][label]),
        slow.rare_presence[method],
    )


def _judged(
    audit: Audit,
    label: int,
    found: Verdict,
    standing: str,
    share: float,
    presence: float | None,
    *,
    chosen: bool = False,
) -> str:
    """A cell of a grid: the label worst off, and how it fares."""
    kind = f"{KIND[found]} chosen" if chosen else KIND[found]
    advice = '<span class="advice">recommended</span> ' if chosen else ""
    present = "" if presence is None else _small(f"{percent(presence)} present")
    name = f' <small class="short">label {named(audit.labels[label])}</small>'
    return (
        f'<td class="{kind}">{advice}<b>{standing}</b>{_word(found)}{name}'
        f"{_small(_of_fair(share))}{present}</td>"
    )


def _word(found: Verdict) -> str:
    return f' <span class="verdict">{SIGN[found]} {found}</span>'


def _of_fair(share: float) -> str:
    return f"{multiple(share)} of fair"


def _small(words: str) -> str:
    return f" <small>{text(words)}</small>" if words else ""


def _row_order(row: tuple[str, float | None]) -> tuple[int, float]:
    """As in the other tables, the capped ones after the plain one, ablations last."""
    method, cap = row
    place = METHODS.index(method) if method in METHODS else len(METHODS)
    return place, 0.0 if cap is None else 2.0 - cap


def _of_all(audit: Audit, label: int) -> str:
    return percent(100 * int(audit.coverage[label]) / len(audit.clients))


def _heads(names: Sequence[str]) -> str:
    kinds = ["corner", *("left" if name == "Verdict" else "" for name in names[1:])]
    cells = (column_head(name, kind) for name, kind in zip(names, kinds, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _finite(values: Iterable[float]) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
