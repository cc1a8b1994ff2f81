"""What the methods that work on differences share: K arrivals, then one server step.

Batch-norm statistics are sent as they are and averaged plainly over the K arrivals: no server
rate, no staleness weight, no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedraw.core.aggregation import RunningSum
from fedraw.core.layout import Layout
from fedraw.core.types import Label, Vector
from fedraw.errors import BadInput


def split(vector: Vector, layout: Layout | None) -> tuple[Vector, Vector]:
    """Parameters and statistics, as views."""
    if layout is None:
        return vector, vector[vector.size :]
    return vector[layout.parameters], vector[layout.statistics]


def moved(model: Vector, step: Vector, statistics: Vector, rate: float) -> Vector:
    """The parameters moved by `rate · step`, the statistics replaced."""
    parameters = model[: step.size] + np.float32(rate) * step
    return np.concatenate([parameters, statistics])


def empty_sums(model: Vector, layout: Layout | None) -> tuple[RunningSum, RunningSum]:
    if layout is not None and layout.size != model.size:
        raise BadInput(
            f"the layout has {layout.size} numbers, the model {model.size}; "
            "give the layout of this model"
        )
    parameters, statistics = split(model, layout)
    return RunningSum.zeros(parameters.size), RunningSum.zeros(statistics.size)


def with_layout(
    strategy: Any, layout: Layout | None, classes: Sequence[Label] | None = None
) -> Any:
    """A strategy that looks into vectors and was made without a layout gets the model's.

    So it does with the names of the model's outputs.
    """
    given = {"layout": layout, "classes": None if classes is None else tuple(classes)}
    known = {field.name for field in fields(strategy)} if is_dataclass(strategy) else set()
    lacking = {key: given[key] for key in given if key in known and getattr(strategy, key) is None}
    return replace(strategy, **lacking) if lacking else strategy
