"""One page that shows an audit: a single HTML file that opens offline, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import ENOUGH_UPDATES
from fedraw.core.types import Floats
from fedraw.report import audit_tables
from fedraw.report.audit_figures import definitions, mark, picture
from fedraw.report.audit_words import (
    DOES,
    SIGN,
    TIED,
    VERDICTS,
    answer,
    bounds,
    counted,
    headline,
    percent,
    plain,
    rare_rule,
    replay,
    rounded,
    several,
    shown,
    tally,
    under_fedfa,
)
from fedraw.report.html_file import contents, fill, write_page
from fedraw.report.markup import note, section, text

SHOWN_LABELS = 25
SHOWN_RARE = 75  # beyond the first, so that a page stays one that opens
RARE_NAMED = 12

LIMITS = (
    "It is a prediction from label counts and speeds alone. Nothing was trained, and no model or"
    " sample was looked at: how hard a label is to learn does not enter.",
    "Arrivals are taken as memoryless: how long a client takes does not depend on how long it has"
    " taken so far. If every client takes the same time each time, slow ones are met more evenly.",
    "Every client is taken to train all the time, at the speed given, on the counts given.",
    "Staleness is no part of the verdict. An update made from an old model counts here like a fresh"
    " one, though it may teach less; the glance says how long holders of rare labels stay away.",
    "Replay weighs a rare client alike however seldom it comes, but repeats only what it has heard:"
    f" where a label's holders send fewer than {ENOUGH_UPDATES} updates in a whole run, its verdict"
    " promises too much.",
    "Where lost, at risk and kept begin was measured in many training runs on small images of"
    " digits, in federations of 12 to 32 clients. On other data, and among many more clients, the"
    " limits may lie elsewhere; the order of labels and methods is safer than the words. The"
    " measurement is described in fedraw's documentation, under “Audit”.",
    "Where even the median label is on fewer than a quarter of the clients, the holders of a label"
    " are counted against that: they weigh as if the median label were on a quarter.",
)

STANDING = (
    "A label's standing is how loudly a label speaks beside the others, and how much of the model"
    " comes from clients that hold it at all. The verdicts go by standing, because in training runs"
    " it foretold better than the share of fair how much of a label is recognised: a label may have"
    " its fair share and still be lost, if one client among hundreds speaks for it. The share of"
    " fair says whether a label weighs what its samples do, so both are given."
)


def write_audit_page(
    audit: Audit, out: Path, *, title: str, source: str, notes: Sequence[str] = ()
) -> None:
    """Write the page. source: where the times come from; notes: what else a reader must know."""
    page = render_audit(audit, title=title, source=source, notes=notes)
    # A file's name may hold bytes that are no text.
    write_page(out, page.encode("utf-8", "replace").decode("utf-8"))


def render_audit(audit: Audit, *, title: str, source: str, notes: Sequence[str] = ()) -> str:
    """The page; complete as it is, whatever the number of labels and clients."""
    parts = {
        "Federation": _federation(audit, source, notes),
        "Labels": _labels(audit),
        "What if": _what_if(audit),
        "Clients": _clients(audit),
        "How to read it": _reading(),
    }
    return fill(
        "audit_page.html",
        title=text(title),
        headline=text(headline(audit)),
        lead=under_fedfa(audit),
        answer=_answer(audit),
        fair=text(_fair_share(audit)),
        standing=text(STANDING),
        methods=_methods(audit),
        definitions=definitions(),
        contents=contents(parts),
        sections="\n".join(parts.values()),
        footer="<p>Made by <code>fedraw audit</code>, before any training.</p>",
    )


def _answer(audit: Audit) -> str:
    advice = audit.recommendation
    does = DOES.get(advice.method, "")
    bound = "" if advice.cap is None else f"; none weighs more than {100 * advice.cap:g} %"
    words = f"{shown(advice.method)} {does}{bound}. K is the size of the server's buffer."
    return f'<p class="answer">Recommended: {answer(audit)}.</p>\n<p class="note">{text(words)}</p>'


def _fair_share(audit: Audit) -> str:
    least, most = (percent(100 * end) for end in _ends(audit.fair_share))
    each = "" if audit.fair_share.size == 1 else " for each"
    span = f"fair shares go from {least} to {most}" if least != most else f"it is {least}{each}"
    return (
        "A label's fair share is its share of all training samples. If 4 in 100 samples show it, it"
        " has its fair share when it speaks for 4 % of the global model: that is written 1. At 0.25"
        " it speaks for 1 %, as if three quarters of its samples were not there; above 1 it speaks"
        f" for more than its samples. Here {span}."
    )


def _ends(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _methods(audit: Audit) -> str:
    """One tile for each method: what it does, and to how many labels."""
    return "\n".join(
        f"<li><h2>{mark(method)} {shown(method)}</h2>\n"
        f'<p class="count">{_counts(audit, method)}</p>\n'
        f'<p class="note">{text(DOES[method][0].upper() + DOES[method][1:])}.</p></li>'
        for method in METHODS
    )


def _counts(audit: Audit, method: str) -> str:
    many = tally(audit, method)
    words = [f"{SIGN[word]} {many[word]:,} {word}" for word in VERDICTS if many[word]]
    return "".join(f"<span>{word}</span> " for word in words)


def _federation(audit: Audit, source: str, notes: Sequence[str]) -> str:
    facts = {
        "Clients": f"{len(audit.clients):,}",
        "Labels": f"{len(audit.labels):,}",
        "Samples": f"{int(audit.samples.sum(dtype=np.float64)):,}",
        "Rare labels": _rare(audit),
        "Buffer": f"K = {counted(audit.buffer_size, 'update')}",
        "Cap": _cap(audit),
        "Times": text(source),
    }
    if audit.times_known:
        facts["Speeds"] = speeds(*_ends(audit.seconds))
    if audit.rare_labels:
        facts["Rare labels in the buffer"] = _rare_presence(audit)
    if audit.rare_staleness is not None:
        arrivals = counted(rounded(audit.rare_staleness), "arrival")
        facts["Staleness"] = (
            f"a holder of a rare label comes back after about {arrivals}"
            " <small>no part of the verdicts</small>"
        )
    facts["Replay"] = text(replay(audit))
    listed = "".join(f"<div><dt>{name}</dt><dd>{words}</dd></div>" for name, words in facts.items())
    extra = "".join(f"<li>{text(words)}</li>" for words in notes)
    cautions = f'<ul class="cautions">{extra}</ul>' if extra else ""
    title = "The federation at a glance"
    return section("federation", title, f'<dl class="facts-list">{listed}</dl>', cautions)


def speeds(least: float, most: float) -> str:
    """How long updates take.

    >>> speeds(0.5, 1.0)
    '0.5 to 1 seconds an update: the slowest client takes 2 times as long as the quickest'
    >>> speeds(1.0, 1.0)
    '1 second an update: the slowest client takes as long as the quickest'
    """
    ends = plain(least), plain(most)
    span = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    factor = plain(most / least)
    longer = "" if least == most else "about " if factor == "1" else f"{factor} times "
    unit = "second" if span == "1" else "seconds"
    return f"{span} {unit} an update: the slowest client takes {longer}as long as the quickest"


def _rare(audit: Audit) -> str:
    if not audit.rare_labels:
        return f"none {text(rare_rule(audit))}"
    held = int(np.count_nonzero(audit.holds_rare))
    share = percent(100 * held / len(audit.clients))
    which = "it" if len(audit.rare_labels) == 1 else "one"
    return (
        f"{len(audit.rare_labels):,}: {several(audit.rare_labels, RARE_NAMED)}"
        f" <small>{text(rare_rule(audit))}; {counted(held, 'client')} ({share})"
        f" {'holds' if held == 1 else 'hold'} {which}</small>"
    )


def _cap(audit: Audit) -> str:
    if audit.cap is None:
        return "none: under FedRAW a client weighs what its rarity gives it"
    return f"{audit.cap:g}: under FedRAW no client weighs more than {100 * audit.cap:g} %"


def _rare_presence(audit: Audit) -> str:
    each = ", ".join(f"{shown(m)} {percent(audit.rare_presence[m])}" for m in METHODS)
    return f"{each} <small>how often at least one of their holders is in it</small>"


def _labels(audit: Audit) -> str:
    labels, rare, others = _drawn(audit)
    words = [
        "How loudly a label speaks beside the others, and how much of the model comes from clients"
        " that hold it: its standing."
    ]
    if rare or others:
        more = f", and {counted(len(rare), 'rare label')} besides" if rare else ""
        words.append(f"The {len(labels)} labels of the lowest standing under FedFa{more}.")
    if others:
        words.append(_not_drawn(audit, others))
    labels = labels + rare
    return section(
        "labels",
        "Standing of the labels by method",
        note(" ".join(words)),
        picture(audit, labels),
        audit_tables.labels(audit, labels),
        audit_tables.every_label(audit),
    )


def _drawn(audit: Audit) -> tuple[list[int], list[int], list[int]]:
    """The labels worst off, the rare ones that are not among them, and those left out."""
    order, rare = audit.worst_first(), set(audit.rare_labels)
    first, rest = order[:SHOWN_LABELS], order[SHOWN_LABELS:]
    besides = [i for i in rest if audit.labels[i] in rare][:SHOWN_RARE]
    drawn = set(besides)
    return first, besides, [i for i in rest if i not in drawn]


def _not_drawn(audit: Audit, others: Sequence[int]) -> str:
    risky = sum(any(audit.verdicts[m][i] != "kept" for m in METHODS) for i in others)
    if len(others) == 1:
        return f"1 more is not drawn; it is {'lost or at risk' if risky else 'kept'}."
    fate = f"{risky:,} of them lost or at risk" if risky else "all of them kept"
    return f"{len(others):,} more are not drawn, {fate}."


def _what_if(audit: Audit) -> str:
    words = "What another buffer, method or cap would do to the label that is worst off."
    grid = audit_tables.what_if(audit) or note("No other setting was asked about.")
    return section("what-if", "What if", note(words), grid, audit_tables.slower(audit))


def _clients(audit: Audit) -> str:
    total = counted(len(audit.clients), "client")
    words = (
        f"{total} in all. A client has its due if it weighs in the model as its samples weigh among"
        f" all samples: 1{TIED}×. Quick clients arrive more often: under FedFa they have more say."
    )
    return section("clients", "Clients", note(words), *audit_tables.clients(audit))


def _reading() -> str:
    terms = {
        "Standing": "The geometric mean of two numbers: how much of the global model the label"
        " speaks for, over the fair share of the median label; and the weight of all clients that"
        f" hold the label. 100{TIED}% is a label that speaks as loudly as the median label would if"
        " every sample counted the same, and that every client holds; common labels may have more.",
        "Share of fair": "How much of the global model a label speaks for: the weights of all"
        " clients, each times the label's share of that client's samples. It is divided by the"
        " label's share of all samples, so that 1 is fair.",
        "Lost, at risk, kept": f"What such a standing came to in training. {'; '.join(bounds())};"
        " between the two a label is at risk. Methods that average models forget a label whose"
        " holders are away; methods that add updates forget less, so they have other limits.",
        "Buffer, K": "The server does not wait for everyone. It keeps the last K updates and makes"
        " the global model from these. Slow clients are often not among them.",
        "In the buffer": "How often, of all the times the server makes a new model, an update of"
        " that client takes part. Of a client that replay keeps, always: its weight is the most"
        " that is applied of its update while the model has not fallen behind it, and nothing once"
        " the model has followed.",
        "Rarity score": "High for a client whose labels few others hold. FedRAW weighs by it.",
        "Cap": "The most one client may weigh. It bounds the harm of a false claim to hold a rare"
        " label.",
    }
    listed = "".join(
        f"<dt>{text(term)}</dt><dd>{text(words)}</dd>" for term, words in terms.items()
    )
    limit_items = "".join(f"<li>{text(words)}</li>" for words in LIMITS)
    return section(
        "reading",
        "How to read it, and its limits",
        f"<dl>{listed}</dl>",
        f'<h3 id="limits">Limits</h3>\n<ul class="limits">{limit_items}</ul>',
    )
