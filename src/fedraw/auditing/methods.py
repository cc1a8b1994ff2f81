"""The properties of each method that the audit uses, from its row in the catalogue.

The audit predicts the methods whose rows have an audit rule and thresholds. Everything in the audit
that depends on a method (rules, thresholds, names, descriptions, default settings) is looked up
here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fedraw.core.weighting import Cap
from fedraw.errors import BadInput, nearest
from fedraw.strategies.catalog import CATALOG, AuditBuffer, AuditWeighting, Method
from fedraw.strategies.replay import Replay, Target

Buffer = AuditBuffer
Weighting = AuditWeighting
# Late: the label's standing is enough to keep it, but the run ends before the model has learned it.
Verdict = Literal["lost", "at risk", "late", "kept"]
VERDICTS: tuple[Verdict, ...] = ("lost", "at risk", "late", "kept")


@dataclass(frozen=True)
class Rule:
    """Which clients are in the buffer, and how slots are weighted.

    `target`, `cutoff`, `beta` and `offset` are settings of single methods, see `participation`.
    """

    buffer: Buffer
    weighting: Weighting
    cap: Cap = "none"
    cap_at: float = 1.0
    target: Target = "mix"
    cutoff: int = 50
    beta: float = 0.0
    offset: float = 0.0

    def slots(self, size: int, clients: int) -> int:
        """Return the number of arrivals that a step depends on, if the buffer has this size."""
        if self.buffer == "single":
            return 1
        if self.buffer == "all":
            return clients
        if self.buffer == "recent":  # the default τ is the number of clients
            return clients + (2 if self.weighting == "started" else 1)
        return size


class Thresholds(NamedTuple):
    """The limits of the verdicts: a label is lost below `lost` and kept from `kept` on."""

    lost: float
    kept: float


@dataclass(frozen=True)
class AuditedMethod:
    """A method with the properties that the audit uses."""

    name: str
    title: str  # in tables
    rule: Rule
    thresholds: Thresholds
    description: str = ""  # follows the title in a sentence; empty for an ablation
    sends: str = "model"  # what clients send
    labels: bool = False  # whether the method uses labels
    has_buffer: bool = True  # whether K is a setting
    memory: tuple[float, float, float] | None = None  # models: always, per slot, per client
    merit: float | None = None  # mean AvgRare where it was measured, in percent

    @property
    def waits(self) -> bool:
        """Whether the server waits for an update of every client before it aggregates."""
        return self.rule.buffer == "all"

    @property
    def averages(self) -> bool:
        """Whether the model is an average of models, and not a sum of updates."""
        return self.sends != "delta"

    def models(self, clients: int, size: int) -> float | None:
        """Return the number of models that the server stores."""
        if self.memory is None:
            return None
        always, per_slot, per_client = self.memory
        return always + per_slot * size + per_client * clients


def _audited(method: Method, rule: tuple[Buffer, Weighting], limits: Thresholds) -> AuditedMethod:
    strategy: Any = method.make({"lr": 1.0} if method.name == "qfedavg" else {})
    own = {
        name: getattr(strategy, name)
        for name in ("target", "cutoff", "beta", "offset")
        if hasattr(strategy, name)
    }
    return AuditedMethod(
        method.name,
        method.title,
        Rule(*rule, **own),
        limits,
        "" if method.is_ablation else method.summary,
        strategy.needs.sends,
        strategy.needs.label_evidence is not None,
        hasattr(strategy, "buffer"),
        method.memory,
        method.merit,
    )


# FedAvg and FedFa, the usual baselines, come first; ablations come last.
_TABLE = tuple(
    _audited(method, method.audit_rule, Thresholds(*method.thresholds))
    for method in sorted(
        CATALOG.values(), key=lambda m: (m.is_ablation, m.name not in ("fedavg", "fedfa"))
    )
    if method.audit_rule is not None and method.thresholds is not None
)
BY_METHOD = {method.name: method for method in _TABLE}
# The methods with a verdict per label; the what-if grid adds the ablations.
METHODS = tuple(method.name for method in _TABLE if method.description)
# The methods of the demo have a column in tables and a lane in figures; the others are in the grid
# and in the JSON document.
COLUMNS = tuple(name for name in METHODS if CATALOG[name].demo)
RULES = {method.name: method.rule for method in _TABLE}
THRESHOLDS = {method.name: method.thresholds for method in _TABLE}


def same_rule(method: str) -> tuple[str, ...]:
    """Return the methods with the same verdicts, because rule and thresholds are the same.

    The first of them represents all in the what-if grid.

    >>> same_rule("mifa")
    ('ca2fl', 'mifa', 'ace')
    """
    own = BY_METHOD[method]

    def key(other: AuditedMethod) -> tuple[Any, ...]:
        # With a cache of all clients, the number of arrivals per step does not matter.
        is_cached = other.rule.weighting == "cached"
        rule = replace(other.rule, buffer="blocks") if is_cached else other.rule
        return rule, other.thresholds, bool(other.description)

    return tuple(other.name for other in _TABLE if key(other) == key(own))


# The default settings of a simulation or a server.
REPLAY = Replay()
DEFAULT_BUFFER = int(CATALOG["fedraw"].factory().buffer)

# How replay by debt computes the target weight of a client.
DEBT_TARGET = RULES["fedraw-replay-debt"].target

# Replay can only repeat updates that it has received. With fewer updates from a label's holders in
# the whole run, the calibration runs do not confirm its verdicts.
ENOUGH_UPDATES = 12

_PHRASE: dict[Verdict, str] = {
    "lost": "lost under",
    "at risk": "at risk under",
    "late": "late under",
    "kept": "kept by",
}


def title(method: str, cap: float | None = None) -> str:
    """Return the name of a method in tables.

    >>> title("fedraw", 0.3)
    'FedRAW, cap 0.3'
    """
    name = BY_METHOD[method].title
    return name if cap is None else f"{name}, cap {cap:g}"


def rules_with_cap(cap: float | None) -> dict[str, Rule]:
    """Return the rules of the audited methods; a cap applies to FedRAW's weights."""
    rules = {method: RULES[method] for method in METHODS}
    if cap is not None:
        rules["fedraw"] = capped(cap)
    return rules


def capped(cap: float) -> Rule:
    """Return FedRAW's rule with its weights capped by water-filling."""
    return replace(RULES["fedraw"], cap="water-filling", cap_at=cap)


def verdict(method: str, standing: float) -> Verdict:
    """Return the verdict on a label of this standing, if the run is long enough.

    >>> verdict("fedfa", 0.05), verdict("fedfa", 0.2), verdict("fedbuff", 0.2)
    ('lost', 'at risk', 'kept')
    """
    limits = THRESHOLDS[method]
    if standing >= limits.kept:
        return "kept"
    return "at risk" if standing >= limits.lost else "lost"


def in_words(verdicts: dict[str, Verdict]) -> str:
    """Summarise the verdicts of several methods in one phrase.

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
    """Return the name of the method with this name or title, which must have verdicts.

    >>> audited_method("Replay")
    'fedraw-replay'
    >>> audited_method("fedasync")
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: method 'fedasync' has no verdicts, because the audit has no formula \
for it; choose one of fedavg, fedfa, fedbuff, ...
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
        lacks = "formula" if CATALOG[wanted].audit_rule is None else "calibrated threshold"
        why = f"because the audit has no {lacks} for it"
    raise BadInput(f"method {name!r} has no verdicts, {why}; choose one of {', '.join(METHODS)}")
