"""How a federation is led: when it begins and ends, how long a site has, what is too much."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedraw.core.checks import at_least, one_of, positive, whole
from fedraw.errors import BadInput, nearest

# What a target can be set for.
TARGETS = ("GlobalAcc", "AvgRare")


@dataclass(frozen=True)
class Settings:
    """Times are in seconds; a limit that is None does not exist."""

    folder: Path = Path("federation")

    # Training begins with so many sites, and ends with the first of these that is reached.
    min_clients: int = 2
    arrivals: int | None = None
    seconds: float | None = None
    target: float | None = None
    target_metric: str = "GlobalAcc"

    # Default: those that the label counts of the founding sites make rare.
    rare_labels: tuple[str, ...] = ()

    # Who may take part; default anyone whom the engine lets in.
    sites: tuple[str, ...] = ()
    pinned: bool = False  # with node authentication: one key is one site, for ever

    deadline: float = 3600.0  # for one training
    back_off: float = 30.0  # the first pause after a failure; each further one is twice as long
    patience: int = 5  # failures in a row before quarantine
    quarantine: float = 3600.0
    absence: float = 60.0  # how long a node may be out of reach before its site counts as gone

    max_staleness: int | None = None  # in versions
    norm_bound: float = 10.0  # times the median of the sites' last norms: see admission.check_norm

    evaluate_every: int = 20  # accepted updates; 0: only at the end
    federated_evaluation: bool = False
    snapshot_every: float = 60.0
    poll: float = 0.5

    def __post_init__(self) -> None:
        whole("min_clients", self.min_clients)
        if self.sites and self.min_clients > len(self.sites):
            raise BadInput(
                f"min_clients = {self.min_clients}, but only {len(self.sites)} sites may take "
                "part; add to sites, or wait for fewer"
            )
        for name in ("arrivals", "max_staleness"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value)
        if self.seconds is not None:
            positive("seconds", self.seconds)
        if self.target is not None:
            positive("target", self.target)
        one_of("target_metric", self.target_metric, TARGETS)
        for name in ("deadline", "back_off", "quarantine", "snapshot_every", "poll"):
            positive(name, getattr(self, name))
        at_least("absence", self.absence, 0)
        whole("patience", self.patience)
        at_least("evaluate_every", self.evaluate_every, 0)
        if self.norm_bound <= 1:
            raise BadInput(
                f"norm_bound = {self.norm_bound} would refuse ordinary updates; it is a multiple "
                "of the usual norm, so set more than 1"
            )
        if (self.arrivals, self.seconds, self.target) == (None, None, None):
            raise BadInput(
                "nothing would end this federation; set arrivals, seconds or target (several are "
                "fine: the first that is reached counts)"
            )

    @classmethod
    def of(cls, values: dict[str, Any]) -> Settings:
        """From names and values; a name that is none is refused with the nearest known one."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise BadInput(f"{name!r} is no setting of a server; {nearest(name, known)}")
        return cls(**values)
