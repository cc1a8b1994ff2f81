"""Exports of event logs: to files, and to experiment trackers.

scalars   the series of a run, evaluation by evaluation and arrival by arrival
targets   where they go: CSV, Parquet, TensorBoard, MLflow, Weights & Biases
export    reads logs, also while they grow, and hands the series to a target
"""

from fedraw.export.export import export_runs
from fedraw.export.targets import TARGETS

__all__ = ["TARGETS", "export_runs"]
