"""The catalogue: one row per method, read by every other part of the library.

Specs, logs, the demo, the audit, figures, the server and the documentation read this table. To add
a method, write its file and add its row; the contract suite then runs over it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fedraw.core.layout import Layout
from fedraw.core.removed import removal
from fedraw.core.settings import keys, meanings, spec_keys
from fedraw.errors import BadInput, nearest
from fedraw.strategies.ace import ACE
from fedraw.strategies.aced import ACED
from fedraw.strategies.area import AREA
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fadas import FADAS
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedau import FedAU
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.fedstale import FedStale
from fedraw.strategies.fedstaleweight import FedStaleWeight
from fedraw.strategies.fedvarp import FedVARP
from fedraw.strategies.mifa import MIFA
from fedraw.strategies.one_pass import OnePass
from fedraw.strategies.protocol import Strategy
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay

# The audit's closed forms depend on which updates are in a step and how they are weighted.
# window: the last K arrivals; blocks: K arrivals, then cleared; dedup: one slot per client, evicted
# in order of first insertion; single: one arrival; recent: clients with a recent update; all: one
# update of every client, for which the server waits.
AuditBuffer = Literal["window", "blocks", "dedup", "single", "recent", "all"]
# uniform: all slots equal; samples: by number of samples; rarity: by rarity score; cached: all
# clients equal, whether they are in the buffer or not; replay: the rarest clients always by score,
# the others by arrivals; debt: every client by its target weight; intervals: by the mean number of
# steps between a client's updates; corrected: the same, as far as the cache of all clients does not
# correct it; staleness: by the mean staleness of a client's updates; contact, started: equal
# weights for all clients that recently sent an update, or recently started from the model.
AuditWeighting = Literal[
    "uniform", "samples", "rarity", "cached", "replay", "debt", "intervals", "corrected",
    "staleness", "contact", "started",
]  # fmt: skip
AuditRule = tuple[AuditBuffer, AuditWeighting]

# The standings at which calibration runs recognised 25 and 75 % of a label: see
# docs/research/calibration.md.
# A model that is an average of models forgets an absent label; one that adds updates does not.
AVERAGING = (0.1, 0.3)
ADDING = (0.04, 0.13)

# Where the rule of a method was taken from. Code that its authors or others published shows what a
# paper leaves open.
Source = Literal["the paper", "its authors' code", "third-party code", "this project"]

# What clients send (`Needs.sends`), in words.
SENT = {"model": "models", "delta": "differences", "sums": "sums"}


@dataclass(frozen=True)
class Method:
    """One method, or one ablation of a method.

    Attributes:
        name: The name in specs, logs, tables, audit and server.
        title: The name in running text and in figures.
        factory: The class of the strategy, a frozen dataclass whose fields are the settings.
        reference: The publication.
        summary: What the method does: a phrase that continues "This method …".
        source: Where the rule was taken from.
        related: How the method is related to another one, such as its special case. A row with a
            preset needs it only if it is more than an ablation or a variant.
        preset: The settings that turn the factory into an ablation or a variant.
        defaults: Settings whose defaults differ from those of the factory.
        variant: Whether the preset makes a separate method instead of an ablation.
        demo: Whether the demo runs it.
        audit_rule: The buffer and the weighting of the audit's closed forms, if there are any.
        thresholds: The standings below which the audit calls a label lost and at risk.
        memory: Number of models that the server stores at most between two arrivals: always, per
            buffer slot, and per client.
        stores: What the server stores, if it is not models.
        merit: The mean AvgRare in percent over the settings with rare labels of the arena on
            digits and HAM10000, with the method's rate tuned; the audit orders methods of equal
            cost by it. None if it was not measured.
        colour: The method's colour in figures; methods without one share a palette.

    """

    name: str
    title: str
    factory: type[Any]
    reference: str
    summary: str
    source: Source
    related: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    variant: bool = False
    demo: bool = False
    audit_rule: AuditRule | None = None
    thresholds: tuple[float, float] | None = None
    memory: tuple[float, float, float] | None = None
    stores: str = ""
    merit: float | None = None
    colour: str | None = None

    @property
    def is_ablation(self) -> bool:
        """Whether the row exists only to show what a part of another method contributes."""
        return bool(self.preset) and not self.variant

    @property
    def base(self) -> Method:
        """The row of the same factory without a preset, or the method itself."""
        return next(m for m in CATALOG.values() if m.factory is self.factory and not m.preset)

    @property
    def relation(self) -> str:
        """How the method is related to another one; empty if it is not.

        >>> CATALOG["ace"].relation, CATALOG["fedraw-dedup-only"].relation
        ('special case of mifa (buffer = 1)', 'ablation of fedraw')
        """
        if self.related or not self.preset:
            return self.related
        return f"{'variant' if self.variant else 'ablation'} of {self.base.name}"

    @property
    def memory_text(self) -> str:
        """The number of models that the server stores, with K buffer slots and N clients.

        >>> CATALOG["ca2fl"].memory_text, CATALOG["fedasync"].memory_text
        ('4 + K + N models', '1 model')
        """
        if self.memory is None:
            return self.stores or "not measured"
        fixed, slots, clients = self.memory
        parts = [f"{fixed:g}"]
        for factor, symbol in ((slots, "K"), (clients, "N")):
            if factor:
                parts.append(symbol if factor == 1 else f"{factor:g} {symbol}")
        return " + ".join(parts) + (" model" if parts == ["1"] else " models")

    @property
    def spec_settings(self) -> dict[str, Any]:
        """The settings in the [strategy] section of a spec and their defaults.

        >>> CATALOG["fedbuff"].spec_settings["buffer"]
        10
        """
        defaults = {name: key.default for name, key in spec_keys(self.factory).items()}
        return {**defaults, **self.defaults, **self.preset}

    @property
    def shown_settings(self) -> dict[str, str]:
        """The settings and their defaults as a spec writes them.

        >>> CATALOG["fedraw"].shown_settings["weighting"]
        '"rarity"'
        """
        return {key: _toml(value) for key, value in self.spec_settings.items()}

    @property
    def setting_meanings(self) -> dict[str, str]:
        """What each setting means, in a sentence.

        >>> CATALOG["fedfa"].setting_meanings["buffer"]
        'The number of last updates K whose models are averaged.'
        """
        texts = meanings(self.factory)
        return {key: texts[key] for key in self.spec_settings}

    @property
    def setting_types(self) -> dict[str, str]:
        """The type of each setting, or the values that it may have.

        >>> CATALOG["fedbuff"].setting_types["staleness"]
        '"none" | "polynomial"'
        """
        known = keys(self.factory)
        return {name: _type_text(known[name].kind) for name in self.spec_settings}

    def make(self, settings: Mapping[str, Any] | None = None) -> Strategy[Any]:
        """Return the strategy with these settings and defaults for the others.

        >>> CATALOG["fedraw-dedup-only"].make({"buffer": 5}).weighting
        'uniform'
        """
        strategy: Strategy[Any] = self.factory(**self.with_preset(settings or {}))
        return strategy

    def with_preset(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings merged with the row's; refuse any that contradict its preset."""
        for key, value in self.preset.items():
            if settings.get(key, value) != value:
                raise BadInput(
                    f"strategy.{key} = {settings[key]!r} contradicts strategy.name = "
                    f"{self.name!r}, which means {key} = {value!r}; leave one of them out"
                )
        return {**self.defaults, **self.preset, **settings}


