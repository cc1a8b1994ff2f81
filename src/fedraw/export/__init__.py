"""Exports event logs to files and to experiment trackers, and models to files.

scalars   the series of a run: values of each evaluation, and a row for each arrival
targets   the formats: CSV, Parquet, TensorBoard
trackers  callbacks of `simulate`: MLflow, Weights & Biases
export    reads logs, also while they grow, and writes their series to a target
model     writes the model of a run or of a server, with its metadata and a model card
"""

from fedraw.export.export import export_runs
from fedraw.export.targets import TARGETS
from fedraw.export.trackers import MLflow, Tracker, WandB

__all__ = ["TARGETS", "MLflow", "Tracker", "WandB", "export_runs"]
