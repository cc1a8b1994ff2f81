"""Admission decides which updates, label counts and names the server accepts from a site.

It bounds everything that a site sends and the server stores, so that no single site can fill the
log or the memory, or ruin the model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from math import isfinite
from statistics import median_low

import numpy as np

from fedraw.core.labels import whole_counts
from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.tasks import Task, TrainReply

# The median of the sites' norms is used once this many sites have sent an update. With two sites, a
# dishonest site would decide.
FEWEST_SITES = 3
# The median counts as at least this share of the initial model's scale.
SMALLEST_SHARE = 0.01
# New label counts are refused if their total is larger or smaller by more than this factor.
LARGEST_JUMP = 10
# The only label of a site that does not declare its labels.
UNDECLARED = "not told"
# The most samples that a site may train on or test, relative to its declared samples.
MOST_TIMES_DECLARED = 100
# The most samples that any site may train on; a float is exact up to here.
MOST_EXAMPLES = 2**53
# Labels of one site, labels that one site may add after it has joined, and labels of all sites.
MOST_LABELS, MOST_LABELS_IN_ALL = 10_000, 100_000
# Metrics that one reply may report.
MOST_METRICS = 100
# Characters of a site's or a label's name, and bytes of one site's label counts in the log.
LONGEST_NAME, LARGEST_COUNTS = 200, 1 << 18
# Elements per pass: stays in the processor's cache.
BLOCK = 1 << 16


def distance(sent: Vector, start: Vector | None, layout: Layout) -> float:
    """Return the norm of an update's change to the model.

    `start` is the model that the site received; None if it sent a difference. Only trainable
    parameters count, because a running variance may have any size.

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
            # np.dot is not used, because its threads slow one another down on a busy machine.
            total += float(np.add.reduce(np.multiply(part, part, out=own)))
        return float(np.sqrt(total))


def check_reply(task: Task, reply: TrainReply) -> None:
    """Refuse a reply that names another site or another task than its own."""
    if reply.site not in (None, task.site):
        raise RefusedUpdate(f"client {task.site!r} replied in the name of {reply.site!r}")
    if (reply.task, reply.version) not in ((None, None), (task.number, task.version)):
        raise RefusedUpdate(
            f"client {task.site!r} was asked to train version {task.version} (task "
            f"{task.number}), but replied for version {reply.version} (task {reply.task})"
        )


def declared_samples(counts: Mapping[str, int]) -> int | None:
    """Return the number of samples that a site has declared; None if it declares no labels.

    >>> declared_samples({"cat": 6, "dog": 4}), declared_samples({UNDECLARED: 1})
    (10, None)
    """
    return None if counts == {UNDECLARED: 1} else sum(counts.values())


def check_examples(site: str, examples: int, counts: Mapping[str, int]) -> None:
    """Refuse an update that claims many more training samples than its site has declared.

    The number of samples is the weight of the update in several strategies, so an unbounded number
    would replace the model by this update, or make it infinite.

    >>> check_examples("north", 1000, {"cat": 6, "dog": 4})
    >>> check_examples("north", 1001, {"cat": 6, "dog": 4})
    Traceback (most recent call last):
    ...
    fedraw.errors.RefusedUpdate: client 'north' trained on 1001 examples and declared 10 samples; \
a site may train on at most 100 times as many
    """
    if examples > MOST_EXAMPLES:
        raise RefusedUpdate(
            f"client {site!r} trained on more than {MOST_EXAMPLES} examples; let it send the "
            "number of its training samples"
        )
    declared = declared_samples(counts)
    if declared is not None and examples > MOST_TIMES_DECLARED * declared:
        raise RefusedUpdate(
            f"client {site!r} trained on {examples} examples and declared {declared} samples; a "
            f"site may train on at most {MOST_TIMES_DECLARED} times as many"
        )


def scale_of(model: Vector, layout: Layout) -> float:
    """Return the norm of a model's trainable parameters, counting tensors of zeros as ones.

    A tensor that starts at zero, such as a linear head, does not show how large its first update
    will be.

    >>> layout = Layout.of([("w", (2,)), ("b", (9,))])
    >>> scale_of(np.array([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.float32), layout)
    5.0
    """
    total = 0.0
    for segment in layout.segments:
        if segment.start < layout.parameter_count:
            squares = float(np.square(model[segment.slice], dtype=np.float64).sum())
            total += squares or segment.size
    return float(np.sqrt(total))


def check_feature_map(site: str, found: str, expected: str) -> None:
    """Refuse sums of the features of another map, which no total could tell from the right ones.

    >>> check_feature_map("north", "ab12", "cd34")
    Traceback (most recent call last):
    ...
    fedraw.errors.RefusedUpdate: client 'north' sent sums of the feature map ab12, and this \
federation uses cd34; give the site the file of this map
    """
    if found != expected:
        raise RefusedUpdate(
            f"client {site!r} sent sums of the feature map {found:.12}, and this federation uses "
            f"{expected:.12}; give the site the file of this map"
        )


