"""Where the tensors of a model are in its vector: parameters, statistics, the output layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from fedraw.errors import BadInput


@dataclass(frozen=True)
class Segment:
    """One tensor's place in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @cached_property
    def size(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)

    @cached_property
    def slice(self) -> slice:
        """The tensor's elements in the vector."""
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a model is in its vector.

    Trainable parameters come first and statistics (batch norm's running mean and variance) last, so
    each kind is one slice. Integer counters are not part of the vector, because they cannot be
    averaged. `head_weight` and `head_bias` are the output layer.

    >>> layout = Layout.of([("fc.weight", (3, 2)), ("fc.bias", (3,))], [("bn.mean", (2,))])
    >>> layout.parameters, layout.statistics
    (slice(0, 9, None), slice(9, 11, None))
    >>> layout.head_bias
    Segment(name='fc.bias', shape=(3,), start=6)
    """

    segments: tuple[Segment, ...]
    parameter_count: int
    head_weight: Segment | None = None
    head_bias: Segment | None = None

    @classmethod
    def of(
        cls,
        parameters: Iterable[tuple[str, tuple[int, ...]]],
        statistics: Iterable[tuple[str, tuple[int, ...]]] = (),
    ) -> Layout:
        """Lay out tensors in this order; the output layer is the last matrix and its bias."""
        parameters, statistics = list(parameters), list(statistics)
        named = [*parameters, *statistics]
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadInput(f"tensor {twice!r} appears twice in the layout; names must be unique")
        starts = accumulate((math.prod(shape) for _, shape in named), initial=0)
        segments = tuple(
            Segment(name, tuple(shape), start)
            for (name, shape), start in zip(named, starts, strict=False)
        )
        weight, bias = _head(segments[: len(parameters)])
        count = sum(segment.size for segment in segments[: len(parameters)])
        return cls(segments, count, weight, bias)

    @cached_property
    def size(self) -> int:
        """The length of a vector."""
        return sum(segment.size for segment in self.segments)

    @property
    def statistics_count(self) -> int:
        """The number of statistics in a vector."""
        return self.size - self.parameter_count

    def without_statistics(self) -> Layout:
        """Return the layout of the parameters alone."""
        kept = tuple(s for s in self.segments if s.start < self.parameter_count)
        return Layout(kept, self.parameter_count, self.head_weight, self.head_bias)

    @cached_property
    def parameters(self) -> slice:
        """The trainable parameters in a vector."""
        return slice(0, self.parameter_count)

    @cached_property
    def statistics(self) -> slice:
        """The batch-norm statistics in a vector."""
        return slice(self.parameter_count, self.size)


def _head(parameters: tuple[Segment, ...]) -> tuple[Segment | None, Segment | None]:
    matrices = [s for s in parameters if len(s.shape) == 2]
    if not matrices:
        return None, None
    weight = matrices[-1]
    rows = weight.shape[:1]
    after = [s for s in parameters if s.start > weight.start and s.shape == rows]
    return weight, after[0] if after else None
