"""The sections of a spec: dataclasses whose annotations are the rules of their keys.

In a SPEC.toml, [partition] and [speeds] have a `kind` and the keys of that kind. In Python, one
function for each kind returns the section: `Coverage`, `Dirichlet`, `IID`, `ByColumn`, and
`Correlated`, `Uniform`, `Equal`, `Ratio`, `Stragglers`. Both ways give the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal

from fedraw.core.settings import (
    COUNT,
    FILE,
    LATER,
    PROBABILITY,
    SHARE,
    BadSetting,
    Range,
    Settings,
    With,
    above,
    at_least,
    checked_settings,
    keys,
)
from fedraw.data.catalog import DEFAULT_HOLDOUT, DEFAULT_SIZE, LESIONS
from fedraw.errors import BadInput
from fedraw.experiment.plugins import NO_PLUGINS, Plugins
from fedraw.learning.sgd import SGD
from fedraw.privacy.budget import Privacy
from fedraw.simulation.availability import TiedTo
from fedraw.simulation.perturbations.attacks import Form
from fedraw.strategies.catalog import CATALOG, find_method
from fedraw.strategies.protocol import Strategy

# The name of the published weights in the data root; any other name is a file.
IMAGENET = "imagenet"

# The model of fedraw.learning.models that reads texts as character codes.
TEXT_MODEL = "text"

DEFAULT_CLIENTS = 30

# More clients than any data set has samples for, and few enough to partition quickly.
MOST_CLIENTS = 10_000_000

# More events than any experiment simulates; their log would have about 300 GB.
MOST_EVENTS = 1_000_000_000

# The most features of a map: their second moments have 268 MB.
MOST_FEATURES = 8192

# Labels and clients by number or by name.
Names = tuple[int | str, ...]
Arrivals = Literal["poisson", "fixed", "jitter", "recorded"]
Positive = Annotated[float | None, above(0)]
Online = Range(0, 1, open_low=True)


def is_plugin(name: object) -> bool:
    """Return whether a name refers to a plugin, such as "my_module:net"."""
    return isinstance(name, str) and ":" in name


class KnownOrPlugin(tuple[str, ...]):
    """The rule of a name: one of these, or that of a part in a plugin."""

    def holds(self, value: object) -> bool:
        """Return whether a name is known or a plugin's."""
        return value in self or is_plugin(value)

    def __str__(self) -> str:
        return f"{' or '.join(map(repr, self))}, or a plugin's 'module:function'"


@dataclass(frozen=True)
class DataSpec(Settings):
    """The data set, and how much of it is used.

    Args:
        name: The name of a data set (`fedraw data list`), "npz", or a plugin's "module:function".
        path: With "npz": the file.
        size: The pixels per side of an image.
        per_label: The most training samples of a label.
        test_per_label: The most test samples of a label.
        holdout: Which samples of data without a published test set are the test set. "grouped"
            keeps all images of a lesion on one side.
        normalise: "none": pixels from 0 to 1. "imagenet": as ImageNet weights expect them.
        imbalance: A long tail: the ratio of the training samples of the largest label to those of
            the smallest.

    """

    table = "data"

    name: str = "digits"
    path: Annotated[str | None, FILE] = None
    size: int | None = None
    per_label: int | None = None
    test_per_label: int | None = None
    holdout: Literal["random", "grouped"] | None = None
    normalise: Literal["none", "imagenet"] = "none"
    imbalance: Annotated[float | None, at_least(1)] = None

    def validate(self) -> None:
        """Store defaults, so that every result says how its test set was made."""
        for key, default in (("size", DEFAULT_SIZE), ("holdout", DEFAULT_HOLDOUT)):
            if self.name in LESIONS and getattr(self, key) is None:
                object.__setattr__(self, key, default)


