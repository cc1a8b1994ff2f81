"""The sections of a spec, each a frozen dataclass that refuses impossible settings.

In a SPEC.toml, [partition] and [speeds] have a `kind` and the keys of that kind. In Python, every
kind has its own class: `Coverage`, `Dirichlet`, `IID`, `ByColumn`, and `Correlated`, `Uniform`,
`Equal`, `Ratio`, `Stragglers`. `to_dict` returns the section of a SPEC.toml, so both ways give the
same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

from fedraw.core.settings import checked_settings, read_settings, shown
from fedraw.data.catalog import DEFAULT_HOLDOUT, DEFAULT_SIZE, LESIONS
from fedraw.errors import BadInput, error_context
from fedraw.experiment.plugins import NO_PLUGINS, Plugins
from fedraw.learning.losses import Loss, Prior
from fedraw.learning.sgd import SGD, Schedule
from fedraw.privacy.budget import Mechanism, Privacy, Unit
from fedraw.simulation.perturbations.attacks import Form
from fedraw.strategies.catalog import CATALOG, NOT_IN_SPECS, find_method
from fedraw.strategies.protocol import Strategy

# The name of the published weights in the data root; any other name is a file.
IMAGENET = "imagenet"

# Durations are drawn from (1 ± this) times a client's mean.
DEFAULT_JITTER = 0.2

# The model of fedraw.learning.models that reads texts as character codes.
TEXT_MODEL = "text"

DEFAULT_CLIENTS = 30

# A client of a column needs a sample to train on and one to test with.
DEFAULT_LEAST_SAMPLES = 2

# More clients than any data set has samples for, and few enough to partition quickly.
MOST_CLIENTS = 10_000_000

# More events than any experiment simulates; their log would have about 300 GB.
MOST_EVENTS = 1_000_000_000

# The most features of a map: their second moments have 268 MB.
MOST_FEATURES = 8192

# Settings (section and key) that were added later. They are written only if they differ from their
# default, so that runs whose specs and logs do not have them can still be resumed and compared.
OMITTED_AT_DEFAULT = (
    ("training", "nesterov"),
    ("training", "schedule"),
    ("training", "lr_decay"),
    ("training", "label_smoothing"),
    ("training", "loss"),
    ("training", "tau"),
    ("training", "prior"),
    ("features", "layers"),
    ("features", "pool"),
    ("features", "standardise"),
    ("features", "width"),
    ("features", "seed"),
)

# Labels and clients by number or by name.
Names = tuple[int | str, ...]


def goes_with(key: str, value: object, selector: str, chosen: str, needed: str) -> None:
    """Refuse a value without the choice that needs it, and the choice without the value."""
    if value is None and chosen == needed:
        raise BadInput(f"{key} is missing; {selector} = {needed!r} needs it")
    if value is not None and chosen != needed:
        raise BadInput(f"{key} goes with {selector} = {needed!r}, not with {chosen!r}")


def is_plugin(name: object) -> bool:
    """Return whether a name refers to a plugin, such as "my_module:net"."""
    return isinstance(name, str) and ":" in name


def known_kind(key: str, value: str, known: Sequence[str]) -> None:
    """Refuse a kind that is neither known nor in a plugin."""
    if value not in known and not is_plugin(value):
        choices = " or ".join(map(repr, known))
        raise BadInput(f"{key} = {shown(value)} must be {choices}, or a plugin's 'module:function'")


def check_types(section: Any, name: str) -> None:
    """Give the fields of a section the types of their hints, or refuse them, as in a SPEC.toml."""
    own = {f.name: plain(getattr(section, f.name)) for f in fields(section)}
    given = {key: value for key, value in own.items() if value is not None}
    for key, value in checked_settings(type(section), given, name).items():
        object.__setattr__(section, key, value)


@dataclass(frozen=True)
class DataSpec:
    """The data set, and how much of it is used."""

    name: str = "digits"
    path: str | None = None
    size: int | None = None  # pixels per side
    per_label: int | None = None  # maximum number of training images per label
    test_per_label: int | None = None
    holdout: Literal["random", "grouped"] | None = None  # for data without a published test set
    normalise: Literal["none", "imagenet"] = "none"
    # A long tail: the ratio of the training samples of the largest label to those of the smallest.
    imbalance: float | None = None

    def __post_init__(self) -> None:
        check_types(self, "data")
        if self.imbalance is not None and not 1 <= self.imbalance < float("inf"):
            raise BadInput(f"data.imbalance = {self.imbalance} must be a number from 1 on")
        # Defaults are stored, so that every result says how its test set was made.
        for key, default in (("size", DEFAULT_SIZE), ("holdout", DEFAULT_HOLDOUT)):
            if self.name in LESIONS and getattr(self, key) is None:
                object.__setattr__(self, key, default)


@dataclass(frozen=True)
class Features:
    """The fixed feature map whose features replace the inputs.

    "resnet18" is a network from a file of weights, for images; "convolutions" are filters from
    synthetic images, and "relu" random directions for tables, both drawn from a seed.
    """

    weights: str | None = None  # of resnet18: a file, or IMAGENET
    backbone: Literal["resnet18", "convolutions", "relu"] = "resnet18"
    stem: Literal["imagenet", "cifar"] | None = None  # of resnet18; default: imagenet
    # Of batch norm, in resnet18; default: stored.
    statistics: Literal["stored", "estimated"] | None = None
    layers: tuple[int, ...] = (4,)  # groups of blocks, counted from the input, 1 to 4
    pool: Literal["mean", "mean+std"] = "mean"  # of a map, over its positions
    standardise: bool = False  # with the means and deviations of the clients' training samples
    width: int | None = None  # of the others: the number of features; default: by the inputs
    seed: int = 0  # of the others: draws the filters, which are the same in all seeds of a run

    def __post_init__(self) -> None:
        check_types(self, "features")
        if self.backbone == "resnet18":
            self._check_resnet18()
        else:
            self._check_random()

    def _check_resnet18(self) -> None:
        if self.weights is None:
            raise BadInput(
                "features.weights is missing; backbone = 'resnet18' needs a file of weights or "
                "'imagenet'. The backbones 'convolutions' and 'relu' need none"
            )
        for key, default in (("stem", "imagenet"), ("statistics", "stored")):
            if getattr(self, key) is None:  # defaults are stored, as every spec has them
                object.__setattr__(self, key, default)
        if self.width is not None or self.seed != 0:
            key = "seed" if self.width is None else "width"
            raise BadInput(
                f"features.{key} = {getattr(self, key)} goes with backbone = 'convolutions' or "
                "'relu'; layers and pool choose the features of 'resnet18'"
            )
        if not self.layers or set(self.layers) - {1, 2, 3, 4}:
            raise BadInput(
                f"features.layers = {list(self.layers)} must name layers from 1 to 4, such as "
                "[2, 3]"
            )
        if list(self.layers) != sorted(set(self.layers)):
            raise BadInput(
                f"features.layers = {list(self.layers)} must be in ascending order, each once"
            )

    def _check_random(self) -> None:
        for key in ("weights", "stem", "statistics", "layers", "pool"):
            value = getattr(self, key)
            if value != getattr(Features, key):
                raise BadInput(
                    f"features.{key} = {shown(plain(value))} goes with backbone = 'resnet18', not "
                    f"with {self.backbone!r}; leave it out"
                )
        if self.width is not None and not 1 <= self.width <= MOST_FEATURES:
            raise BadInput(f"features.width = {self.width} must be from 1 to {MOST_FEATURES:,}")
        if self.seed < 0:
            raise BadInput(f"features.seed = {self.seed} must be a whole number from 0 on")


@dataclass(frozen=True)
class PartitionSpec:
    """The section [partition]: how the samples are divided among the clients."""

    kind: str = "coverage"  # or dirichlet, iid, column, or a plugin's function
    clients: int | None = None  # default: 30; with "column", one for each of its values
    rare_labels: Names = ()
    clients_per_rare_label: int = 2
    clients_per_common_label: int = 20
    alpha: float | None = None
    local_test: float = 0.2
    column: str | None = None
    least_samples: int | None = None  # default with "column": 2

    def __post_init__(self) -> None:
        known_kind("partition.kind", self.kind, ("coverage", "dirichlet", "iid", "column"))
        goes_with("partition.alpha", self.alpha, "kind", self.kind, "dirichlet")
        goes_with("partition.column", self.column, "kind", self.kind, "column")
        if self.kind == "column":
            if self.least_samples is None:
                object.__setattr__(self, "least_samples", DEFAULT_LEAST_SAMPLES)
        else:
            goes_with("partition.least_samples", self.least_samples, "kind", self.kind, "column")
            if self.clients is None:
                object.__setattr__(self, "clients", DEFAULT_CLIENTS)
        if self.least_samples is not None and self.least_samples < 1:
            raise BadInput(f"partition.least_samples = {self.least_samples} must be at least 1")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise BadInput(f"partition.alpha = {self.alpha} must be a positive number")
        if self.clients is not None and not 1 <= self.clients <= MOST_CLIENTS:
            raise BadInput(f"partition.clients = {self.clients} must be from 1 to {MOST_CLIENTS:,}")
        if not 0 <= self.local_test < 1:
            raise BadInput(f"partition.local_test = {self.local_test} must be from 0 to below 1")


@dataclass(frozen=True)
class SpeedsSpec:
    """The section [speeds]: how fast clients are, and how the times of updates are drawn."""

    # "auto": "correlated" if some label is rare, else "uniform".
    kind: Literal["auto", "equal", "uniform", "correlated", "ratio", "stragglers"] = "auto"
    ratio: float | None = None
    stragglers: int | None = None
    arrivals: Literal["poisson", "fixed", "jitter", "recorded"] = "poisson"
    jitter: float | None = None  # default with arrivals = "jitter": DEFAULT_JITTER
    trace: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "stragglers":
            if self.ratio is None or self.stragglers is None:
                raise BadInput(
                    "speeds.kind = 'stragglers' needs ratio, such as 10, and stragglers, the "
                    "number of slow clients"
                )
            if self.stragglers < 1:
                raise BadInput(f"speeds.stragglers = {self.stragglers} must be at least 1")
        else:
            goes_with("speeds.ratio", self.ratio, "kind", self.kind, "ratio")
            goes_with("speeds.stragglers", self.stragglers, "kind", self.kind, "stragglers")
        goes_with("speeds.trace", self.trace, "arrivals", self.arrivals, "recorded")
        if self.ratio is not None and not 0 < self.ratio < float("inf"):
            raise BadInput(f"speeds.ratio = {self.ratio} must be a positive number")
        if self.jitter is not None and self.arrivals != "jitter":
            raise BadInput("speeds.jitter goes with arrivals = 'jitter'")
        if self.jitter is None and self.arrivals == "jitter":
            object.__setattr__(self, "jitter", DEFAULT_JITTER)


class Kind:
    """One kind of a section, as a class with the keys of this kind only."""

    kind: ClassVar[str]
    section: ClassVar[str]
    spec: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        read_settings(self.spec, self.to_dict(), self.section)  # refuses impossible settings

    def to_dict(self) -> dict[str, Any]:
        """Return the section of a SPEC.toml; keys without a value are left out."""
        own = {f.name: plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{key: v for key, v in own.items() if v is not None}}


@dataclass(frozen=True)
class Coverage(Kind):
    """A partition in which each label is held by a given number of clients.

    Args:
        clients: The number of clients.
        rare_labels: The labels, by name or by number, that few clients hold.
        clients_per_rare_label: The number of clients that hold each of them; no client holds two.
        clients_per_common_label: The number of clients that hold each other label.
        local_test: The share of each client's samples that is its local test set.

    >>> Coverage(clients=20, rare_labels=[8, 9]).to_dict()["rare_labels"]
    [8, 9]

    """

    kind = "coverage"
    section, spec = "partition", PartitionSpec

    clients: int = DEFAULT_CLIENTS
    rare_labels: Sequence[int | str] = ()
    clients_per_rare_label: int = 2
    clients_per_common_label: int = 20
    local_test: float = 0.2


@dataclass(frozen=True)
class Dirichlet(Kind):
    """A partition in which the shares of each label are drawn from a Dirichlet distribution.

    Args:
        alpha: The concentration; the smaller it is, the fewer clients hold most of a label.
        clients: The number of clients.
        local_test: The share of each client's samples that is its local test set.

    """

    kind = "dirichlet"
    section, spec = "partition", PartitionSpec

    alpha: float
    clients: int = DEFAULT_CLIENTS
    local_test: float = 0.2


@dataclass(frozen=True)
class IID(Kind):
    """A partition in which every client has the same mixture of labels.

    Args:
        clients: The number of clients.
        local_test: The share of each client's samples that is its local test set.

    """

    kind = "iid"
    section, spec = "partition", PartitionSpec

    clients: int = DEFAULT_CLIENTS
    local_test: float = 0.2


@dataclass(frozen=True)
class ByColumn(Kind):
    """A partition in which each value of a column of the data is a client, such as a hospital.

    Args:
        column: The name of the column; see `fedraw.from_arrays` and `fedraw.Columns`.
        clients: The number of clients: those with the most samples. By default all.
        least_samples: Values with fewer samples are left out.
        local_test: The share of each client's samples that is its local test set.

    """

    kind = "column"
    section, spec = "partition", PartitionSpec

    column: str
    clients: int | None = None
    least_samples: int = DEFAULT_LEAST_SAMPLES
    local_test: float = 0.2


Arrivals = Literal["poisson", "fixed", "jitter"]


@dataclass(frozen=True)
class _Speeds(Kind):
    """The settings that all kinds of speeds have."""

    section, spec = "speeds", SpeedsSpec

    arrivals: Arrivals = field(default="poisson", kw_only=True)
    jitter: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Correlated(_Speeds):
    """Clients with a rare label are slow.

    Their mean durations are drawn from 1.5 to 3 seconds, those of other clients from 0.5 to 1.5.

    Args:
        arrivals: The distribution of durations: "poisson" draws them from exponential
            distributions, "fixed" takes each client's mean, "jitter" draws them near the mean.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """

    kind = "correlated"


