"""Your own model and training function: Adam and label smoothing, FedFa against FedRAW.

The images have the format of Fashion-MNIST: 28 x 28 bytes in ten classes. Two clients each hold
sandals and bags, and these clients are slow. The script prints the recall of both labels under each
method, as the mean of the last five evaluations: it is low under FedFa and high under FedRAW.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import fedraw

CLASSES = [
    "top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
]  # fmt: skip
RARE = ["sandal", "bag"]

rng = np.random.default_rng(0)
patterns = rng.uniform(60, 195, (10, 28, 28))  # the mean image of each class
labels = np.arange(1600) % 10
images = rng.normal(patterns[labels], 50).clip(0, 255).astype(np.uint8)
data = fedraw.from_arrays(images, labels, name="clothes", label_names=CLASSES, rng=rng)


def net() -> nn.Module:
    """Make the model; every seed draws its own weights."""
    hidden = nn.Linear(28 * 28, 24)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 10))


def train(model: nn.Module, data: fedraw.ClientData, context: fedraw.TrainingContext) -> None:
    """Train the model in place for two epochs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(2):
        for x, y in data:  # shuffled mini-batches; bytes have become numbers from 0 to 1
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            optimizer.step()


clients = fedraw.Coverage(
    clients=16, rare_labels=RARE, clients_per_rare_label=2, clients_per_common_label=12
)
for strategy in (fedraw.FedFa(buffer=8), fedraw.FedRAW(buffer=8)):
    result = fedraw.simulate(
        strategy=strategy, data=data, partition=clients, speeds=fedraw.Correlated(), model=net,
        train=train, batch=32, events=320, evaluate_every=20, seeds=1,
    )  # fmt: skip
    recall = {label: np.mean(result.recalls[label][-5:]) for label in RARE}
    print(result.name, *(f"{label} {value:.0f} %" for label, value in recall.items()))