@dataclass(frozen=True)
class Features(Settings):
    """The fixed feature map whose features replace the inputs.

    Args:
        weights: Of "resnet18": the path of a file, or "imagenet" for the published weights in the
            data root.
        backbone: "resnet18": a network from a file of weights, for images. "convolutions": filters
            from synthetic images. "relu": random directions, for tables. The last two are drawn
            from a seed.
        stem: Of "resnet18": that of ImageNet (default), or the one for small images.
        statistics: Of batch norm in "resnet18": those in the file (default), or those of the
            images of all clients and of the test set.
        layers: Of "resnet18": the groups of blocks whose maps are used, 1 to 4.
        pool: Of "resnet18": what is kept of a map over its positions.
        standardise: Whether features are scaled with the means and deviations of the clients'
            training samples.
        width: Of the others: the number of features; by default it follows from the inputs.
        seed: Of the others: draws the filters, which are the same in all seeds of a run.

    """

    table = "features"

    weights: Annotated[str | None, FILE, With("backbone", ("resnet18",), optional=True)] = None
    backbone: Literal["resnet18", "convolutions", "relu"] = "resnet18"
    stem: Annotated[
        Literal["imagenet", "cifar"] | None, With("backbone", ("resnet18",), "imagenet")
    ] = None
    statistics: Annotated[
        Literal["stored", "estimated"] | None, With("backbone", ("resnet18",), "stored")
    ] = None
    layers: Annotated[tuple[int, ...], With("backbone", ("resnet18",)), LATER] = (4,)
    pool: Annotated[Literal["mean", "mean+std"], With("backbone", ("resnet18",)), LATER] = "mean"
    standardise: Annotated[bool, LATER] = False
    width: Annotated[
        int | None,
        With("backbone", ("convolutions", "relu"), optional=True),
        Range(1, MOST_FEATURES),
        LATER,
    ] = None
    seed: Annotated[int, With("backbone", ("convolutions", "relu")), at_least(0), LATER] = 0

    def validate(self) -> None:
        """Refuse a missing file, and layers that the network does not have."""
        if self.backbone == "resnet18" and self.weights is None:
            raise BadSetting(
                "features.weights is missing; backbone = 'resnet18' needs a file of weights or "
                "'imagenet'. The backbones 'convolutions' and 'relu' need none"
            )
        if not self.layers or not set(self.layers) <= {1, 2, 3, 4}:
            self.refuse("layers", "must name layers from 1 to 4, such as [2, 3]")
        if list(self.layers) != sorted(set(self.layers)):
            self.refuse("layers", "must be in ascending order, each once")


@dataclass(frozen=True)
class Partition(Settings):
    """The section [partition]: how the samples are divided among the clients.

    Args:
        kind: "coverage": each label is held by a given number of clients. "dirichlet": the shares
            of each label are drawn. "iid": all clients have the same mixture. "column": each value
            of a column is a client. Or a plugin's "module:function".
        clients: The number of clients, by default 30. With "column" the clients with the most
            samples, by default all.
        rare_labels: With "coverage": the labels, by name or by number, that few clients hold.
        clients_per_rare_label: With "coverage": the number of clients that hold each of them; no
            client holds two.
        clients_per_common_label: With "coverage": the number of clients that hold each other label.
        alpha: With "dirichlet": the concentration; the smaller it is, the fewer clients hold most
            of a label.
        local_test: The share of each client's samples that is its local test set.
        column: With "column": the name of the column, such as that of the hospital.
        least_samples: With "column": values with fewer samples are left out; by default 2, one to
            train on and one to test with.

    """

    table = "partition"

    kind: Annotated[str, KnownOrPlugin(("coverage", "dirichlet", "iid", "column"))] = "coverage"
    clients: Annotated[int | None, Range(1, MOST_CLIENTS)] = None
    rare_labels: Names = ()
    clients_per_rare_label: int = 2
    clients_per_common_label: int = 20
    alpha: Annotated[float | None, With("kind", ("dirichlet",)), above(0)] = None
    local_test: Annotated[float, PROBABILITY] = 0.2
    column: Annotated[str | None, With("kind", ("column",))] = None
    least_samples: Annotated[int | None, With("kind", ("column",), 2), COUNT] = None

    def validate(self) -> None:
        """Store the default number of clients."""
        if self.clients is None and self.kind != "column":
            object.__setattr__(self, "clients", DEFAULT_CLIENTS)


def Coverage(  # noqa: N802
    clients: int = DEFAULT_CLIENTS,
    rare_labels: Sequence[int | str] = (),
    clients_per_rare_label: int = 2,
    clients_per_common_label: int = 20,
    local_test: float = 0.2,
) -> Partition:
    """Return the partition in which each label is held by a given number of clients.

    Args:
        clients: The number of clients.
        rare_labels: The labels, by name or by number, that few clients hold.
        clients_per_rare_label: The number of clients that hold each of them; no client holds two.
        clients_per_common_label: The number of clients that hold each other label.
        local_test: The share of each client's samples that is its local test set.

    >>> Coverage(clients=20, rare_labels=[8, 9]).to_dict()["rare_labels"]
    [8, 9]

    """
    return Partition(
        "coverage",
        clients,
        rare_labels,  # type: ignore[arg-type]
        clients_per_rare_label,
        clients_per_common_label,
        local_test=local_test,
    )


