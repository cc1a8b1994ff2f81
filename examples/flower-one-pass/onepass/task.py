"""The images of each site, and the feature map that all of them share."""

from functools import cache

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_digits

from fedraw.learning.feature_maps import FeatureMap, convolutions

# The digits of each site. Only "west" has 8 and 9.
LABELS = {
    "north": (0, 1, 2, 3, 4, 5, 6, 7),
    "south": (0, 1, 2, 3, 4, 5, 6, 7),
    "east": (0, 1, 2, 3, 4, 5, 6, 7),
    "west": (8, 9),
}
TEST_EVERY = 5  # every fifth image is in the server's test set


@cache
def features() -> FeatureMap:
    """Return the map that every site computes from the same seed; it needs no data.

    A map of your own, such as a network that was trained elsewhere, is a file that every site gets:
    `own_map(network, shape).save("features.safetensors")`, and then its path in place of this.
    """
    return convolutions((1, 8, 8), seed=0)


@cache
def _images() -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels


def my_site(context: Context) -> str:
    """Return the site of the node's config; in a simulation, the site of the partition."""
    config = context.node_config
    return str(config["site"]) if "site" in config else list(LABELS)[config["partition-id"]]


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Return the images that no site has, with all ten digits."""
    images, labels = _images()
    return images[::TEST_EVERY], labels[::TEST_EVERY]


def local_data(site: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a site; the images of each digit are divided equally over its sites."""
    images, labels = _images()
    kept = np.arange(len(labels)) % TEST_EVERY != 0
    mine = []
    for label in LABELS[site]:
        holders = [name for name, held in LABELS.items() if label in held]
        indices = np.flatnonzero(kept & (labels == label))
        mine.append(indices[holders.index(site) :: len(holders)])
    chosen = np.concatenate(mine)
    return images[chosen], labels[chosen]