@dataclass(frozen=True)
class Uniform(_Speeds):
    """The mean durations of all clients are drawn from 0.5 to 1.5 seconds.

    Args:
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """

    kind = "uniform"


@dataclass(frozen=True)
class Equal(_Speeds):
    """All clients have a mean duration of one second.

    Args:
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """

    kind = "equal"


@dataclass(frozen=True)
class Ratio(_Speeds):
    """Clients with a rare label are slower than the others by a given factor.

    Args:
        ratio: The factor of their mean durations, which are drawn from 0.5 to 1.5 seconds.
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """

    kind = "ratio"

    ratio: float


@dataclass(frozen=True)
class Stragglers(_Speeds):
    """Some clients, drawn at random regardless of their labels, are slower than the others.

    Args:
        stragglers: The number of slow clients.
        ratio: The factor of their mean durations, which are drawn from 0.5 to 1.5 seconds.
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """

    kind = "stragglers"

    stragglers: int
    ratio: float


# What `partition` and `speeds` of `fedraw.simulate` may be.
PARTITIONS = (Coverage, Dirichlet, IID, ByColumn)
SPEEDS = (Correlated, Uniform, Equal, Ratio, Stragglers)


def plain(value: Any) -> Any:
    """Convert a value for a spec: NumPy numbers and arrays become Python numbers and lists."""
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(frozen=True)
class StrategySpec:
    """The method and its settings."""

    name: str = "fedraw"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, table: object, plugins: Plugins = NO_PLUGINS) -> StrategySpec:
        """Read the section [strategy]; its keys depend on the method."""
        if not isinstance(table, Mapping):
            raise BadInput(f"[strategy] must be a table of settings, got {table!r}")
        settings = dict(table)
        name = settings.pop("name", "fedraw")
        if is_plugin(name):
            factory = plugins.find(name, "strategy.name")
            if is_dataclass(factory):
                settings = checked_settings(factory, settings, "strategy", other_keys=("name",))
            return cls(name, settings)
        method = find_method(name)
        checked = checked_settings(
            method.factory, settings, "strategy", NOT_IN_SPECS, other_keys=("name",)
        )
        return cls(method.base.name, method.with_preset(checked))

    def make(self, plugins: Plugins = NO_PLUGINS) -> Strategy[Any]:
        """Create the strategy with these settings."""
        if not is_plugin(self.name):
            return CATALOG[self.name].make(self.settings)
        factory = plugins.find(self.name, "strategy.name")
        try:
            strategy: Strategy[Any] = factory(**self.settings) if callable(factory) else factory
        except TypeError as problem:
            raise BadInput(f"strategy.name = {self.name!r}: {problem}") from None
        refuse_non_strategy(strategy, f"strategy.name = {self.name!r}")
        return strategy


