"""Influence by sampling: what a slot weighs among independent draws of the other slots.

A cap makes a weight depend on all scores in the buffer at once, which no product form survives.
Presence is still exact; only the mean weight of a client that is present is sampled. Given that a
client is in a deduplicated buffer, the others are a (K − 1)-subset without it, of the same law;
the weight of a client that is in most buffers is read off those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraw.analysis.groups import Groups
from fedraw.analysis.presence import Buffer, presence
from fedraw.analysis.sampling import draw_buffers
from fedraw.core.types import Floats, Ints
from fedraw.core.weighting import Cap

WORK = 4 * 10**6  # slots weighed at most: draws x scores x slots
MOST_DRAWS, FEWEST_DRAWS = 2000, 200
MOST_SCORES = 48  # a weight is smooth in the score; between these it is interpolated


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean, and its standard error."""

    mean: Floats
    error: Floats


def capped_influence(
    groups: Groups, size: int, buffer: Buffer, cap: Cap, cap_at: float, seed: int = 0
) -> Estimate:
    """The influence of one client of each group under rarity weights, with or without a cap."""
    rng = np.random.default_rng(seed)
    scores = _few_scores(groups.score)
    draws = int(np.clip(WORK // (scores.size * size), FEWEST_DRAWS, MOST_DRAWS))
    others = draw_buffers(groups, size - 1, buffer, draws, rng)
    weight = _weight_beside(scores, groups.score[others], cap, cap_at)
    if buffer == "dedup":
        chance = presence(groups.shares, size, "dedup", groups.many)
        mean, error = _without_itself(groups, scores, weight, others)
        crowded = chance > 0.5  # hardly any draw of the others may be left without these
        if crowded.any():
            held = draw_buffers(groups, size, "dedup", draws, rng)
            own = weights_of_rows(groups.score[held], cap, cap_at)
            mean[crowded], error[crowded] = _in_its_slots(crowded, held, own)
    else:
        chance = size * groups.shares
        mean = np.interp(groups.score, scores, weight.mean(0))
        error = np.interp(groups.score, scores, weight.std(0)) / np.sqrt(draws)
    return Estimate(chance * mean, chance * error)


def weights_of_rows(scores: Floats, cap: Cap, cap_at: float) -> Floats:
    """`core.weighting.weights` of every row at once.

    >>> weights_of_rows(np.array([[8.0, 1, 1]]), "water-filling", 0.5)
    array([[0.5 , 0.25, 0.25]])
    """
    weight = np.asarray(scores / scores.sum(-1, keepdims=True), np.float64)
    if cap == "naive":
        lowered = np.minimum(weight, cap_at)
        return np.asarray(lowered / lowered.sum(-1, keepdims=True), np.float64)
    if cap == "water-filling":
        pinned = np.zeros(weight.shape, np.bool_)
        while (above := (weight > cap_at * (1 + 1e-12)) & ~pinned).any():
            pinned |= above
            free = np.where(pinned, 0.0, scores)
            room = 1 - cap_at * pinned.sum(-1, keepdims=True)
            level = room / np.maximum(free.sum(-1, keepdims=True), np.finfo(float).tiny)
            weight = np.where(pinned, cap_at, free * level)
    return weight


def _few_scores(score: Floats) -> Floats:
    distinct = np.unique(score)
    if distinct.size <= MOST_SCORES:
        return distinct
    return np.geomspace(distinct[0], distinct[-1], MOST_SCORES)


def _weight_beside(scores: Floats, others: Floats, cap: Cap, cap_at: float) -> Floats:
    """The weight of a slot of each score (columns) beside each draw of the others (rows)."""
    draws, rest = others.shape
    rows = np.empty((draws, scores.size, rest + 1))
    rows[..., 1:] = others[:, None, :]
    rows[..., 0] = scores
    return weights_of_rows(rows, cap, cap_at)[..., 0]


def _without_itself(
    groups: Groups, scores: Floats, weight: Floats, others: Ints
) -> tuple[Floats, Floats]:
    """For each group the mean over the draws that do not hold the client itself."""
    draws, slots = others.shape
    base = weight.mean(0)
    weight = weight - base  # a weight that never varies has then no error at all
    left, part = _neighbours(scores, groups.score)
    following = np.minimum(np.arange(scores.size) + 1, scores.size - 1)
    right = following[left]
    draw, group = np.repeat(np.arange(draws), slots), others.ravel()  # who holds whom
    own = (1 - part[group]) * weight[draw, left[group]] + part[group] * weight[draw, right[group]]
    # A draw that holds one of `many` alike clients holds each of them with this chance.
    chance = 1 / groups.many[group]
    squares, products = (weight**2).sum(0), (weight * weight[:, following]).sum(0)
    square = (1 - part) ** 2 * squares[left] + part**2 * squares[right]
    square += 2 * part * (1 - part) * products[left]
    every = groups.many.size
    without = draws - np.bincount(group, chance, every)
    without = np.where(without > 0.5, without, np.inf)  # in every draw: nothing to learn here
    mean = -np.bincount(group, chance * own, every) / without
    square = (square - np.bincount(group, chance * own**2, every)) / without
    error = np.sqrt(np.maximum(square - mean**2, 0) / without)
    return (1 - part) * base[left] + part * base[right] + mean, error


def _neighbours(scores: Floats, wanted: Floats) -> tuple[Ints, Floats]:
    """The last score not above each wanted one, and how far towards the next it lies."""
    left = np.clip(np.searchsorted(scores, wanted, side="right") - 1, 0, scores.size - 1)
    right = np.minimum(left + 1, scores.size - 1)
    width = np.where(right > left, scores[right] - scores[left], 1.0)
    return left, np.clip((wanted - scores[left]) / width, 0, 1)


def _in_its_slots(
    wanted: npt.NDArray[np.bool_], held: Ints, weight: Floats
) -> tuple[Floats, Floats]:
    """For each wanted group the mean weight of the slots that its clients have in the draws."""
    column, columns = np.cumsum(wanted) - 1, int(wanted.sum())
    draw, slot = np.nonzero(wanted[held])
    cell, cells = draw * columns + column[held[draw, slot]], len(held) * columns
    count = np.bincount(cell, minlength=cells).reshape(-1, columns)
    total = np.bincount(cell, weight[draw, slot], cells).reshape(-1, columns)
    slots = np.maximum(count.sum(0), 1)
    mean = total.sum(0) / slots
    return mean, np.sqrt(((total - count * mean) ** 2).sum(0)) / slots
