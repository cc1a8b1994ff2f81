"""Feature maps: fixed functions of one sample, under which sites can add up what they know.

A feature map is fixed before anyone trains and depends on no data of the sites. It consists of

- a module in evaluation mode, whose outputs are `width` numbers for each sample;
- a centre (one number for each output) and a unit (one number), measured once on synthetic inputs:
  dead leaves for images, normal numbers for vectors. The features are (output - centre) / unit, so
  that typical values are about 1 in size;
- a digest of all this. Features of maps with different digests must never be added.

The features of a sample have the same bits in every batch, because batches have a fixed size, are
filled up with blanks, and are computed by one thread.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from fedraw.core.settings import shown
from fedraw.errors import BadInput
from fedraw.learning import features as frozen
from fedraw.learning.dead_leaves import dead_leaves
from fedraw.learning.features import Features, Statistics
from fedraw.learning.inputs import ImageSequence, Normalisation, Preprocessor
from fedraw.learning.random_features import MOST, PatchFilters, RandomReLU
from fedraw.learning.weights import LoadedWeights, load_weights
from fedraw.storage.files import atomic_write

OWN, RESNET18, CONVOLUTIONS, RELU = "own", "resnet18", "convolutions", "relu"

_FORMAT = "1"
# Synthetic inputs on which the centre and the unit are measured, and the most values of them all.
_MEASURED, _MEASURED_VALUES = 256, 2**20
_BATCH = 32
# Bits of the centre and the unit. Processors differ in later bits of an average.
_BITS = 10


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A fixed function from samples to vectors; see the module.

    Made by `convolutions`, `relu`, `resnet18`, `own_map` and `load_map`.

    Attributes:
        kind: "convolutions", "relu", "resnet18", or "own" for a user's module.
        input_shape: The shape of one sample.
        module: The frozen module. Do not change it.
        centre: What is subtracted from the outputs, one number for each.
        unit: What they are divided by.
        recipe: What else describes the map, such as the seed of its filters.
        normalisation: How pixels are normalised before the module sees them.

    >>> small = relu((4,), width=3, seed=1)
    >>> small
    <FeatureMap relu: 3 features of inputs of shape (4,), digest e0742f6d02ca>
    >>> small.features(np.zeros((2, 4), np.float32)).shape
    (2, 3)

    """

    kind: str
    input_shape: tuple[int, ...]
    module: nn.Module
    centre: Features
    unit: float
    recipe: Mapping[str, Any] = field(default_factory=dict)
    normalisation: Normalisation | None = None

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.centre)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the weights, the centre, the unit and the description of the module."""
        content = hashlib.sha256(json.dumps(self._description(), sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return content.hexdigest()

    def __repr__(self) -> str:
        return (
            f"<FeatureMap {self.kind}: {self.width:,} features of inputs of shape "
            f"{self.input_shape}, digest {self.digest[:12]}>"
        )

    def features(self, inputs: ImageSequence, *, device: str = "cpu") -> Features:
        """Return the features of the samples as float32, one row for each.

        Bytes are read as pixels from 0 to 255, floats as they are.
        """
        chunks = list(self.chunks(inputs, device=device))
        return np.concatenate(chunks) if chunks else np.zeros((0, self.width), np.float32)

    def chunks(
        self,
        inputs: ImageSequence,
        *,
        device: str = "cpu",
        statistics: Statistics = "stored",
    ) -> Iterator[Features]:
        """Yield the features of consecutive samples, in arrays of up to 32 rows.

        With `statistics="estimated"`, batch norm uses the statistics of these very inputs. The
        map is then no longer fixed: its statistics are knowledge pooled from all the inputs.
        """
        shape = tuple(inputs[:0].shape[1:])
        if shape != self.input_shape:
            raise BadInput(
                f"inputs have shape {shape}, and this feature map is for {self.input_shape}; "
                "give samples of that shape, or make another map"
            )
        start, unit = 0, np.float32(self.unit)
        for outputs in frozen.features(
            self.module,
            inputs,
            device=device,
            normalisation=self.normalisation,
            statistics=statistics,
        ):
            _refuse_outputs(outputs, self.width, start)
            yield (outputs - self.centre) / unit
            start += len(outputs)

    def save(self, path: Path | str) -> None:
        """Write the map as a .safetensors file, with its digest and its recipe."""
        description = {**self._description(), "digest": self.digest}
        metadata = {"feature_map": _FORMAT, "recipe": json.dumps(description, sort_keys=True)}
        atomic_write(Path(path), safetensors.torch.save(self._tensors(), metadata))

    def with_head(self, head: Mapping[str, Any]) -> Classifier:
        """Return features and linear layer as one torch module, from samples to scores.

        Args:
            head: The tensors of the linear layer by name, such as `state_dict()` of a run of one
                pass, or the content of its model.safetensors.

        """
        return Classifier(self, head)

    def _description(self) -> dict[str, Any]:
        pixels = self.normalisation
        return {
            "kind": self.kind,
            "input_shape": list(self.input_shape),
            "width": self.width,
            "unit": self.unit,
            "recipe": dict(self.recipe),
            "normalisation": None if pixels is None else [list(pixels.mean), list(pixels.sd)],
        }

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors, because a file cannot have two names for one memory."""
        state = {f"module.{name}": own for name, own in self.module.state_dict().items()}
        state["centre"] = torch.from_numpy(self.centre)
        return {name: own.detach().cpu().contiguous().clone() for name, own in state.items()}


