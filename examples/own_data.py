"""Bring your own arrays, partition and torch model."""

from collections.abc import Sequence

import numpy as np
from torch import nn

import fedraw
from fedraw.core.types import Ints

rng = np.random.default_rng(0)
labels = np.repeat(["calm", "storm", "hail"], [600, 300, 60])
centres = {"calm": 0.0, "storm": 1.0, "hail": 2.0}
images = rng.normal([[centres[label]] * 4 for label in labels], 0.4)


def hail_at_one_site(labels: Ints, classes: int, rng: np.random.Generator) -> Sequence[Ints]:
    """Eight sites share calm and storm; all the hail (label 2) is at the first."""
    hail, rest = np.flatnonzero(labels == 2), rng.permutation(np.flatnonzero(labels != 2))
    first, *others = np.array_split(rest, 8)
    return [np.concatenate([hail, first]), *others]


def two_layers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], 16), nn.Tanh(), nn.Linear(16, classes))


spec = fedraw.Spec.read(
    {
        "strategy": {"name": "fedraw", "buffer": 5},
        "speeds": {"kind": "uniform"},
        "metrics": {"rare_labels": ["hail"]},
        "run": {"events": 800, "evaluate_every": 200, "seeds": [1]},
    }
)
weather = fedraw.from_arrays(
    images, labels, name="weather", label_names=("calm", "storm", "hail"), rng=rng
)
(result,) = fedraw.run(spec, data=weather, partition=hail_at_one_site, model=two_layers)
for label, recall in result.summary["recall"].items():
    print(f"{label}: {recall:.0f} % of the test cases are recognised")
