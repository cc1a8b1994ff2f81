"""Rounds of private label summaries: the questions of a server and the answers of a site.

    step    the site sends                              the server computes
    bits    its presence bits, flipped at random        the estimated coverage
    score   its rarity score, given the coverage        the site's weight

A site draws its random bits and its noised score once and stores them in a file, because every new
draw would spend the budget again. The file never leaves the site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedraw.core.types import LabelCounts
from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy
from fedraw.privacy.summaries import (
    STEPS,
    estimated_coverage,
    noised_score,
    randomised_bits,
    score_from_coverage,
)
from fedraw.storage.files import atomic_write

# The label that every site has in `counts_of_score`.
SHARED = "any label"


class LabelRounds:
    """The server's side: collects the coverage from nodes, then asks each node for its score.

    The coverage is fixed once `fewest` nodes have taken part; a node that joins later is only asked
    for its score.

    Args:
        privacy: The mechanism and its budget.
        labels: The public list of all labels.
        fewest: The number of nodes that must take part.
        coverage: The coverage that an earlier run has already published.
        clients: The number of clients that this coverage counts.

    """

    def __init__(
        self,
        privacy: Privacy,
        labels: Sequence[str],
        fewest: int,
        coverage: Mapping[str, float] | None = None,
        clients: int = 0,
    ) -> None:
        if not labels:
            raise BadInput("private label summaries need a public list of all labels; set labels")
        self._privacy = privacy
        self._labels = list(labels)
        self._fewest = fewest
        self.coverage = dict(coverage) if coverage else None
        self.clients = clients  # that the coverage counts
        self._bits: dict[int, list[bool]] = {}

    def question(self, node: int) -> dict[str, Any] | None:
        """Return the question for the node; None if the node must wait for others."""
        if self.coverage is None and node in self._bits:
            return None
        asked: dict[str, Any] = {"labels": self._labels, **asdict(self._privacy)}
        asked = {key: value for key, value in asked.items() if value is not None}
        if self.coverage is None:
            return {**asked, "step": "bits"}
        coverage = list(self.coverage.values())
        return {**asked, "step": "score", "coverage": coverage, "clients": self.clients}

    def answer(self, node: int, reply: Mapping[str, Any]) -> float | None:
        """Process an answer; return the score if the answer is a score, otherwise None."""
        match reply.get("step"):
            case "score" if self.coverage is not None:
                score = reply.get("score")
                if not isinstance(score, float) or not 0 < score <= 1:
                    raise BadInput(
                        f"its score is {score!r:.40}; a score must be above 0 and at most 1"
                    )
                return score
            case "bits":
                self._bits[node] = self._checked_bits(reply.get("bits"))
                self._publish_if_enough()
        return None  # anything else are unrequested counts

    def forget(self, node: int) -> None:
        """Remove a node that has gone offline."""
        self._bits.pop(node, None)

    def _publish_if_enough(self) -> None:
        if self.coverage is not None or len(self._bits) < self._fewest:
            return
        self.clients = len(self._bits)
        sums = [sum(column) for column in zip(*self._bits.values(), strict=True)]
        epsilon = self._privacy.epsilon_per_bit(len(self._labels))
        coverage = estimated_coverage(sums, self.clients, epsilon).tolist()
        self.coverage = dict(zip(self._labels, coverage, strict=True))

    def _checked_bits(self, bits: Any) -> list[bool]:
        if not isinstance(bits, list) or len(bits) != len(self._labels):
            raise BadInput(f"its bits are {bits!r:.40}; the server asked for {len(self._labels)}")
        return [bool(bit) for bit in bits]


def counts_of_score(site: str, score: float, clients: int) -> dict[str, int]:
    """Return label counts that have the given rarity score in a federation of `clients` sites.

    One label belongs to this site alone and has the share f. The other label belongs to all N
    sites. So S = f + (1 − f) / N, which covers all scores from 1/N to 1.

    >>> counts_of_score("west", 1.0, 4)
    {'score of west': 1048575, 'any label': 1}
    >>> counts_of_score("east", 0.25, 4)
    {'any label': 1048576}
    """
    least = 1 / clients
    share = max(0.0, (score - least) / (1 - least)) if clients > 1 else 1.0
    own = min(STEPS - 1, round(share * STEPS))
    return {f"score of {site}": own, SHARED: STEPS - own} if own else {SHARED: STEPS}


class PrivateAnswers:
    """The site's side: answers a server's questions about labels, within the site's own budget.

    Args:
        privacy: The mechanism and budget to which the site agrees.
        file: The file in which the site stores its random draws.

    """

    def __init__(self, privacy: Privacy, file: Path) -> None:
        self.privacy = privacy
        self._file = file

    def answer(self, question: Mapping[str, Any], counts: LabelCounts) -> dict[str, Any]:
        """Return the answer to a question; raise BadInput if it exceeds the site's settings."""
        self._refuse_other_settings(question)
        labels, step = list(question["labels"]), question["step"]
        for label, count in counts.items():
            if count and label not in labels:
                raise BadInput(
                    f"this site holds the label {label!r}, which is not in the server's public "
                    "list of labels; all sites and the server need the same list"
                )
        stored = self._read(labels)
        match step:
            case "bits":
                if "bits" not in stored:
                    held = [bool(counts.get(label)) for label in labels]
                    bits = randomised_bits(held, self.privacy.epsilon_per_bit(len(labels)))
                    stored = self._store(stored, bits=bits)
                return {"step": step, "bits": list(map(int, stored["bits"]))}
            case "score":
                coverage = dict(zip(labels, question["coverage"], strict=True))
                score = stored.get("score")
                if score is None:
                    score = score_from_coverage(counts, coverage)
                    if self.privacy.score_epsilon is not None:
                        clients, epsilon = question["clients"], self.privacy.score_epsilon
                        score = noised_score(score, clients, epsilon)
                        self._store(stored, score=score)
                return {"step": step, "score": float(score)}
            case _:
                raise BadInput(f"the server asks for the step {step!r:.40}, which is unknown")

    def _refuse_other_settings(self, question: Mapping[str, Any]) -> None:
        own = {key: value for key, value in asdict(self.privacy).items() if value is not None}
        asked = {key: question[key] for key in asdict(self.privacy) if key in question}
        if asked != own:
            raise BadInput(
                f"the server asks for labels under {asked or 'no privacy'}, but this site answers "
                f"only under {own}; agree on the same settings"
            )

    def _read(self, labels: Sequence[str]) -> dict[str, Any]:
        try:
            stored: dict[str, Any] = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {"labels": list(labels), "privacy": asdict(self.privacy)}
        except ValueError:
            raise BadInput(
                f"{self._file} is damaged; it has this site's private answers, and new answers "
                "would spend the privacy budget again: restore it, or remove it to allow that"
            ) from None
        if stored["labels"] != list(labels) or stored["privacy"] != asdict(self.privacy):
            raise BadInput(
                f"{self._file} has answers about other labels or under another budget; new answers "
                "would spend the privacy budget again: remove the file to allow that"
            )
        return stored

    def _store(self, stored: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        now = {**stored, **more}
        atomic_write(self._file, json.dumps(now).encode(), private=True)
        return now
