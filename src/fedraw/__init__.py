"""Asynchronous federated learning that keeps rare labels.

>>> import fedraw
>>> table = fedraw.LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
>>> fedraw.rarity_scores(table)
array([0.5 , 0.75])

Names are imported when they are first used, so that `import fedraw` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedraw.auditing import Audit, audit
    from fedraw.core.labels import LabelTable
    from fedraw.core.layout import Layout
    from fedraw.core.rarity import rarity_scores
    from fedraw.core.table import Table
    from fedraw.core.update import Update
    from fedraw.core.weighting import weights
    from fedraw.data.arrays import from_arrays
    from fedraw.data.columns import Columns
    from fedraw.data.dataset import Dataset
    from fedraw.errors import (
        BadInput,
        FedrawError,
        Interrupted,
        MissingExtra,
        RefusedUpdate,
        TrainingFailed,
        WorkerDied,
    )
    from fedraw.eventlog.compare import Comparison, ComparisonRow, PairedDifference, Stat, compare
    from fedraw.experiment.result import Result, SeedResult, load
    from fedraw.experiment.sections import (
        IID,
        Availability,
        ByColumn,
        Calibration,
        Correlated,
        Costs,
        Coverage,
        DataSpec,
        Dirichlet,
        Drift,
        Equal,
        Features,
        LabelNoise,
        Losses,
        Membership,
        Misreport,
        Ratio,
        Stragglers,
        Summaries,
        Uniform,
    )
    from fedraw.experiment.simulate import simulate
    from fedraw.experiment.spec import Spec
    from fedraw.experiment.tuning import Tuning, TuningPoint, tune
    from fedraw.learning.losses import logit_shift
    from fedraw.learning.own_training import ClientData, TrainingContext
    from fedraw.learning.sgd import SGD
    from fedraw.simulation.loop import Simulation, Step
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
    from fedraw.strategies.protocol import (
        Arrived,
        Declared,
        Joined,
        Left,
        Needs,
        Setup,
        Strategy,
    )
    from fedraw.strategies.qfedavg import QFedAvg
    from fedraw.strategies.replay import Replay

__version__ = "0.2.0"

# Where each public name is defined.
_DEFINED_IN = {
    "ACE": "fedraw.strategies.ace",
    "ACED": "fedraw.strategies.aced",
    "AREA": "fedraw.strategies.area",
    "CA2FL": "fedraw.strategies.ca2fl",
    "FADAS": "fedraw.strategies.fadas",
    "IID": "fedraw.experiment.sections",
    "MIFA": "fedraw.strategies.mifa",
    "SGD": "fedraw.learning.sgd",
    "Arrived": "fedraw.strategies.protocol",
    "Audit": "fedraw.auditing",
    "Availability": "fedraw.experiment.sections",
    "BadInput": "fedraw.errors",
    "ByColumn": "fedraw.experiment.sections",
    "Calibration": "fedraw.experiment.sections",
    "ClientData": "fedraw.learning.own_training",
    "Columns": "fedraw.data.columns",
    "Comparison": "fedraw.eventlog.compare",
    "ComparisonRow": "fedraw.eventlog.compare",
    "Correlated": "fedraw.experiment.sections",
    "Costs": "fedraw.experiment.sections",
    "Coverage": "fedraw.experiment.sections",
    "DataSpec": "fedraw.experiment.sections",
    "Dataset": "fedraw.data.dataset",
    "Declared": "fedraw.strategies.protocol",
    "Dirichlet": "fedraw.experiment.sections",
    "Drift": "fedraw.experiment.sections",
    "Equal": "fedraw.experiment.sections",
    "Features": "fedraw.experiment.sections",
    "FedAU": "fedraw.strategies.fedau",
    "FedAsync": "fedraw.strategies.fedasync",
    "FedAvg": "fedraw.strategies.fedavg",
    "FedBuff": "fedraw.strategies.fedbuff",
    "FedFa": "fedraw.strategies.fedfa",
    "FedRAW": "fedraw.strategies.fedraw",
    "FedStale": "fedraw.strategies.fedstale",
    "FedStaleWeight": "fedraw.strategies.fedstaleweight",
    "FedVARP": "fedraw.strategies.fedvarp",
    "FedrawError": "fedraw.errors",
    "Interrupted": "fedraw.errors",
    "Joined": "fedraw.strategies.protocol",
    "LabelNoise": "fedraw.experiment.sections",
    "LabelTable": "fedraw.core.labels",
    "Layout": "fedraw.core.layout",
    "Left": "fedraw.strategies.protocol",
    "Losses": "fedraw.experiment.sections",
    "Membership": "fedraw.experiment.sections",
    "Misreport": "fedraw.experiment.sections",
    "MissingExtra": "fedraw.errors",
    "Needs": "fedraw.strategies.protocol",
    "OnePass": "fedraw.strategies.one_pass",
    "PairedDifference": "fedraw.eventlog.compare",
    "QFedAvg": "fedraw.strategies.qfedavg",
    "Ratio": "fedraw.experiment.sections",
    "Stragglers": "fedraw.experiment.sections",
    "RefusedUpdate": "fedraw.errors",
    "Replay": "fedraw.strategies.replay",
    "Result": "fedraw.experiment.result",
    "SeedResult": "fedraw.experiment.result",
    "Setup": "fedraw.strategies.protocol",
    "Simulation": "fedraw.simulation.loop",
    "Spec": "fedraw.experiment.spec",
    "Stat": "fedraw.eventlog.compare",
    "Step": "fedraw.simulation.loop",
    "Strategy": "fedraw.strategies.protocol",
    "Summaries": "fedraw.experiment.sections",
    "Table": "fedraw.core.table",
    "TrainingContext": "fedraw.learning.own_training",
    "TrainingFailed": "fedraw.errors",
    "Tuning": "fedraw.experiment.tuning",
    "TuningPoint": "fedraw.experiment.tuning",
    "Uniform": "fedraw.experiment.sections",
    "Update": "fedraw.core.update",
    "WorkerDied": "fedraw.errors",
    "audit": "fedraw.auditing",
    "compare": "fedraw.eventlog.compare",
    "from_arrays": "fedraw.data.arrays",
    "load": "fedraw.experiment.result",
    "logit_shift": "fedraw.learning.losses",
    "rarity_scores": "fedraw.core.rarity",
    "simulate": "fedraw.experiment.simulate",
    "tune": "fedraw.experiment.tuning",
    "weights": "fedraw.core.weighting",
}

__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "CA2FL",
    "FADAS",
    "IID",
    "MIFA",
    "SGD",
    "Arrived",
    "Audit",
    "Availability",
    "BadInput",
    "ByColumn",
    "Calibration",
    "ClientData",
    "Columns",
    "Comparison",
    "ComparisonRow",
    "Correlated",
    "Costs",
    "Coverage",
    "DataSpec",
    "Dataset",
    "Declared",
    "Dirichlet",
    "Drift",
    "Equal",
    "Features",
    "FedAU",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedRAW",
    "FedStale",
    "FedStaleWeight",
    "FedVARP",
    "FedrawError",
    "Interrupted",
    "Joined",
    "LabelNoise",
    "LabelTable",
    "Layout",
    "Left",
    "Losses",
    "Membership",
    "Misreport",
    "MissingExtra",
    "Needs",
    "OnePass",
    "PairedDifference",
    "QFedAvg",
    "Ratio",
    "RefusedUpdate",
    "Replay",
    "Result",
    "SeedResult",
    "Setup",
    "Simulation",
    "Spec",
    "Stat",
    "Step",
    "Stragglers",
    "Strategy",
    "Summaries",
    "Table",
    "TrainingContext",
    "TrainingFailed",
    "Tuning",
    "TuningPoint",
    "Uniform",
    "Update",
    "WorkerDied",
    "audit",
    "compare",
    "from_arrays",
    "load",
    "logit_shift",
    "rarity_scores",
    "simulate",
    "tune",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'fedraw' has no attribute {name!r}")
    value = getattr(import_module(_DEFINED_IN[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
