"""From a label's influence to a word: the thresholds are measured (docs/audit.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Verdict = Literal["lost", "at risk", "kept"]

SHOWN = {"fedfa": "FedFa", "fedbuff": "FedBuff", "ca2fl": "CA2FL", "fedraw": "FedRAW"}
SAID: dict[Verdict, str] = {"lost": "lost under", "at risk": "at risk under", "kept": "kept by"}

# Multiples of the fair share at which the calibration runs recognised 25 and 75 % of a label.
# Averaging models forgets a label that is away; adding updates does not: two families.
AVERAGING = (0.3, 0.8)
ADDING = (0.1, 0.3)
THRESHOLDS = {
    "fedfa": AVERAGING,
    "fedraw": AVERAGING,
    "fedraw-dedup-only": AVERAGING,
    "fedraw-weight-only": AVERAGING,
    "fedbuff": ADDING,
    "ca2fl": ADDING,
}


def verdict(method: str, share: float) -> Verdict:
    """The word for a label with this multiple of its fair share.

    >>> verdict("fedfa", 0.1), verdict("fedfa", 1.0)
    ('lost', 'kept')
    """
    lost, kept = THRESHOLDS[method]
    if share < lost:
        return "lost"
    return "at risk" if share < kept else "kept"


def in_words(verdicts: Mapping[str, Verdict]) -> str:
    """The verdicts of several methods in one phrase.

    >>> in_words({"fedfa": "lost", "fedbuff": "lost", "fedraw": "kept"})
    'lost under FedFa, FedBuff; kept by FedRAW'
    >>> in_words({"fedfa": "kept", "fedraw": "kept"})
    'kept by all'
    """
    if len(set(verdicts.values())) == 1:
        return f"{SAID[next(iter(verdicts.values()))]} all"
    parts = []
    for word, said in SAID.items():
        methods = [SHOWN.get(m, m) for m, found in verdicts.items() if found == word]
        if methods:
            parts.append(f"{said} {', '.join(methods)}")
    return "; ".join(parts)
