"""The settings of a server: when training begins and ends, deadlines, limits, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from fedraw.core.settings import COUNT, Settings, above, at_least, one_of
from fedraw.errors import BadInput
from fedraw.eventlog.metrics import QUALITY
from fedraw.privacy.budget import Privacy
from fedraw.privacy.updates import UpdatePrivacy

# Keys of a training's settings that the server sets itself.
RESERVED = frozenset({"server-round", "proximal-mu"})


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The settings of a server. Times are in seconds; None means no limit."""

    folder: Path = Path("federation")

    # Training begins with this many sites, and ends when the first of these limits is reached.
    min_clients: Annotated[int, COUNT] = 2
    arrivals: Annotated[int | None, COUNT] = None
    seconds: Annotated[float | None, above(0)] = None
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

    deadline: Annotated[float, above(0)] = 3600.0  # for one training
    # The pause after a failure; each further failure doubles it.
    back_off: Annotated[float, above(0)] = 30.0
    patience: Annotated[int, COUNT] = 5  # failures in a row that lead to quarantine
    quarantine: Annotated[float, above(0)] = 3600.0
    # How long a node may be offline before its site leaves.
    absence: Annotated[float, at_least(0)] = 60.0

    max_staleness: Annotated[int | None, COUNT] = None  # in versions
    norm_bound: float = 10.0  # a multiple of the median norm; see admission.check_norm

    # Accepted updates between two evaluations; 0: only at the end.
    evaluate_every: Annotated[int, at_least(0)] = 20
    federated_evaluation: bool = False
    snapshot_every: Annotated[float, above(0)] = 60.0
    # Older snapshots that are kept for `fedraw server rollback`.
    rollback_points: Annotated[int, at_least(0)] = 4
    poll: Annotated[float, above(0)] = 0.5

    keep_best: str = ""  # a metric; the model with its best value is kept as well

    progress_every: Annotated[float, above(0)] = 60.0  # between two progress lines on the console
    log_format: Literal["text", "json"] = "text"  # of the console

    def validate(self) -> None:
        """Refuse settings that contradict each other, and a federation without an end."""
        if self.sites and self.min_clients > len(self.sites):
            self.refuse(
                "min_clients",
                f"is above the number of sites that may take part, {len(self.sites)}; add names to "
                "sites, or lower min_clients",
            )
        if not self.target_metric:
            self.refuse("target_metric", "is empty; name a metric, such as GlobalAcc or AvgRare")
        check_train_config(self.train, "train")
        for site, own in self.train_at.items():
            check_train_config(own, f"train_at.{site}")
        if self.keep_best:
            one_of("keep_best", self.keep_best, QUALITY)
        if self.norm_bound <= 1:
            self.refuse(
                "norm_bound",
                "would refuse ordinary updates; it is a multiple of the median norm, so set it "
                "above 1",
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
