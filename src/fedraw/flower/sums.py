"""A site that sends the sums of its features once, for strategies such as one pass.

`sums_app` returns the site's ClientApp. The site's own code reads its samples; the feature map, the
same file at every site, turns them into features. In place of labels, a site may give the targets
of a regression: one row of floats for each sample.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError, safe_open

from fedraw.core.labels import NO_LABELS
from fedraw.core.layout import Layout
from fedraw.core.private_sums import SumsPrivacy
from fedraw.core.sums import Sums, check_samples
from fedraw.core.types import Ints
from fedraw.errors import BadInput, nearest
from fedraw.flower.client import client_app, private_file
from fedraw.flower.messages import (
    ARRAYS,
    BUDGET,
    CONFIG,
    EXAMPLES,
    FEATURE_MAP,
    FLOOR,
    LABELS,
    METRICS,
    REGRESSION,
    SUMS,
    pack_metrics,
    read_arrays,
    recall_records,
)
from fedraw.flower.tensors import TensorTemplate
from fedraw.privacy.site_noise import noise_of
from fedraw.server.results import Recall

# What a server and its sites must agree on; all are None without noise.
TERMS = ("epsilon", "delta", "clip", "group")

# Returns the site's samples and the label or the targets of each: (context) -> (inputs, labels).
Samples = Callable[[Context], tuple[npt.NDArray[Any], Sequence[Any] | npt.NDArray[Any]]]


class FeatureMap(Protocol):
    """A fixed function from samples to vectors, such as a `fedraw.learning.FeatureMap`."""

    @property
    def digest(self) -> str:
        """What distinguishes the map from all others."""
        ...

    @property
    def width(self) -> int:
        """The number of features."""
        ...

    def features(self, inputs: Any) -> npt.NDArray[Any]:
        """Return one row of features for each sample."""
        ...


# A feature map, its file, or a function that returns it.
GivenMap = FeatureMap | Path | str | Callable[[], FeatureMap]


def sums_app(
    samples: Samples,
    feature_map: GivenMap,
    *,
    test: Samples | None = None,
    privacy: SumsPrivacy | None = None,
) -> ClientApp:
    """Return the ClientApp of a site that sends sums of its features instead of training.

    Args:
        samples: Returns the site's training samples and their labels. For a regression, it returns
            their targets, an array of a float type; the site then declares the number of its
            samples in place of label counts.
        feature_map: The file of the feature map, as `FeatureMap.save` writes it, or the map, or a
            function that returns it. Every message names its digest, and the server refuses sums
            of another map.
        test: Returns the site's test samples and their labels, if the server asks sites to evaluate
            the model. The results are exact, and the budget does not cover them.
        privacy: The budget under which this site sends its sums: it clips its samples, adds noise
            and declares no label counts, and it refuses a server that asks for other terms. The key
            of its noise is in the file `fedraw-<site>.key`, in the folder that `private-folder` of
            the node config names; by default where the SuperNode was started.

    """
    site = _Site(samples, feature_map, test, privacy)
    app = ClientApp()
    app.train()(site.send)
    if test is not None:
        app.evaluate()(site.evaluate)
    return client_app(app, label_counts=None if privacy else site.label_counts)


def feature_map_facts(given: GivenMap) -> tuple[str, int]:
    """Return the digest and the width of a feature map; of a file, without reading its tensors."""
    if not isinstance(given, str | Path):
        found = given() if callable(given) else given
        return found.digest, found.width
    path = given
    try:
        with safe_open(path, "numpy") as file:
            recipe = json.loads((file.metadata() or {})["recipe"])
        return str(recipe["digest"]), int(recipe["width"])
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as problem:
        raise BadInput(
            f"{path} cannot be read as a feature map ({problem}); write one with FeatureMap.save"
        ) from None


@dataclass(frozen=True)
class _Site:
    samples: Samples
    given: GivenMap
    test: Samples | None
    privacy: SumsPrivacy | None = None

    @cached_property
    def feature_map(self) -> FeatureMap:
        if not isinstance(self.given, str | Path):
            return self.given() if callable(self.given) else self.given
        from fedraw.learning.feature_maps import load_map  # needs torch, and servers have none

        return load_map(self.given)

    def label_counts(self, context: Context) -> Mapping[str, int]:
        labels = np.asarray(self.samples(context)[1])
        if labels.dtype.kind == "f":  # targets of a regression
            return {NO_LABELS: len(labels)}
        return Counter(map(str, labels.tolist()))

    def send(self, message: Message, context: Context) -> Message:
        """Answer a task with the counts, sums and products of the site's samples."""
        asked = message.content[CONFIG]
        if LABELS not in asked:
            raise BadInput(
                "the server asks this site to train, and it can only send sums; let the server "
                "use a strategy such as one-pass"
            )
        self._refuse_other_terms(asked)
        names, floor = [str(name) for name in asked[LABELS]], int(asked[FLOOR])
        expected, own = str(asked[FEATURE_MAP]), self.feature_map
        if own.digest != expected:
            raise BadInput(
                f"this site has the feature map {own.digest:.12}, and the server expects "
                f"{expected:.12}; give the site the server's file"
            )
        payload = Sums(floor, self.privacy, _asks_targets(asked))
        inputs, labels = self.samples(context)
        answers = (targets_of if payload.regression else label_numbers)(labels, names)
        if len(answers) != len(inputs):
            raise BadInput(
                f"this site has {len(inputs)} samples and {len(answers)} labels; give one label "
                "for each sample"
            )
        features = own.features(inputs)
        check_samples("this site", features, answers if payload.regression else None)
        shape = payload.shape(len(names), own.width)
        exact, rng = payload.exact(shape, features, answers), None
        if self.privacy is not None:
            rng = noise_of(private_file(context, "key"), self.privacy, exact)
        found: Any = payload.sent(shape, exact, rng)
        layout = Layout.of([("weight", (len(names), own.width)), ("bias", (len(names),))])
        template = TensorTemplate.of_payload(payload, layout)
        records = {
            ARRAYS: template.write(found),
            METRICS: MetricRecord({EXAMPLES: payload.examples(shape, found, len(answers))}),
            SUMS: ConfigRecord({FEATURE_MAP: own.digest}),
        }
        return Message(RecordDict(records), reply_to=message)

    def _refuse_other_terms(self, asked: Mapping[str, Any]) -> None:
        """Refuse a server that asks for sums under another budget than the site's own."""
        own = {} if self.privacy is None else asdict(self.privacy)
        wanted = {key: asked.get(f"{BUDGET}{key}") for key in TERMS}
        for key, value in wanted.items():
            if value != own.get(key):
                raise BadInput(
                    f"the server asks for sums with {key} = {value}, and this site agrees to "
                    f"{own.get(key)}; set privacy of sums_app and the strategy's settings to the "
                    "same terms"
                )

    def evaluate(self, message: Message, context: Context) -> Message:
        """Test the solved linear layer on the features of the site's test samples."""
        assert self.test is not None
        inputs, labels = self.test(context)
        weights, biases = linear_layer(read_arrays(message.content))
        asked = message.content[CONFIG]
        names = [str(name) for name in asked[LABELS]]
        outputs = self.feature_map.features(inputs) @ weights.T + biases
        if _asks_targets(asked):
            # The mean over sites is that of all samples; no such mean gives R².
            error = np.mean((outputs - targets_of(labels, names)) ** 2)
            records: dict[str, Any] = {METRICS: pack_metrics({"MSE": error}, len(outputs))}
            return Message(RecordDict(records), reply_to=message)
        best = np.argmax(outputs, axis=1)
        recall = Recall.of(list(map(str, np.asarray(labels).tolist())), [names[i] for i in best])
        records = {METRICS: MetricRecord({EXAMPLES: len(best)}), **recall_records(recall)}
        return Message(RecordDict(records), reply_to=message)


