"""Clients' private reports about their labels, and the label table that a server builds from them.

Presence bits go through randomised response (Warner, 1965). Each bit is sent as it is with
probability p = e^ε / (1 + e^ε), and flipped otherwise. If c of N clients hold a label, the sum B of
their answers has the mean c p + (N − c)(1 − p). The estimate is

    ĉ = (B − N (1 − p)) / (2p − 1),   unbiased, with variance N / (4 sinh²(ε / 2)) whatever c is.

Each client computes its own rarity score from its true shares and the published coverage, and may
add noise to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable, whole_counts
from fedraw.core.types import Floats, Ints, LabelCounts
from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy, check_epsilon, opendp, within_budget

# Noise is added to a whole number of steps, so it is exact and does not leak through rounding.
STEPS = 2**20


def private_table(table: LabelTable, privacy: Privacy, rng: np.random.Generator) -> LabelTable:
    """Return a table that has the clients' scores, but not their labels.

    Every client computes its score from its true shares and the published coverage. The result has
    one label for each client, whose share is that score, so its `rarity_scores` are the clients'
    scores. It is only for simulations, because the noise comes from the seeded `rng`.

    >>> true = LabelTable.from_counts({"a": {"cat": 4}, "b": {"cat": 2, "dog": 2}})
    >>> seen = private_table(true, Privacy("randomised-response", 40), np.random.default_rng(1))
    >>> seen.labels, seen.share.round(6)
    (("score of 'a'", "score of 'b'"), array([0.5 , 0.75]))
    """
    coverage = published_coverage(table, privacy, rng)
    scores = np.add.reduceat(table.share / coverage[table.column], table.start[:-1])
    if privacy.score_epsilon is not None:
        scores = simulated_scores(scores, len(table), privacy.score_epsilon, rng)
    own = np.arange(len(table))
    labels = tuple(f"score of {client!r}" for client in table.clients)
    start, count = np.arange(len(table) + 1), np.ones(len(table), np.int64)
    return LabelTable(table.clients, labels, start, own, count, scores)


def published_coverage(table: LabelTable, privacy: Privacy, rng: np.random.Generator) -> Floats:
    """Return the coverage of each label that the server learns and publishes."""
    true = table.coverage()
    epsilon = privacy.epsilon_per_bit(len(table.labels))
    sums = simulated_sums(true, len(table), epsilon, rng)
    return estimated_coverage(sums, len(table), epsilon)


def truth_probability(epsilon_per_bit: float) -> float:
    """Return the probability that a bit is not flipped; its odds are e^ε.

    >>> round(truth_probability(math.log(3)), 12)
    0.75
    """
    return 1 / (1 + math.exp(-check_epsilon(epsilon_per_bit)))


def randomised_bits(held: Sequence[bool], epsilon_per_bit: float) -> list[bool]:
    """Return a client's randomised bits, one for each label, each private at epsilon_per_bit.

    OpenDP draws the noise from the operating system's generator, without a seed. Draw once and send
    the same bits each time, because every new draw spends the budget again.
    """
    respond = bit_responder(epsilon_per_bit)
    return [bool(respond(bool(bit))) for bit in held]


def bit_responder(epsilon_per_bit: float) -> Any:
    """Return OpenDP's randomised response for one bit; its `map(1)` is at most epsilon_per_bit."""
    probability = truth_probability(epsilon_per_bit)
    make = opendp().m.make_randomized_response_bool
    return within_budget(
        epsilon_per_bit, 1, lambda p: make(p, constant_time=True), probability, 0.5
    )


def simulated_sums(
    coverage: Ints, clients: int, epsilon_per_bit: float, rng: np.random.Generator
) -> Ints:
    """Draw the sums of all clients' randomised bits, from the distribution of `randomised_bits`.

    This is NOT private, because `rng` has a seed.
    """
    p = truth_probability(epsilon_per_bit)
    true_yes, false_yes = rng.binomial(coverage, p), rng.binomial(clients - coverage, 1 - p)
    return np.asarray(true_yes + false_yes, np.int64)


