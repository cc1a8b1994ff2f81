"""Snapshots of a federation between two events, verified when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.core.aggregation import ServingAverage
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import Position
from fedraw.server.journal import Journal
from fedraw.storage import snapshot
from fedraw.storage.numbered_folders import NumberedFolders, VerifiedFolder
from fedraw.strategies.protocol import State

# The newest snapshot, and the one before in case the newest is damaged.
NEWEST = 2
REMEDY = "restore the folder from a backup"


@dataclass
class FederationState:
    """What a server must not forget about a federation, beside the state of its strategy.

    Times are in the log's time. Every field maps sites to values unless it says otherwise.
    """

    epoch: float = 0.0  # unix seconds at the log's time 0, moved by every restart; only displayed
    clock: float = 0.0  # when the last snapshot was written
    event: int = 0
    accepted: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # the members' label counts
    awaiting_model: dict[str, None] = field(default_factory=dict)  # sites that are due to train
    quarantined: dict[str, float] = field(default_factory=dict)  # until when
    nodes: dict[str, int] = field(default_factory=dict)  # the node with which each site joined
    scale: float = 0.0  # of the initial model: see admission.scale_of
    norms: dict[str, float] = field(default_factory=dict)  # of each member's last update
    labels_added: dict[str, int] = field(default_factory=dict)  # labels that no site had before
    rare_labels: list[str] = field(default_factory=list)
    configured_rare_labels: list[str] = field(default_factory=list)  # empty: not set
    ended: str | None = None  # why the federation is over


class Tensor(NamedTuple):
    """The properties of a model's tensor that must stay the same from one run to the next."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of type {self.dtype} and shape {self.shape}"


def tensors_of(layout: Layout, dtypes: Mapping[str, str] | None = None) -> list[Tensor]:
    """Return the tensors of a layout, in the order of the vector.

    `dtypes` names the types that the user's tensors have outside of the vector, if not float32.

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


def folders_of(folder: Path, rollback_points: int = 0) -> NumberedFolders:
    """The folders of a federation's snapshots, in its `checkpoint` folder."""
    required = ("log", "strategy", "tensors", "updates")
    return NumberedFolders(
        folder,
        partial(kept_snapshots, rollback_points=rollback_points),
        number_key="event",
        required=required,
        remedy=REMEDY,
        private=True,
    )


def kept_snapshots(events: Sequence[int], rollback_points: int) -> list[int]:
    """The snapshots that stay: the newest two, and older ones to roll back to.

    The older ones always have the first snapshot. When there are too many, the one goes whose
    neighbours are closest together in age, by their ratio. So the ages of those that stay are about
    evenly spread by their order of magnitude.

    >>> kept_snapshots([0, 10, 20, 30, 40, 50], rollback_points=2)
    [0, 30, 40, 50]
    """
    older, newest = list(events[:-NEWEST]), list(events[-NEWEST:])
    while len(older) > max(rollback_points, 1):
        ages = [newest[-1] - event for event in [*older, newest[0]]]
        ratios = [ages[i - 1] / ages[i + 1] for i in range(1, len(older))]
        del older[1 + ratios.index(min(ratios))]
    return [*(older if rollback_points else ()), *newest]


@dataclass
class SnapshotContent:
    """What a snapshot stores."""

    strategy_state: State
    state: FederationState
    model: Vector | None = None  # the strategy's model, where an export finds it
    serving: ServingAverage | None = None


class Snapshot(NamedTuple):
    """A snapshot as it was read."""

    strategy_state: State
    state: FederationState
    log: Position  # where the log ended
    damaged: list[str]  # newer snapshots that cannot be read
    serving: ServingAverage | None = None


class Snapshots:
    """The snapshots of one federation.

    Updates in a buffer are on disk already, as files of the journal. A snapshot refers to them.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        strategy: Mapping[str, Any],
        tensors: Sequence[Tensor],
        rollback_points: int = 0,
    ) -> None:
        self._folders = folders_of(folder, rollback_points)
        self._journal = journal
        self._strategy = dict(strategy)
        self._tensors = list(tensors)
        self._newest: int | None = None  # the event of the newest snapshot

    def write(
        self,
        strategy_state: State,
        state: FederationState,
        log: Position,
        time: float,
        serving: ServingAverage | None = None,
    ) -> None:
        """Write a snapshot, and remove what no snapshot needs; skip it if no event happened.

        An OSError leaves the earlier snapshots. Changes of members since then are in the log.
        """
        if self._newest == state.event:
            return
        state.clock = time
        used = self._journal.vectors()
        beside = {identity: _name(event) for identity, event in used.items()}
        metadata = {
            "log": list(log),
            "strategy": self._strategy,
            "tensors": self._tensors,
            "updates": sorted(used.values()),
            "version": strategy_state.version,
            "time": time,
            "epoch": state.epoch,
        }
        model = strategy_state.model
        if id(model) in beside:  # an export reads the snapshot alone
            model = model.copy()
        content = SnapshotContent(strategy_state, state, model, serving)
        self._folders.write(
            state.event, lambda draft: snapshot.save(content, draft, beside), metadata
        )
        self._newest = state.event
        kept = self._folders.manifests()
        needed = set().union(*(manifest["updates"] for manifest in kept.values()))
        self._journal.remove_unused(needed, until=min(list(kept)[-NEWEST:]))

    def read(self, state_type: type[State]) -> Snapshot | None:
        """Return the newest readable snapshot, or None if there never was one.

        `state_type` is the type of the strategy's state.
        """
        damaged: list[str] = []
        for found in self._folders.read_all():
            if isinstance(found, BadInput):
                damaged.append(str(found))
                continue
            self._refuse_other_strategy(found.metadata["strategy"])
            self._refuse_other_model(found.metadata["tensors"])
            content = self.load(found, state_type)._replace(damaged=damaged)
            self._newest = content.state.event
            return content
        if damaged:
            raise BadInput(damaged[0])
        return None

    def load(self, found: VerifiedFolder, state_type: type[State]) -> Snapshot:
        """The snapshot in a folder whose checksums were verified."""
        updates = found.metadata["updates"]
        beside = {_name(event): self._journal.read(event)[0].vector for event in updates}
        tree, arrays = snapshot.read(found.path)
        arrays = {**arrays, **beside}
        try:
            return Snapshot(
                snapshot.unpack(state_type, tree["strategy_state"], arrays),
                snapshot.unpack(FederationState, tree["state"], arrays),
                Position(*found.metadata["log"]),
                [],
                snapshot.unpack(ServingAverage | None, tree.get("serving"), arrays),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(
                f"{found.path} is not a snapshot of this strategy in this version of fedraw; start "
                "the server with the version that wrote it, or set another folder"
            ) from None

    def _refuse_other_strategy(self, before: Mapping[str, Any]) -> None:
        for key in {**before, **self._strategy}:
            then, now = before.get(key), self._strategy.get(key)
            if then != now:
                raise BadInput(
                    f"{self._folders.folder.parent} holds a federation whose strategy has {key} = "
                    f"{then!r}, and this one has {now!r}; set the same strategy, or another folder"
                )

    def _refuse_other_model(self, tensors: Sequence[Sequence[Any]]) -> None:
        before = [Tensor(name, tuple(shape), *rest) for name, shape, *rest in tensors]
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