def refuse_non_strategy(thing: object, key: str) -> None:
    """Refuse an object that lacks a member of the `Strategy` protocol."""
    missing = [name for name in ("needs", "start", "step") if not hasattr(thing, name)]
    if missing:
        raise BadInput(
            f"{key} is not a strategy: it has no {' and no '.join(missing)}; see fedraw.Strategy"
        )


@dataclass(frozen=True)
class Misreport:
    """An attack: clients that report false label counts."""

    label: int | str
    client: int | str = "fastest"  # the fastest clients without rare labels, or a client's number
    share: float = 0.9
    form: Form = "paper"
    liars: int = 1  # the number of attackers, the fastest ones
    # The amount by which an adaptive attacker's updates raise the claimed label's output.
    support: float | None = None

    def __post_init__(self) -> None:
        check_types(self, "misreport")
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
class Summaries:
    """How clients report their labels privately; see fedraw.privacy."""

    mechanism: Mechanism
    epsilon: float | None = None
    unit: Unit = "client"
    score_epsilon: float | None = None

    def __post_init__(self) -> None:
        with error_context("summaries"):
            self.privacy()

    def privacy(self) -> Privacy:
        """Return the settings as a `Privacy` of fedraw.privacy."""
        return Privacy(self.mechanism, self.epsilon, self.unit, self.score_epsilon)


