"""Builds a Flower ServerApp from a strategy and a model, with settings from the run config.

Settings are the keys `fedraw.<key>`, `fedraw.strategy.<key>`, `fedraw.train.<key>`,
`fedraw.train-at.<site>.<key>`, `fedraw.summaries.<key>` and `fedraw.update-privacy.<key>`. A run
config holds only strings, numbers and booleans, and a run can override only keys that the app's
pyproject.toml lists. So a list is a string with commas, and an empty string means "not set".
fedraw's own keys may have hyphens; keys of the tables `train` and `train-at` reach the sites
unchanged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from typing import Any, get_origin

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedraw.core.json_log import JsonFormatter
from fedraw.core.settings import alternatives, checked_settings, keys
from fedraw.core.sums import Sums
from fedraw.core.types import Vector
from fedraw.errors import BadInput, FedrawError, FolderUnavailable
from fedraw.flower.loop import run_federation
from fedraw.flower.messages import BUDGET, FEATURE_MAP, FLOOR, LABELS, REGRESSION, FlowerCodec
from fedraw.flower.sums import GivenMap, feature_map_facts
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.privacy.budget import Privacy
from fedraw.privacy.updates import UpdatePrivacy
from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.results import EvaluationOutput
from fedraw.server.settings import ServerSettings
from fedraw.server.supervise import REFUSED_RUN
from fedraw.strategies.catalog import find_method
from fedraw.strategies.protocol import Needs

LOGGER = logging.getLogger("fedraw.server")

SECTION = "fedraw"
STRATEGY, TRAIN, TRAIN_AT = "strategy", "train", "train_at"
SUMMARIES, UPDATE_PRIVACY = "summaries", "update_privacy"
DEFAULT_STRATEGY = "fedraw"


def server_app(
    *,
    initial_model: Callable[[], Mapping[str, Any] | ArrayRecord] | None = None,
    strategy: Any = None,
    feature_map: GivenMap | None = None,
    evaluate: Callable[[ArrayRecord], EvaluationOutput] | None = None,
    train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    statistics: Collection[str] | None = None,
    settings: ServerSettings | Mapping[str, Any] | None = None,
) -> ServerApp:
    """Return a ServerApp that runs an asynchronous federation, or continues an earlier run.

    Args:
        initial_model: Returns a state_dict, a mapping from names to arrays, or an ArrayRecord. It
            is left out where sites send sums, because the model is then a linear layer.
        strategy: The strategy; by default the run config's `fedraw.strategy` names it.
        feature_map: The feature map, its file, or a function that returns it, where sites send the
            sums of their features; see `sums_app`.
        evaluate: Evaluates a model on the server's own test set; it returns a Recall, a mapping
            from names of metrics to numbers, or both as a tuple.
        train_config: Returns the settings of one training: (site, version) -> settings. The tables
            `fedraw.train` and `fedraw.train-at` of the run config override them.
        statistics: Names of the batch-norm statistics, which are averaged instead of added to; by
            default all names that end in running_mean or running_var.
        settings: The settings of the server; `fedraw.*` of the run config overrides them.

    """

    def open_server(context: Context) -> tuple[ServerSettings, Coordinator, FlowerCodec]:
        chosen, method, first = _with_sums(
            read_server_settings(context.run_config, settings),
            _choose_strategy(strategy, context.run_config),
            initial_model,
            feature_map,
        )
        _show_log(chosen.log_format)
        record = record_of(first())
        template = TensorTemplate.of(record, statistics)
        codec = FlowerCodec(template, method.needs, _sums_config(chosen, method.needs))

        def evaluate_vector(model: Vector) -> EvaluationOutput:
            assert evaluate is not None
            # A copy of the mapping, not of the tensors, because the user may modify it.
            return evaluate(codec.record(model).copy())

        coordinator = open_federation(
            method,
            lambda: template.read(record),
            chosen,
            template.layout,
            dtypes={name: header.dtype.name for name, header in template.headers.items()},
            constants={name: tensor.numpy() for name, tensor in template.constants.items()},
            evaluate=None if evaluate is None else evaluate_vector,
            train_config=train_config,
            engine=f"flwr {version('flwr')}",
        )
        return chosen, coordinator, codec

    def main(grid: Grid, context: Context) -> None:
        try:
            chosen, coordinator, codec = open_server(context)
        except FedrawError as problem:
            _show_log("text")
            LOGGER.error("%s", problem)
            raise _refusal(problem) from None
        run_federation(grid, coordinator, codec, chosen.poll)

    app = ServerApp()
    app.main()(main)
    return app


def _with_sums(
    settings: ServerSettings,
    strategy: Any,
    initial_model: Callable[[], Any] | None,
    feature_map: GivenMap | None,
) -> tuple[ServerSettings, Any, Callable[[], Any]]:
    """Return the settings, the strategy and the initial model; where sites send sums, of a map."""
    name = type(strategy).__name__
    if strategy.needs.payload is None:
        if feature_map is not None or initial_model is None:
            given = "feature_map" if feature_map is not None else "no initial_model"
            raise BadInput(
                f"server_app has {given}, and {name} trains a model; give initial_model alone, or "
                "use a strategy whose sites send sums, such as one-pass"
            )
        return settings, strategy, initial_model
    if feature_map is None or initial_model is not None:
        given = "initial_model" if initial_model is not None else "no feature_map"
        raise BadInput(
            f"server_app has {given}, and the model of {name} is a linear layer of the features; "
            "give feature_map alone: the file that every site has"
        )
    digest, width = feature_map_facts(feature_map)
    shape = (len(settings.labels), width)
    zeros = {"weight": np.zeros(shape, np.float32), "bias": np.zeros(shape[0], np.float32)}
    return replace(settings, feature_map=digest), strategy, lambda: zeros


def _sums_config(settings: ServerSettings, needs: Needs) -> dict[str, Any]:
    """Return what sites must know to send sums; empty for other strategies."""
    payload = needs.payload
    if not isinstance(payload, Sums):
        return {}
    own = {LABELS: list(settings.labels), FLOOR: payload.floor, FEATURE_MAP: settings.feature_map}
    if payload.regression:
        own[REGRESSION] = True
    budget = {} if payload.privacy is None else asdict(payload.privacy)
    return own | {f"{BUDGET}{key}": value for key, value in budget.items()}


def _refusal(problem: FedrawError) -> BadInput:
    """Return the error that Flower shows as the reason of the failed run.

    The text begins with REFUSED_RUN unless a later run may succeed: the server app of the last run
    has not ended yet, or the disk is full or not mounted.
    """
    if isinstance(problem, FolderUnavailable):
        return problem
    return BadInput(f"{REFUSED_RUN}: {problem}")


def _choose_strategy(strategy: Any, run_config: Mapping[str, Any]) -> Any:
    if strategy is None:
        return read_strategy(run_config)
    if table := strategy_table(run_config):
        raise BadInput(
            f"fedraw.strategy.{next(iter(table))} is set, but this app has its own strategy; "
            "remove one of them"
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
                f"fedraw.train-at.{key} has no setting's name; write fedraw.train-at.SITE.KEY"
            )
        at[site] = {**at.get(site, {}), name: value}
    train = {**chosen.get(TRAIN, {}), **tables[TRAIN]}
    more = {TRAIN: train, TRAIN_AT: at, **_private_summaries(tables[SUMMARIES])}
    if noise := _underscored(tables[UPDATE_PRIVACY]):
        more[UPDATE_PRIVACY] = UpdatePrivacy.read(noise, f"{SECTION}.{UPDATE_PRIVACY}")
    return ServerSettings(**{**chosen, **more})


def _private_summaries(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of private label summaries: the budget and the public list of labels."""
    own = _underscored(table)
    if not own:
        return {}
    labels = _names(own.pop("labels", ""))
    return {SUMMARIES: Privacy.read(own, f"{SECTION}.{SUMMARIES}"), "labels": labels}


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
    """Return the settings below `fedraw` by table; the table "" has the top-level settings."""
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
            raise BadInput(f"{key} is not in a table of fedraw's settings; known tables: {known}")
    return tables


def _underscored(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _read(kind: Any, table: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Check the values, after splitting strings where the dataclass has a list."""
    known = keys(kind)

    def is_list(key: str) -> bool:
        own = known.get(key)
        return any(get_origin(kind) is tuple for kind in alternatives(own and own.kind))

    split = {key: _names(value) if is_list(key) else value for key, value in table.items()}
    return checked_settings(kind, split, section)


def _names(value: Any) -> tuple[str, ...]:
    """Return the names in a string such as "north, south", in a list, or in a single number."""
    parts = value if isinstance(value, list | tuple | set | frozenset) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())


class _Stderr(logging.StreamHandler[Any]):
    """Writes to the current sys.stderr, which Flower redirects to `flwr log`."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The stream to write to."""
        return sys.stderr


def _show_log(log_format: str) -> None:
    """Send fedraw's log messages to the output that `flwr log` shows."""
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
