"""What a server lets through: updates of a usual size, label counts that can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.orders import Order, Trained

# A bound on the norm needs so many norms to go by, and goes by the last so many.
FEWEST_NORMS, NORMS = 5, 64
# A site's total that grows or shrinks by more than this factor is taken for a mistake.
LARGEST_JUMP = 10
MOST_LABELS, LONGEST_NAME = 100_000, 200
# Elements per pass: stays in the processor's cache.
BLOCK = 1 << 16


def distance(sent: Vector, start: Vector | None, layout: Layout) -> float:
    """The norm of what training changed; `start` is None where a difference was sent.

    Only trainable parameters: a running variance may be of any size.

    >>> layout = Layout.of([("w", (2,))], [("bn.running_var", (1,))])
    >>> sent, start = np.array([3, 5, 900], np.float32), np.array([0, 1, 1], np.float32)
    >>> distance(sent, start, layout)
    5.0
    """
    total, size = 0.0, layout.parameter_count
    scratch = np.empty(min(BLOCK, size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, size, BLOCK):
            part = sent[begin : min(begin + BLOCK, size)]
            own = scratch[: part.size]
            if start is not None:
                part = np.subtract(part, start[begin : begin + part.size], out=own)
            # Not np.dot: its threads get in each other's way on a busy machine.
            total += float(np.add.reduce(np.multiply(part, part, out=own)))
        return float(np.sqrt(total))


def check_answers(order: Order, answer: Trained) -> None:
    """Refuse an answer in another's name, or to another question."""
    if answer.site != order.site:
        raise RefusedUpdate(f"client {order.site!r} answered in the name of {answer.site!r}")
    if (answer.order, answer.version) != (order.number, order.version):
        raise RefusedUpdate(
            f"client {order.site!r} was asked to train version {order.version} (order "
            f"{order.number}), it answered for version {answer.version} ({answer.order})"
        )


def check_norm(site: str, norm: float, usual: Sequence[float], bound: float) -> None:
    """Refuse an update far larger than those accepted lately, whoever sent them.

    >>> check_norm("north", 2.0, [1.0] * 5, bound=10)
    >>> check_norm("north", 20.0, [1.0] * 5, bound=10)
    Traceback (most recent call last):
    ...
    fedraw.errors.RefusedUpdate: client 'north' changed the model by 20 (norm), more than 10 times \
the usual 1
    """
    if len(usual) < FEWEST_NORMS:
        return
    middle = median(usual)
    if middle > 0 and not norm <= bound * middle:
        raise RefusedUpdate(
            f"client {site!r} changed the model by {norm:.3g} (norm), "
            f"more than {bound:g} times the usual {middle:.3g}"
        )


def check_counts(
    site: str, counts: Mapping[str, int], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Label counts that can be; `before` are those that the site reported last."""
    if not site or len(site) > LONGEST_NAME:
        raise BadInput(f"a site's name has 1 to {LONGEST_NAME} characters, this one {len(site)}")
    if len(counts) > MOST_LABELS:
        raise BadInput(f"client {site!r} reports {len(counts)} labels; {MOST_LABELS} is the most")
    names = [str(label) for label in counts]
    for name in names:
        if len(name) > LONGEST_NAME:
            raise BadInput(
                f"client {site!r} has a label of {len(name)} characters; {LONGEST_NAME} is the most"
            )
    values = whole_counts(list(counts.values()), lambda i: f"client {site!r}, label {names[i]!r}")
    held = {name: n for name, n in zip(names, values.tolist(), strict=True) if n}
    if not held:
        raise BadInput(
            f"client {site!r} reports no labels, so it has no rarity score; let it tell its label "
            "counts, or use a strategy with labels = 'inferred'"
        )
    if before:
        was, now = sum(before.values()), sum(held.values())
        if not was / LARGEST_JUMP <= now <= was * LARGEST_JUMP:
            raise BadInput(
                f"client {site!r} reported {was} samples and now {now}, a jump by more than a "
                f"factor of {LARGEST_JUMP}; the earlier counts stay"
            )
    return held
