"""The settings of a server: when training begins and ends, deadlines, limits, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from fedraw.core.settings import at_least, one_of, positive, whole
from fedraw.errors import BadInput
from fedraw.eventlog.metrics import QUALITY
from fedraw.privacy.budget import Privacy
from fedraw.privacy.updates import UpdatePrivacy

LOG_FORMATS = ("text", "json")
# Keys of a training's settings that the server sets itself.
RESERVED = frozenset({"server-round", "proximal-mu"})


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server. Times are in seconds; None means no limit."""

    folder: Path = Path("federation")

    # Training begins with this many sites, and ends when the first of these limits is reached.
    min_clients: int = 2
    arrivals: int | None = None
    seconds: float | None = None
    target: float | None = None
    target_metric: str = "GlobalAcc"  # or any metric that the server or the sites report
    target_below: bool = False  # whether the target is an upper bound, as it is for a loss

    # The user's settings for local training: for all sites, and for single sites.
    train: Mapping[str, Any] = field(default_factory=dict)
    train_at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    # By default, the labels that few of the initial sites hold.
    rare_labels: tuple[str, ...] = ()

    # Private label summaries in place of label counts, and the public list of all labels. Where
    # sites send sums, the list has the order of the model's outputs.
    summaries: Privacy | None = None
    labels: tuple[str, ...] = ()

    # The digest of the feature map whose sums sites send; server_app reads it from the map's file.
    feature_map: str | None = None

    # Clipping and noise that the server applies to each update before it is used or stored.
    update_privacy: UpdatePrivacy | None = None

    # Names of the sites that may take part; by default every site that the engine admits.
    sites: tuple[str, ...] = ()
    pinned: bool = False  # with node authentication: a key always belongs to the same site

    deadline: float = 3600.0  # for one training
    back_off: float = 30.0  # the pause after a failure; each further failure doubles it
    patience: int = 5  # failures in a row that lead to quarantine
    quarantine: float = 3600.0
    absence: float = 60.0  # how long a node may be offline before its site leaves

    max_staleness: int | None = None  # in versions
    norm_bound: float = 10.0  # a multiple of the median norm; see admission.check_norm

    evaluate_every: int = 20  # accepted updates between two evaluations; 0: only at the end
    federated_evaluation: bool = False
    snapshot_every: float = 60.0
    rollback_points: int = 4  # older snapshots that are kept for `fedraw server rollback`
    poll: float = 0.5

    keep_best: str = ""  # a metric; the model with its best value is kept as well

    progress_every: float = 60.0  # between two progress lines on the console
    log_format: str = "text"  # of the console: text or json

    def __post_init__(self) -> None:
        whole("min_clients", self.min_clients)
        if self.sites and self.min_clients > len(self.sites):
            raise BadInput(
                f"min_clients = {self.min_clients}, but only {len(self.sites)} sites may take "
                "part; add names to sites, or lower min_clients"
            )
        for name in ("arrivals", "max_staleness"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value)
        if self.seconds is not None:
            positive("seconds", self.seconds)
        if self.target is not None and not isfinite(self.target):
            raise BadInput(f"target = {self.target} must be a finite number")
        if not self.target_metric:
            raise BadInput("target_metric is empty; name a metric, such as GlobalAcc or AvgRare")
        check_train_config(self.train, "train")
        for site, own in self.train_at.items():
            check_train_config(own, f"train_at.{site}")
        for name in ("deadline", "back_off", "quarantine", "snapshot_every", "poll"):
            positive(name, getattr(self, name))
        positive("progress_every", self.progress_every)
        if self.keep_best:
            one_of("keep_best", self.keep_best, QUALITY)
        one_of("log_format", self.log_format, LOG_FORMATS)
        at_least("absence", self.absence, 0)
        whole("patience", self.patience)
        at_least("evaluate_every", self.evaluate_every, 0)
        at_least("rollback_points", self.rollback_points, 0)
        if self.norm_bound <= 1:
            raise BadInput(
                f"norm_bound = {self.norm_bound} would refuse ordinary updates; it is a multiple "
                "of the median norm, so set it above 1"
            )
        limits = (self.arrivals, self.seconds, self.target)
        if limits == (None, None, None) and not self.feature_map:
            raise BadInput(
                "this federation would never end; set arrivals, seconds or target (the first limit "
                "that is reached ends it)"
            )


def check_train_config(config: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return settings for local training; refuse settings that cannot be sent to a site.

    >>> check_train_config({"lr": 0.1, "optimizer.name": "sgd"}, "train")
    {'lr': 0.1, 'optimizer.name': 'sgd'}
    """
    if not isinstance(config, Mapping):
        raise BadInput(f"{source} is {config!r:.60}; it must be a table of settings")
    for key, value in config.items():
        if not isinstance(key, str) or key in RESERVED or key.startswith("fedraw."):
            raise BadInput(f"{source} has the key {key!r}, which the server sets itself")
        items = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(item, str | int | float) for item in items):
            raise BadInput(
                f"{source}: {key} = {value!r:.60} must be a text, a number, true or false, or a "
                "list of one of these"
            )
    return config