def Dirichlet(  # noqa: N802
    alpha: float, clients: int = DEFAULT_CLIENTS, local_test: float = 0.2
) -> Partition:
    """Return the partition whose shares of each label are drawn from a Dirichlet distribution.

    Args:
        alpha: The concentration; the smaller it is, the fewer clients hold most of a label.
        clients: The number of clients.
        local_test: The share of each client's samples that is its local test set.

    """
    return Partition("dirichlet", clients, alpha=alpha, local_test=local_test)


def IID(clients: int = DEFAULT_CLIENTS, local_test: float = 0.2) -> Partition:  # noqa: N802
    """Return the partition in which every client has the same mixture of labels.

    Args:
        clients: The number of clients.
        local_test: The share of each client's samples that is its local test set.

    """
    return Partition("iid", clients, local_test=local_test)


def ByColumn(  # noqa: N802
    column: str, clients: int | None = None, least_samples: int = 2, local_test: float = 0.2
) -> Partition:
    """Return the partition in which each value of a column is a client, such as a hospital.

    Args:
        column: The name of the column; see `fedraw.from_arrays` and `fedraw.Columns`.
        clients: The number of clients: those with the most samples. By default all.
        least_samples: Values with fewer samples are left out.
        local_test: The share of each client's samples that is its local test set.

    """
    return Partition(
        "column", clients, column=column, least_samples=least_samples, local_test=local_test
    )


@dataclass(frozen=True)
class Speeds(Settings):
    """The section [speeds]: how fast clients are, and how the times of updates are drawn.

    Args:
        kind: "equal", "uniform", "correlated": clients with a rare label are slow. "ratio": they
            are slower by a factor. "stragglers": some clients are, drawn regardless of their
            labels. "auto": "correlated" if some label is rare, else "uniform".
        ratio: With "ratio" and "stragglers": the factor.
        stragglers: With "stragglers": the number of slow clients.
        arrivals: The distribution of durations: "poisson" draws them from exponential
            distributions, "fixed" takes each client's mean, "jitter" draws them near the mean,
            "recorded" takes them from a trace.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.
        trace: With "recorded": the file of recorded durations, or the event log of a run.

    """

    table = "speeds"

    kind: Literal["auto", "equal", "uniform", "correlated", "ratio", "stragglers"] = "auto"
    ratio: Annotated[float | None, With("kind", ("ratio", "stragglers")), above(0)] = None
    stragglers: Annotated[int | None, With("kind", ("stragglers",)), COUNT] = None
    arrivals: Arrivals = "poisson"
    jitter: Annotated[float | None, With("arrivals", ("jitter",), 0.2)] = None
    trace: Annotated[str | None, FILE, With("arrivals", ("recorded",))] = None


def Correlated(*, arrivals: Arrivals = "poisson", jitter: float | None = None) -> Speeds:  # noqa: N802
    """Return speeds at which clients with a rare label are slow.

    Their mean durations are drawn from 1.5 to 3 seconds, those of other clients from 0.5 to 1.5.

    Args:
        arrivals: The distribution of durations: "poisson" draws them from exponential
            distributions, "fixed" takes each client's mean, "jitter" draws them near the mean.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """
    return Speeds("correlated", arrivals=arrivals, jitter=jitter)


def Uniform(*, arrivals: Arrivals = "poisson", jitter: float | None = None) -> Speeds:  # noqa: N802
    """Return speeds whose mean durations are drawn from 0.5 to 1.5 seconds for all clients.

    Args:
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """
    return Speeds("uniform", arrivals=arrivals, jitter=jitter)


def Equal(*, arrivals: Arrivals = "poisson", jitter: float | None = None) -> Speeds:  # noqa: N802
    """Return speeds at which all clients have a mean duration of one second.

    Args:
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """
    return Speeds("equal", arrivals=arrivals, jitter=jitter)


