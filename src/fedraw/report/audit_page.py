"""One page that shows an audit: a single HTML file that opens offline, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

from fedraw.analysis.audit import METHODS, Audit
from fedraw.core.types import Floats
from fedraw.report import audit_tables
from fedraw.report.audit_figures import definitions, mark, picture
from fedraw.report.audit_words import (
    DOES,
    SIGN,
    TIED,
    VERDICTS,
    answer,
    counted,
    headline,
    limits,
    percent,
    plain,
    rare_rule,
    several,
    shown,
    tally,
    under_fedfa,
)
from fedraw.report.markup import note, section, text
from fedraw.report.page import write_page

SHOWN_LABELS = 25
RARE_NAMED = 12

LIMITS = (
    "It is a prediction from label counts and speeds alone. Nothing was trained, and no model or"
    " sample was looked at: how hard a label is to learn does not enter.",
    "Arrivals are taken as memoryless: how long a client takes does not depend on how long it has"
    " taken so far. If every client takes the same time each time, slow ones are met more evenly.",
    "Every client is taken to train all the time, at the speed given, on the counts given.",
    "Where lost, at risk and kept begin was measured in many small training runs on images of"
    " digits. On other data the limits lie elsewhere; the order of labels and methods is safer"
    " than the words. The measurement stands in fedraw's documentation, under “Audit”.",
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
        "How to read it": _reading(audit),
    }
    template = files("fedraw.report").joinpath("audit_page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=text(title),
        headline=text(headline(audit)),
        lead=under_fedfa(audit),
        answer=_answer(audit),
        fair=text(_fair_share(audit)),
        methods=_methods(audit),
        definitions=definitions(),
        contents=_contents(parts),
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
    span = f"fair shares go from {least} to {most}" if least != most else f"it is {least} for each"
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


def _contents(parts: Mapping[str, str]) -> str:
    def link(name: str, part: str) -> str:
        identity = part.split('id="', 1)[1].split('"', 1)[0]
        return f'<li><a href="#{identity}">{text(name)}</a></li>'

    return "".join(link(name, part) for name, part in parts.items())


def _federation(audit: Audit, source: str, notes: Sequence[str]) -> str:
    facts = {
        "Clients": f"{len(audit.clients):,}",
        "Labels": f"{len(audit.labels):,}",
        "Samples": f"{int(audit.samples.sum(dtype=np.float64)):,}",
        "Rare labels": _rare(audit),
        "Buffer": f"K = {audit.buffer_size:,} updates",
        "Cap": _cap(audit),
        "Times": text(source),
    }
    if audit.times_known:
        least, most = _ends(audit.seconds)
        facts["Speeds"] = (
            f"{plain(least)} to {plain(most)} seconds an update: the slowest client takes"
            f" {plain(most / least)} times as long as the quickest"
        )
    if audit.rare_labels:
        facts["Rare labels in the buffer"] = _rare_presence(audit)
    listed = "".join(f"<div><dt>{name}</dt><dd>{words}</dd></div>" for name, words in facts.items())
    extra = "".join(f"<li>{text(words)}</li>" for words in notes)
    cautions = f'<ul class="cautions">{extra}</ul>' if extra else ""
    title = "The federation at a glance"
    return section("federation", title, f'<dl class="facts-list">{listed}</dl>', cautions)


def _rare(audit: Audit) -> str:
    if not audit.rare_labels:
        return f"none {text(rare_rule(audit))}"
    held = int(np.count_nonzero(audit.holds_rare))
    share = percent(100 * held / len(audit.clients))
    return (
        f"{len(audit.rare_labels):,}: {several(audit.rare_labels, RARE_NAMED)}"
        f" <small>{text(rare_rule(audit))}; {counted(held, 'client')} ({share})"
        f" {'holds' if held == 1 else 'hold'} one</small>"
    )


def _cap(audit: Audit) -> str:
    if audit.cap is None:
        return "none: under FedRAW a client weighs what its rarity gives it"
    return f"{audit.cap:g}: under FedRAW no client weighs more than {100 * audit.cap:g} %"


def _rare_presence(audit: Audit) -> str:
    each = ", ".join(f"{shown(m)} {percent(audit.rare_presence[m])}" for m in METHODS)
    return f"{each} <small>how often at least one of their holders is in it</small>"


def _labels(audit: Audit) -> str:
    order = audit.worst_first()
    labels, others = order[:SHOWN_LABELS], order[SHOWN_LABELS:]
    words = ["How much each label will weigh in the global model, under four methods."]
    if others:
        risky = sum(any(audit.verdicts[m][i] != "kept" for m in METHODS) for i in others)
        words.append(
            f"The {len(labels)} that fare worst under any method; {len(others):,} more are not"
            f" drawn, {f'{risky:,} of them lost or at risk' if risky else 'all of them kept'}."
        )
    return section(
        "labels",
        "Label influence by method",
        note(" ".join(words)),
        picture(audit, labels),
        audit_tables.labels(audit, labels),
        audit_tables.every_label(audit),
    )


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


def _reading(audit: Audit) -> str:
    bounds = "; ".join(
        f"{names}: lost below {lost:g}, at risk below {kept:g}" for names, lost, kept in limits()
    )
    terms = {
        "Label influence": "How much of the global model a label speaks for: the weights of all"
        " clients, each times the label's share of that client's samples. On this page it is given"
        " as a share of fair, so that 1 is fair.",
        "Lost, at risk, kept": f"What such an influence came to in training. {bounds}. Methods that"
        " average models forget a label whose holders are away; methods that add updates forget"
        " less, so they have other limits.",
        "Buffer, K": "The server does not wait for everyone. It keeps the last K updates and makes"
        " the global model from these. Slow clients are often not among them.",
        "In the buffer": "How often, of all the times the server makes a new model, an update of"
        " that client takes part.",
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
