"""The data of each site, the network, training and evaluation: plain PyTorch, no Flower."""

from collections import Counter
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

# Which digits a site has. Only "west" has ever seen an 8 or a 9.
LABELS = {
    "north": (0, 1, 2, 3, 4, 5, 6, 7),
    "south": (0, 1, 2, 3, 4, 5, 6, 7),
    "east": (0, 1, 2, 3, 4, 5, 6, 7),
    "west": (8, 9),
}
# How many seconds longer a site takes, unless its node config has a `delay` of its own.
DELAYS = {"west": 3.0}
BATCH = 32
TEST_EVERY = 5  # each fifth image is kept for the server's test set


@cache
def _images() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


def test_set() -> tuple[Tensor, Tensor]:
    """What no site trains on; all ten digits."""
    images, labels = _images()
    return images[::TEST_EVERY], labels[::TEST_EVERY]


def local_data(site: str) -> tuple[Tensor, Tensor]:
    """The images of a site: those of each digit are dealt out in turn among its holders."""
    images, labels = _images()
    kept = torch.arange(len(labels)) % TEST_EVERY != 0
    chosen = []
    for label in LABELS[site]:
        holders = [name for name, held in LABELS.items() if label in held]
        indices = torch.nonzero(kept & (labels == label)).flatten()
        chosen.append(indices[holders.index(site) :: len(holders)])
    mine = torch.cat(chosen)
    return images[mine], labels[mine]


def label_counts(site: str) -> dict[str, int]:
    return {str(label): n for label, n in Counter(local_data(site)[1].tolist()).items()}


def network() -> nn.Module:
    """Always the same initial weights, wherever it is called."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Module, site: str, seed: int, epochs: int, rate: float) -> int:
    """Plain SGD on the site's own images; returns how many there are."""
    images, labels = local_data(site)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels), generator=generator), BATCH):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimiser.step()
    return len(labels)


def predictions(model: nn.Module) -> tuple[list[int], list[int]]:
    """The true digit of each test image, and the one that the model sees."""
    images, labels = test_set()
    model.eval()
    with torch.inference_mode():
        return labels.tolist(), model(images).argmax(dim=1).tolist()
