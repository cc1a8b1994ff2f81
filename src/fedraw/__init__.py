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
    from fedraw.auditing.audit import Audit, audit
    from fedraw.core.labels import LabelTable
    from fedraw.core.layout import Layout
    from fedraw.core.rarity import rarity_scores
    from fedraw.core.update import Update
    from fedraw.core.weighting import weights
    from fedraw.data.arrays import from_arrays
    from fedraw.data.dataset import Dataset
    from fedraw.errors import (
        BadInput,
        FedrawError,
        Interrupted,
        MissingExtra,
        RefusedUpdate,
        WorkerDied,
    )
    from fedraw.eventlog.compare import ComparisonRow, Stat, compare
    from fedraw.experiment.options import Options
    from fedraw.experiment.runner import Result, run
    from fedraw.experiment.spec import Spec
    from fedraw.simulation.loop import Simulation, Step
    from fedraw.strategies.ca2fl import CA2FL
    from fedraw.strategies.fedasync import FedAsync
    from fedraw.strategies.fedavg import FedAvg
    from fedraw.strategies.fedbuff import FedBuff
    from fedraw.strategies.fedfa import FedFa
    from fedraw.strategies.fedraw import FedRAW
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

__version__ = "0.1.0"

# Where each public name is defined.
_DEFINED_IN = {
    "CA2FL": "fedraw.strategies.ca2fl",
    "Arrived": "fedraw.strategies.protocol",
    "Audit": "fedraw.auditing.audit",
    "BadInput": "fedraw.errors",
    "ComparisonRow": "fedraw.eventlog.compare",
    "Dataset": "fedraw.data.dataset",
    "Declared": "fedraw.strategies.protocol",
    "FedAsync": "fedraw.strategies.fedasync",
    "FedAvg": "fedraw.strategies.fedavg",
    "FedBuff": "fedraw.strategies.fedbuff",
    "FedFa": "fedraw.strategies.fedfa",
    "FedRAW": "fedraw.strategies.fedraw",
    "FedrawError": "fedraw.errors",
    "Interrupted": "fedraw.errors",
    "Joined": "fedraw.strategies.protocol",
    "LabelTable": "fedraw.core.labels",
    "Layout": "fedraw.core.layout",
    "Left": "fedraw.strategies.protocol",
    "MissingExtra": "fedraw.errors",
    "Needs": "fedraw.strategies.protocol",
    "Options": "fedraw.experiment.options",
    "QFedAvg": "fedraw.strategies.qfedavg",
    "RefusedUpdate": "fedraw.errors",
    "Replay": "fedraw.strategies.replay",
    "Result": "fedraw.experiment.runner",
    "Setup": "fedraw.strategies.protocol",
    "Simulation": "fedraw.simulation.loop",
    "Spec": "fedraw.experiment.spec",
    "Stat": "fedraw.eventlog.compare",
    "Step": "fedraw.simulation.loop",
    "Strategy": "fedraw.strategies.protocol",
    "Update": "fedraw.core.update",
    "WorkerDied": "fedraw.errors",
    "audit": "fedraw.auditing.audit",
    "compare": "fedraw.eventlog.compare",
    "from_arrays": "fedraw.data.arrays",
    "rarity_scores": "fedraw.core.rarity",
    "run": "fedraw.experiment.runner",
    "weights": "fedraw.core.weighting",
}

__all__ = [
    "CA2FL",
    "Arrived",
    "Audit",
    "BadInput",
    "ComparisonRow",
    "Dataset",
    "Declared",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedRAW",
    "FedrawError",
    "Interrupted",
    "Joined",
    "LabelTable",
    "Layout",
    "Left",
    "MissingExtra",
    "Needs",
    "Options",
    "QFedAvg",
    "RefusedUpdate",
    "Replay",
    "Result",
    "Setup",
    "Simulation",
    "Spec",
    "Stat",
    "Step",
    "Strategy",
    "Update",
    "WorkerDied",
    "audit",
    "compare",
    "from_arrays",
    "rarity_scores",
    "run",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'fedraw' has no attribute {name!r}")
    value = getattr(import_module(_DEFINED_IN[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