@dataclass(frozen=True)
class Drift:
    """A label's samples move to other clients in the middle of a run, or appear only then."""

    kind: Literal["move", "new"]
    label: int | str
    at: float = 0.5  # of the run's events
    declared: Literal["once", "again"] = "once"  # again: affected clients report their new counts

    def __post_init__(self) -> None:
        check_types(self, "drift")
        if not 0 < self.at < 1:
            raise BadInput(f"drift.at = {self.at} must be between 0 and 1")


@dataclass(frozen=True)
class LabelNoise:
    """Label noise: wrong training labels of the clients with a rare label, or of all clients."""

    share: float
    clients: Literal["rare", "all"] = "rare"

    def __post_init__(self) -> None:
        check_types(self, "label_noise")
        if not 0 <= self.share <= 1:
            raise BadInput(f"label_noise.share = {self.share} must be from 0 to 1")


class UnsetRate(float):
    """A learning rate that nobody has set: the built-in SGD uses it, a user's function does not."""


@dataclass(frozen=True)
class TrainingSpec:
    """The model, and how clients train it."""

    kind: str = "sgd"  # or none, or a plugin's function
    model: str = "mlp"
    epochs: int = 2
    batch: int = 16
    lr: float = UnsetRate(SGD.lr)
    momentum: float = 0.0
    weight_decay: float = 0.0
    stem: Literal["imagenet", "cifar"] | None = None  # of resnet18; default: imagenet
    weights: str | None = None  # a file, or IMAGENET
    device: str = "cpu"
    nesterov: bool = False
    schedule: Schedule = "constant"  # of the learning rate; see SGD.rate
    lr_decay: float = 0.1
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    loss: Loss = "cross-entropy"
    tau: float = 1.0
    prior: Prior = "local"

    def __post_init__(self) -> None:
        known_kind("training.kind", self.kind, ("sgd", "none"))
        if self.stem is None and self.model == "resnet18":
            object.__setattr__(self, "stem", "imagenet")
        if self.kind != "none":
            self.sgd()
        if self.lr_decay != SGD.lr_decay and self.schedule != "step":
            raise BadInput(
                f"training.lr_decay goes with schedule = 'step', not with {self.schedule!r}"
            )

    @property
    def chosen_lr(self) -> float | None:
        """The learning rate; None if nobody has set it."""
        return None if isinstance(self.lr, UnsetRate) else self.lr

    def sgd(self) -> SGD:
        """Return the settings of local training; an error names the wrong key."""
        try:
            # torch computes otherwise with a subclass of float.
            settings = {f.name: getattr(self, f.name) for f in fields(SGD)}
            return SGD(**settings | {"lr": +self.lr})
        except BadInput as problem:
            raise BadInput(f"training.{problem}") from None


