"""An audit in plain words: its headline, its numbers as text, what the methods do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import ENOUGH_UPDATES, SHOWN, THRESHOLDS, Verdict, verdict
from fedraw.core.types import Label
from fedraw.report.markup import text

UNKNOWN = "–"
TIED = "\N{NO-BREAK SPACE}"  # between a number and its unit
NAMED = 5  # names in a sentence
DECIMALS = 6  # at most, of a percentage
VERDICTS: tuple[Verdict, ...] = ("lost", "at risk", "kept")
# Empty, half, full: told apart without colour.
SIGN: dict[Verdict, str] = {"lost": "○", "at risk": "◐", "kept": "●"}
KIND: dict[Verdict, str] = {"lost": "lost", "at risk": "risk", "kept": "kept"}

DOES = {
    "fedfa": "averages the last K updates, whoever sent them: quick clients fill the buffer",
    "fedbuff": "waits for K updates, adds their mean to the model and starts afresh",
    "ca2fl": "remembers the latest update of every client, so that all weigh alike; "
    "it stores one model per client",
    "fedraw": "keeps one update per client in its buffer, and weighs it by how rare the client's "
    "labels are",
    "fedraw-replay": "adds updates as FedBuff does, and applies the last update of each rare "
    "client again as far as others undo it; it keeps K updates at most",
}
VARIANTS = {
    "fedraw-dedup-only": "FedRAW, one slot only",
    "fedraw-weight-only": "FedRAW, weights only",
}


def shown(method: str, cap: float | None = None) -> str:
    """The name of a method.

    >>> shown("fedraw", 0.3)
    'FedRAW, cap 0.3'
    """
    name = SHOWN.get(method) or VARIANTS.get(method, method)
    return name if cap is None else f"{name}, cap {cap:g}"


def named(name: object) -> str:
    """A name as markup, kept apart from the direction in which the words around it run."""
    return f"<bdi>{text(name)}</bdi>"


def several(names: Sequence[object], most: int = NAMED) -> str:
    """Names in a sentence, as markup.

    >>> several(["a", "b", "c"], most=2)
    '<bdi>a</bdi>, <bdi>b</bdi> and 1 more'
    """
    first = [named(name) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(first)} and {len(names) - most:,} more"
    return " and ".join(filter(None, [", ".join(first[:-1]), first[-1]])) if first else ""


def counted(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> counted(1, "label"), counted(1000, "client")
    ('1 label', '1,000 clients')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def multiple(value: float) -> str:
    """A multiple of a fair share.

    >>> multiple(0.414), multiple(0.0001), multiple(123.4), multiple(float("nan"))
    ('0.41', '<0.01', '123', '–')
    """
    if not math.isfinite(value):
        return UNKNOWN
    if 0 <= value < 0.005:
        return "<0.01"
    return f"{value:.2f}" if value < 99.995 else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A percentage; what is not quite nothing or all is not rounded to it.

    >>> [percent(v).replace(TIED, " ") for v in (62.44, 0.25, 99.97, 1e-9, None)]
    ['62.4 %', '0.25 %', '>99.9 %', '<0.01 %', '–']
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.005:
        return f"<0.01{TIED}%"
    if 0 < value < 0.995:
        return f"{value:.2f}{TIED}%"
    return f">99.9{TIED}%" if 99.95 <= value < 100 - 1e-9 else f"{value:.1f}{TIED}%"


def in_percent(standing: float, method: str) -> str:
    """A standing in percent, with as many digits as it takes not to contradict its verdict.

    >>> [in_percent(s, "fedfa").replace(TIED, " ") for s in (0.0342, 0.09996, 0.1, 0.00012)]
    ['3.4 %', '9.996 %', '10.0 %', '0.012 %']
    >>> [in_percent(s, "fedfa").replace(TIED, " ") for s in (1.0, 12.34, 0.1 - 1e-12, 0.0)]
    ['100 %', '1,234 %', '<10 %', '<0.000001 %']
    """
    value = 100 * standing
    if not math.isfinite(value):
        return UNKNOWN
    if value >= 99.95:
        return f"{value:,.0f}{TIED}%"
    if value < 10**-DECIMALS:
        return f"<{10**-DECIMALS:.{DECIMALS}f}{TIED}%"
    for decimals in range(_decimals(value), DECIMALS + 1):
        words = f"{value:.{decimals}f}"
        if verdict(method, float(words) / 100) == verdict(method, standing):
            return f"{words}{TIED}%"
    words = f"{value:.{DECIMALS}f}".rstrip("0").rstrip(".")
    return f"{'<' if float(words) >= value else '>'}{words}{TIED}%"


def limit(standing: float) -> str:
    """A limit of standing in percent.

    >>> [limit(end).replace(TIED, " ") for end in (0.3, 0.13, 0.015)]
    ['30 %', '13 %', '1.5 %']
    """
    return f"{100 * standing:g}{TIED}%"


def _decimals(value: float) -> int:
    """So many that two digits count, and one at least."""
    return min(max(1 - math.floor(math.log10(value)), 1), DECIMALS)


def times(value: float) -> str:
    """A multiple with its sign."""
    return f"{multiple(value)}{TIED}×"


def plain(value: float) -> str:
    """A time, a score: three digits, no powers of ten.

    >>> plain(0.12345), plain(45.678), plain(123456.7), plain(1e-7)
    ('0.123', '45.7', '123,457', '<0.001')
    """
    if not math.isfinite(value):
        return UNKNOWN
    if 0 < abs(value) < 0.001:
        return "<0.001"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def rounded(value: float) -> int:
    """A whole number, of which three digits count.

    >>> rounded(73.8), rounded(3_440_683.2)
    (74, 3440000)
    """
    return round(float(f"{value:.3g}"))


def tally(audit: Audit, method: str) -> dict[Verdict, int]:
    """How many labels are lost, at risk, kept."""
    found = audit.verdicts[method]
    return {word: found.count(word) for word in VERDICTS}


def headline(audit: Audit) -> str:
    """What becomes of the labels under FedFa, the method that changes least."""
    many, total = tally(audit, "fedfa"), len(audit.labels)
    lost, risk = many["lost"], many["at risk"]
    first = lost or risk
    if not first:
        return "No label is at risk"
    head = f"{first:,} of {counted(total, 'label')} {'is' if first == 1 else 'are'} "
    if not lost:
        return f"{head}at risk"
    more = f", {risk:,} more {'is' if risk == 1 else 'are'} at risk" if risk else ""
    return f"{head}about to be lost{more}"


def under_fedfa(audit: Audit) -> str:
    """Which labels the headline means, as markup."""
    size = audit.buffer_size
    last = "the last update alone" if size == 1 else f"the last {size:,} updates, whoever sent them"
    setting = f"f the server averages {last} (FedFa)"
    worst = [i for i in audit.worst_first() if audit.verdicts["fedfa"][i] != "kept"]
    if not worst:
        others = any(set(audit.verdicts[method]) - {"kept"} for method in METHODS)
        return f"I{setting}; other methods do worse." if others else f"Not even i{setting}."
    names = several([audit.labels[i] for i in worst])
    first, which = worst[0], "it" if len(worst) == 1 else f"label {named(audit.labels[worst[0]])}"
    least = (
        f"{which}, on {counted(int(audit.coverage[first]), 'client')}, has a standing of"
        f" {in_percent(float(audit.standing['fedfa'][first]), 'fedfa')}, and would be kept from"
        f" {limit(THRESHOLDS['fedfa'][1])}"
    )
    if len(worst) == 1:
        return f"I{setting}, label {names} is heard too little in the model: {least}."
    return f"I{setting}, labels {names} are heard too little in the model: {least}."


def answer(audit: Audit) -> str:
    """The recommendation, as markup: the setting, and why."""
    advice = audit.recommendation
    reason = text(advice.reason)
    for label in _mentioned(audit):
        reason = reason.replace(f"label {text(label)} ", f"label {named(label)} ", 1)
    setting = text(str(advice).removesuffix(advice.reason))
    return f"<strong>{setting}</strong>{reason}"


def replay(audit: Audit) -> str:
    """Whose updates replay keeps, and what its verdicts presume."""
    if not audit.replayed.size:
        return "Replay is FedBuff here: no client's rarity score is above twice the median."
    words = f"Replay keeps the last update of {counted(audit.replayed.size, 'client')}."
    rare = [audit.labels.index(label) for label in audit.rare_labels]
    if not rare:
        return words
    seldom = max(rare, key=audit.arrivals_until_heard)
    arrivals = counted(rounded(audit.arrivals_until_heard(seldom)), "arrival")
    return (
        f"{words} Its verdicts presume {ENOUGH_UPDATES} updates of a label's holders:"
        f" those of label {audit.labels[seldom]} take {arrivals}."
    )


def rare_rule(audit: Audit) -> str:
    """Why these labels count as rare."""
    if not audit.rare_by_coverage:
        return "as given"
    return f"held by at most half as many clients as the median label ({median(audit)})"


def median(audit: Audit) -> str:
    return f"{float(np.median(audit.coverage)):,g}"


def bounds() -> list[str]:
    """Where lost, at risk and kept begin: methods that share their limits, with them."""
    families: dict[tuple[str, str], list[str]] = {}
    for method in METHODS:
        lost, kept = THRESHOLDS[method]
        families.setdefault((limit(lost), limit(kept)), []).append(shown(method))
    return [
        f"{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}: lost below {lost},"
        f" kept from {kept}"
        for (lost, kept), names in families.items()
    ]


def _mentioned(audit: Audit) -> list[Label]:
    """The labels a reason may name: the one it is about, and the worst off in the end."""
    advice = audit.recommendation
    key = (advice.method, advice.buffer_size, advice.cap)
    ends = [s.worst for s in audit.what_if if (s.method, s.buffer_size, s.cap) == key]
    return list(dict.fromkeys([advice.label, *(audit.labels[i] for i in ends)]))
