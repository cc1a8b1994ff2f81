"""Strategies: one published method per file, the protocol they follow, and the catalogue of all.

A strategy of your own needs `Needs`, `Setup`, the events, `Contents`, and usually the helpers
`check`, `change_members` and `frozen`; see `examples/own_strategy.py`.
"""

from fedraw.core.federation import Federation
from fedraw.core.types import Vector
from fedraw.strategies.ace import ACE
from fedraw.strategies.aced import ACED
from fedraw.strategies.area import AREA
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.catalog import (
    CATALOG,
    Method,
    find_method,
    log_name,
    method_of,
    settings_of,
    spec_name,
)
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
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Declared,
    Event,
    Joined,
    Left,
    Needs,
    Payload,
    Receivers,
    Setup,
    State,
    Strategy,
    change_members,
    check,
    frozen,
)
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay
from fedraw.strategies.scoring import LabelEvidence, Scorer, make_scorer
from fedraw.strategies.statistics import with_statistics

__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "CA2FL",
    "CATALOG",
    "FADAS",
    "MIFA",
    "Arrived",
    "Contents",
    "Declared",
    "Event",
    "FedAU",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedRAW",
    "FedStale",
    "FedStaleWeight",
    "FedVARP",
    "Federation",
    "Joined",
    "LabelEvidence",
    "Left",
    "Method",
    "Needs",
    "OnePass",
    "Payload",
    "QFedAvg",
    "Receivers",
    "Replay",
    "Scorer",
    "Setup",
    "State",
    "Strategy",
    "Vector",
    "change_members",
    "check",
    "find_method",
    "frozen",
    "log_name",
    "make_scorer",
    "method_of",
    "settings_of",
    "spec_name",
    "with_statistics",
]