def Ratio(  # noqa: N802
    ratio: float, *, arrivals: Arrivals = "poisson", jitter: float | None = None
) -> Speeds:
    """Return speeds at which clients with a rare label are slower than the others by a factor.

    Args:
        ratio: The factor of their mean durations, which are drawn from 0.5 to 1.5 seconds.
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """
    return Speeds("ratio", ratio, arrivals=arrivals, jitter=jitter)


def Stragglers(  # noqa: N802
    stragglers: int, ratio: float, *, arrivals: Arrivals = "poisson", jitter: float | None = None
) -> Speeds:
    """Return speeds at which some clients, drawn regardless of their labels, are slower.

    Args:
        stragglers: The number of slow clients.
        ratio: The factor of their mean durations, which are drawn from 0.5 to 1.5 seconds.
        arrivals: The distribution of durations, as in `Correlated`.
        jitter: With "jitter": durations are drawn from (1 ± jitter) times the mean.

    """
    return Speeds("stragglers", ratio, stragglers, arrivals, jitter)


# The functions that return the sections [partition] and [speeds].
PARTITIONS = (Coverage, Dirichlet, IID, ByColumn)
SPEEDS = (Correlated, Uniform, Equal, Ratio, Stragglers)


@dataclass(frozen=True)
class Availability(Settings):
    """When clients are online; see docs/how-to/availability.md.

    Args:
        kind: "exponential": phases of random lengths. "diurnal": a part of every day. "trace": as a
            file says. "always".
        online: The share of the time for which a client is online.
        tied_to: "labels": clients with a rare label have `rare_online` instead. "speed": slower
            clients are online less, in proportion.
        rare_online: With "labels": the share of clients with a rare label.
        cycle: The mean seconds of an online and an offline phase together; the length of a day.
        zones: With "diurnal": the number of time zones.
        trace: With "trace": a table with the columns client, start and end.
        after_trace: What follows its last end: the trace again, or the end of the run.
        interrupted: A client that goes offline while it trains goes on when it is back ("pause"),
            or loses its work and is handed the model anew ("lose").

    """

    table = "availability"

    kind: Literal["always", "exponential", "diurnal", "trace"] = "exponential"
    online: Annotated[float, Online] = 0.5
    tied_to: TiedTo = "nothing"
    rare_online: Annotated[float | None, With("tied_to", ("labels",)), Online] = None
    cycle: Annotated[float, above(0)] = 20.0
    zones: Annotated[int | None, With("kind", ("diurnal",), 24), COUNT] = None
    trace: Annotated[str | None, FILE, With("kind", ("trace",))] = None
    after_trace: Annotated[Literal["repeat", "stop"] | None, With("kind", ("trace",), "repeat")] = (
        None
    )
    interrupted: Literal["pause", "lose"] = "pause"

    def validate(self) -> None:
        """Refuse shares where there are none."""
        if self.tied_to != "nothing" and self.kind in ("always", "trace"):
            self.refuse("tied_to", f"sets shares, and kind = {self.kind!r} has none; leave it out")


@dataclass(frozen=True)
class Losses(Settings):
    """Updates that are lost on the way.

    Args:
        lost: The probability that an update never reaches the server. Its client is handed the
            model anew.

    """

    table = "losses"

    lost: Annotated[float, PROBABILITY] = 0.0


@dataclass(frozen=True)
class Membership(Settings):
    """Clients that join or leave during the run.

    Args:
        joining: The share of the clients that join during the run.
        leaving: The share of the clients that leave during the run.
        within: The virtual seconds within which they do.
        trace: Instead of the others: a table with the columns client, time and change ("joined" or
            "left"), or the event log of a server.

    """

    table = "membership"

    joining: Annotated[float, SHARE] = 0.0
    leaving: Annotated[float, SHARE] = 0.0
    within: Positive = None
    trace: Annotated[str | None, FILE] = None

    def validate(self) -> None:
        """Refuse both a draw and a trace, and a draw without a time."""
        drawn = self.joining > 0 or self.leaving > 0
        if self.trace is not None and (drawn or self.within is not None):
            raise BadSetting(
                "membership.trace says who joins and leaves, and joining, leaving and within draw "
                "it; leave one of them out"
            )
        if drawn and self.within is None:
            raise BadSetting(
                "membership.within is missing; give the virtual seconds within which clients join "
                "and leave"
            )


