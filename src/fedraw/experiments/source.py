"""Where the samples and weights of an experiment come from: files that a spec names, or arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt

from fedraw.core.randomness import Streams
from fedraw.data import catalog
from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset
from fedraw.data.root import Progress, data_root
from fedraw.data.splits import limit_per_label
from fedraw.errors import BadInput
from fedraw.experiments.features import with_features
from fedraw.experiments.sections import IMAGENET
from fedraw.experiments.spec import Spec

# The published ImageNet weights, where `fedraw data fetch resnet18` puts them.
_PUBLISHED = Path("weights") / "resnet18-f37072fd.pth"


@dataclass(frozen=True)
class Where:
    """Where data lie, which never changes what comes out, and who follows their loading."""

    root: Path | None = None  # default: FEDRAW_DATA
    progress: Progress | None = None


def load_dataset(
    spec: Spec,
    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None,
    streams: Streams,
    where: Where,
) -> Dataset:
    """What the spec names, or the user's own; as features if the spec wants them."""
    dataset = _load(spec, data, streams, where)
    limits = spec.data.per_label, spec.data.test_per_label
    if limits != (None, None):
        dataset = limit_per_label(dataset, *limits, streams.generator("images"))
    if spec.features is None or spec.training.kind == "none":
        return dataset
    return with_features(
        dataset,
        spec.features,
        weights_file(spec.features.weights, where.root),
        normalise=spec.data.normalise,
        device=spec.training.device,
        progress=where.progress,
    )


def prepare(spec: Spec, where: Where) -> None:
    """Decode images and compute features once, before several processes would."""
    if spec.data.name in catalog.PUBLIC:
        load_dataset(spec, None, Streams(0), where)


def _load(
    spec: Spec,
    data: Dataset | tuple[npt.ArrayLike, npt.ArrayLike] | None,
    streams: Streams,
    where: Where,
) -> Dataset:
    rng = streams.generator("holdout")
    if data is None:
        wanted = spec.data
        return catalog.load(
            wanted.name,
            path=None if wanted.path is None else Path(wanted.path),
            root=where.root,
            size=wanted.size,
            holdout=wanted.holdout,
            rng=rng,
            progress=where.progress,
        )
    if isinstance(data, Dataset):
        return data
    images, labels = data
    return from_arrays(images, labels, rng=rng)


def weights_file(wanted: str, root: Path | None) -> Path:
    """A file of weights by its path, or the published one in the data root."""
    if wanted != IMAGENET:
        return Path(wanted)
    published = data_root(root) / _PUBLISHED
    if not published.exists():
        raise BadInput(
            f"weights = {IMAGENET!r}: {published} does not exist; get it with "
            "'fedraw data fetch resnet18', or give the path of another file"
        )
    return published
