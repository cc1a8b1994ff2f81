"""The server of a federation, independent of the engine that carries its messages.

An engine opens a federation with `open_federation` and drives the returned `Coordinator`: it sends
the coordinator's tasks to nodes and hands in their replies. `fedraw.flower` is the engine for
Flower, and `fedraw.flare` the one for NVIDIA FLARE.
"""

from __future__ import annotations

from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.results import Recall
from fedraw.server.settings import ServerSettings
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TaskKind,
    TrainReply,
)

__all__ = [
    "Coordinator",
    "EvaluateReply",
    "Failure",
    "LabelSummary",
    "Recall",
    "Reply",
    "ServerSettings",
    "Task",
    "TaskKind",
    "TrainReply",
    "open_federation",
]
