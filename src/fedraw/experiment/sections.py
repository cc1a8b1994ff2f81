"""The sections of a spec, each a frozen dataclass that refuses impossible settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedraw.core.settings import checked_settings
from fedraw.data.catalog import DEFAULT_HOLDOUT, DEFAULT_SIZE, LESIONS
from fedraw.errors import BadInput
from fedraw.privacy.budget import Mechanism, Privacy, Unit
from fedraw.simulation.perturbations.attacks import Form
from fedraw.strategies.catalog import NOT_IN_SPECS, find_method

# Weights by this name are the published ones in the data root; others are files.
IMAGENET = "imagenet"

# Durations are drawn from (1 ± this) times a client's mean.
DEFAULT_JITTER = 0.2

# More clients than any data set has samples for, and few enough to be partitioned quickly.
MOST_CLIENTS = 10_000_000

# Labels and clients by number or by name.
Names = tuple[int | str, ...]


def goes_with(key: str, value: object, selector: str, chosen: str, needed: str) -> None:
    """Refuse a value without the choice that needs it, and the choice without the value."""
    if value is None and chosen == needed:
        raise BadInput(f"{key} is missing; {selector} = {needed!r} needs it")
    if value is not None and chosen != needed:
        raise BadInput(f"{key} goes with {selector} = {needed!r}, not with {chosen!r}")


@dataclass(frozen=True)
class DataSpec:
    """Which data set is used, and how much of it."""

    name: str = "digits"
    path: str | None = None
    size: int | None = None  # pixels a side
    per_label: int | None = None  # the most training images of each label
    test_per_label: int | None = None
    holdout: Literal["random", "grouped"] | None = None  # for data without a published test set
    normalise: Literal["none", "imagenet"] = "none"

    def __post_init__(self) -> None:
        # Defaults are written out, so that every result says how its test set was made.
        for key, default in (("size", DEFAULT_SIZE), ("holdout", DEFAULT_HOLDOUT)):
            if self.name in LESIONS and getattr(self, key) is None:
                object.__setattr__(self, key, default)


@dataclass(frozen=True)
class FeaturesSpec:
    """The frozen backbone whose features replace the pixels."""

    weights: str  # a file, or IMAGENET
    backbone: Literal["resnet18"] = "resnet18"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    statistics: Literal["stored", "estimated"] = "stored"  # of batch norm


@dataclass(frozen=True)
class PartitionSpec:
    """How the samples are divided among the clients."""

    kind: Literal["coverage", "dirichlet", "iid"] = "coverage"
    clients: int = 30
    rare_labels: Names = ()
    clients_per_rare_label: int = 2
    clients_per_common_label: int = 20
    alpha: float | None = None
    local_test: float = 0.2

    def __post_init__(self) -> None:
        goes_with("partition.alpha", self.alpha, "kind", self.kind, "dirichlet")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise BadInput(f"partition.alpha = {self.alpha} must be a positive number")
        if not 1 <= self.clients <= MOST_CLIENTS:
            raise BadInput(f"partition.clients = {self.clients} must be from 1 to {MOST_CLIENTS:,}")
        if not 0 <= self.local_test < 1:
            raise BadInput(f"partition.local_test = {self.local_test} must be from 0 to below 1")


@dataclass(frozen=True)
class SpeedsSpec:
    """How fast clients are, and by which law updates arrive."""

    kind: Literal["equal", "uniform", "correlated", "ratio"] = "correlated"
    ratio: float | None = None
    arrivals: Literal["poisson", "fixed", "jitter", "recorded"] = "poisson"
    jitter: float | None = None  # default with arrivals = "jitter": DEFAULT_JITTER
    trace: str | None = None

    def __post_init__(self) -> None:
        goes_with("speeds.ratio", self.ratio, "kind", self.kind, "ratio")
        goes_with("speeds.trace", self.trace, "arrivals", self.arrivals, "recorded")
        if self.ratio is not None and not 0 < self.ratio < float("inf"):
            raise BadInput(f"speeds.ratio = {self.ratio} must be a positive number")
        if self.jitter is not None and self.arrivals != "jitter":
            raise BadInput("speeds.jitter goes with arrivals = 'jitter'")
        if self.jitter is None and self.arrivals == "jitter":
            object.__setattr__(self, "jitter", DEFAULT_JITTER)


@dataclass(frozen=True)
class StrategySpec:
    """The method and its settings."""

    name: str = "fedraw"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, table: object) -> StrategySpec:
        """Read the section [strategy]; its keys depend on the method."""
        if not isinstance(table, Mapping):
            raise BadInput(f"[strategy] must be a table of settings, got {table!r}")
        settings = dict(table)
        name = settings.pop("name", "fedraw")
        method = find_method(name)
        checked = checked_settings(method.factory, settings, "strategy", NOT_IN_SPECS)
        return cls(method.base.name, method.with_preset(checked))


@dataclass(frozen=True)
class MisreportSpec:
    """An attack: clients that report false label counts."""

    label: int | str
    client: int | str = "fastest"  # of those without rare labels, or a client's number
    share: float = 0.9
    form: Form = "paper"
    liars: int = 1  # the number of attackers, the fastest ones
    # The amount by which an adaptive attacker's updates raise the claimed label's output.
    support: float | None = None

    def __post_init__(self) -> None:
        if self.liars < 1:
            raise BadInput(f"misreport.liars = {self.liars} must be at least 1")
        if self.liars > 1 and self.client != "fastest":
            raise BadInput(
                f"misreport.liars = {self.liars} are the fastest ones, and misreport.client = "
                f"{self.client!r} names one; leave one of them out"
            )
        if not 0 < self.share <= 1:
            raise BadInput(f"misreport.share = {self.share} must be above 0, at most 1")
        if self.support is not None and not 0 < self.support < float("inf"):
            raise BadInput(f"misreport.support = {self.support} must be a positive number")
        if self.support is not None and self.form in ("invented", "hidden"):
            raise BadInput(
                f"misreport.support goes with a claim of a label that the model knows, not with "
                f"form = {self.form!r}"
            )


@dataclass(frozen=True)
class SummariesSpec:
    """How clients report their labels privately; see fedraw.privacy."""

    mechanism: Mechanism
    epsilon: float | None = None
    unit: Unit = "client"
    score_epsilon: float | None = None

    def __post_init__(self) -> None:
        try:
            self.privacy()
        except BadInput as problem:
            raise BadInput(f"[summaries]: {problem}") from None

    def privacy(self) -> Privacy:
        """The settings as fedraw.privacy takes them."""
        return Privacy(self.mechanism, self.epsilon, self.unit, self.score_epsilon)


@dataclass(frozen=True)
class DriftSpec:
    """A label's samples move to other clients in the middle of a run, or appear only then."""

    kind: Literal["move", "new"]
    label: int | str
    at: float = 0.5  # of the run's events
    declared: Literal["once", "again"] = "once"  # again: affected clients report their new counts

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise BadInput(f"drift.at = {self.at} must be between 0 and 1")


