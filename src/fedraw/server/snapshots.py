"""Snapshots of a federation between two events, verified when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.core.layout import Layout
from fedraw.core.removed import is_neutral
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
    """The persistent state of a federation, apart from the state of its strategy.

    Times are in the log's time. The keys of all dictionaries are sites.
    """

    epoch: float = 0.0  # unix seconds at the log's time 0, moved by every restart; only displayed
    clock: float = 0.0  # when the last snapshot was written
    event: int = 0
    accepted: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # the members' label counts
    awaiting_model: dict[str, None] = field(default_factory=dict)  # sites that are due to train
    quarantined: dict[str, float] = field(default_factory=dict)  # the end of each quarantine
    nodes: dict[str, int] = field(default_factory=dict)  # the node with which each site joined
    scale: float = 0.0  # of the initial model; see admission.scale_of
    norms: dict[str, float] = field(default_factory=dict)  # of each member's last update
    labels_added: dict[str, int] = field(default_factory=dict)  # labels that no site had before
    rare_labels: list[str] = field(default_factory=list)
    configured_rare_labels: list[str] = field(default_factory=list)  # empty if not set
    ended: str | None = None  # why the federation has ended


class Tensor(NamedTuple):
    """The properties of a model's tensor, which must be the same after a restart."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of type {self.dtype} and shape {self.shape}"


def tensors_of(layout: Layout, dtypes: Mapping[str, str] | None = None) -> list[Tensor]:
    """Return the tensors of a layout, in the order of the vector.

    `dtypes` has the types of the user's tensors that are not float32, by name.

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


def snapshot_folders(folder: Path, rollback_points: int = 0) -> NumberedFolders:
    """Return the folders of a federation's snapshots, given its `checkpoint` folder."""
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
    """Return the events of the snapshots to keep: the newest two, and older ones for a rollback.

    The first snapshot is always among the older ones. If there are too many, the function drops
    the snapshot whose two neighbours have the smallest ratio of ages. So the ages of the remaining
    snapshots are spread evenly by order of magnitude.

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
    """The content of a snapshot."""

    strategy_state: State
    state: FederationState
    model: Vector | None = None  # the strategy's model, for exports


class Snapshot(NamedTuple):
    """A snapshot that was read from disk."""

    strategy_state: State
    state: FederationState
    log: Position  # the end of the log at that time
    damaged: list[str]  # messages about newer snapshots that cannot be read


class Snapshots:
    """The snapshots of one federation.

    A snapshot does not store the updates in a buffer; it refers to their files in the journal.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        strategy: Mapping[str, Any],
        tensors: Sequence[Tensor],
        rollback_points: int = 0,
    ) -> None:
        self._folders = snapshot_folders(folder, rollback_points)
        self._journal = journal
        self._strategy = dict(strategy)
        self._tensors = list(tensors)
        self._newest: int | None = None  # the event of the newest snapshot

    def write(
        self, strategy_state: State, state: FederationState, log: Position, time: float
    ) -> None:
        """Write a snapshot, and remove updates that no snapshot needs.

        Nothing is written if there was no event since the last snapshot: changes of members are in
        the log. An OSError keeps the earlier snapshots.
        """
        if self._newest == state.event:
            return
        state.clock = time
        used = self._journal.vectors()
        external = {identity: _array_name(event) for identity, event in used.items()}
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
        if id(model) in external:  # an export reads the snapshot without the journal
            model = model.copy()
        content = SnapshotContent(strategy_state, state, model)
        self._folders.write(
            state.event, lambda draft: snapshot.save(content, draft, external), metadata
        )
        self._newest = state.event
        kept = self._folders.manifests()
        needed = set().union(*(manifest["updates"] for manifest in kept.values()))
        self._journal.remove_unused(needed, until=min(list(kept)[-NEWEST:]))

    def replace_all(
        self, strategy_state: State, state: FederationState, log: Position, time: float
    ) -> None:
        """Write a snapshot, then remove all others and all updates that it does not need."""
        self._newest = None
        self.write(strategy_state, state, log, time)
        self._folders.remove_others(state.event)
        needed = self._folders.manifests()[state.event]["updates"]
        self._journal.remove_unused(needed, until=state.event)

    def read(self, state_type: type[State]) -> Snapshot | None:
        """Return the newest undamaged snapshot, or None if there is no snapshot at all.

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
        """Return the snapshot in a folder whose checksums were verified."""
        updates = found.metadata["updates"]
        external = {_array_name(event): self._journal.read(event)[0].vector for event in updates}
        tree, arrays = snapshot.read(found.path)
        arrays = {**arrays, **external}
        try:
            return Snapshot(
                snapshot.unpack(state_type, tree["strategy_state"], arrays),
                snapshot.unpack(FederationState, tree["state"], arrays),
                Position(*found.metadata["log"]),
                [],
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(
                f"{found.path} is not a snapshot of this strategy in this version of fedraw; start "
                "the server with the version that wrote it, or set another folder"
            ) from None

    def _refuse_other_strategy(self, before: Mapping[str, Any]) -> None:
        for key in {**before, **self._strategy}:
            then, now = before.get(key), self._strategy.get(key)
            if then != now and not (now is None and is_neutral(f"strategy.{key}", then)):
                raise BadInput(
                    f"{self._folders.folder.parent} holds a federation whose strategy has {key} = "
                    f"{then!r}, and this run has {now!r}; set the same strategy, or another folder"
                )

    def _refuse_other_model(self, tensors: Sequence[Sequence[Any]]) -> None:
        before = [Tensor(name, tuple(shape), *rest) for name, shape, *rest in tensors]
        pairs = zip_longest(before, self._tensors, fillvalue="missing")
        for number, (then, now) in enumerate(pairs, start=1):
            if then != now:
                raise BadInput(
                    f"{self._folders.folder.parent} holds another model: its tensor {number} is "
                    f"{then}, and the app's is {now}; use the app that began the federation, or "
                    "set another folder"
                )


def _array_name(event: int) -> str:
    return f"update {event}"