class Classifier(nn.Module):
    """A feature map and a linear layer: bytes or floats of samples in, one score a label out.

    An ordinary module in evaluation mode, for `torch.save`, `state_dict` and `torch.export` (of
    batches of up to 32 samples). Bytes are read as pixels from 0 to 255. Only the linear layer
    `head` has parameters.

    >>> own = relu((4,), 3).with_head({"weight": np.ones((2, 3)), "bias": np.zeros(2)})
    >>> own(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    def __init__(self, feature_map: FeatureMap, head: Mapping[str, Any]) -> None:
        super().__init__()
        weights, biases = _linear_layer(head, feature_map.width)
        self.features = copy.deepcopy(feature_map.module)
        self.register_buffer("centre", torch.from_numpy(feature_map.centre.copy()))
        self.register_buffer("unit", torch.tensor(feature_map.unit, dtype=torch.float32))
        self.head = nn.Linear(feature_map.width, len(biases))
        with torch.no_grad():
            self.head.weight.copy_(weights)
            self.head.bias.copy_(biases)
        self._normalisation = feature_map.normalisation
        self.eval()

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the scores of the samples, one row for each."""
        preprocess = Preprocessor(self.head.weight.device, self._normalisation)
        outputs = self.features(preprocess(samples))
        scaled = (outputs - self.get_buffer("centre")) / self.get_buffer("unit")
        scores: torch.Tensor = self.head(scaled)
        return scores


