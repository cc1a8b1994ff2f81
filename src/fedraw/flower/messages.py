"""Orders as Flower's messages, and Flower's messages as answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict

from fedraw.core.types import Vector
from fedraw.errors import RefusedUpdate
from fedraw.flower.envelope import (
    ARRAYS,
    COUNTS,
    FACTS,
    RIGHT,
    TOTAL,
    Facts,
    check_size,
    read_arrays,
    read_counts,
)
from fedraw.flower.tensors import Template
from fedraw.server.dispatches import WELCOME
from fedraw.server.orders import Answer, Evaluated, Failure, Order, Summary, Trained
from fedraw.strategies.protocol import Needs

TYPES = {
    "summary": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "evaluate": MessageType.EVALUATE,
}

# Flower's error codes; those of the second table are no fault of the site.
FAULTS = {
    1: "its client app cannot be loaded",
    2: "its client app raised an exception",
    6: "a mod of its client app refused the message",
    7: "its app bundle is invalid",
    8: "its client app crashed",
}
MISHAPS = {
    3: "the message or its reply has expired",
    4: "the reply has expired",
    5: "the node is out of reach",
}

# Seconds for what lies between an order and its message, and between two clocks.
RESERVE = 60.0

# A site's own words in a log: the end of them, where a traceback has the exception.
LONGEST_REASON = 300


@dataclass
class Post:
    """Writes messages and reads replies for one model and one strategy's needs.

    All who are handed a version get the same ArrayRecord, so it is written once; Flower then
    computes its hashes once, too.
    """

    template: Template
    needs: Needs
    _model: Vector | None = field(default=None, init=False, repr=False)
    _record: ArrayRecord = field(default_factory=ArrayRecord, init=False, repr=False)

    def record(self, model: Vector) -> ArrayRecord:
        if model is not self._model:
            self._record = self.template.write(model)
            self._model = model
        return self._record

    def message(self, order: Order) -> Message:
        facts = ConfigRecord({"order": order.number, "version": order.version})
        content = RecordDict({FACTS: facts})
        if order.model is not None:
            content[ARRAYS] = self.record(order.model)
        if order.kind == "train":
            facts["sends"] = self.needs.sends
            facts["loss"] = self.needs.loss
            facts["proximal"] = float(self.needs.proximal)
            if statistics := self.template.statistics:  # Flower cannot tell an empty list's size
                facts["statistics"] = statistics
        return Message(
            content,
            dst_node_id=order.node,
            message_type=TYPES[order.kind],
            ttl=time_to_live(order.deadline),
            group_id=str(order.version),
        )

    def answer(self, reply: Message) -> Answer:
        """What a reply says; whatever a site may have sent, this does not raise."""
        try:
            if reply.has_error():
                return failure(reply.error)
            return self._read(reply)
        except RefusedUpdate as error:
            return Failure(f"unreadable reply: {error}", malformed=True)
        except Exception as error:  # a site's bytes must not end the server
            reason = f"unreadable reply: {type(error).__name__} {error!s:.200}"
            return Failure(reason, malformed=True)

    def _read(self, reply: Message) -> Answer:
        content, kind = reply.content, reply.metadata.message_type
        check_size(content, self.template.nbytes if kind == MessageType.TRAIN else 0)
        facts = Facts(content)
        site = facts.text("site")
        match kind:
            case MessageType.QUERY:
                return Summary(site, read_counts(content, COUNTS) if COUNTS in content else {})
            case MessageType.TRAIN:
                return Trained(
                    site,
                    facts.whole("order"),
                    facts.whole("version"),
                    self.template.read(read_arrays(content)),
                    facts.whole("examples"),
                    facts.number("loss") if "loss" in facts else None,
                    read_counts(content, COUNTS) if COUNTS in content else None,
                )
            case MessageType.EVALUATE:
                right, total = read_counts(content, RIGHT), read_counts(content, TOTAL)
                return Evaluated(site, facts.whole("order"), right, total)
            case other:
                raise RefusedUpdate(f"a message of type {other!r:.60} was not asked for")


def time_to_live(deadline: float) -> float:
    """As long as the server would still take an answer, and a little more.

    >>> time_to_live(100.0)
    360.0
    """
    return WELCOME * deadline + RESERVE


def failure(error: Error) -> Failure:
    r"""Flower's error in a sentence.

    >>> failure(Error(2, "Traceback (most recent call last):\n ...\nValueError: no data\n")).reason
    'its client app raised an exception: ValueError: no data'
    """
    what = FAULTS.get(error.code) or MISHAPS.get(error.code) or f"Flower's error {error.code}"
    lines = [line.strip() for line in (error.reason or "").splitlines() if line.strip()]
    # For its own errors Flower gives a code and a paragraph; of an exception the end is worth more.
    told = f": {lines[-1][-LONGEST_REASON:]}" if lines and error.code not in MISHAPS else ""
    return Failure(what + told, to_blame=error.code not in MISHAPS)
