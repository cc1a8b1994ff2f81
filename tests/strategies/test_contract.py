"""What every method keeps, whatever its rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.strategies.server import (
    COUNTS,
    METHODS,
    MODEL,
    NORMED,
    OF_SUMS,
    On,
    Server,
    bits,
    vector,
)

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, LabelCounts
from fedraw.core.update import Update
from fedraw.errors import BadInput
from fedraw.storage import snapshot
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Setup, Strategy

every_method = pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS.keys())


def test_every_method_of_the_catalog_is_under_test() -> None:
    assert set(CATALOG) == {*OF_SUMS, *(set(METHODS) & set(CATALOG))}


@every_method
def test_nothing_that_was_handed_in_or_out_is_ever_modified(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    server.run(80)
    assert len(server.passed) == 162
    for passed, copy in server.passed:
        assert np.array_equal(passed, copy)


@every_method
def test_a_model_handed_out_cannot_be_written_to(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    for model in [server.state.model, *server.run(30)]:
        with pytest.raises(ValueError, match="read-only"):
            model[0] = 7


@every_method
def test_the_initial_model_is_copied(strategy: Strategy[Any]) -> None:
    model = MODEL.copy()
    server = Server(strategy, model=model)
    model += 1
    assert np.array_equal(server.state.model, MODEL)


@every_method
@pytest.mark.parametrize("rename", [lambda i: 100 - i, lambda i: f"site {i}"])
def test_names_of_clients_do_not_matter(
    strategy: Strategy[Any], rename: Callable[[ClientId], ClientId]
) -> None:
    renamed = {rename(client): counts for client, counts in COUNTS.items()}
    one, other = Server(strategy), Server(strategy, renamed)
    for model, same in zip(one.run(60), other.run(60), strict=True):
        assert np.array_equal(model, same)


@every_method
def test_the_order_of_the_table_does_not_matter(strategy: Strategy[Any]) -> None:
    one, other = Server(strategy), Server(strategy, dict(reversed(COUNTS.items())))
    order = np.random.default_rng(1).permuted(np.tile(np.arange(6), (10, 1)), axis=1)
    for client in order.ravel().tolist():
        one.arrive(client)
        other.arrive(client)
        assert other.state.model == pytest.approx(one.state.model, rel=1e-5, abs=1e-6)


@every_method
def test_weights_sum_to_one_at_every_aggregation_and_are_empty_otherwise(
    strategy: Strategy[Any],
) -> None:
    """A method that does not weight its clients, such as a median, never has any weights."""
    server = Server(strategy)
    weighted = []
    for _ in range(80):
        before = server.state.version
        server.arrive_any()
        clients, weights = server.state.contents
        if server.state.version == before:
            assert list(weights) == []
            continue
        if clients:  # nobody may be young enough to count
            weighted.append(bool(weights))
        if weights:
            assert len(weights) == len(clients)
            assert min(weights) >= 0
            assert sum(weights) == pytest.approx(1)
    assert len(weighted) >= 13
    assert all(weighted) or not any(weighted)


@every_method
def test_the_version_counts_the_changes_of_the_model(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    assert server.state.version == 0
    for _ in range(80):
        model, version = server.state.model, server.state.version
        server.arrive_any()
        changed = server.state.model is not model
        assert server.state.version == version + changed


@every_method
def test_a_run_goes_on_bit_for_bit_from_disk_at_any_point(
    strategy: Strategy[Any], tmp_path: Path
) -> None:
    through_disk, kept = Server(strategy), Server(strategy)
    for event in range(32):
        folder = tmp_path / str(event)
        snapshot.save(through_disk.state, folder)
        through_disk.state = snapshot.load(type(through_disk.state), folder)
        assert bits(through_disk.state) == bits(kept.state)
        through_disk.arrive_any()
        kept.arrive_any()
    assert np.array_equal(through_disk.state.model, kept.state.model)
    assert through_disk.state.contents == kept.state.contents
    # Vectors that came from disk are no more to be modified than others.
    assert all(np.array_equal(*pair) for pair in through_disk.passed)


FLAT: dict[ClientId, LabelCounts] = {client: {"x": 1} for client in range(6)}
# FedAsync mixes one by one; q above 0 shortens the step; updates that are looked into differ; a
# robust mean is no plain one.
averaging = {
    name: strategy
    for name, strategy in METHODS.items()
    if not any(word in name for word in ("async", "clip", "trim"))
    and name not in ("qfedavg", "qfedavg statistics")
    and strategy.needs.label_evidence == "declared"
}


@pytest.mark.parametrize("strategy", averaging.values(), ids=averaging.keys())
def test_clients_that_differ_in_nothing_give_the_plain_mean(strategy: Strategy[Any]) -> None:
    state, _ = strategy.start(Setup(MODEL, LabelTable.from_counts(FLAT)))
    layout = strategy.layout if isinstance(strategy, On) else Layout.of([("w", (5,))])
    sent = []
    for client in range(6):
        sent.append(np.arange(5, dtype=np.float32) * client + 1)
        update = Update(client, 0, sent[-1], examples=7, loss=1.0)
        state, _ = strategy.step(state, Arrived(update))
        if state.version:
            break
    mean = np.mean(sent, axis=0)
    if strategy.needs.sends == "delta":
        mean[layout.parameters] *= getattr(strategy, "server_lr", 1.0)
        mean[layout.parameters] += MODEL[layout.parameters]
    assert state.version == 1
    assert state.model == pytest.approx(mean, rel=1e-6)


@every_method
def test_a_long_run_never_leaves_the_finite_numbers(strategy: Strategy[Any]) -> None:
    server = Server(strategy, seed=1)
    for model in server.run(600):
        assert np.isfinite(model).all()
    assert server.state.model.dtype == np.float32


@every_method
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (np.zeros((5, 1), np.float32), r"one flat vector, got an array of shape \(5, 1\)"),
        (vector(0, 0, 0, 0, np.nan), "the initial model has NaN or infinite numbers"),
    ],
)
def test_an_initial_model_that_is_none_is_refused(
    strategy: Strategy[Any], model: Any, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        strategy.start(Setup(model, LabelTable.from_counts(COUNTS)))


def test_a_layout_of_another_model_is_refused() -> None:
    with pytest.raises(BadInput, match="layout has 5 numbers, the model 6"):
        Setup(vector(*range(6)), LabelTable.from_counts(COUNTS), NORMED)