def label_numbers(labels: Sequence[Any] | npt.NDArray[Any], names: Sequence[str]) -> Ints:
    """Return the number of each label among the names.

    >>> label_numbers(["owl", "cat"], ["cat", "owl"]).tolist()
    [1, 0]
    """
    given = np.asarray(labels)
    if given.dtype.kind == "f":
        raise BadInput(
            "this site gives targets of a regression, and the server asks for labels; set its "
            "strategy's readout to 'regression', or give names or whole numbers"
        )
    number = {name: i for i, name in enumerate(names)}
    own = list(map(str, given.tolist()))
    unknown = next((label for label in own if label not in number), None)
    if unknown is not None:
        raise BadInput(
            f"this site has the label {unknown!r}, which is not among the server's labels; "
            f"{nearest(unknown, names)}"
        )
    return np.array([number[label] for label in own], np.int64)


def _asks_targets(asked: Mapping[str, Any]) -> bool:
    """Return whether the server asks for the sums of a regression."""
    return bool(asked.get(REGRESSION, False))


def targets_of(targets: Any, names: Sequence[str]) -> npt.NDArray[Any]:
    """Return the targets of a regression as one row for each sample.

    >>> targets_of([0.5, 1.5], ["rent"]).tolist()
    [[0.5], [1.5]]
    """
    own = np.asarray(targets)
    if own.dtype.kind != "f":
        raise BadInput(
            f"the server asks for targets of a regression, and this site has labels of type "
            f"{own.dtype}; give an array of a float type in place of the labels"
        )
    rows: npt.NDArray[Any] = own[:, None] if own.ndim == 1 else own
    if rows.shape[1] != len(names):
        raise BadInput(
            f"this site has {rows.shape[1]} targets for each sample, and the server asks for "
            f"{len(names)} ({', '.join(names)}); give as many"
        )
    return rows


def linear_layer(record: ArrayRecord) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the weights and the biases of the solved model."""
    arrays = [tensor.numpy() for tensor in record.values()]
    weights = next(own for own in arrays if own.ndim == 2)
    return weights, next(own for own in arrays if own.ndim == 1)
