"""Makes a Flower ServerApp of a strategy and a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.flower.loop import run_federation
from fedraw.flower.messages import MessageCodec
from fedraw.flower.run_config import read_server_settings, read_strategy, strategy_table
from fedraw.flower.tensors import Template, record_of
from fedraw.server.coordinator import open_federation
from fedraw.server.evaluation import Recall
from fedraw.server.settings import Settings


def server_app(
    *,
    initial_model: Callable[[], Mapping[str, Any] | ArrayRecord],
    strategy: Any = None,
    evaluate: Callable[[ArrayRecord], Recall] | None = None,
    statistics: Collection[str] | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
) -> ServerApp:
    """Return a ServerApp that leads an asynchronous federation, or continues an earlier run.

    Args:
        initial_model: Returns a state_dict, a mapping from names to arrays, or an ArrayRecord.
        strategy: The strategy; by default the run config's `fedraw.strategy` names it.
        evaluate: Evaluates a model on the server's own test set.
        statistics: Names of the tensors that methods on differences average; by default those that
            end in running_mean or running_var.
        settings: The settings of the server, which `fedraw.*` of the run config overrides.

    """

    def main(grid: Grid, context: Context) -> None:
        _show_log()
        chosen = read_server_settings(context.run_config, settings)
        record = record_of(initial_model())
        template = Template.of(record, statistics)
        method = _choose(strategy, context.run_config)
        codec = MessageCodec(template, method.needs)

        def tested(model: Vector) -> Recall:
            assert evaluate is not None
            # A copy of the mapping, not of the tensors: the user may empty it.
            return evaluate(codec.record(model).copy())

        coordinator = open_federation(
            method,
            lambda: template.read(record),
            chosen,
            template.layout,
            dtypes={name: header.dtype.name for name, header in template.headers.items()},
            evaluate=None if evaluate is None else tested,
            engine=f"flwr {version('flwr')}",
        )
        run_federation(grid, coordinator, codec, chosen.poll)

    app = ServerApp()
    app.main()(main)
    return app


def _choose(strategy: Any, run_config: Mapping[str, Any]) -> Any:
    if strategy is None:
        return read_strategy(run_config)
    if named := strategy_table(run_config):
        raise BadInput(
            f"fedraw.strategy.{next(iter(named))} is set, but this app brings a strategy of its "
            "own; leave one of them out"
        )
    return strategy


def _show_log() -> None:
    """Send fedraw's log messages to Flower's handlers, so that `flwr log` shows them."""
    ours, flowers = logging.getLogger("fedraw"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    for handler in flowers.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
