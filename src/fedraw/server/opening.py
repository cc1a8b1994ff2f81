"""Begin a federation in a folder, or go on with the one that is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.server.coordinator import Coordinator
from fedraw.server.ledger import Identity, Ledger
from fedraw.server.recall import Recall
from fedraw.server.settings import Settings
from fedraw.server.snapshots import tensors_of
from fedraw.storage.snapshot import can_be_saved
from fedraw.strategies.catalog import log_name, settings_of, spec_name
from fedraw.strategies.protocol import Setup, State, Strategy
from fedraw.strategies.statistics import with_statistics


def open_federation(  # noqa: PLR0913 - the clocks are for tests
    strategy: Strategy[Any],
    model: Callable[[], Vector],
    settings: Settings,
    layout: Layout,
    *,
    evaluate: Callable[[Vector], Recall] | None = None,
    dtypes: Mapping[str, str] | None = None,
    engine: str = "",
    now: float | None = None,
    wall: Callable[[], float] | None = None,
) -> Coordinator:
    """`model` is asked for only where a federation begins; `engine` is for the log.

    `dtypes` names the types of the user's tensors where they are not float32. `now` is of the clock
    that drives the coordinator, by default time.monotonic; `wall` gives unix seconds.
    """
    if settings.target is not None and evaluate is None and not settings.federated_evaluation:
        raise BadInput(
            f"target = {settings.target:g} is never reached, because nothing is evaluated; give "
            "the server a test set (evaluate), or set federated_evaluation"
        )
    now = time.monotonic() if now is None else now
    own = {name: _plain(value) for name, value in settings_of(strategy).items()}
    facts = {
        "name": log_name(strategy),
        "influence": strategy.needs.influence,
        "engine": engine,
    }
    told = {name: _plain(value) for name, value in asdict(settings).items() if value is not None}
    identity = Identity(
        {"name": spec_name(strategy), **own}, told, tensors_of(layout, dtypes), layout, facts
    )
    strategy = with_statistics(strategy, layout)
    state = _kind_of_state(strategy, settings, layout)
    ledger = Ledger(settings.folder, strategy, identity, wall or time.time)
    try:
        ledger.recover(state, now)
    except BaseException:
        ledger.log.close()
        raise
    return Coordinator(ledger, strategy, model, settings, layout, evaluate)


def _kind_of_state(strategy: Strategy[Any], settings: Settings, layout: Layout) -> type[State]:
    """Try the strategy on as many sites as it will begin with, before anyone is asked anything."""
    sites = {f"site {i}": {"label": 1} for i in range(settings.min_clients)}
    try:
        model = np.zeros(layout.size, np.float32)
        state, _ = strategy.start(Setup(model, LabelTable.from_counts(sites), layout))
    except BadInput as refusal:
        raise BadInput(f"with min_clients = {settings.min_clients}: {refusal}") from None
    if not can_be_saved(state):
        raise BadInput(
            f"the state of {type(strategy).__name__} is not made of dataclasses, arrays and plain "
            "values, so a server could not restore it"
        )
    return type(state)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
