"""Loads the data set of a spec, as images or as features, and finds the files of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data import cache, catalog
from fedraw.data.dataset import Dataset, Inputs, limit_per_label, long_tail
from fedraw.data.own_data import Shares, own_dataset
from fedraw.data.releases import Progress, data_root
from fedraw.errors import BadInput, MissingExtra
from fedraw.experiment.parts import digest
from fedraw.experiment.sections import IMAGENET, TEXT_MODEL, DataSpec, Features
from fedraw.experiment.spec import Spec

if TYPE_CHECKING:
    from fedraw.learning.feature_maps import FeatureMap
    from fedraw.learning.features import Features as FeatureArray

# The published ImageNet weights, as `fedraw data fetch resnet18` stores them.
_PUBLISHED = Path("weights") / "resnet18-f37072fd.pth"
# Increased when the computation of features changes, so that cached features are recomputed.
_FEATURES_VERSION = 1

# Stands for the feature map of data for which nobody has chosen one.
DEFAULT_MAP = "default"

# A user's own data, in any form that `fedraw.data.own_data` lists.
Data = Any


def load_dataset(
    spec: Spec,
    streams: Streams,
    data: Data | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
    *,
    test: Data | None = None,
    shares: Shares | None = None,
    own_map: Any = None,
) -> Dataset:
    """Load the data set of the spec, or the user's own, as features if the spec asks for them.

    Args:
        spec: Names the data set.
        streams: The random streams, from which a holdout or a subset is drawn.
        data: The user's own data, or the name of a data set, in place of the spec's.
        root: The data root; by default that of the environment variable FEDRAW_DATA.
        progress: Called while images are decoded and features are computed.
        test: The user's own test data, in place of the data set's.
        shares: The positions of each client's samples, if a list gives them.
        own_map: The user's own feature map: a torch module, a function or a FeatureMap. With
            DEFAULT_MAP, the default features are computed if the spec has no feature map.

    """
    rng = streams.generator("holdout")

    def named(wanted: DataSpec) -> Dataset:
        return catalog.load(
            wanted.name,
            path=None if wanted.path is None else Path(wanted.path),
            root=root,
            size=wanted.size,
            holdout=wanted.holdout,
            rng=rng,
            progress=progress,
        )

    if isinstance(test, str):
        test = named(_named(test, spec.data))
    if data is None or isinstance(data, str):
        data = named(spec.data if data is None else _named(data, spec.data))
    dataset = own_dataset(data, test=test, shares=shares, rng=rng)
    if spec.data.imbalance is not None:
        dataset = long_tail(dataset, spec.data.imbalance, streams.generator("long tail"))
    limits = spec.data.per_label, spec.data.test_per_label
    if limits != (None, None):
        dataset = limit_per_label(dataset, *limits, streams.generator("images"))
    scaled = own_map is DEFAULT_MAP  # sums need features that are about 1 in size
    origin = None
    if own_map is DEFAULT_MAP:
        if spec.features is None:
            spec, origin = _with_default_map(spec, dataset), dataset
        own_map = None
    if spec.training.kind == "none" or (spec.features is None and own_map is None):
        return dataset
    found = _found_map(spec, dataset.input_shape, own_map, root, scaled)
    if found.map.kind == "relu":
        dataset = replace(dataset, notes=(*dataset.notes, *_notes_on_rows(dataset)))
    return with_features(dataset, found, spec.training.device, progress, origin)


def _with_default_map(spec: Spec, dataset: Dataset) -> Spec:
    """Return the spec with the feature map of data for which nobody has chosen one.

    Where the spec trains a ResNet-18 from a file of weights, the map is this network, frozen, with
    the means and deviations of its second and third group. Otherwise the map needs no data.
    """
    try:
        from fedraw.learning.feature_maps import CONVOLUTIONS, default_features
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    shape, weights = dataset.input_shape, spec.training.weights
    if not dataset.has_inputs:
        return spec
    if spec.training.model == TEXT_MODEL:
        raise BadInput(
            f"samples of dataset {dataset.name!r} are texts, for which there is no default feature "
            "map; give your own in Python: features = a module that reads character codes"
        )
    if weights is not None and spec.training.model == "resnet18":
        wanted = Features(weights, stem=spec.training.stem, layers=(2, 3), pool="mean+std")
        return replace(spec, features=wanted)
    kind, width = default_features(shape)
    wanted = Features(backbone="convolutions" if kind == CONVOLUTIONS else "relu", width=width)
    return replace(spec, features=wanted, data=replace(spec.data, normalise="none"))


def _notes_on_rows(dataset: Dataset) -> tuple[str, ...]:
    """Return notes about what random ReLUs cannot see: flat columns, and where pixels are."""
    from fedraw.learning.random_features import weak_columns

    inputs, shape = dataset.inputs, dataset.input_shape
    if inputs.dtype == np.uint8:
        pixels = (
            f"samples of shape {shape} are read as rows of a table; if they are images, give them "
            f"the shape (channels, height, width), such as {(1, *shape)}, for which convolutions "
            "are the default",
        )
        return pixels if len(shape) == 2 else ()
    weak = weak_columns(inputs[:]) if len(shape) == 1 and len(inputs) else []
    if not weak:
        return ()
    noun, verb = ("column", "varies") if len(weak) == 1 else ("columns", "vary")
    return (
        f"{noun} {several(map(str, weak), most=8)} of the inputs {verb} too little for the feature "
        "map 'relu', which expects values of about 1 and takes asinh of them; subtract a constant "
        "from the column and divide it by another, the same at all clients",
    )


def _named(name: str, wanted: DataSpec) -> DataSpec:
    """Return the settings of the data set of this name, or of the .npz file of this path."""
    if name == wanted.name:
        return wanted
    return DataSpec("npz", path=name) if name.endswith(".npz") else DataSpec(name)


def prepare(spec: Spec, root: Path | None = None, progress: Progress | None = None) -> None:
    """Decode images and compute features once, before several processes need them."""
    if spec.data.name in catalog.PUBLIC:
        load_dataset(spec, Streams(0), None, root, progress)


def weights_file(wanted: str, root: Path | None) -> Path:
    """Return the path of a weights file; `imagenet` is the published file in the data root."""
    if wanted != IMAGENET:
        return Path(wanted)
    published = data_root(root) / _PUBLISHED
    if not published.exists():
        raise BadInput(
            f"weights = {IMAGENET!r}: {published} does not exist; get it with "
            "'fedraw data fetch resnet18', or give the path of another file"
        )
    return published


def feature_map(spec: Spec, input_shape: tuple[int, ...], root: Path | None = None) -> FeatureMap:
    """Return the map of a spec's [features] for samples of this shape.

    With statistics = "estimated", this is the map before its statistics are estimated.
    """
    if spec.features is None:
        raise BadInput("this spec has no [features], so there is no feature map; add the section")
    return _found_map(spec, input_shape, None, root).map


def with_features(
    dataset: Dataset,
    found: FoundMap,
    device: str,
    progress: Progress | None,
    origin: Dataset | None = None,
) -> Dataset:
    """Replace each sample by its features under a map, which are cached.

    If the map belongs to the method, `origin` are the data themselves, which runs of other methods
    have as well. If only its scale does, these are the features before they are scaled.

    Train and test images of one file are one pool, whose features are computed together. The seeds
    of an experiment draw different test sets from the pool and share its features.
    """
    pool, test_pool = dataset.inputs.everything(), dataset.test_inputs.everything()
    if found.map.kind != "own":  # a user's module may begin with an embedding of whole numbers
        pool, test_pool = pool.as_floats(), test_pool.as_floats()
    train = found.features_of(dataset.name, pool, device, progress)
    same = test_pool.values is pool.values
    test = train if same else found.features_of(dataset.name, test_pool, device, progress)

    def of(train: Inputs, test: Inputs) -> Dataset:
        inputs = dataset.inputs.same_rows_of(train)
        return replace(dataset, inputs=inputs, test_inputs=dataset.test_inputs.same_rows_of(test))

    digest = found.digest_with(train, test)
    if found.scaled:
        origin = of(train, test) if origin is None else origin
        train = found.scale(train)
        test = train if same else found.scale(test)
    return replace(
        of(train, test),
        notes=(*dataset.notes, *found.notes),
        map_digest=digest,
        origin=None if origin is None else origin.sha256(),
    )


def standardised(dataset: Dataset, rows: Ints) -> Dataset:
    """Shift and scale each feature to mean 0 and deviation 1 over these training samples.

    The rows are the clients' training samples, so the statistics use neither the global nor a local
    test set. A federation can compute the same statistics from two sums of each client. A feature
    that does not vary is only shifted.

    >>> inputs = Inputs(np.array([[1, 5], [3, 5], [9, 6]], np.float32))
    >>> labels = np.array([0, 1, 0])
    >>> data = Dataset("toy", inputs, labels, inputs.select([2]), labels[:1], ("a", "b"))
    >>> standardised(data, np.array([0, 1])).inputs[:].tolist()
    [[-1.0, 0.0], [1.0, 0.0], [7.0, 1.0]]
    """
    known = dataset.inputs.take(rows).astype(np.float64)
    mean, sd = known.mean(axis=0), known.std(axis=0)
    sd[sd == 0] = 1.0

    def scaled(inputs: Inputs) -> Inputs:
        whole = inputs.everything()[:]
        return inputs.same_rows_of(Inputs(((whole - mean) / sd).astype(np.float32)))

    train = scaled(dataset.inputs)
    same = dataset.test_inputs.values is dataset.inputs.values
    test = (
        dataset.test_inputs.same_rows_of(train.everything())
        if same
        else scaled(dataset.test_inputs)
    )
    digest = _combined(dataset.map_digest, mean.tobytes(), sd.tobytes())
    return replace(dataset, inputs=train, test_inputs=test, map_digest=digest)


def _combined(map_digest: str | None, *content: bytes) -> str | None:
    """Return the digest of a map that further numbers have changed."""
    if map_digest is None:
        return None
    return hashlib.sha256(b"".join([map_digest.encode(), *content])).hexdigest()


def _found_map(
    spec: Spec, shape: tuple[int, ...], own: Any, root: Path | None, scaled: bool = False
) -> FoundMap:
    """Make the map of the spec, or of the user's own module or function.

    With `scaled`, the outputs of a ResNet-18 are centred and scaled by what they are on synthetic
    images, unless the data do so themselves.
    """
    try:
        from fedraw.learning import feature_maps as maps
        from fedraw.learning.inputs import NORMALISATIONS
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "torch", "sim") from None
    wanted, normalise = spec.features, spec.data.normalise
    if wanted is not None and wanted.backbone == maps.RESNET18:
        if len(shape) != 3:
            raise BadInput(
                f"features of 'resnet18' are computed from images, and the samples have shape "
                f"{shape}; leave features out, or use backbone = 'relu'"
            )
        own_scale = wanted.standardise or wanted.statistics == "estimated"
        measured = scaled and not own_scale
        made, loaded = maps.resnet18(
            shape,
            weights_file(wanted.weights or IMAGENET, root),
            stem=wanted.stem or "imagenet",
            layers=wanted.layers,
            pool=wanted.pool,
            normalisation=NORMALISATIONS[normalise],
            measured=measured,
        )
        # The features are standardised after the cache.
        facts = replace(wanted, standardise=False).to_dict() | {
            "weights": loaded.sha256,
            "normalise": normalise,
        }
        notes: tuple[str, ...] = (f"features of {wanted.backbone}, {loaded}", _named_map(made))
        if wanted.statistics == "estimated":
            notes += (
                "the batch-norm statistics of these features are estimated from the images of all "
                "clients and of the test set: pooled knowledge",
            )
        return FoundMap(made, notes, facts, wanted.statistics or "stored", measured)
    if normalise != "none":
        raise BadInput(
            f"data.normalise = {normalise!r} is for networks with trained weights; this feature "
            "map reads pixels from 0 to 1, so set it to 'none'"
        )
    if wanted is not None:
        kind = maps.convolutions if wanted.backbone == maps.CONVOLUTIONS else maps.relu
        made = kind(shape, wanted.width, wanted.seed)
    elif isinstance(own, maps.FeatureMap):
        made = own
    else:
        made = maps.own_map(own, shape, description=digest(own))
    return FoundMap(made, (_named_map(made),), {"map": made.digest})


def _named_map(made: FeatureMap) -> str:
    """Return the note that names a map in every result."""
    return f"feature map {made.kind}, {made.width:,} features, digest {made.digest[:16]}"


@dataclass(frozen=True, eq=False)
class FoundMap:
    """A feature map, and what its cached features depend on."""

    map: FeatureMap
    notes: tuple[str, ...]  # for every result
    facts: dict[str, Any]  # everything that the features depend on, except the samples
    statistics: str = "stored"
    scaled: bool = False  # whether the cache has the features before they are scaled

    def scale(self, features: Inputs) -> Inputs:
        """Return the features centred and scaled by the map."""
        plain = features[:]
        return Inputs((plain - self.map.centre) / np.float32(self.map.unit))

    def digest_with(self, *features: Inputs) -> str | None:
        """Return the digest of the map, with the features that its statistics were estimated from.

        Estimated statistics are in no file, but the features themselves depend on them.
        """
        if self.statistics == "stored":
            return self.map.digest
        return _combined(self.map.digest, *(own.sha256().encode() for own in features))

    def features_of(
        self, name: str, images: Inputs, device: str, progress: Progress | None
    ) -> Inputs:
        """Return the features of the samples from the cache, or compute them now."""
        if not len(images):
            return Inputs(np.zeros((0, self.map.width), np.float32))
        facts = self.facts | {"version": _FEATURES_VERSION, "device": device}
        facts |= {"images": images.sha256()}
        write = partial(self._write, name, images, device, progress)
        entry = cache.entry(f"{name}-features", facts, write, progress)
        return Inputs(entry.array("features"), sha256=entry.sha256("features"))

    def _write(
        self,
        name: str,
        images: Inputs,
        device: str,
        progress: Progress | None,
        draft: cache.Draft,
    ) -> cache.Facts:
        draft.write("features", self._chunks(name, images, device, progress))
        return {"map": list(self.notes)}

    def _chunks(
        self, name: str, images: Inputs, device: str, progress: Progress | None
    ) -> Iterator[FeatureArray]:
        done, plain = 0, self.map
        if self.scaled:
            plain = replace(plain, centre=np.zeros_like(plain.centre), unit=1.0)
        for chunk in plain.chunks(
            images,
            device=device,
            statistics=self.statistics,  # type: ignore[arg-type]
        ):
            done += len(chunk)
            if progress is not None:
                progress(f"features of {name}", done, len(images))
            yield chunk
