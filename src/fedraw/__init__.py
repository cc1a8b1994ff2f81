"""Asynchronous federated learning that keeps rare labels.

>>> import fedraw
>>> table = fedraw.LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
>>> fedraw.rarity_scores(table)
array([0.5 , 0.75])
"""

from fedraw.analysis.audit import Audit, audit
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rarity_scores
from fedraw.core.update import Update
from fedraw.core.weighting import weights
from fedraw.data.dataset import Dataset, from_arrays
from fedraw.errors import (
    BadInput,
    FedrawError,
    Interrupted,
    MissingExtra,
    RefusedUpdate,
    WorkerDied,
)
from fedraw.experiments.compare import Row, Stat, compare
from fedraw.experiments.crew import Crew
from fedraw.experiments.run import How, Result, run
from fedraw.experiments.source import Where
from fedraw.experiments.spec import Spec
from fedraw.simulation.loop import Simulation, Step
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay
from fedraw.strategies.strategy import Arrived, Declared, Joined, Left, Request, Strategy

__version__ = "0.1.0"

__all__ = [
    "CA2FL",
    "Arrived",
    "Audit",
    "BadInput",
    "Crew",
    "Dataset",
    "Declared",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedRAW",
    "FedrawError",
    "How",
    "Interrupted",
    "Joined",
    "LabelTable",
    "Layout",
    "Left",
    "MissingExtra",
    "QFedAvg",
    "RefusedUpdate",
    "Replay",
    "Request",
    "Result",
    "Row",
    "Simulation",
    "Spec",
    "Stat",
    "Step",
    "Strategy",
    "Update",
    "Where",
    "WorkerDied",
    "audit",
    "compare",
    "from_arrays",
    "rarity_scores",
    "run",
    "weights",
]
