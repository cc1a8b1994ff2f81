"""From a label's standing to a word: the thresholds are measured (docs/audit.md).

Two things decide whether a label is learnt: how much of the model speaks for it, beside the other
labels, and how much of the model comes from clients that hold it at all, because all others unlearn
it. Standing is the geometric mean of the two. At 1 a label speaks as loudly as the median label
would if every sample counted the same, and every client holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Verdict = Literal["lost", "at risk", "kept"]

SHOWN = {
    "fedfa": "FedFa",
    "fedbuff": "FedBuff",
    "ca2fl": "CA2FL",
    "fedraw": "FedRAW",
    "fedraw-replay": "Replay",
}
SAID: dict[Verdict, str] = {"lost": "lost under", "at risk": "at risk under", "kept": "kept by"}

# The standing at which the calibration runs recognised 25 and 75 % of a label.
# Averaging models forgets a label that is away; adding updates does not: two families.
AVERAGING = (0.1, 0.3)
ADDING = (0.04, 0.13)
THRESHOLDS = {
    "fedfa": AVERAGING,
    "fedraw": AVERAGING,
    "fedraw-dedup-only": AVERAGING,
    "fedraw-weight-only": AVERAGING,
    "fedbuff": ADDING,
    "ca2fl": ADDING,
    "fedraw-replay": ADDING,
}
# What replay repeats it must have heard: with fewer updates of a label's holders in the whole run
# its verdicts are not borne out.
ENOUGH_UPDATES = 12


def verdict(method: str, standing: float) -> Verdict:
    """The word for a label of this standing.

    >>> verdict("fedfa", 0.05), verdict("fedfa", 0.2), verdict("fedbuff", 0.2)
    ('lost', 'at risk', 'kept')
    """
    lost, kept = THRESHOLDS[method]
    if standing >= kept:
        return "kept"
    return "at risk" if standing >= lost else "lost"


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
