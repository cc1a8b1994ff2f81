"""Experiment trackers as callbacks of `simulate`: one run of the tracker for each seed, live.

    fedraw.simulate(strategy="fedraw", callbacks=[MLflow()])

The trackers' own settings and environment variables say where they write. A finished run, or that
of a server, reaches them through the records of its log.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedraw.errors import BadInput
from fedraw.eventlog.compare import flat
from fedraw.eventlog.records import EvaluationRecord, Record, StartRecord
from fedraw.eventlog.state import RunState
from fedraw.export.scalars import Scalars, scalars


class Tracker:
    """Sends the evaluations of each seed to a run of its own.

    A tracker has the methods `_begin(name, settings) -> run`, `_log(run, scalars)` and `_end(run,
    is_finished)`. The name of a run is `name`, by default that of the method, with the seed.
    """

    _begin: Any
    _log: Any
    _end: Any

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._runs: dict[int | None, tuple[RunState, Any]] = {}
        atexit.register(self.close)

    def __call__(self, record: Record, seed: int | None) -> None:
        """Begin a run, log an evaluation or end the run, as the record says."""
        if isinstance(record, StartRecord):
            name = self._name or record.name
            settings = {"method": record.name, "origin": record.origin, **flat(record.spec)}
            run = self._begin(name if seed is None else f"{name}-seed-{seed}", settings)
            self._runs[seed] = RunState(bounded=True), run
        if seed not in self._runs:
            raise BadInput(
                f"{type(self).__name__} cannot follow seed {seed}, which is resumed in the middle; "
                "leave out this callback, and give it run.records() when the run is finished"
            )
        state, run = self._runs[seed]
        state.apply(record)
        if isinstance(record, EvaluationRecord):
            self._log(run, scalars(state, record))
        if state.finished:
            del self._runs[seed]
            self._end(run, True)

    def close(self) -> None:
        """End the runs that were interrupted; the end of the process does the same."""
        while self._runs:
            self._end(self._runs.popitem()[1][1], False)


class MLflow(Tracker):
    """Runs of MLflow, in the store that MLFLOW_TRACKING_URI or `mlflow.set_tracking_uri` names."""

    def __init__(self, experiment: str = "fedraw", name: str | None = None) -> None:
        self._mlflow = _imported("mlflow")
        self._client = client = self._mlflow.MlflowClient()
        found = client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else client.create_experiment(experiment)
        super().__init__(name)

    def _begin(self, name: str, settings: Mapping[str, Any]) -> str:
        run: str = self._client.create_run(self._experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(run, _plain_name(key), str(value)[:6000])
        return run

    def _log(self, run: str, found: Scalars) -> None:
        stamp = round(1000 * (found.time if found.wall is None else found.wall))
        metrics = [
            self._mlflow.entities.Metric(_plain_name(name), value, stamp, found.event)
            for name, value in found.values.items()
        ]
        for start in range(0, len(metrics), 1000):  # the most that MLflow takes at once
            self._client.log_batch(run, metrics=metrics[start : start + 1000])

    def _end(self, run: str, is_finished: bool) -> None:
        self._client.set_terminated(run, "FINISHED" if is_finished else "KILLED")


class WandB(Tracker):
    """Runs of Weights & Biases; WANDB_MODE=offline keeps them on this machine."""

    def __init__(self, project: str = "fedraw", name: str | None = None) -> None:
        self._wandb, self._project = _imported("wandb"), project
        super().__init__(name)

    def _begin(self, name: str, settings: Mapping[str, Any]) -> Any:
        quiet = self._wandb.Settings(silent=True, console="off")
        own = {"project": self._project, "name": name, "config": dict(settings)}
        return self._wandb.init(**own, reinit="create_new", settings=quiet)

    def _log(self, run: Any, found: Scalars) -> None:
        run.log({**found.values, "time": found.time}, step=found.event)

    def _end(self, run: Any, is_finished: bool) -> None:
        run.finish(exit_code=0 if is_finished else 1)


def _imported(library: str) -> Any:
    try:
        return import_module(library)
    except ModuleNotFoundError:
        raise BadInput(f"{library} is not installed: pip install {library}") from None


def _plain_name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits, `_`, `-`, `.`, blanks and `/`.

    >>> _plain_name("recall/Mélanome <1>")
    'recall/Mélanome _1_'
    """
    return re.sub(r"[^\w\-. /]", "_", name)[:250]
