"""A federation between two events, on disk: cheap, whole, verified when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.core.layout import Layout
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Position
from fedraw.server.journal import Journal
from fedraw.storage import snapshot
from fedraw.storage.numbered_folders import NumberedFolders, VerifiedFolder
from fedraw.strategies.protocol import State

# The newest, and the one before in case the newest cannot be read.
KEPT = 2


@dataclass
class Book:
    """What there is to know of a federation beside the strategy's state."""

    # Unix seconds at the log's time 0, which moves by the gap with each restart; only for display.
    epoch: float = 0.0
    clock: float = 0.0  # when it was last written, in the log's time
    event: int = 0
    accepted: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # of the members
    owed: dict[str, None] = field(default_factory=dict)  # who is to be handed the model
    quarantined: dict[str, float] = field(default_factory=dict)  # until when, in the log's time
    nodes: dict[str, int] = field(default_factory=dict)  # where each site was first met
    scale: float = 0.0  # of the initial model: see admission.scale_of
    heard: dict[str, float] = field(default_factory=dict)  # the last norm of each member
    introduced: dict[str, int] = field(default_factory=dict)  # labels new to all, by site
    rare_labels: list[str] = field(default_factory=list)
    rare_asked: list[str] = field(default_factory=list)  # as the operator set them; empty: not set
    ended: str | None = None  # why it is over


class Tensor(NamedTuple):
    """One tensor of a model, as far as it has to stay the same from one run to the next."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of type {self.dtype} and shape {self.shape}"


def tensors_of(layout: Layout, dtypes: Mapping[str, str] | None = None) -> list[Tensor]:
    """In the order of the vector; `dtypes` are those outside of it, where they are not float32.

    >>> for tensor in tensors_of(Layout.of([("w", (2, 2))], [("running_mean", (2,))])):
    ...     print(tensor)
    the parameter 'w' of type float32 and shape (2, 2)
    the statistic 'running_mean' of type float32 and shape (2,)
    """
    known = dtypes or {}
    return [
        Tensor(
            segment.name,
            segment.shape,
            known.get(segment.name, "float32"),
            "parameter" if segment.start < layout.parameter_count else "statistic",
        )
        for segment in layout.segments
    ]


@dataclass
class Content:
    state: State
    book: Book


class Found(NamedTuple):
    state: State
    book: Book
    log: Position  # where the log ended
    damaged: list[str]  # newer ones that cannot be read


class Snapshots:
    """Updates in a buffer are on disk already, as files of the journal: they are referred to."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        strategy: Mapping[str, Any],
        tensors: Sequence[Tensor],
    ) -> None:
        remedy = "restore the folder from a backup"
        required = ("log", "strategy", "tensors", "updates")
        self._folders = NumberedFolders(
            folder, KEPT, number_key="event", required=required, remedy=remedy, private=True
        )
        self._journal = journal
        self._strategy = dict(strategy)
        self._tensors = list(tensors)
        self._made: list[tuple[int, set[int]]] = []  # event, and the updates it refers to

    def write(self, state: State, book: Book, log: Position, time: float) -> None:
        """An OSError leaves those there are. Members that changed since are in the log."""
        if self._made and self._made[-1][0] == book.event:
            return
        book.clock = time
        used = self._journal.vectors()
        beside = {identity: _name(event) for identity, event in used.items()}
        facts = {
            "log": list(log),
            "strategy": self._strategy,
            "tensors": self._tensors,
            "updates": sorted(used.values()),
        }
        content = Content(state, book)
        self._folders.write(book.event, lambda draft: snapshot.save(content, draft, beside), facts)
        self._made = [*self._made, (book.event, set(used.values()))][-KEPT:]
        needed = set().union(*(updates for _, updates in self._made))
        self._journal.keep(needed, until=self._made[0][0])

    def read(self, state: type[State]) -> Found | None:
        """The newest that can be read; None where there never was one."""
        damaged: list[str] = []
        for found in self._folders.read_all():
            if isinstance(found, BadInput):
                damaged.append(str(found))
                continue
            self._refuse_other_strategy(found.metadata["strategy"])
            self._refuse_other_model(found.metadata["tensors"])
            content = self._load(found, state)
            self._made = [(content.book.event, set(found.metadata["updates"]))]
            return Found(content.state, content.book, Position(*found.metadata["log"]), damaged)
        if damaged:
            raise BadInput(damaged[0])
        return None

    def _load(self, found: VerifiedFolder, state: type[State]) -> Content:
        updates = found.metadata["updates"]
        beside = {_name(event): self._journal.read(event)[0].vector for event in updates}
        tree, arrays = snapshot.read(found.path)
        arrays = {**arrays, **beside}
        return Content(
            snapshot.unpack(state, tree["state"], arrays),
            snapshot.unpack(Book, tree["book"], arrays),
        )

    def _refuse_other_strategy(self, before: Mapping[str, Any]) -> None:
        for key in {**before, **self._strategy}:
            then, now = before.get(key), self._strategy.get(key)
            if then != now:
                raise BadInput(
                    f"{self._folders.folder.parent} holds a federation whose strategy has {key} = "
                    f"{then!r}, and this one has {now!r}; set the same strategy, or another folder"
                )

    def _refuse_other_model(self, facts: Sequence[Sequence[Any]]) -> None:
        before = [Tensor(name, tuple(shape), *rest) for name, shape, *rest in facts]
        pairs = zip_longest(before, self._tensors, fillvalue="missing")
        for number, (then, now) in enumerate(pairs, start=1):
            if then != now:
                raise BadInput(
                    f"{self._folders.folder.parent} holds another model: its tensor {number} is "
                    f"{then}, and the app's is {now}; use the app it was begun with, or set "
                    "another folder"
                )


def _name(event: int) -> str:
    return f"update {event}"