def unbiased_coverage(bit_sums: npt.ArrayLike, clients: int, epsilon_per_bit: float) -> Floats:
    """Estimate how many clients hold each label; the result may be below 0 or above `clients`."""
    sums = np.asarray(bit_sums, np.float64)
    if np.any((sums < 0) | (sums > clients)):
        raise BadInput(
            f"a sum of {clients} clients' bits is {sums[(sums < 0) | (sums > clients)][0]:g}; it "
            f"must be from 0 to {clients}, so count each client's bits once"
        )
    flip = 1 - truth_probability(epsilon_per_bit)
    return (sums - clients * flip) / math.tanh(epsilon_per_bit / 2)  # 2p − 1 without cancellation


def estimated_coverage(bit_sums: npt.ArrayLike, clients: int, epsilon_per_bit: float) -> Floats:
    """Return the coverage that the server publishes: the unbiased estimate, clipped to 1..clients.

    Clipping at 1 biases the estimates of the rarest labels upwards.

    >>> estimated_coverage([2, 20], clients=30, epsilon_per_bit=20).round(3)
    array([ 2., 20.])
    """
    return np.clip(unbiased_coverage(bit_sums, clients, epsilon_per_bit), 1, clients)


def score_from_coverage(counts: LabelCounts, coverage: Mapping[Any, float]) -> float:
    """Compute S = Σ_l freq(l) / coverage(l), as a client does before it sends the score.

    >>> score_from_coverage({"cat": 2, "dog": 2}, {"cat": 2, "dog": 1, "fox": 7.5})
    0.75
    """
    names = list(counts)
    count = whole_counts(list(counts.values()), lambda i: f"label {names[i]!r}")
    held = [name for name, n in zip(names, count, strict=True) if n]
    if not held:
        raise BadInput("a client without samples has no rarity score; remove the client")
    for name in held:
        if not coverage.get(name, 0) >= 1:
            raise BadInput(
                f"this client holds the label {name!r}, but its published coverage is "
                f"{coverage.get(name)}; it must be at least 1 (do all clients use the same list of "
                "labels?)"
            )
    share = count[count > 0] / count.sum()
    return float((share / np.array([coverage[name] for name in held])).sum())


def noised_score(score: float, clients: int, score_epsilon: float) -> float:
    """Add discrete Laplace noise to the score, and clip the result to 1/N..1.

    OpenDP draws the noise without a seed. A score is in (0, 1] whatever labels a client holds, so
    its sensitivity is 1.
    """
    noised = score_noise(score_epsilon)(int(_in_steps(np.array(score))))
    return float(_clip_scores(np.array(noised), clients))


def score_noise(score_epsilon: float) -> Any:
    """Return OpenDP's discrete Laplace mechanism; its `map(STEPS)` is at most score_epsilon."""
    scale = STEPS / check_epsilon(score_epsilon, "score_epsilon")
    dp = opendp()
    steps = dp.atom_domain(T="i64"), dp.absolute_distance(T="i64")
    make = dp.m.make_laplace
    return within_budget(score_epsilon, STEPS, lambda s: make(*steps, scale=s), scale, np.inf)


def simulated_scores(
    scores: Floats, clients: int, score_epsilon: float, rng: np.random.Generator
) -> Floats:
    """Add noise to many clients' scores, from the distribution of `noised_score`.

    This is NOT private, because `rng` has a seed.

    >>> scores = simulated_scores(np.array([0.05, 0.5]), 30, 20.0, np.random.default_rng(1))
    >>> bool(np.all((scores >= 1 / 30) & (scores <= 1)))
    True
    """
    stop = -np.expm1(-check_epsilon(score_epsilon, "score_epsilon") / STEPS)
    up, down = rng.geometric(stop, scores.shape), rng.geometric(stop, scores.shape)
    return _clip_scores(_in_steps(scores) + up - down, clients)


def _in_steps(scores: Floats) -> Ints:
    # Clipped before the noise, because the budget holds only for scores in this range.
    return np.rint(np.clip(scores, 0, 1) * STEPS).astype(np.int64)


def _clip_scores(steps: Ints, clients: int) -> Floats:
    # No score is below 1/N, because every label has at most N holders.
    return np.clip(steps / STEPS, 1 / clients, 1)
