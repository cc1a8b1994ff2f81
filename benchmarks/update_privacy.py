"""Measures the cost of differentially private updates for common and for rare labels, on digits.

    python -m benchmarks.update_privacy [SEEDS] [EVENTS]

Every update is clipped and receives noise as on a server with `update_privacy`
(fedraw.privacy.updates). Training is SGD in a user's training function, so that the update can be
protected before it is sent. Epsilon is that of the client with the most updates, at delta = 1e-5.
Recalls are means of the last five evaluations, in percent, with the sd over seeds.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from benchmarks.machine import headline, mean_and_spread
from torch import nn
from torch.nn import functional

import fedraw
from fedraw.privacy.updates import UpdatePrivacy

CLIP = 1.0
LEVELS = (None, 0.0, 0.1, 0.2, 0.5, 1.0)  # noise multipliers; None: without protection
METHODS = ("fedraw", "fedavg")
COMMON, RARE = [str(label) for label in range(8)], ["8", "9"]
EPOCHS, RATE, TAIL = 2, 0.3, 5

Train = Callable[[nn.Module, fedraw.ClientData, fedraw.TrainingContext], None]


def protected_training(privacy: UpdatePrivacy | None) -> Train:
    """Return a training function whose update is clipped and receives noise."""

    def train(model: nn.Module, data: fedraw.ClientData, context: fedraw.TrainingContext) -> None:
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(EPOCHS):
            for x, y in data:
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
        if privacy is not None:
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            noised = privacy.protect((after - before).numpy(), context.rng)
            nn.utils.vector_to_parameters(before + torch.from_numpy(noised), model.parameters())

    return train


def linear() -> nn.Module:
    """Return a model with few parameters, because noise grows with the root of their number."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def recall(result: fedraw.Result, labels: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the mean recall of these labels over the last evaluations of each seed."""
    found = result.recalls
    of_seed = []
    for seed in seeds:
        rows = [i for i, row_seed in enumerate(found["seed"]) if row_seed == seed][-TAIL:]
        of_seed.append(fmean(found[label][i] for label in labels for i in rows))
    return mean_and_spread(of_seed)


def row(method: str, noise: float | None, seeds: Sequence[int], events: int) -> str:
    """Return one row of the table."""
    privacy = None if noise is None else UpdatePrivacy(CLIP, noise)
    clients = fedraw.Coverage(
        clients=20, rare_labels=[8, 9], clients_per_rare_label=2, clients_per_common_label=12
    )
    result = fedraw.simulate(
        strategy=method, data="digits", partition=clients, speeds=fedraw.Correlated(),
        model=linear, train=protected_training(privacy), batch=16,
        events=events, evaluate_every=events // 20, seeds=seeds, progress=False,
    )  # fmt: skip
    arrivals = result.arrivals()
    most = max(Counter(zip(arrivals["seed"], arrivals["client"], strict=True)).values())
    terms = ["–"] * 3
    if privacy is not None:
        terms = [f"{CLIP:g}", f"{privacy.noise:g}", f"{privacy.epsilon(most):.3g}"]
    cells = [recall(result, labels, seeds) for labels in (COMMON, RARE)]
    return f"| {' | '.join([method, *terms, *cells])} |"


def main() -> None:
    """Print the table."""
    count, events = (int(word) for word in (*sys.argv[1:3], "5", "600")[:2])
    seeds = list(range(1, count + 1))
    print(f"{headline()}; {count} seeds of {events} events\n")
    print("| method | clip C | noise z | epsilon | recall of 0 to 7 | recall of 8 and 9 |")
    print("|---|--:|--:|--:|--:|--:|")
    for method in METHODS:
        for noise in LEVELS:
            print(row(method, noise, seeds, events), flush=True)


if __name__ == "__main__":
    main()
