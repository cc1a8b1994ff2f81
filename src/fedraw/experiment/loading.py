"""Load what a spec names: the data set, as images or as features, and the files of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedraw.core.randomness import Streams
from fedraw.data import cache, catalog
from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Dataset, Images
from fedraw.data.root import Progress, data_root
from fedraw.data.splits import limit_per_label
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiment.sections import IMAGENET, FeaturesSpec
from fedraw.experiment.spec import Spec

if TYPE_CHECKING:
    from fedraw.learning.features import Features
    from fedraw.learning.models import Module

# The published ImageNet weights, where `fedraw data fetch resnet18` puts them.
_PUBLISHED = Path("weights") / "resnet18-f37072fd.pth"
# Raised when the features change, so that cached ones are computed again.
_FEATURES_VERSION = 1

# A user's own data: a data set, or arrays of samples and labels.
Data = Dataset | tuple[npt.ArrayLike, npt.ArrayLike]


def load_dataset(
    spec: Spec,
    streams: Streams,
    data: Data | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load the data set of the spec, or the user's own, as features if the spec asks for them.

    Args:
        spec: Names the data set.
        streams: Where a random holdout or a reduction is drawn from.
        data: The user's own data, in place of the spec's.
        root: The data root; by default that of the environment variable FEDRAW_DATA.
        progress: Called while images are decoded and features are computed.

    """
    rng = streams.generator("holdout")
    if data is None:
        wanted = spec.data
        dataset = catalog.load(
            wanted.name,
            path=None if wanted.path is None else Path(wanted.path),
            root=root,
            size=wanted.size,
            holdout=wanted.holdout,
            rng=rng,
            progress=progress,
        )
    else:
        dataset = data if isinstance(data, Dataset) else from_arrays(*data, rng=rng)
    limits = spec.data.per_label, spec.data.test_per_label
    if limits != (None, None):
        dataset = limit_per_label(dataset, *limits, streams.generator("images"))
    if spec.features is None or spec.training.kind == "none":
        return dataset
    return with_features(
        dataset,
        spec.features,
        weights_file(spec.features.weights, root),
        normalise=spec.data.normalise,
        device=spec.training.device,
        progress=progress,
    )


def prepare(spec: Spec, root: Path | None = None, progress: Progress | None = None) -> None:
    """Decode images and compute features once, before several processes would do it."""
    if spec.data.name in catalog.PUBLIC:
        load_dataset(spec, Streams(0), None, root, progress)


def weights_file(wanted: str, root: Path | None) -> Path:
    """The path of a file of weights; `imagenet` names the published file in the data root."""
    if wanted != IMAGENET:
        return Path(wanted)
    published = data_root(root) / _PUBLISHED
    if not published.exists():
        raise BadInput(
            f"weights = {IMAGENET!r}: {published} does not exist; get it with "
            "'fedraw data fetch resnet18', or give the path of another file"
        )
    return published


def with_features(
    dataset: Dataset,
    wanted: FeaturesSpec,
    weights: Path,
    *,
    normalise: str,
    device: str,
    progress: Progress | None,
) -> Dataset:
    """Replace each image by the vector of features that a frozen backbone computes from it.

    Train and test images of one file are one pool, whose features are computed together. The seeds
    of an experiment draw different test sets from the pool and share its features.
    """
    if len(dataset.input_shape) != 3:
        raise BadInput(
            f"features are computed from images, and samples of {dataset.name!r} have shape "
            f"{dataset.input_shape}; leave [features] out"
        )
    backbone = _Backbone.load(dataset.input_shape, wanted, weights, normalise, device)
    pool, test_pool = dataset.images.everything(), dataset.test_images.everything()
    train = backbone.features_of(dataset.name, pool, progress)
    same = test_pool.pixels is pool.pixels
    test = train if same else backbone.features_of(dataset.name, test_pool, progress)
    return replace(
        dataset,
        images=dataset.images.mapped_to(train),
        test_images=dataset.test_images.mapped_to(test),
        notes=(*dataset.notes, f"features of {wanted.backbone}, {backbone.loaded}"),
    )


@dataclass(frozen=True, eq=False)
class _Backbone:
    """A frozen network that computes features."""

    module: Module
    loaded: str  # what was read from the file of weights
    facts: dict[str, Any]  # everything but the images that the features depend on
    normalise: str
    device: str
    statistics: str

    @classmethod
    def load(
        cls,
        shape: tuple[int, ...],
        wanted: FeaturesSpec,
        weights: Path,
        normalise: str,
        device: str,
    ) -> _Backbone:
        try:
            from fedraw.learning.features import backbone
            from fedraw.learning.weights import load_weights
        except ModuleNotFoundError as missing:
            raise MissingExtra(missing.name or "torch", "sim") from None
        # The generator does not matter, because every weight comes from the file.
        module = backbone(wanted.backbone, shape, np.random.default_rng(0), wanted.stem)
        loaded = load_weights(module, weights)
        facts = {
            **asdict(replace(wanted, weights=loaded.sha256)),
            "version": _FEATURES_VERSION,
            "normalise": normalise,
            "device": device,
        }
        return cls(module, str(loaded), facts, normalise, device, wanted.statistics)

    def features_of(self, name: str, images: Images, progress: Progress | None) -> Images:
        if not len(images):
            return Images(np.zeros((0, 512), np.float32))
        facts = self.facts | {"images": images.sha256()}
        write = partial(self._write, name, images, progress)
        entry = cache.entry(f"{name}-features", facts, write, progress)
        return Images(entry.array("features"), sha256=entry.sha256("features"))

    def _write(
        self, name: str, images: Images, progress: Progress | None, draft: cache.Draft
    ) -> cache.Facts:
        draft.write("features", self._chunks(name, images, progress))
        return {"weights": self.loaded}

    def _chunks(self, name: str, images: Images, progress: Progress | None) -> Iterator[Features]:
        from fedraw.learning.features import features
        from fedraw.learning.inputs import NORMALISATIONS

        normalisation, done = NORMALISATIONS[self.normalise], 0
        for chunk in features(
            self.module,
            images,
            device=self.device,
            normalisation=normalisation,
            statistics=self.statistics,  # type: ignore[arg-type]
        ):
            done += len(chunk)
            if progress is not None:
                progress(f"features of {name}", done, len(images))
            yield chunk
