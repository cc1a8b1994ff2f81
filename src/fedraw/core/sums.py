"""The sums of fixed features that a client sends once, and why their totals are exact.

For its own samples with features z and labels l, a client sends the number n_l of samples of each
label, the sums s_l = Σ z of each label, and the products P = Σ z zᵀ of all samples. All three are
additive. Before they are summed, features are clipped to ±16 and rounded to multiples of 2⁻¹⁰, so
every total is a multiple of 2⁻²⁰ below 2³³, and float64 holds it without rounding. Addition is then
exact: totals have the same bytes in any order, and a client's part can be subtracted again.

For a regression, the targets y of a sample are summed like further features, and all samples have
the same label. So the counts are n, the sums Σ z and Σ y, and the products Σ z zᵀ, Σ y zᵀ, Σ y yᵀ.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Floats, Ints, Label
from fedraw.errors import BadInput, RefusedUpdate

if TYPE_CHECKING:
    from fedraw.core.private_sums import SumsPrivacy

# Features are clipped to ±LIMIT and rounded to multiples of GRID.
LIMIT = 16.0
GRID = 2.0**-10
# The most samples whose totals are certainly exact: 2²⁵ products of at most 2⁸, in steps of 2⁻²⁰.
MOST_SAMPLES = 2**25
# The packed products of so many features take 268 MB.
MOST_FEATURES = 8192
# The share of clipped features above which a feature map does not fit.
MOST_CLIPPED = 0.01
# Samples that are converted to float64 at once.
BLOCK = 4096

COUNTS, SUMS, PRODUCTS = "counts", "sums", "products"


@dataclass(frozen=True)
class SumsShape:
    """The number of labels and of features, and where a message has its counts, sums and products.

    A message is one float64 vector: the counts, the sums of each label, and the lower triangle of
    the symmetric matrix of products, row by row. For a regression, the last `targets` of the
    features are the targets.

    >>> shape = SumsShape(labels=2, features=3)
    >>> shape.layout.size, shape.layout.segments[2].shape
    (14, (6,))
    """

    labels: int
    features: int
    targets: int = 0

    def __post_init__(self) -> None:
        if self.features > MOST_FEATURES:
            raise BadInput(
                f"{self.features:,} features: sums are kept for at most {MOST_FEATURES:,}, whose "
                "products take 268 MB a message; use a feature map of a smaller width"
            )

    @cached_property
    def layout(self) -> Layout:
        """Where the counts, the sums and the products are in a message."""
        labels, features = self.labels, self.features
        triangle = features * (features + 1) // 2
        named = [(COUNTS, (labels,)), (SUMS, (labels, features)), (PRODUCTS, (triangle,))]
        return Layout.of([], named)

    @cached_property
    def diagonal(self) -> Ints:
        """Where the squares are in the packed products."""
        return np.cumsum(np.arange(1, self.features + 1), dtype=np.int64) - 1

    def zeros(self) -> Floats:
        """Return the totals before the first message."""
        return np.zeros(self.layout.size)

    def counts(self, message: Floats) -> Floats:
        """Return the number of samples of each label, as a view of the message."""
        return message[: self.labels]

    def sums(self, message: Floats) -> Floats:
        """Return the sum of the features of each label, as a view of the message."""
        end = self.labels * (1 + self.features)
        return message[self.labels : end].reshape(self.labels, self.features)

    def triangle(self, message: Floats) -> Floats:
        """Return the packed products, as a view of the message."""
        return message[self.labels * (1 + self.features) :]

    def squares(self, message: Floats) -> Floats:
        """Return the sum of the square of each feature."""
        return self.triangle(message)[self.diagonal]

    def products(self, message: Floats) -> Floats:
        """Return the symmetric matrix of products."""
        matrix = np.empty((self.features, self.features))
        packed, start = self.triangle(message), 0
        for row in range(self.features):
            matrix[row, : row + 1] = matrix[: row + 1, row] = packed[start : start + row + 1]
            start += row + 1
        return matrix

    def of_samples(self, features: npt.NDArray[Any], labels: Ints, floor: int = 1) -> Floats:
        """Return the message of a client with these samples.

        Labels with fewer than `floor` samples are left out, because the sums of a label with one
        sample are its features.

        >>> shape = SumsShape(labels=2, features=2)
        >>> shape.of_samples(np.array([[1.0, 2.0], [0.0, -1.0]]), np.array([0, 0])).tolist()
        [2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2.0, 5.0]
        """
        counts = np.bincount(labels, minlength=self.labels)
        counts[counts < floor] = 0
        kept = np.flatnonzero(counts[labels] > 0)
        if kept.size > MOST_SAMPLES:
            raise BadInput(
                f"{kept.size:,} samples: sums are exact for at most {MOST_SAMPLES:,} of all "
                "clients together; use a part of them"
            )
        message = self.zeros()
        self.counts(message)[:] = counts
        sums, products = self.sums(message), np.zeros((self.features, self.features))
        for start in range(0, kept.size, BLOCK):
            rows = kept[start : start + BLOCK]
            block = on_grid(features[rows])
            sums += (labels[rows] == np.arange(self.labels)[:, None]).astype(np.float64) @ block
            products += block.T @ block
        packed, start = self.triangle(message), 0
        for row in range(self.features):
            packed[start : start + row + 1] = products[row, : row + 1]
            start += row + 1
        return message

    def check(self, client: ClientId, message: Floats, samples: float) -> None:
        """Refuse a message that no samples within the limits can have.

        A sample adds at most 16 to a sum and 256 to a product, so a large client may send large
        sums. Off the diagonal a product is bounded by those of the two features. That the products
        are those of real samples cannot be seen.
        """
        counts, sums, squares = self.counts(message), self.sums(message), self.squares(message)
        total = float(counts.sum())
        problem = None
        if (counts < 0).any() or (counts != np.rint(counts)).any():
            problem = "counts that are not whole numbers from 0 on"
        elif total > samples:
            problem = f"counts of {total:,.0f} samples, and says that it has {samples:,.0f}"
        elif total > MOST_SAMPLES:
            problem = f"counts of {total:,.0f} samples, more than {MOST_SAMPLES:,}"
        elif not (is_multiple(sums, GRID) and is_multiple(self.triangle(message), GRID**2)):
            problem = "sums that are not on the grid of 2⁻¹⁰, or products not on that of 2⁻²⁰"
        elif (np.abs(sums) > LIMIT * counts[:, None]).any():
            problem = f"sums above {LIMIT:g} a sample"
        elif (squares > LIMIT**2 * total).any() or (squares < 0).any():
            problem = f"squares outside 0 to {LIMIT**2:g} a sample"
        elif squares.size and np.abs(self.triangle(message)).max() > squares.max():
            problem = "a product that is larger than every square"
        else:
            means = sums / np.maximum(counts, 1)[:, None]
            if (squares < (means * sums).sum(axis=0) * (1 - 1e-12)).any():
                problem = "squares that are smaller than those of its means"
        if problem is not None:
            raise RefusedUpdate(f"client {client!r} sent {problem}")


@dataclass(frozen=True)
class Sums:
    """The form of the message of a client that sends sums; see `Payload`.

    Attributes:
        floor: Clients leave out labels of which they have fewer samples. In a regression, clients
            with fewer samples leave out all of them.
        privacy: Clients clip their samples and add noise within this budget.
        regression: Whether clients sum the targets of a regression in place of labels.

    >>> Sums(regression=True).shape(outputs=2, features=3)
    SumsShape(labels=1, features=5, targets=2)

    """

    floor: int = 1
    privacy: SumsPrivacy | None = None
    regression: bool = False
    dtype = np.dtype(np.float64)

    @property
    def declared(self) -> bool:
        """Whether clients declare their label counts, which noise is to hide."""
        return self.privacy is None

    def shape(self, outputs: int, features: int) -> SumsShape:
        """Return the shape of the messages for a linear model of this size."""
        if self.regression:
            return SumsShape(1, features + outputs, outputs)
        return SumsShape(outputs, features)

    def shape_for(self, model: Layout | None) -> SumsShape:
        """Return the shape of the messages for a linear model, which has one weight matrix."""
        weight = None if model is None else model.head_weight
        if model is None or weight is None or model.size != weight.size + weight.shape[0]:
            raise BadInput(
                "sums are solved for one linear layer with weights and biases, and this model is "
                "none; let the driver make the model from the width of the feature map"
            )
        return self.shape(*weight.shape)

    def layout(self, model: Layout | None) -> Layout:
        """Return where a message has its parts, for this linear model."""
        return self.shape_for(model).layout

    def norm(self, message: Floats, model: Layout | None) -> float:
        """Return the root mean square of the norm of a sample's features.

        Under privacy this is the bound, because noise hides how large samples are.
        """
        shape = self.shape_for(model)
        if self.privacy is not None:
            return self.privacy.bound(shape)
        samples = max(1.0, float(shape.counts(message).sum()))
        return float(np.sqrt(max(0.0, float(shape.squares(message).sum())) / samples))

    def exact(
        self, shape: SumsShape, features: npt.NDArray[Any], answers: npt.NDArray[Any]
    ) -> Floats:
        """Return the sums of a client's samples, clipped if there is noise to come.

        `answers` are the numbers of the labels, or the targets of a regression.
        """
        labels: Ints = answers
        if self.regression:
            features = np.hstack([features, answers.reshape(len(features), shape.targets)])
            labels = np.zeros(len(features), np.int64)
        if self.privacy is not None:
            features = self.privacy.clipped(shape, features)
        return shape.of_samples(features, labels, self.floor)

    def sent(self, shape: SumsShape, exact: Floats, rng: np.random.Generator | None) -> Floats:
        """Return the message of a client with these sums, which may have noise."""
        if self.privacy is None:
            return exact
        assert rng is not None
        return self.privacy.noised(shape, exact, rng)

    def examples(self, shape: SumsShape, message: Floats, samples: int) -> int:
        """Return the number of samples that a client states, which noise must hide as well."""
        if self.privacy is None:
            return samples
        return max(1, round(float(shape.counts(message).sum())))

    def check(self, shape: SumsShape, client: ClientId, message: Floats, samples: float) -> None:
        """Refuse a message that no samples can have."""
        if self.privacy is None:
            shape.check(client, message, samples)
        else:
            self.privacy.check(shape, client, message)


def labels_below(table: LabelTable, payload: Sums) -> list[Label]:
    """Return the labels of which no client has as many samples as the floor.

    >>> table = LabelTable.from_counts({"a": {"cat": 5, "owl": 2}, "b": {"owl": 3}})
    >>> labels_below(table, Sums(floor=4))
    ['owl']
    >>> labels_below(table, Sums(floor=7, regression=True))
    []
    """
    floor = payload.floor
    if payload.regression:  # the labels are groups, and the floor is of all samples of a client
        return list(table.labels) if table.totals().max(initial=0) < floor else []
    most = np.zeros(len(table.labels), np.int64)
    np.maximum.at(most, table.column, table.count)
    return [label for label, n in zip(table.labels, most.tolist(), strict=True) if 0 < n < floor]


def on_grid(features: npt.NDArray[Any]) -> Floats:
    """Return the features as they are summed: clipped to ±16 and rounded to multiples of 2⁻¹⁰.

    >>> on_grid(np.array([0.0004, -0.0006, 99.0])).tolist()
    [0.0, -0.0009765625, 16.0]
    """
    block: Floats = np.clip(features, -LIMIT, LIMIT).astype(np.float64)
    block /= GRID
    np.rint(block, out=block)
    block *= GRID
    block += 0.0  # no negative zeros, whose bytes differ
    return block


def check_samples(
    who: str, features: npt.NDArray[Any], targets: npt.NDArray[Any] | None = None
) -> None:
    """Refuse samples that cannot be summed, or whose sums would be those of clipped values.

    >>> check_samples("client 3", np.array([[1.0, 17.0]]))
    Traceback (most recent call last):
    fedraw.errors.BadInput: client 3: 50% of the features are beyond ±16, where sums are clipped; \
divide the samples, or the outputs of the feature map, by constants that all clients share, so \
that most are about 1 in size
    """
    for name, values in (("features", features), ("targets", targets)):
        if values is None or not values.size:
            continue
        bad = int(np.count_nonzero(~np.isfinite(values)))
        if bad:
            raise BadInput(f"{who} has {bad} {name} that are NaN or infinite; repair its samples")
        share = float(np.mean(np.abs(values) > LIMIT))
        if share > (MOST_CLIPPED if name == "features" else 0):
            what = "samples, or the outputs of the feature map," if values is features else name
            raise BadInput(
                f"{who}: {share:.0%} of the {name} are beyond ±{LIMIT:g}, where sums are clipped; "
                f"divide the {what} by constants that all clients share, so that most are about 1 "
                "in size"
            )


def is_multiple(numbers: Floats, step: float) -> bool:
    """Return whether all numbers are multiples of a power of two."""
    scaled = numbers / step
    return bool((scaled == np.rint(scaled)).all())


def digest(totals: Floats) -> str:
    """Return the SHA-256 of totals, by which two servers compare them."""
    return hashlib.sha256(np.ascontiguousarray(totals, "<f8").tobytes()).hexdigest()
