"""Rounds of private label summaries: the questions of a server and the answers of a site.

    step    the site sends                              the server computes
    bits    its presence bits, flipped at random        the estimated coverage
    key     its public key for a secure sum             the roster of a round
    words   its presence bits under pairwise masks      the exact coverage
    score   its rarity score, given the coverage        the site's weight

A site draws its random bits and its noised score once and stores them in a file, because every new
draw would spend the budget again. The file also has its private key, and never leaves the site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

from fedraw.core.types import ClientId, LabelCounts
from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy
from fedraw.privacy.secure_sum import WORD_BYTES, masked, new_keys, pair_seed, unmasked
from fedraw.privacy.summaries import (
    STEPS,
    estimated_coverage,
    noised_score,
    randomised_bits,
    score_from_coverage,
)
from fedraw.storage.files import atomic_write

# A secure sum of fewer clients would show one client's bits to another.
FEWEST = 3
# The label that every site has in `counts_of_score`.
SHARED = "any label"


class LabelRounds:
    """The server's side: collects the coverage from nodes, then asks each node for its score.

    The coverage is fixed once `fewest` nodes have taken part; a node that joins later is only asked
    for its score. If a node drops out of a secure sum, the round ends, and a new round begins among
    the others.

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
        self._fewest = max(fewest, FEWEST if privacy.mechanism == "secure-sum" else 1)
        self.coverage = dict(coverage) if coverage else None
        self.clients = clients  # that the coverage counts
        self._bits: dict[int, list[bool]] = {}
        self._keys: dict[int, bytes] = {}
        self._words: dict[ClientId, list[int]] = {}
        self._roster: tuple[int, ...] = ()
        self._round = ""

    def question(self, node: int) -> dict[str, Any] | None:
        """Return the question for the node; None if the node must wait for others."""
        asked: dict[str, Any] = {"labels": self._labels, **asdict(self._privacy)}
        asked = {key: value for key, value in asked.items() if value is not None}
        if self.coverage is not None:
            coverage = list(self.coverage.values())
            return {**asked, "step": "score", "coverage": coverage, "clients": self.clients}
        if self._privacy.mechanism == "randomised-response":
            return None if node in self._bits else {**asked, "step": "bits"}
        if node not in self._keys:
            return {**asked, "step": "key"}
        if node not in self._roster or node in self._words:
            return None
        others = [other for other in self._roster if other != node]
        return {
            **asked,
            "step": "words",
            "round": self._round,
            "me": str(node),
            "roster": [str(other) for other in others],
            "keys": [self._keys[other] for other in others],
        }

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
            case "key":
                self._keys[node] = _checked_bytes(reply.get("key"), 32, "key")
            case "words" if node in self._roster and reply.get("round") == self._round:
                size = WORD_BYTES * (len(self._labels) + 1)
                data = _checked_bytes(reply.get("words"), size, "words")
                parts = [data[i : i + WORD_BYTES] for i in range(0, size, WORD_BYTES)]
                self._words[node] = [int.from_bytes(part, "little") for part in parts]
            case _:
                return None  # an answer to an earlier round, or unrequested counts
        self._publish_if_enough()
        return None

    def forget(self, node: int) -> None:
        """Remove a node that has gone offline; a secure sum that needs it begins again."""
        self._bits.pop(node, None)
        self._keys.pop(node, None)
        if node in self._roster and self.coverage is None:
            self._roster, self._words = (), {}
            self._publish_if_enough()

    def _publish_if_enough(self) -> None:
        if self.coverage is not None:
            return
        if len(self._bits) >= self._fewest:
            self.clients = len(self._bits)
            sums = [sum(column) for column in zip(*self._bits.values(), strict=True)]
            epsilon = self._privacy.epsilon_per_bit(len(self._labels))
            self._publish(estimated_coverage(sums, self.clients, epsilon).tolist())
        elif self._roster and len(self._words) == len(self._roster):
            self.clients = len(self._roster)
            try:
                self._publish([max(1, n) for n in unmasked(self._words, self._roster)])
            except BadInput:  # the masks do not cancel, so a new round begins
                self._roster = ()
        if self.coverage is None and not self._roster and len(self._keys) >= self._fewest:
            self._roster, self._words = tuple(self._keys), {}
            self._round = token_hex(16)

    def _publish(self, coverage: Sequence[float]) -> None:
        self.coverage = dict(zip(self._labels, map(float, coverage), strict=True))

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
        file: The file in which the site stores its random draws and its private key.

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
        held = [bool(counts.get(label)) for label in labels]
        match step:
            case "bits":
                if "bits" not in stored:
                    bits = randomised_bits(held, self.privacy.epsilon_per_bit(len(labels)))
                    stored = self._store(stored, bits=bits)
                return {"step": step, "bits": list(map(int, stored["bits"]))}
            case "key":
                if "key" not in stored:
                    stored = self._store(stored, key=[half.hex() for half in new_keys()])
                return {"step": step, "key": bytes.fromhex(stored["key"][1])}
            case "words":
                return {
                    "step": step,
                    "round": question["round"],
                    **self._words(stored, held, question),
                }
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

    def _words(
        self, stored: dict[str, Any], held: Sequence[bool], question: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """Return the masked bits; refuse to answer a round again with other keys."""
        terms = [question["me"], *question["roster"], *(key.hex() for key in question["keys"])]
        answered = stored.get("rounds", {})
        if question["round"] in answered and answered[question["round"]] != terms:
            raise BadInput(
                "the server repeats a round of the secure sum with other keys, which could reveal "
                "this site's bits; the site does not answer"
            )
        private = bytes.fromhex(stored["key"][0])
        pairs = zip(question["roster"], question["keys"], strict=True)
        seeds = {other: pair_seed(private, key) for other, key in pairs}
        self._store(stored, rounds={**answered, question["round"]: terms})
        words = masked(held, question["me"], seeds, question["round"])
        return {"words": b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)}

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


def _checked_bytes(value: Any, size: int, name: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != size:
        raise BadInput(f"its {name} is {value!r:.40}; the server asked for {size} bytes")
    return value
