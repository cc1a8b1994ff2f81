"""The data of each site, the network, training and evaluation: plain PyTorch, no Flower."""

from collections import Counter
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

# The digits of each site. Only "west" has 8 and 9.
LABELS = {
    "north": (0, 1, 2, 3, 4, 5, 6, 7),
    "south": (0, 1, 2, 3, 4, 5, 6, 7),
    "east": (0, 1, 2, 3, 4, 5, 6, 7),
    "west": (8, 9),
}
# Extra seconds of a site's training, unless its node config has a `delay`.
DELAYS = {"west": 3.0}
BATCH = 32
TEST_EVERY = 5  # every fifth image is in the server's test set


@cache
def _images() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


def test_set() -> tuple[Tensor, Tensor]:
    """Return the images that no site trains on, with all ten digits."""
    images, labels = _images()
    return images[::TEST_EVERY], labels[::TEST_EVERY]


def local_data(site: str) -> tuple[Tensor, Tensor]:
    """Return the images of a site; the images of each digit are divided equally over its sites."""
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
    """Return the network with the same initial weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(model: nn.Module, site: str, seed: int, epochs: int, rate: float) -> int:
    """Train with SGD on the site's own images, and return their number.

    One thread gives the same bits on any machine; more would not be faster for so small a network.
    """
    torch.set_num_threads(1)
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
    """Return the true digit and the predicted digit of each test image."""
    images, labels = test_set()
    model.eval()
    with torch.inference_mode():
        return labels.tolist(), model(images).argmax(dim=1).tolist()
