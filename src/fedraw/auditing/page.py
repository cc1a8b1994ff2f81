"""The audit page: a single HTML file that opens offline and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedraw.auditing import page_tables
from fedraw.auditing.methods import BY_METHOD, ENOUGH_UPDATES, METHODS, VERDICTS, title
from fedraw.auditing.page_figure import SIGN, definitions, figure, mark, method_styles
from fedraw.auditing.view import AuditView, LabelRow, cap_words, verdict_bounds
from fedraw.auditing.words import (
    TIED,
    Name,
    Words,
    counted,
    enumeration,
    percent,
    plain_number,
)
from fedraw.core.types import Floats
from fedraw.pages.html import contents, fill, note, section, text, write_page

SHOWN_LABELS = 25
SHOWN_RARE = 75  # rare labels beyond these, so that the page stays small
RARE_NAMED = 12

LIMITS = (
    "This is a prediction from label counts and speeds alone. Nothing was trained, and no model or"
    " sample was used, so it does not know how hard a label is to learn.",
    "Arrivals are assumed to be memoryless: how much longer a client takes does not depend on how"
    " long it has taken so far. If every client takes the same time each time, slow clients arrive"
    " more evenly.",
    "Every client is assumed to train all the time, at the given speed, on the given counts.",
    "Staleness is not part of the verdict. An update made from an old model counts like a fresh"
    " one, although it may teach less. The overview says how often holders of rare labels return.",
    "Replay gives a rare client the same weight however seldom it arrives, but repeats only what it"
    f" has received. If a label's holders send fewer than {ENOUGH_UPDATES} updates in a whole run,"
    " its verdict is too optimistic.",
    "The thresholds between lost, at risk and kept were measured in many training runs on small"
    " images of digits, in federations of 12 to 32 clients. They may differ for other data and for"
    " many more clients; the order of labels and methods is more reliable than the verdicts. The"
    " measurement is described in fedraw's documentation, under “Audit”.",
    "If even the median label is held by fewer than a quarter of the clients, the weight of a"
    " label's holders is scaled as if the median label were held by a quarter of them.",
)

STANDING = (
    "A label's standing combines how much influence the label has relative to other labels with"
    " how much of the model comes from clients that hold it at all. Verdicts depend on standing,"
    " because in training runs it predicted the recall of a label better than the share of fair"
    " did: a label may have its fair share and still be lost if it is held by one client among"
    " hundreds. The share of fair says whether a label weighs as much as its samples do, so both"
    " are shown."
)

TERMS = {
    "Standing": "The geometric mean of two numbers: the label's influence on the global model over"
    " the fair share of the median label, and the weight of all clients that hold the label."
    f" 100{TIED}% is a label that has the influence that the median label would have if every"
    " sample counted the same, and that every client holds; common labels may have more.",
    "Share of fair": "The label's influence on the global model (the sum over all clients of the"
    " client's weight times the label's share of its samples) divided by the label's share of all"
    " samples, so that 1 is fair.",
    "Lost, at risk, kept": "The outcome of labels of such a standing in training runs."
    f" {'; '.join(verdict_bounds())}. In between, a label is at risk. Methods that average models"
    " forget a label whose holders are absent; methods that add updates forget less, so their"
    " thresholds are lower.",
    "Buffer, K": "The server does not wait for all clients. It makes the global model from the last"
    " K updates, and slow clients are often not among them.",
    "In the buffer": "How often an update from the client takes part when the server makes a new"
    " model. For a client whose update replay keeps this is always; its weight is then the most"
    " that replay applies of its update, and it applies nothing once the model has followed.",
    "Rarity score": "High for a client whose labels few other clients hold. FedRAW weights by it.",
    "Cap": "The largest weight of one client. It bounds the harm of a false claim to hold a rare"
    " label.",
}


def write_audit_page(view: AuditView, out: Path) -> None:
    """Write the page."""
    # A file's name may contain bytes that are not valid text.
    write_page(out, render_page(view).encode("utf-8", "replace").decode("utf-8"))


def render_page(view: AuditView) -> str:
    """The page as text; its size does not depend on the number of clients."""
    parts = {
        "Federation": _federation(view),
        "Labels": _labels(view),
        "What if": _what_if(view),
        "Clients": _clients(view),
        "How to read it": _reading(),
    }
    return fill(
        "fedraw.auditing",
        "page.html",
        title=text(view.name),
        method_styles=method_styles(),
        headline=text(view.headline),
        lead=markup(view.lead),
        answer=_answer(view),
        fair=text(_fair_share(view)),
        standing=text(STANDING),
        methods=_methods(view),
        definitions=definitions(),
        contents=contents(parts),
        sections="\n".join(parts.values()),
        footer="<p>Made by <code>fedraw audit</code>, before any training.</p>",
    )


def markup(words: Words) -> str:
    """A sentence as HTML; names are isolated from the text direction around them."""
    return "".join(
        f"<bdi>{text(part)}</bdi>" if isinstance(part, Name) else text(part) for part in words
    )


def speeds(least: float, most: float) -> str:
    """How long updates take.

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
    advice = view.recommendation
    method = BY_METHOD[advice.method]
    bound = "" if advice.cap is None else f"; no client weighs more than {100 * advice.cap:g} %"
    words = f"{method.title} {method.description}{bound}. K is the size of the server's buffer."
    return (
        f'<p class="answer">Recommended: <strong>{text(advice.setting)}: </strong>'
        f'{markup(advice.words)}.</p>\n<p class="note">{text(words)}</p>'
    )


