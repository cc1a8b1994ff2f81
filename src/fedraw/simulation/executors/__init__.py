"""Executors train the clients: in this process, in worker processes, or on a Ray cluster.

The results do not depend on the executor. `Processes` (module `processes`) and `RayWorkers` (module
`ray_workers`) are imported from their own modules, because they need more than NumPy.
"""

from fedraw.simulation.executors.base import Executor, Job, Train, TrainingResult
from fedraw.simulation.executors.inline import Batched, Inline, TrainTogether, no_training

__all__ = [
    "Batched",
    "Executor",
    "Inline",
    "Job",
    "Train",
    "TrainTogether",
    "TrainingResult",
    "no_training",
]
