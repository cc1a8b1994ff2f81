"""A frozen network's features in the place of pixels: computed once, then kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.data import cache
from fedraw.data.dataset import Dataset, Images
from fedraw.data.root import Progress
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiments.sections import FeaturesSpec

if TYPE_CHECKING:
    from fedraw.learning.features import Features
    from fedraw.learning.models import Module

# Raised when features come out otherwise than before: those kept are then computed anew.
_VERSION = 1


def with_features(
    dataset: Dataset,
    wanted: FeaturesSpec,
    weights: Path,
    *,
    normalise: str,
    device: str,
    progress: Progress | None,
) -> Dataset:
    """The same samples, each as the vector that the backbone makes of its image.

    Train and test images of one file are one pool, whose features are computed together: the seeds
    of an experiment, which draw other test sets from it, share them.
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
    module: Module
    loaded: str  # what was read from the file of weights
    facts: dict[str, Any]  # all that the features depend on but the images
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
        # The generator has no say: every weight comes from the file.
        module = backbone(wanted.backbone, shape, np.random.default_rng(0), wanted.stem)
        loaded = load_weights(module, weights)
        facts = {
            **asdict(replace(wanted, weights=loaded.sha256)),
            "version": _VERSION,
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
        from fedraw.learning.inputs import SCALES

        scale, done = SCALES[self.normalise], 0
        for chunk in features(
            self.module,
            images,
            device=self.device,
            scale=scale,
            statistics=self.statistics,  # type: ignore[arg-type]
        ):
            done += len(chunk)
            if progress is not None:
                progress(f"features of {name}", done, len(images))
            yield chunk
