"""A liar that lifts an output."""

from __future__ import annotations

import numpy as np
import pytest

from fedraw.core.head import levels
from fedraw.core.layout import Layout
from fedraw.simulation.support import Support


@pytest.mark.parametrize(
    "layout",
    [
        Layout.of([("body", (2,)), ("fc.weight", (3, 2)), ("fc.bias", (3,))]),
        Layout.of([("body", (2,)), ("fc.weight", (3, 2))], [("mean", (1,))]),
    ],
)
def test_the_claimed_output_rises_by_the_amount_and_nothing_else_changes(layout: Layout) -> None:
    rng = np.random.default_rng(0)
    start, trained = (rng.normal(size=layout.size).astype(np.float32) for _ in range(2))
    kept = trained.copy()
    sent = Support(1, 0.25, layout)(trained, start)
    change, honest = (levels(v, layout) - levels(start, layout) for v in (sent, trained))
    assert change[1] == pytest.approx(0.25, abs=1e-6)
    assert change[[0, 2]].tolist() == honest[[0, 2]].tolist()
    assert np.array_equal(trained, kept)
    body = slice(0, 2)
    assert np.array_equal(sent[body], trained[body])
