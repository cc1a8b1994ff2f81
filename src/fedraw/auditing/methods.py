"""What the audit knows about each method, from its row in the catalogue.

The audit predicts the methods whose rows have an audit rule and thresholds. Everything in the audit
that depends on a method (rules, thresholds, names, descriptions, default settings) is looked up
here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from fedraw.core.weighting import Cap
from fedraw.errors import BadInput, nearest
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.replay import Replay

# window: the last K arrivals (FedFa); blocks: K arrivals, then cleared (FedBuff, CA2FL, replay);
# dedup: one slot per client, evicted in order of first insertion (FedRAW).
Buffer = Literal["window", "blocks", "dedup"]
# uniform: every slot alike; rarity: by rarity score; cached: every client alike, whether present or
# not (CA2FL); replay: the rarest clients by score whoever arrives, the others by arrivals.
Weighting = Literal["uniform", "rarity", "cached", "replay"]
Verdict = Literal["lost", "at risk", "kept"]
VERDICTS: tuple[Verdict, ...] = ("lost", "at risk", "kept")


@dataclass(frozen=True)
class Rule:
    """Which clients are in the buffer, and how much a slot weighs."""

    buffer: Buffer
    weighting: Weighting
    cap: Cap = "none"
    cap_at: float = 1.0


class Thresholds(NamedTuple):
    """A label with a standing below `lost` is lost; from `kept` on it is kept."""

    lost: float
    kept: float


@dataclass(frozen=True)
class AuditedMethod:
    """A method as the audit sees it."""

    name: str
    title: str  # in tables
    rule: Rule
    thresholds: Thresholds
    description: str = ""  # follows the title in a sentence; empty for an ablation


# FedFa, to which the audit compares the others, comes first; ablations come last.
_TABLE = tuple(
    AuditedMethod(
        method.name,
        method.title,
        Rule(*method.audit_rule),
        Thresholds(*method.thresholds),
        "" if method.is_ablation else method.summary,
    )
    for method in sorted(CATALOG.values(), key=lambda m: (m.is_ablation, m.name != "fedfa"))
    if method.audit_rule is not None and method.thresholds is not None
)
BY_METHOD = {method.name: method for method in _TABLE}
# The methods with a verdict per label; the what-if grid adds the ablations.
METHODS = tuple(method.name for method in _TABLE if method.description)
RULES = {method.name: method.rule for method in _TABLE}
THRESHOLDS = {method.name: method.thresholds for method in _TABLE}

# The settings with which a simulation or a server runs a method if nothing else is said.
REPLAY = Replay()
DEFAULT_BUFFER = int(CATALOG["fedraw"].factory().buffer)

# Replay repeats only what it has received. With fewer updates from a label's holders in the whole
# run, the calibration runs do not bear out its verdicts.
ENOUGH_UPDATES = 12

_PHRASE: dict[Verdict, str] = {"lost": "lost under", "at risk": "at risk under", "kept": "kept by"}


def title(method: str, cap: float | None = None) -> str:
    """The name of a method in tables.

    >>> title("fedraw", 0.3)
    'FedRAW, cap 0.3'
    """
    name = BY_METHOD[method].title
    return name if cap is None else f"{name}, cap {cap:g}"


def rules_with_cap(cap: float | None) -> dict[str, Rule]:
    """The rules of the audited methods; FedRAW's weights are capped if a cap is given."""
    rules = {method: RULES[method] for method in METHODS}
    if cap is not None:
        rules["fedraw"] = capped(cap)
    return rules


def capped(cap: float) -> Rule:
    """FedRAW's rule with its weights capped by water-filling."""
    return replace(RULES["fedraw"], cap="water-filling", cap_at=cap)


def verdict(method: str, standing: float) -> Verdict:
    """The verdict on a label of this standing.

    >>> verdict("fedfa", 0.05), verdict("fedfa", 0.2), verdict("fedbuff", 0.2)
    ('lost', 'at risk', 'kept')
    """
    limits = THRESHOLDS[method]
    if standing >= limits.kept:
        return "kept"
    return "at risk" if standing >= limits.lost else "lost"


def in_words(verdicts: dict[str, Verdict]) -> str:
    """Summarize the verdicts of several methods in one phrase.

    >>> in_words({"fedfa": "lost", "fedbuff": "lost", "fedraw": "kept"})
    'lost under FedFa, FedBuff; kept by FedRAW'
    >>> in_words({"fedfa": "kept", "fedraw": "kept"})
    'kept by all'
    """
    parts = {
        word: ", ".join(title(method) for method, found in verdicts.items() if found == word)
        for word in VERDICTS
    }
    if len(set(verdicts.values())) == 1:
        return f"{_PHRASE[next(iter(verdicts.values()))]} all"
    return "; ".join(f"{_PHRASE[word]} {titles}" for word, titles in parts.items() if titles)


def audited_method(name: str) -> str:
    """The method of this name or title, which must be one of those with verdicts.

    >>> audited_method("Replay")
    'fedraw-replay'
    >>> audited_method("fedavg")
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: method 'fedavg' has no verdicts, because its row in the catalogue of \
methods has no audit_rule; choose one of fedfa, fedbuff, ca2fl, fedraw, fedraw-replay
    """
    wanted = name.lower()
    for method in METHODS:
        if wanted in (method, BY_METHOD[method].title.lower()):
            return method
    if wanted not in CATALOG:
        raise BadInput(f"method {name!r}: {nearest(wanted, METHODS)}")
    if wanted in BY_METHOD:
        why = "because it is an ablation, which only the what-if table shows"
    else:
        lacks = "audit_rule" if CATALOG[wanted].audit_rule is None else "thresholds"
        why = f"because its row in the catalogue of methods has no {lacks}"
    raise BadInput(f"method {name!r} has no verdicts, {why}; choose one of {', '.join(METHODS)}")