_FEDRAW = (
    'Bajpai, Saxena, Lalanda, Vega: "FedRAW: Preserving Rare-Label Influence in Asynchronous '
    'Federated Learning"'
)

_ACE = (
    'Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: "Mitigating '
    'Participation Imbalance Bias in Asynchronous Federated Learning", arXiv 2511.19066, 2025'
)

_ROWS = (
    Method(
        "fedavg",
        "FedAvg",
        FedAvg,
        'McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized '
        'Data", AISTATS 2017',
        "waits for all clients and averages their models by sample counts",
        source="the paper",
        demo=True,
        audit_rule=("all", "samples"),
        thresholds=(0.06, 0.21),
        memory=(3, 0, 0),
        merit=45.1,
    ),
    Method(
        "qfedavg",
        "q-FedAvg",
        QFedAvg,
        'Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020',
        "waits for all clients and weights those with a higher loss more",
        source="its authors' code",
        demo=True,
        memory=(3, 0, 0),
        merit=21.1,
    ),
    Method(
        "fedasync",
        "FedAsync",
        FedAsync,
        'Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019',
        "mixes every update into the model at once, stale ones with less weight",
        source="third-party code",
        demo=True,
        memory=(1, 0, 0),
        merit=0.7,
    ),
    Method(
        "fedbuff",
        "FedBuff",
        FedBuff,
        'Nguyen et al.: "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022',
        "waits for K updates, adds their mean to the model and clears the buffer",
        source="its authors' code",
        demo=True,
        audit_rule=("blocks", "uniform"),
        thresholds=ADDING,
        memory=(3, 0, 0),
        merit=20.7,
    ),
    Method(
        "fedfa",
        "FedFa",
        FedFa,
        'Xu et al.: "FedFa: A Fully Asynchronous Training Paradigm for Federated Learning", '
        "IJCAI 2024",
        "averages the last K updates, regardless of sender, so fast clients fill the buffer",
        source="third-party code",
        demo=True,
        audit_rule=("window", "uniform"),
        thresholds=AVERAGING,
        memory=(3, 1, 0),
        merit=0.9,
        colour="#0a78b8",
    ),
    Method(
        "ca2fl",
        "CA2FL",
        CA2FL,
        'Wang et al.: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with '
        'Cached Update Calibration", ICLR 2024',
        "remembers the latest update of every client, so that all clients have equal weight; it "
        "stores one model per client",
        source="third-party code",
        demo=True,
        audit_rule=("blocks", "cached"),
        thresholds=ADDING,
        memory=(4, 1, 1),
        merit=56.5,
    ),
    Method(
        "mifa",
        "MIFA",
        MIFA,
        'Gu, Huang, Zhang, Huang: "Fast Federated Learning in the Presence of Arbitrary Device '
        'Unavailability", NeurIPS 2021',
        "adds the mean of every client's last update to the model after every K arrivals; it "
        "stores one model per client",
        source="its authors' code",
        audit_rule=("blocks", "cached"),
        thresholds=ADDING,
        memory=(3, 0, 1),
        merit=48.1,
    ),
    Method(
        "fedvarp",
        "FedVARP",
        FedVARP,
        'Jhunjhunwala, Sharma, Nagarkatti, Joshi: "FedVARP: Tackling the Variance Due to Partial '
        'Client Participation in Federated Learning", UAI 2022',
        "corrects every update by the client's last one and the mean over all clients; with a "
        "buffer of K it is CA2FL, and it stores one model per client",
        source="third-party code",
        related="special case of ca2fl (buffer = 1)",
        audit_rule=("single", "cached"),
        thresholds=(0.07, 0.23),
        memory=(5, 0, 1),
        merit=56.6,
    ),
    Method(
        "ace",
        "ACE",
        ACE,
        _ACE,
        "adds the mean of every client's last update to the model on each arrival, which is MIFA "
        "with K = 1; it stores one model per client",
        source="its authors' code",
        related="special case of mifa (buffer = 1)",
        audit_rule=("single", "cached"),
        thresholds=ADDING,
        memory=(3, 0, 1),
        merit=48.0,
    ),
    Method(
        "aced",
        "ACED",
        ACED,
        _ACE,
        "on each arrival, adds the mean of the last updates of all recently heard clients to the "
        "model; it stores one model for each of these",
        source="its authors' code",
        audit_rule=("recent", "contact"),
        thresholds=ADDING,
        memory=(3, 0, 1),
        merit=19.1,
    ),
    Method(
        "aced-start",
        "ACED, age from the start",
        ACED,
        _ACE,
        "is ACED with the age of an update counted from the version it was trained from, so that "
        "slow clients do not count",
        source="its authors' code",
        related="another reading of aced",
        preset={"age": "start"},
        audit_rule=("recent", "started"),
        thresholds=ADDING,
        memory=(3, 0, 1),
        merit=4.5,
    ),
    Method(
        "area",
        "AREA",
        AREA,
        'Iakovidou, Kim: "Asynchronous Federated Stochastic Optimization for Heterogeneous '
        'Objectives Under Arbitrary Delays", arXiv 2405.10123, 2025',
        "averages the last model of every client, new or old, which the server stores",
        source="its authors' code",
        audit_rule=("blocks", "cached"),
        thresholds=AVERAGING,
        memory=(3, 0, 1),
        merit=8.7,
    ),
    Method(
        "fedau",
        "FedAU",
        FedAU,
        'Wang, Ji: "A Lightweight Method for Tackling Unknown Participation Statistics in '
        'Federated Averaging", ICLR 2024',
        "weights updates by how rarely their clients take part",
        source="its authors' code",
        audit_rule=("blocks", "intervals"),
        thresholds=(0.03, 0.19),
        memory=(2, 1, 0),
        merit=33.1,
    ),
    Method(
        "fedstale",
        "FedStale",
        FedStale,
        'Rodio, Neglia: "FedStale: Leveraging Stale Client Updates in Federated Learning", arXiv '
        "2405.04171, 2024",
        "corrects updates by all clients' last ones to an extent β, and weights them by how rarely "
        "their clients take part; it stores one model per client",
        source="its authors' code",
        related="general form of ca2fl, mifa and fedbuff",
        audit_rule=("blocks", "corrected"),
        thresholds=ADDING,
        memory=(4, 1, 1),
        merit=40.1,
    ),
    Method(
        "fedstaleweight",
        "FedStaleWeight",
        FedStaleWeight,
        'Ma, Tu, Chen, Reddi: "FedStaleWeight: Buffered Asynchronous Federated Learning with Fair '
        'Aggregation via Staleness Reweighting", arXiv 2406.02877, 2024',
        "weights the K updates of a buffer by how stale their clients usually are",
        source="its authors' code",
        audit_rule=("blocks", "staleness"),
        thresholds=ADDING,
        memory=(1, 1, 0),
        merit=35.0,
    ),
    Method(
        "fadas",
        "FADAS",
        FADAS,
        'Wang, Wang, Lu, Chen: "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML '
        "2024",
        "makes a step of AMSGrad with the mean of K updates, and a shorter one if one of them is "
        "very stale",
        source="its authors' code",
        memory=(6, 0, 0),
        merit=5.9,
    ),
    Method(
        "fedraw-dedup-only",
        "FedRAW, one slot only",
        FedRAW,
        _FEDRAW,
        "keeps one update per client in its buffer and weights all clients equally",
        source="the paper",
        preset={"weighting": "uniform"},
        demo=True,
        audit_rule=("dedup", "uniform"),
        thresholds=AVERAGING,
        memory=(3, 1, 0),
    ),
    Method(
        "fedraw-weight-only",
        "FedRAW, weights only",
        FedRAW,
        _FEDRAW,
        "averages the last K updates, weighted by how rare the clients' labels are",
        source="the paper",
        preset={"dedup": False},
        demo=True,
        audit_rule=("window", "rarity"),
        thresholds=AVERAGING,
        memory=(3, 1, 0),
    ),
    Method(
        "fedraw-neither",
        "FedRAW, neither slots nor weights",
        FedRAW,
        _FEDRAW,
        "averages the last K updates, which is FedFa",
        source="the paper",
        related="ablation of fedraw, the same as fedfa",
        preset={"dedup": False, "weighting": "uniform"},
        memory=(3, 1, 0),
    ),
    Method(
        "fedraw",
        "FedRAW",
        FedRAW,
        _FEDRAW,
        "keeps one update per client in its buffer and weights it by how rare the client's labels "
        "are",
        source="the paper",
        demo=True,
        audit_rule=("dedup", "rarity"),
        thresholds=AVERAGING,
        memory=(3, 1, 0),
        merit=11.0,
        colour="#d55e00",
    ),
    Method(
        "fedraw-replay",
        "Replay",
        Replay,
        "beyond the paper; see docs/research/beyond.md",
        "adds updates as FedBuff does, and reapplies the last update of each rare client to the "
        "extent that other updates have undone it; it stores at most K updates",
        source="this project",
        demo=True,
        audit_rule=("blocks", "replay"),
        thresholds=ADDING,
        memory=(3, 1, 0),
        merit=56.3,
    ),
    Method(
        "fedraw-replay-debt",
        "Debt replay",
        Replay,
        "beyond the paper; see docs/research/beyond.md",
        "adds updates so that every client is weighted by its rarity and its samples, however "
        "often it arrives, and reapplies the last update of the clients that arrive too seldom; it "
        "stores at most K updates",
        source="this project",
        preset={"select": "debt"},
        defaults={"target": "mix"},
        variant=True,
        audit_rule=("blocks", "debt"),
        thresholds=ADDING,
        memory=(3, 1, 0),
        merit=61.4,
    ),
    Method(
        "one-pass",
        "One pass",
        OnePass,
        "beyond the paper; see docs/research/one-pass.md",
        "asks every client once for the sums of fixed features and solves a linear classifier from "
        "their totals, so the order and the speed of clients do not matter; no network is trained, "
        "and the server stores the sums of every client",
        source="this project",
        related="the sums of Fed3R, solved as a discriminant",
        stores="the sums of every client; on a server they lie on disk",
        demo=True,
    ),
)