def check_norm(
    site: str,
    norm: float,
    norms: Collection[float],
    scale: float,
    bound: float,
    what: str = "changed the model by",
) -> None:
    """Refuse an update whose norm exceeds `bound` times the median norm of all sites.

    `norms` has the norm of each site's last update, accepted or refused. So each site has one vote,
    however often it sends, and the median grows if most sites take larger steps. Until
    FEWEST_SITES sites have sent an update, the initial model's `scale` replaces the median.

    >>> check_norm("north", 2.0, [1.0, 1.0, 1.0], scale=4.0, bound=10)
    >>> check_norm("north", 20.0, [1.0, 1.0, 1.0], scale=4.0, bound=10)
    Traceback (most recent call last):
    ...
    fedraw.errors.RefusedUpdate: client 'north' changed the model by 20 (norm), more than 10 times \
the usual 1; raise norm_bound if such updates are legitimate
    """
    if len(norms) < FEWEST_SITES:
        usual, words = scale, f"the {scale:.3g} of the initial model"
    else:
        usual = max(median_low(norms), SMALLEST_SHARE * scale)
        words = f"the usual {usual:.3g}"
    if not norm <= bound * usual or not isfinite(norm):
        raise RefusedUpdate(
            f"client {site!r} {what} {norm:.3g} (norm), more than {bound:g} times "
            f"{words}; raise norm_bound if such updates are legitimate"
        )


def check_name(site: str) -> None:
    """Refuse a site's name that is empty, too long or not valid text."""
    if not site or len(site) > LONGEST_NAME:
        raise BadInput(
            f"a site's name must have 1 to {LONGEST_NAME} characters; this one has {len(site)}"
        )
    if not _is_text(site):
        raise BadInput(f"the site's name {site!r} is not valid text (a lone surrogate)")


def check_labels(site: str, counts: Mapping[str, int]) -> None:
    """Refuse label counts with too many labels, too long names or too many bytes."""
    if len(counts) > MOST_LABELS:
        raise BadInput(f"client {site!r} reports {len(counts)} labels; the limit is {MOST_LABELS}")
    names = [str(label) for label in counts]
    longest = max(map(len, names), default=0)
    if longest > LONGEST_NAME:
        raise BadInput(
            f"client {site!r} has a label of {longest} characters; the limit is {LONGEST_NAME}"
        )
    if not _is_text("".join(names)):
        wrong = next(name for name in names if not _is_text(name))
        raise BadInput(f"client {site!r}: label {wrong!r} is not valid text (a lone surrogate)")
    size = len(json.dumps(names)) + sum(len(repr(count)) + 1 for count in counts.values())
    if size > LARGEST_COUNTS:
        raise BadInput(
            f"the label counts of client {site!r} take {size} bytes, and the limit is "
            f"{LARGEST_COUNTS}; use shorter labels"
        )


def check_new_labels(site: str, new: int, so_far: int, in_all: int) -> None:
    """Refuse new labels beyond the number that one site, or all sites together, may add.

    The site adds `new` labels that no site had before. The federation has `in_all` labels, of which
    this site has added `so_far` since it joined.
    """
    if new and so_far + new > MOST_LABELS:
        raise BadInput(
            f"client {site!r} would have added {so_far + new} labels that no site had before; a "
            f"site may add at most {MOST_LABELS}"
        )
    if new and in_all + new > MOST_LABELS_IN_ALL:
        raise BadInput(
            f"client {site!r} adds {new} labels to the {in_all} of the federation, which may have "
            f"at most {MOST_LABELS_IN_ALL}"
        )


def check_counts(
    site: str, counts: Mapping[str, int], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the label counts without zeros, or refuse them.

    `before` are the site's previous counts.
    """
    check_name(site)
    check_labels(site, counts)
    names = [str(label) for label in counts]
    values = whole_counts(list(counts.values()), lambda i: f"client {site!r}, label {names[i]!r}")
    held = {name: n for name, n in zip(names, values.tolist(), strict=True) if n}
    if not held:
        raise BadInput(
            f"client {site!r} reports no labels, so it has no rarity score; declare its label "
            "counts, or use a strategy with labels = 'inferred'"
        )
    if before:
        was, now = sum(before.values()), sum(held.values())
        if not was / LARGEST_JUMP <= now <= was * LARGEST_JUMP:
            raise BadInput(
                f"client {site!r} reported {was} samples and now {now}, a change by more than a "
                f"factor of {LARGEST_JUMP}; the earlier counts stay in effect"
            )
    return held


def check_metrics(source: str, metrics: Mapping[str, float]) -> dict[str, float | None] | None:
    """Return a site's metrics, with None for values that are not finite; None without metrics.

    `source` names the reporter in messages.

    >>> check_metrics("client 'north'", {"auc": 0.75, "loss": float("nan")})
    {'auc': 0.75, 'loss': None}
    """
    if len(metrics) > MOST_METRICS:
        raise BadInput(f"{source} reports {len(metrics)} metrics; the limit is {MOST_METRICS}")
    for name in metrics:
        if not 0 < len(name) <= LONGEST_NAME or not _is_text(name):
            raise BadInput(
                f"{source} has a metric {name!r:.60}; a name must have 1 to {LONGEST_NAME} "
                "characters of valid text"
            )
    return {name: float(n) if isfinite(n) else None for name, n in metrics.items()} or None


def _is_text(name: str) -> bool:
    """Return whether the name can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
