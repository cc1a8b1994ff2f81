"""Options of a run: its executor, the data root, and what happens to earlier runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fedraw.core.settings import Settings, at_least
from fedraw.data.releases import Progress as DataProgress
from fedraw.errors import BadInput
from fedraw.eventlog.records import Record
from fedraw.simulation.executors.ray_cluster import cluster

ExecutorKind = Literal["inline", "batched", "processes", "ray"]

# Called regularly with the number of events that are done.
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Options(Settings):
    """How a run is executed. No option changes the results.

    Args:
        executor: `inline` trains in this process, one client at a time; `batched` trains many
            clients of a small model at once; `processes` uses worker processes of this machine;
            `ray` uses workers of a Ray cluster.
        workers: Number of workers for `processes` and `ray`; with `ray`, 0 means all CPUs.
        address: Address of a Ray cluster; by default one is started for the run.
        data_root: Folder of the public data sets; by default that of FEDRAW_DATA.
        data_progress: Called while data are decoded.
        resume: Continue an unfinished run from its checkpoint, and keep a finished one.
        force: Replace existing runs in the folder.
        progress: Called every few events with the number of events that are done.
        stop: Called after every event; the run stops with a checkpoint when it returns true. Ctrl-C
            does the same.
        observe: Called with each record of the log, after the record was written.
        keep_log: Keep the log of a run without a folder in memory.

    >>> Options("processes", workers=4).has_workers
    True

    """

    executor: ExecutorKind = "inline"
    workers: Annotated[int, at_least(0)] = 1
    address: str | None = None
    data_root: Path | None = None
    data_progress: DataProgress | None = None
    resume: bool = False
    force: bool = False
    progress: Progress | None = None
    stop: Callable[[], bool] | None = None
    observe: Callable[[Record], None] | None = None
    keep_log: bool = False

    def validate(self) -> None:
        """Refuse to keep and to replace the same runs."""
        if self.resume and self.force:
            raise BadInput("resume=True and force=True exclude each other; give one")

    @property
    def has_workers(self) -> bool:
        """Whether clients train in other processes."""
        return self.executor in ("processes", "ray")

    def connected(self) -> AbstractContextManager[None]:
        """Connect to the Ray cluster, if there is one; runs inside share the connection."""
        if self.executor != "ray":
            return nullcontext()
        return cluster(self.address, self.workers or None)


DEFAULTS = Options()