CATALOG: dict[str, Method] = {method.name: method for method in _ROWS}


def _toml(value: Any) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)


def _type_text(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(f'"{value}"' for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_type_text(own) for own in get_args(hint))
    return "none" if hint is NoneType else getattr(hint, "__name__", str(hint))


def find_method(name: object, key: str = "strategy.name") -> Method:
    """Return the method of this name; an error about an unknown name calls the setting `key`."""
    if not isinstance(name, str) or name not in CATALOG:
        unknown = f"{key} = {name!r} is unknown; {nearest(name, CATALOG)}"
        raise BadInput(removal("strategy.name", name) or unknown)
    return CATALOG[name]


def method_of(strategy: Strategy[Any]) -> Method | None:
    """Return the row of a strategy, or None if it has no row.

    If the settings match the preset of an ablation, this is the ablation's row.

    >>> method_of(FedRAW(weighting="uniform")).name
    'fedraw-dedup-only'
    """
    settings = settings_of(strategy)
    rows = [
        method
        for method in CATALOG.values()
        if method.factory is type(strategy) and method.preset.items() <= settings.items()
    ]
    return max(rows, key=lambda method: len(method.preset), default=None)


def log_name(strategy: Strategy[Any]) -> str:
    """Return the name of a strategy in logs and tables: that of its row, or else of its class.

    >>> log_name(FedRAW(dedup=False)), log_name(FedFa(buffer=4))
    ('fedraw-weight-only', 'fedfa')
    """
    method = method_of(strategy)
    return _class_name(strategy) if method is None else method.name


def spec_name(strategy: Strategy[Any]) -> str:
    """Return the name under which a spec lists a strategy with all of its settings.

    >>> spec_name(FedRAW(dedup=False))
    'fedraw'
    """
    method = method_of(strategy)
    return _class_name(strategy) if method is None else method.base.name


def _class_name(strategy: Strategy[Any]) -> str:
    """Return a name for a strategy without a row that no row has."""
    name = type(strategy).__name__.lower()
    return f"own-{name}" if name in CATALOG else name


def settings_of(strategy: Strategy[Any]) -> dict[str, Any]:
    """Return the settings that logs record for a strategy; settings of None are left out.

    >>> settings_of(FedFa(buffer=4))
    {'buffer': 4}
    """
    if not is_dataclass(strategy) or isinstance(strategy, type):
        return {}
    values = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    return {
        name: value
        for name, value in values.items()
        if not (value is None or isinstance(value, Layout))
    }