def _fair_share(view: AuditView) -> str:
    least, most = (percent(100 * end) for end in _ends(view.audit.fair_share))
    each = "" if view.audit.fair_share.size == 1 else " for each label"
    span = f"fair shares range from {least} to {most}" if least != most else f"it is {least}{each}"
    return (
        "A label's fair share is its share of all training samples. If 4 in 100 samples have the"
        " label, it has its fair share when it determines 4 % of the global model: its share of"
        " fair is then 1. At 0.25 it determines 1 %, as if three quarters of its samples were"
        f" missing; above 1 it has more influence than its samples warrant. Here {span}."
    )


def _ends(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _methods(view: AuditView) -> str:
    """One tile for each method: its verdicts, and what it does."""

    def tile(method: str) -> str:
        does = BY_METHOD[method].description
        many = view.tally(method)
        words = [f"{SIGN[word]} {many[word]:,} {word}" for word in VERDICTS if many[word]]
        count = "".join(f"<span>{word}</span> " for word in words)
        return (
            f'<li><h2>{mark(method)} {title(method)}</h2>\n<p class="count">{count}</p>\n'
            f'<p class="note">{text(does[0].upper() + does[1:])}.</p></li>'
        )

    return "\n".join(map(tile, METHODS))


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
        each = ", ".join(f"{title(m)} {percent(audit.rare_presence[m])}" for m in METHODS)
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


def _labels(view: AuditView) -> str:
    worst, rare, others = _drawn(view)
    words = [
        "A label's standing combines its influence relative to other labels with the weight of the"
        " clients that hold it."
    ]
    if rare or others:
        more = f", and {counted(len(rare), 'more rare label')}" if rare else ""
        words.append(
            f"Shown are the {len(worst)} labels with the lowest standing under FedFa{more}."
        )
    if others:
        words.append(_not_drawn(others))
    rows = [*worst, *rare]
    return section(
        "labels",
        "Standing of the labels by method",
        note(" ".join(words)),
        figure(rows),
        page_tables.label_table(view, rows),
        page_tables.labels_as_csv(view),
    )


def _drawn(view: AuditView) -> tuple[list[LabelRow], list[LabelRow], list[LabelRow]]:
    """The worst labels, the rare labels that are not among them, and the labels left out."""
    worst, rest = view.worst_first[:SHOWN_LABELS], view.worst_first[SHOWN_LABELS:]
    rare = [row for row in rest if row.rare]
    return [*worst], rare[:SHOWN_RARE], [r for r in rest if not r.rare] + rare[SHOWN_RARE:]


def _not_drawn(others: Sequence[LabelRow]) -> str:
    risky = sum(any(one.verdict != "kept" for one in row.methods.values()) for row in others)
    if len(others) == 1:
        return f"1 more label is not shown; it is {'lost or at risk' if risky else 'kept'}."
    fate = f"{risky:,} of them lost or at risk" if risky else "all of them kept"
    return f"{len(others):,} more labels are not shown, {fate}."


def _what_if(view: AuditView) -> str:
    words = "The worst label under other buffer sizes, methods and caps."
    tables = page_tables.what_if_table(view), page_tables.slower_table(view)
    return section("what-if", "What if", note(words), *tables)


def _clients(view: AuditView) -> str:
    total = counted(len(view.audit.clients), "client")
    words = (
        f"{total} in all. At 1{TIED}× a client weighs in the model as much as its samples do among"
        " all samples. Fast clients arrive more often, so under FedFa they weigh more."
    )
    return section("clients", "Clients", note(words), *page_tables.client_tables(view))


def _reading() -> str:
    listed = "".join(
        f"<dt>{text(term)}</dt><dd>{text(words)}</dd>" for term, words in TERMS.items()
    )
    limits = "".join(f"<li>{text(words)}</li>" for words in LIMITS)
    return section(
        "reading",
        "How to read it, and its limits",
        f"<dl>{listed}</dl>",
        f'<h3 id="limits">Limits</h3>\n<ul class="limits">{limits}</ul>',
    )