def _linear_layer(head: Mapping[str, Any], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the biases among the named tensors of a linear layer."""
    found = {name: torch.as_tensor(own).detach() for name, own in head.items()}
    weights = [own for own in found.values() if own.ndim == 2]
    biases = [own for own in found.values() if own.ndim == 1]
    if len(found) != 2 or not weights or not biases or len(weights[0]) != len(biases[0]):
        shapes = ", ".join(f"{name} of shape {tuple(own.shape)}" for name, own in found.items())
        raise BadInput(
            f"head = {shapes or 'no tensors'} is not a linear layer; give its weights and its "
            "biases, such as the state_dict() of a run of one pass"
        )
    if weights[0].shape[1] != width:
        raise BadInput(
            f"the linear layer has weights for {weights[0].shape[1]:,} features, and this feature "
            f"map has {width:,}; give the map that the run names in its notes"
        )
    return weights[0], biases[0]


# -- The built-in maps ----------------------------------------------------------------------------


def default_features(input_shape: tuple[int, ...]) -> tuple[str, int]:
    """Return the kind and the width of the map for samples of this shape, if nobody chooses.

    >>> default_features((3, 32, 32)), default_features((1, 8, 8)), default_features((30,))
    (('convolutions', 3200), ('convolutions', 540), ('relu', 512))
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        return RELU, 512
    return CONVOLUTIONS, default_width(CONVOLUTIONS, input_shape)


def default_map(input_shape: tuple[int, ...]) -> FeatureMap:
    """Make the map for samples of this shape, if nobody chooses.

    >>> default_map((30,)).kind
    'relu'
    """
    kind, width = default_features(tuple(input_shape))
    return (convolutions if kind == CONVOLUTIONS else relu)(input_shape, width)


def default_width(kind: str, input_shape: tuple[int, ...]) -> int:
    """Return the width of a map with random weights, if nobody chooses one."""
    if kind == RELU:
        return 512
    pixels = math.prod(input_shape[1:])
    return 540 if pixels < 256 else 2304 if input_shape[0] == 1 else 3200


def convolutions(
    input_shape: tuple[int, ...], width: int | None = None, seed: int = 0
) -> FeatureMap:
    """Make the map of convolutions with whitened patches of synthetic images; it needs no data.

    Args:
        input_shape: Channels, height and width of an image.
        width: The number of features.
        seed: Draws the synthetic images.

    """
    shape = tuple(input_shape)
    wanted = _width(CONVOLUTIONS, shape, width)
    module = PatchFilters(shape, wanted).drawn(_seed(seed))
    return _fixed(CONVOLUTIONS, shape, module, {"seed": seed})


def relu(input_shape: tuple[int, ...], width: int | None = None, seed: int = 0) -> FeatureMap:
    """Make the map of random ReLUs for tables and other vectors: max(0, W asinh(x) + b).

    Args:
        input_shape: The shape of a sample; images are read as vectors.
        width: The number of features.
        seed: Draws W and b.

    """
    shape = tuple(input_shape)
    module = RandomReLU(shape, _width(RELU, shape, width)).drawn(_seed(seed))
    return _fixed(RELU, shape, module, {"seed": seed, "inputs": "asinh", "most": MOST})


def resnet18(
    input_shape: tuple[int, ...],
    weights: Path | str,
    *,
    stem: str = "imagenet",
    layers: tuple[int, ...] = (4,),
    pool: frozen.Pool = "mean",
    normalisation: Normalisation | None = None,
    measured: bool = False,
) -> tuple[FeatureMap, LoadedWeights]:
    """Make the map of a frozen ResNet-18, and say what was loaded from the file of its weights.

    With `measured`, centre and unit are measured on synthetic images, as those of other maps. By
    default its features are its plain outputs (centre 0, unit 1), as in every run with [features];
    some of them can be far from 1 in size, depending on the weights.
    """
    module = _resnet(input_shape, stem, layers, pool)
    loaded = load_weights(module, weights)
    pooled = frozen.pooled_layers(module, layers, pool).eval().requires_grad_(False)
    recipe = {"stem": stem, "layers": list(layers), "pool": pool}
    shape, centre, unit = tuple(input_shape), np.zeros(pooled.width, np.float32), 1.0
    if measured:
        centre, unit = _centre_and_unit(_outputs(pooled, synthetic_inputs(shape), normalisation))
    return FeatureMap(RESNET18, shape, pooled, centre, unit, recipe, normalisation), loaded


def own_map(
    module: nn.Module | Callable[[torch.Tensor], Any],
    input_shape: tuple[int, ...],
    *,
    examples: npt.NDArray[Any] | None = None,
    description: str = "",
    normalisation: Normalisation | None = None,
) -> FeatureMap:
    """Make a map from a module, or from a function of a batch.

    Args:
        module: Maps a batch of n samples to n rows of features. It is copied and frozen.
        input_shape: The shape of one sample.
        examples: Samples on which centre and unit are measured, in place of synthetic ones. They
            become part of the map, so they must not be data of a site. Needed for token ids.
        description: Belongs to the digest; for a function, its source, which no file can hold.
        normalisation: How pixels are normalised before the module sees them.

    >>> half = own_map(nn.Linear(4, 2), (4,))
    >>> half.kind, half.width
    ('own', 2)

    """
    if not callable(module) or isinstance(module, type):
        raise BadInput(
            f"features = {shown(module)} is not a feature map; give a torch module or a function "
            "of a batch of samples"
        )
    own = copy.deepcopy(module) if isinstance(module, nn.Module) else module
    checked, shape = _Checked(own).eval().requires_grad_(False), tuple(input_shape)
    inputs = synthetic_inputs(shape) if examples is None else examples
    if tuple(inputs.shape[1:]) != shape:
        raise BadInput(
            f"examples have shape {inputs.shape[1:]}, and samples have {shape}; give both the same"
        )
    recipe = {"module": repr(module) if isinstance(module, nn.Module) else "function"}
    recipe |= {"description": description} if description else {}
    outputs = _outputs(checked, inputs, normalisation)
    centre, unit = _centre_and_unit(outputs)
    _refuse_changing(checked, inputs, normalisation, outputs)
    return FeatureMap(OWN, shape, checked, centre, unit, recipe, normalisation)


def load_map(path: Path | str, module: nn.Module | None = None) -> FeatureMap:
    """Read a map that `FeatureMap.save` has written, and verify its digest.

    Args:
        path: The file.
        module: For a map of a user's module: a module of the same class, whose tensors the file
            replaces. Files never contain code.

    """
    path = Path(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as problem:  # the library has its own errors for damaged files
        raise BadInput(
            f"{path} cannot be read as a feature map ({problem}); get it again"
        ) from None
    if metadata.get("feature_map") != _FORMAT:
        raise BadInput(
            f"{path} is not a feature map of this version; write one with FeatureMap.save"
        )
    try:
        found = _restored(json.loads(metadata["recipe"]), tensors, module, path)
        digest = json.loads(metadata["recipe"])["digest"]
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise BadInput(f"{path} is not a complete feature map ({problem}); get it again") from None
    if found.digest != digest:
        raise BadInput(
            f"{path} has the digest {found.digest[:12]}, and says {str(digest)[:12]}: it was "
            "altered, or the module is another one; get the file again"
        )
    return found


def _restored(
    about: Mapping[str, Any],
    tensors: dict[str, torch.Tensor],
    own: nn.Module | None,
    path: Path,
) -> FeatureMap:
    shape, recipe = tuple(about["input_shape"]), about["recipe"]
    centre = tensors.pop("centre").numpy()
    module: nn.Module
    match about["kind"]:
        case "convolutions":
            module = PatchFilters(shape, about["width"])
        case "relu":
            module = RandomReLU(shape, about["width"])
        case "resnet18":
            layers, pool = tuple(recipe["layers"]), recipe["pool"]
            module = frozen.pooled_layers(
                _resnet(shape, recipe["stem"], layers, pool), layers, pool
            )
        case _ if own is not None:
            module, recipe = _Checked(copy.deepcopy(own)), {**recipe, "module": repr(own)}
        case _:
            raise BadInput(
                f"{path} has the tensors of a user's module and no code; give the module as well: "
                "load_map(path, module)"
            )
    module.load_state_dict({name.removeprefix("module."): own for name, own in tensors.items()})
    pixels = about["normalisation"]
    normalisation = None if pixels is None else Normalisation(*map(tuple, pixels))
    frozen_module = module.eval().requires_grad_(False)
    kind, unit = about["kind"], float(about["unit"])
    return FeatureMap(kind, shape, frozen_module, centre, unit, recipe, normalisation)


def synthetic_inputs(input_shape: tuple[int, ...]) -> Features:
    """Return the samples on which centres and units are measured: images, or normal numbers.

    Every second image is black and white, because writing has more contrast than photographs.

    >>> synthetic_inputs((1, 8, 8)).shape, synthetic_inputs((3,)).shape
    ((256, 1, 8, 8), (256, 3))
    """
    shape = tuple(input_shape)
    count = max(_BATCH, min(_MEASURED, _MEASURED_VALUES // max(1, math.prod(shape))))
    rng = np.random.default_rng(0)
    if len(shape) == 3:
        channels, height, width = shape
        images = dead_leaves(count, (channels, height, width), rng).astype(np.float32)
        images[::2] = images[::2] > 0.5
        return images
    return rng.standard_normal((count, *shape), np.float32)


# -- Measuring and checking -----------------------------------------------------------------------


class _Checked(nn.Module):
    """A user's module or function, whose outputs must be one row of numbers for each sample."""

    def __init__(self, own: nn.Module | Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.own = own

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        try:
            found = torch.as_tensor(self.own(batch))
        except Exception as problem:  # a user's code may raise anything
            raise BadInput(
                f"the feature map does not accept a batch of shape {tuple(batch.shape)} and type "
                f"{str(batch.dtype).removeprefix('torch.')} ({problem}); change the module, or "
                "the shape of the samples"
            ) from problem
        if found.ndim != 2 or len(found) != len(batch):
            raise BadInput(
                f"the feature map turns {len(batch)} samples into an array of shape "
                f"{tuple(found.shape)}, not ({len(batch)}, features); flatten or pool its output"
            )
        return found.detach().float()


def _resnet(
    shape: tuple[int, ...], stem: str, layers: tuple[int, ...], pool: frozen.Pool
) -> nn.Module:
    # The generator does not matter, because every weight comes from a file.
    return frozen.backbone(RESNET18, tuple(shape), np.random.default_rng(0), stem)


def _width(kind: str, shape: tuple[int, ...], width: int | None) -> int:
    wanted = default_width(kind, shape) if width is None else width
    if wanted < 1:
        raise BadInput(f"width = {wanted} must be a whole number, at least 1")
    return wanted


def _seed(seed: int) -> int:
    if seed < 0:
        raise BadInput(f"seed = {seed} must be a whole number from 0 on")
    return seed


def _fixed(
    kind: str, shape: tuple[int, ...], module: nn.Module, recipe: Mapping[str, Any]
) -> FeatureMap:
    """Measure centre and unit of a built-in module with enough digits to be the same anywhere."""
    module.eval().requires_grad_(False)
    inputs = torch.from_numpy(synthetic_inputs(shape)).double()
    precise = copy.deepcopy(module).double()
    with torch.no_grad():
        outputs = torch.cat([precise(part) for part in torch.split(inputs, _BATCH)]).numpy()
    centre, unit = _centre_and_unit(outputs)
    return FeatureMap(kind, shape, module, centre, unit, recipe)


def _centre_and_unit(outputs: npt.NDArray[Any]) -> tuple[Features, float]:
    """Return the mean of each column, and the root of the mean of their variances, rounded.

    >>> _centre_and_unit(np.array([[0.0, 3.0], [4.0, 7.0]]))
    (array([2., 5.], dtype=float32), 2.0)
    """
    _refuse_outputs(outputs, outputs.shape[1], 0)
    values = outputs.astype(np.float64)
    spread = math.sqrt(float(values.var(axis=0).mean()))
    if spread == 0 or not (values != values[:1]).any():
        raise BadInput(
            f"all {outputs.shape[1]} features are constant over {len(outputs)} synthetic inputs; "
            "give another module, or examples on which they differ"
        )
    mantissa, exponent = math.frexp(spread)
    unit = math.ldexp(round(mantissa * 2**_BITS), exponent - _BITS)
    centre = np.round(values.mean(axis=0) / unit * 2**_BITS) / 2**_BITS * unit
    return centre.astype(np.float32), unit


def _refuse_outputs(outputs: npt.NDArray[Any], width: int, start: int) -> None:
    """Refuse outputs that are not finite, or too few; `start` is the number of the first sample."""
    if outputs.shape[1:] != (width,) or not width:
        raise BadInput(
            f"the feature map gives {outputs.shape[1:]} features for a sample, and {width} for "
            "others; give a module with a fixed number of outputs, at least 1"
        )
    wrong = ~np.isfinite(outputs).all(axis=1)
    if wrong.any():
        raise BadInput(
            f"the features of sample {start + int(wrong.argmax())} are NaN or infinite; check the "
            "sample and the weights of the feature map"
        )


def _outputs(
    module: nn.Module, inputs: npt.NDArray[Any], normalisation: Normalisation | None
) -> Features:
    return np.concatenate(list(frozen.features(module, inputs, normalisation=normalisation)))


def _refuse_changing(
    module: nn.Module,
    inputs: npt.NDArray[Any],
    normalisation: Normalisation | None,
    outputs: Features,
) -> None:
    """Refuse a module whose outputs change by chance, or with the other samples of a batch."""
    few = inputs[:_BATCH]
    if not np.array_equal(_outputs(module, few, normalisation), outputs[: len(few)]):
        raise BadInput(
            "the feature map is not deterministic in evaluation mode: two passes over the same "
            "inputs differ; remove what draws random numbers, such as functional.dropout with "
            "training=True"
        )
    alone = _outputs(module, few[:1], normalisation)
    if not np.allclose(alone, outputs[:1], rtol=1e-3, atol=1e-5 * np.abs(outputs).max()):
        raise BadInput(
            "the features of a sample depend on the other samples of its batch; use a module that "
            "treats each sample by itself, such as batch norm with stored statistics"
        )
