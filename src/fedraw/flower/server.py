"""Makes a Flower ServerApp of a strategy and a model, with settings from the run config.

Settings are the keys `fedraw.<key>`, `fedraw.strategy.<key>`, `fedraw.train.<key>`,
`fedraw.train-at.<site>.<key>`, `fedraw.summaries.<key>` and `fedraw.update-privacy.<key>`. A run
config holds only texts, numbers and truth values, and a run can override only keys that the app's
pyproject.toml lists. So a list is a text with commas, and an empty text means "not set". fedraw's
own keys may be written with hyphens; keys of the tables `train` and `train-at` reach the sites as
they are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from importlib.metadata import version
from typing import Any, get_origin

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedraw.core.json_log import JsonFormatter
from fedraw.core.settings import alternatives, checked_settings, read_settings, type_hints
from fedraw.core.types import Vector
from fedraw.dashboard.monitor import Monitor, monitored
from fedraw.errors import BadInput
from fedraw.flower.loop import run_federation
from fedraw.flower.messages import FlowerCodec
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.privacy.budget import Privacy
from fedraw.privacy.updates import UpdatePrivacy
from fedraw.server.coordinator import open_federation
from fedraw.server.results import Found
from fedraw.server.settings import ServerSettings
from fedraw.strategies.catalog import find_method

SECTION = "fedraw"
STRATEGY, TRAIN, TRAIN_AT = "strategy", "train", "train_at"
SUMMARIES, UPDATE_PRIVACY = "summaries", "update_privacy"
DEFAULT_STRATEGY = "fedraw"


def server_app(
    *,
    initial_model: Callable[[], Mapping[str, Any] | ArrayRecord],
    strategy: Any = None,
    evaluate: Callable[[ArrayRecord], Found] | None = None,
    train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    statistics: Collection[str] | None = None,
    settings: ServerSettings | Mapping[str, Any] | None = None,
) -> ServerApp:
    """Return a ServerApp that leads an asynchronous federation, or continues an earlier run.

    Args:
        initial_model: Returns a state_dict, a mapping from names to arrays, or an ArrayRecord.
        strategy: The strategy; by default the run config's `fedraw.strategy` names it.
        evaluate: Evaluates a model on the server's own test set; it returns a Recall, a mapping
            from names of metrics to numbers, or both as a tuple.
        train_config: Returns what one training is told: (site, version) -> settings. Those of the
            tables `fedraw.train` and `fedraw.train-at` of the run config override them.
        statistics: Names of the tensors that methods on differences average; by default those that
            end in running_mean or running_var.
        settings: The settings of the server, which `fedraw.*` of the run config overrides.

    """

    def main(grid: Grid, context: Context) -> None:
        chosen = read_server_settings(context.run_config, settings)
        _show_log(chosen.log_format)
        Monitor.check(str(chosen.dashboard), chosen.dashboard_token, chosen.alerts)
        record = record_of(initial_model())
        template = TensorTemplate.of(record, statistics)
        method = _choose(strategy, context.run_config)
        codec = FlowerCodec(template, method.needs)

        def tested(model: Vector) -> Found:
            assert evaluate is not None
            # A copy of the mapping, not of the tensors: the user may empty it.
            return evaluate(codec.record(model).copy())

        coordinator = open_federation(
            method,
            lambda: template.read(record),
            chosen,
            template.layout,
            dtypes={name: header.dtype.name for name, header in template.headers.items()},
            constants={name: kept.numpy() for name, kept in template.kept.items()},
            evaluate=None if evaluate is None else tested,
            train_config=train_config,
            engine=f"flwr {version('flwr')}",
        )
        with monitored(chosen.folder, str(chosen.dashboard), chosen.dashboard_token, chosen.alerts):
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


def read_server_settings(
    run_config: Mapping[str, Any], given: ServerSettings | Mapping[str, Any] | None = None
) -> ServerSettings:
    """Return the app's settings, overridden by those of the run config.

    >>> read_server_settings({"fedraw.min-clients": 4, "lr": 0.1}, {"arrivals": 100}).min_clients
    4
    """
    if isinstance(given, ServerSettings):
        base = {field.name: getattr(given, field.name) for field in fields(given)}
    else:
        base = _read(ServerSettings, _underscored(given or {}), "settings")
    tables = _tables(run_config)
    chosen = {**base, **_read(ServerSettings, tables[""], SECTION)}
    at = dict(chosen.get(TRAIN_AT, {}))
    for key, value in tables[TRAIN_AT].items():
        site, dot, name = key.partition(".")
        if not dot:
            raise BadInput(
                f"fedraw.train-at.{key} names no setting; write fedraw.train-at.SITE.KEY"
            )
        at[site] = {**at.get(site, {}), name: value}
    train = {**chosen.get(TRAIN, {}), **tables[TRAIN]}
    more = {TRAIN: train, TRAIN_AT: at, **_private_summaries(tables[SUMMARIES])}
    if noise := _underscored(tables[UPDATE_PRIVACY]):
        more[UPDATE_PRIVACY] = read_settings(UpdatePrivacy, noise, f"{SECTION}.{UPDATE_PRIVACY}")
    return ServerSettings(**{**chosen, **more})


def _private_summaries(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of private label summaries: the budget, and the public list of labels."""
    own = _underscored(table)
    if not own:
        return {}
    labels = _names(own.pop("labels", ""))
    return {SUMMARIES: read_settings(Privacy, own, f"{SECTION}.{SUMMARIES}"), "labels": labels}


