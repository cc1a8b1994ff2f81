"""The memory that `benchmarks.method_cost` counts, for methods with a known state."""

from __future__ import annotations

import pytest
from benchmarks.method_cost import models_kept


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("fedbuff", 1 + 2),  # the model, and a sum in float64
        ("area", 1 + 2 + 30),
        ("mifa", 1 + 2 + 30),
        ("ca2fl", 1 + 2 + 2 + 30 + 9),  # the last nine differences wait for the tenth
        ("fadas", 1 + 2 + 3),
    ],
)
def test_memory_grows_with_the_model_by_what_the_method_keeps(name: str, models: float) -> None:
    assert models_kept(name, 30) == pytest.approx(models, rel=1e-3)