@dataclass(frozen=True)
class LabelNoiseSpec:
    """Label noise: wrong training labels of the clients with a rare label, or of all clients."""

    share: float
    clients: Literal["rare", "all"] = "rare"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise BadInput(f"label_noise.share = {self.share} must be from 0 to 1")


@dataclass(frozen=True)
class TrainingSpec:
    """The model, and how clients train it."""

    kind: Literal["sgd", "none"] = "sgd"
    model: str = "mlp"
    epochs: int = 2
    batch: int = 16
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    stem: Literal["imagenet", "cifar"] | None = None  # of resnet18; default: imagenet
    weights: str | None = None  # a file, or IMAGENET
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.stem is None and self.model == "resnet18":
            object.__setattr__(self, "stem", "imagenet")


@dataclass(frozen=True)
class MetricsSpec:
    """Which labels the metrics call rare."""

    rare_labels: Names | None = None  # default: the partition's


@dataclass(frozen=True)
class RunSpec:
    """How long a run is, with which seeds, and who trains at once."""

    events: int = 3000
    seeds: tuple[int, ...] = (42, 123, 456)
    evaluate_every: int = 150
    concurrency: int | None = None  # default: all clients
    # With fewer, who is handed the model next: any idle client, or rare clients first.
    receivers: Literal["uniform", "rare-first"] = "uniform"

    def __post_init__(self) -> None:
        for key in ("events", "evaluate_every", "concurrency"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise BadInput(f"run.{key} = {value} must be at least 1")
        if not self.seeds:
            raise BadInput("run.seeds is empty; give at least one seed")
        for seed in self.seeds:
            if seed < 0:
                raise BadInput(f"run.seeds has {seed}; a seed is a whole number from 0 on")
            if seed >= 2**63:
                raise BadInput(f"run.seeds has {seed}; a seed has at most 63 bits")
            if self.seeds.count(seed) > 1:
                raise BadInput(f"run.seeds has {seed} twice; give each seed once")