@dataclass(frozen=True)
class Costs(Settings):
    """The costs of training and sending; see docs/how-to/availability.md.

    Args:
        seconds_per_sample: The time of one sample in one epoch on a device of speed 1. A training
            then takes this time, times samples, times epochs, times the client's duration from
            [speeds]. By default it takes the duration from [speeds].
        upload_mbit: Megabits per second that a client sends; by default sending takes no time.
        download_mbit: Megabits per second that a client receives.
        bandwidth_spread: The spread of the clients' bandwidths: the standard deviation of their
            logarithms.
        model_bytes: The size of the model; by default that of the model that is trained.
        watts: The power of a client that trains; by default no energy is counted.
        joules_per_mb: The energy of sending or receiving a megabyte.
        trace: A table of devices: the columns client and one or more of seconds_per_sample,
            upload_mbit and download_mbit, which replace the keys of these names.

    """

    table = "costs"

    seconds_per_sample: Positive = None
    upload_mbit: Positive = None
    download_mbit: Positive = None
    bandwidth_spread: Annotated[float, at_least(0)] = 0.0
    model_bytes: Annotated[int | None, COUNT] = None
    watts: Positive = None
    joules_per_mb: Annotated[float, at_least(0)] = 0.0
    trace: Annotated[str | None, FILE] = None

    def validate(self) -> None:
        """Refuse a spread of bandwidths that are not limited."""
        if self.bandwidth_spread and self.upload_mbit is None and self.download_mbit is None:
            self.refuse("bandwidth_spread", "goes with upload_mbit or download_mbit")


@dataclass(frozen=True)
class StrategySpec:
    """The method and its settings."""

    name: str = "fedraw"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the section [strategy]."""
        return {"name": self.name, **self.settings}

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
                settings = checked_settings(factory, settings, "strategy", of_method=True)
            return cls(name, settings)
        method = find_method(name)
        checked = checked_settings(method.factory, settings, "strategy", of_method=True)
        return cls(method.base.name, method.with_preset(checked))

    def make(self, plugins: Plugins = NO_PLUGINS) -> Strategy[Any]:
        """Create the strategy with these settings."""
        if not is_plugin(self.name):
            try:
                return CATALOG[self.name].make(self.settings)
            except BadSetting as problem:
                raise BadInput(f"strategy.{problem}") from None
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
class Misreport(Settings):
    """An attack: clients that report false label counts.

    Args:
        label: The label that they claim, by name or by number.
        client: "fastest": the fastest clients without rare labels. Or the number of a client.
        share: The share of its samples that an attacker claims to be of the label.
        form: What becomes of its other counts: nothing ("paper"), or its shares are scaled or
            counted anew ("renormalised", "recounted"). Or nobody has the label ("invented"), or
            the attacker conceals that it has it ("hidden").
        liars: With "fastest": the number of attackers.
        support: The amount by which an adaptive attacker's updates raise the claimed label's
            output.

    """

    table = "misreport"

    label: int | str
    client: int | str = "fastest"
    share: Annotated[float, Range(0, 1, open_low=True)] = 0.9
    form: Form = "paper"
    liars: Annotated[int, COUNT] = 1
    support: Annotated[
        float | None,
        With("form", ("paper", "renormalised", "recounted"), optional=True),
        above(0),
    ] = None

    def validate(self) -> None:
        """Refuse several attackers of one name."""
        if self.liars > 1 and self.client != "fastest":
            self.refuse(
                "liars",
                f"are the fastest ones, and misreport.client = {self.client!r} names one; leave "
                "one of them out",
            )


@dataclass(frozen=True)
class Summaries(Privacy):
    """How clients report their labels privately; see fedraw.privacy."""

    table = "summaries"


@dataclass(frozen=True)
class Drift(Settings):
    """A label's samples move to other clients in the middle of a run, or appear only then.

    Args:
        kind: Whether the label moves, or is new.
        label: The label, by name or by number.
        at: When it does, as a share of the run's events.
        declared: Whether the affected clients report their new counts.

    """

    table = "drift"

    kind: Literal["move", "new"]
    label: int | str
    at: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.5
    declared: Literal["once", "again"] = "once"


@dataclass(frozen=True)
class LabelNoise(Settings):
    """Label noise: wrong training labels of some clients.

    Args:
        share: The share of their training labels that are shuffled.
        clients: The clients with a rare label, or all clients.

    """

    table = "label_noise"

    share: Annotated[float, SHARE]
    clients: Literal["rare", "all"] = "rare"


class UnsetRate(float):
    """A learning rate that nobody has set: the built-in SGD uses it, a user's function does not."""


