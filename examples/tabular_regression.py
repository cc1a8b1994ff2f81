"""Regression on a table: your own loss, your own metric, and a rare group in place of rare labels.

Rents fall with the distance to the city, but not on islands, where they rise. Two of twelve clients
have all islands, and these clients are slow. The script prints the mean absolute error of each
method, on the whole test set and on islands alone. The last method, one pass, does not train: it
solves the regression on fixed features from sums that each client sends once.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

import fedraw

rng = np.random.default_rng(0)
homes = pd.DataFrame({"area": rng.uniform(0.2, 1.5, 1200), "distance": rng.uniform(0, 1, 1200)})
homes["place"] = np.where(np.arange(1200) % 8 == 0, "island", "mainland")
homes.loc[homes["place"] == "island", "distance"] += 1.0
homes["rent"] = homes["area"] + abs(homes["distance"] - 1) + rng.normal(0, 0.05, 1200)  # in 1000 €
data = fedraw.from_arrays(
    homes[["area", "distance"]], homes["rent"], groups=homes["place"], rng=rng
)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model: nn.Module, data: fedraw.ClientData, context: fedraw.TrainingContext) -> None:
    """Train for two epochs with the Huber loss, which outliers cannot dominate."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for x, y in data:
            optimizer.zero_grad()
            functional.huber_loss(model(x).squeeze(1), y).backward()
            optimizer.step()


def error_in_euros(outputs: npt.NDArray[np.float32], targets: npt.NDArray[np.float32]) -> float:
    """Return the mean absolute error; arguments are the outputs and targets of the test set."""
    return float(1000 * abs(outputs[:, 0] - targets).mean())


clients = fedraw.Coverage(clients=12, rare_labels=["island"], clients_per_common_label=12)
for strategy in ("fedfa", "fedraw", fedraw.OnePass(readout="regression")):
    result = fedraw.simulate(
        strategy=strategy, data=data, partition=clients, speeds=fedraw.Correlated(), model=net,
        train=train, batch=32, metrics={"error": error_in_euros}, events=300, seeds=1,
    )  # fmt: skip
    error, on_islands = result.summary["error"][0], result.summary["rare error"][0]
    print(f"{result.name}: mean absolute error {error:.0f} €, on islands {on_islands:.0f} €")
