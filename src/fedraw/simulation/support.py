"""A liar that also makes its updates say what it claims."""

from __future__ import annotations

from dataclasses import dataclass

from fedraw.core.head import levels
from fedraw.core.layout import Layout, Segment
from fedraw.core.types import Vector


@dataclass(frozen=True)
class Support:
    """Sends models in which the claimed label's output has risen by `amount`, whatever was trained.

    Of a layer without bias every weight of the label is moved alike.
    """

    output: int
    amount: float
    layout: Layout

    def __call__(self, trained: Vector, start: Vector) -> Vector:
        before, now = levels(start, self.layout), levels(trained, self.layout)
        lift = before[self.output] + self.amount - now[self.output]
        bias, weight = self.layout.head_bias, self.layout.head_weight
        sent = trained.copy()
        if bias is not None:
            sent[bias.start + self.output] += lift
        elif weight is not None:
            sent[_row(weight, self.output)] += lift / weight.shape[1]
        return sent


def _row(weight: Segment, output: int) -> slice:
    width = weight.size // weight.shape[0]
    return slice(weight.start + output * width, weight.start + (output + 1) * width)