# Keys of [training] in the order in which they were added; later ones follow.
_FIRST = (
    "kind", "model", "epochs", "batch", "lr", "momentum", "weight_decay", "stem", "weights",
    "device",
)  # fmt: skip


@dataclass(frozen=True)
class Training(SGD):
    """The model, and how clients train it.

    Args:
        kind: "sgd", or a plugin's "module:function". "none" simulates arrivals and buffers without
            a model.
        model: The name of a model: linear, mlp, cnn-small, cnn, resnet18, text, or a plugin's
            "module:function".
        stem: Of resnet18: that of ImageNet (default), or the one for small images.
        weights: The initial weights: the path of a file, or "imagenet".
        device: Where torch computes: "cpu", "cuda", "cuda:1" or "mps".

    """

    table = "training"

    lr: Annotated[float, above(0)] = UnsetRate(SGD.lr)
    kind: Annotated[str, KnownOrPlugin(("sgd", "none"))] = "sgd"
    model: str = "mlp"
    stem: Literal["imagenet", "cifar"] | None = None
    weights: Annotated[str | None, FILE] = None
    device: str = "cpu"

    def validate(self) -> None:
        """Store the default stem."""
        if self.stem is None and self.model == "resnet18":
            object.__setattr__(self, "stem", "imagenet")
        super().validate()

    def to_dict(self) -> dict[str, Any]:
        """Return the section [training]."""
        own = super().to_dict()
        return {key: own[key] for key in dict.fromkeys((*_FIRST, *own)) if key in own}

    @property
    def chosen_lr(self) -> float | None:
        """The learning rate; None if nobody has set it."""
        return None if isinstance(self.lr, UnsetRate) else self.lr

    def sgd(self) -> SGD:
        """Return the settings of local training alone."""
        own = {name: getattr(self, name) for name in keys(SGD)}
        return SGD(**own | {"lr": +self.lr})  # torch computes otherwise with a subclass of float


@dataclass(frozen=True)
class Calibration(Settings):
    """Training of the output layer on virtual features of all clients, after the run (CCVR).

    Args:
        kind: The method; see fedraw.learning.calibration.
        samples: The number of virtual features per label.
        epochs: The number of passes over them.
        batch: The number of virtual features in a mini-batch.
        lr: The learning rate.

    """

    table = "calibration"

    kind: Literal["ccvr"] = "ccvr"
    samples: Annotated[int, COUNT] = 100
    epochs: Annotated[int, COUNT] = 20
    batch: Annotated[int, COUNT] = 32
    lr: Annotated[float, above(0)] = 0.01

    def sgd(self) -> SGD:
        """Return the settings of the training of the output layer."""
        return SGD(self.epochs, self.batch, self.lr)


@dataclass(frozen=True)
class Metrics(Settings):
    """The section [metrics].

    Args:
        rare_labels: The labels that the metrics call rare; by default those of the partition, or
            else those that at most half the median number of clients hold.

    """

    table = "metrics"

    rare_labels: Names | None = None


@dataclass(frozen=True)
class Run(Settings):
    """The section [run]: the length, the seeds, and how many clients train at a time.

    Args:
        events: The number of updates that reach the server; a synchronous method finishes its last
            round.
        seeds: The seeds, each of which is a separate run.
        evaluate_every: The number of events between two evaluations.
        concurrency: The number of clients that train at the same time; by default all.
        receivers: Which idle client trains next below full concurrency: any, or rare clients
            first.

    """

    table = "run"

    events: Annotated[int, Range(1, MOST_EVENTS)] = 3000
    seeds: tuple[int, ...] = (42, 123, 456)
    evaluate_every: Annotated[int, COUNT] = 150
    concurrency: Annotated[int | None, COUNT] = None
    receivers: Literal["uniform", "rare-first"] = "uniform"

    def validate(self) -> None:
        """Refuse seeds that are no seeds."""
        if not self.seeds:
            raise BadSetting("run.seeds is empty; give at least one seed")
        for seed in self.seeds:
            if seed < 0:
                raise BadSetting(f"run.seeds has {seed}; a seed is a whole number from 0 on")
            if self.seeds.count(seed) > 1:
                raise BadSetting(f"run.seeds has {seed} twice; give each seed once")
