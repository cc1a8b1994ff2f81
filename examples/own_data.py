"""Bring your own arrays, partition and torch model."""

import numpy as np
import numpy.typing as npt
from torch import nn

import fedraw

rng = np.random.default_rng(0)
labels = np.repeat(["calm", "storm", "hail"], [600, 300, 60])
centres = {"calm": 0.0, "storm": 1.0, "hail": 2.0}
measured = rng.normal([[centres[label]] * 4 for label in labels], 0.4)
weather = fedraw.from_arrays(
    measured, labels, name="weather", label_names=("calm", "storm", "hail"), rng=rng
)


def hail_at_one_site(
    labels: npt.NDArray[np.int64], classes: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Divide calm and storm over eight sites, and give all hail (label 2) to the first one."""
    hail, rest = np.flatnonzero(labels == 2), rng.permutation(np.flatnonzero(labels != 2))
    first, *others = np.array_split(rest, 8)
    return [np.concatenate([hail, first]), *others]


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


result = fedraw.simulate(
    strategy=fedraw.FedRAW(buffer=5),
    data=weather,
    partition=hail_at_one_site,
    speeds=fedraw.Uniform(),
    model=two_layers,
    rare_labels=["hail"],
    events=800,
    evaluate_every=200,
    seeds=1,
)
last = result.recalls.rows()[-1]
for label in ("calm", "storm", "hail"):
    print(f"{label}: {last[label]:.0f} % of the test cases are recognised")