def read_strategy(run_config: Mapping[str, Any]) -> Any:
    """Return the strategy that the run config names, with its settings.

    >>> read_strategy({"fedraw.strategy.name": "fedfa", "fedraw.strategy.buffer": 4}).buffer
    4
    """
    table = strategy_table(run_config)
    name = table.pop("name", DEFAULT_STRATEGY)
    method = find_method(name, f"{SECTION}.{STRATEGY}.name")
    return method.make(_read(method.factory, table, f"{SECTION}.{STRATEGY}"))


def strategy_table(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys below `fedraw.strategy`, without that prefix."""
    return _underscored(_tables(run_config)[STRATEGY])


def _tables(run_config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings below `fedraw` that are set, by table; "" has those in no table."""
    tables: dict[str, dict[str, Any]] = {
        name: {} for name in ("", STRATEGY, TRAIN, TRAIN_AT, SUMMARIES, UPDATE_PRIVACY)
    }
    for key, value in run_config.items():
        first, _, own = key.partition(".")
        if first != SECTION or value == "":
            continue
        head, dot, rest = own.partition(".")
        name = head.replace("-", "_")
        if not dot:
            tables[""][name] = value
        elif name in tables:
            tables[name][rest] = value
        else:
            known = ", ".join(table for table in tables if table)
            raise BadInput(f"{key} is in no table of fedraw's settings; known: {known}")
    return tables


def _underscored(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _read(kind: Any, table: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Check the values, after splitting texts where the dataclass has a list."""
    hints = type_hints(kind)

    def is_list(key: str) -> bool:
        return any(get_origin(kind) is tuple for kind in alternatives(hints.get(key)))

    split = {key: _names(value) if is_list(key) else value for key, value in table.items()}
    return checked_settings(kind, split, section)


def _names(value: Any) -> tuple[str, ...]:
    """Names from "north, south", from a list, or from a single number."""
    parts = value if isinstance(value, list | tuple | set | frozenset) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())


class _Stderr(logging.StreamHandler[Any]):
    """Writes to what standard error is at that moment: Flower redirects it to `flwr log`."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The stream to write to."""
        return sys.stderr


def _show_log(log_format: str) -> None:
    """Send fedraw's log messages to where `flwr log` shows them."""
    ours, flowers = logging.getLogger("fedraw"), logging.getLogger("flwr")
    ours.setLevel(logging.INFO)
    if log_format == "json":
        if not any(isinstance(handler, _Stderr) for handler in ours.handlers):
            ours.addHandler(_Stderr())
            ours.handlers[-1].setFormatter(JsonFormatter())
        return
    for handler in flowers.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
