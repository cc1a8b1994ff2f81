from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from tests.strategies.server import COUNTS, Server, begun, fed, sent

from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedfa import FedFa


def test_from_the_kth_arrival_on_every_arrival_averages_the_last_k() -> None:
    strategy = FedFa(2)
    state = begun(strategy, COUNTS, 9)
    models = []
    for event in [sent(0, 2), sent(1, 4), sent(2, 6), sent(2, 10)]:
        state = fed(strategy, state, [event])
        models.append(float(state.model[0]))
    assert models == [9, 3, 5, 8]
    assert (state.version, state.contents) == (3, ([2, 2], [1 / 2, 1 / 2]))


def test_the_model_is_the_mean_of_the_queue_through_a_long_run() -> None:
    server, queue = Server(FedFa(4)), deque[np.ndarray[tuple[int], np.dtype[np.float64]]](maxlen=4)
    for _ in range(500):
        queue.append(server.arrive_any().vector.astype(np.float64))
        if len(queue) == 4:
            assert server.state.model == pytest.approx(np.mean(queue, axis=0), rel=1e-6, abs=1e-6)


def test_neither_staleness_nor_sizes_nor_the_old_model_count() -> None:
    strategy = FedFa(1)
    state = begun(strategy, COUNTS, 9)
    events = [sent(0, 2), sent(1, 5, version=0, examples=1000)]
    assert fed(strategy, state, events).model.tolist() == [5]


def test_a_window_of_one_is_fedasync_that_takes_all() -> None:
    window, mixing = Server(FedFa(1)), Server(FedAsync(alpha=1, staleness="none"))
    for model, same in zip(window.run(60), mixing.run(60), strict=True):
        assert np.array_equal(model, same)


def test_a_window_may_be_larger_than_the_federation() -> None:
    strategy = FedFa(8)
    events = [sent(0, i) for i in range(8)]
    assert fed(strategy, begun(strategy, {0: {"x": 1}}, 0), events).model.tolist() == [3.5]