@dataclass(frozen=True)
class Calibration:
    """Training of the output layer on virtual features of all clients, after the run (CCVR).

    Args:
        kind: The method; see fedraw.learning.calibration.
        samples: The number of virtual features per label.
        epochs: The number of passes over them.
        batch: The number of virtual features in a mini-batch.
        lr: The learning rate.

    """

    kind: Literal["ccvr"] = "ccvr"
    samples: int = 100
    epochs: int = 20
    batch: int = 32
    lr: float = 0.01

    def __post_init__(self) -> None:
        check_types(self, "calibration")
        if self.samples < 1:
            raise BadInput(f"calibration.samples = {self.samples} must be at least 1")
        self.sgd()

    def sgd(self) -> SGD:
        """Return the settings of the training of the output layer."""
        try:
            return SGD(self.epochs, self.batch, self.lr)
        except BadInput as problem:
            raise BadInput(f"calibration.{problem}") from None


@dataclass(frozen=True)
class MetricsSpec:
    """The rare labels of the metrics."""

    rare_labels: Names | None = None  # default: the partition's, or else those of low coverage


@dataclass(frozen=True)
class RunSpec:
    """The length of a run, its seeds, and how many clients train at a time."""

    events: int = 3000
    seeds: tuple[int, ...] = (42, 123, 456)
    evaluate_every: int = 150
    concurrency: int | None = None  # default: all clients
    # With fewer, which idle client gets the model next: any, or rare clients first.
    receivers: Literal["uniform", "rare-first"] = "uniform"

    def __post_init__(self) -> None:
        for key in ("events", "evaluate_every", "concurrency"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise BadInput(f"run.{key} = {value} must be at least 1")
        if self.events > MOST_EVENTS:
            raise BadInput(f"run.events = {self.events:,} must be at most {MOST_EVENTS:,}")
        if not self.seeds:
            raise BadInput("run.seeds is empty; give at least one seed")
        for seed in self.seeds:
            if seed < 0:
                raise BadInput(f"run.seeds has {seed}; a seed is a whole number from 0 on")
            if seed >= 2**63:
                raise BadInput(f"run.seeds has {seed}; a seed has at most 63 bits")
            if self.seeds.count(seed) > 1:
                raise BadInput(f"run.seeds has {seed} twice; give each seed once")
