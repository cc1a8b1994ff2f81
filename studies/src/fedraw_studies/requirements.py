"""Requirements of a plan: which data sets and weights it needs, and which are missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from fedraw.data.catalog import BATCHES, LESIONS
from fedraw.data.root import Progress, data_root
from fedraw.errors import BadInput
from fedraw.experiment.loading import prepare, weights_file
from fedraw.experiment.sections import IMAGENET
from fedraw.experiment.spec import Spec
from fedraw_studies.plan import Planned

_PUBLISHED = "resnet18"  # the weights, as 'fedraw data fetch' calls them


@dataclass(frozen=True)
class Machine:
    """Data root, weights and device of this machine; they do not change the key of a cell."""

    root: Path | None = None  # data root; default FEDRAW_DATA
    weights: Path | None = None  # instead of the published ones
    device: str = "cpu"

    def localised(self, spec: Spec) -> Spec:
        """Return the spec as this machine runs it."""
        training = replace(spec.training, device=self.device)
        features = spec.features
        if self.weights is not None:
            own = str(self.weights.absolute())
            if features is not None and features.weights == IMAGENET:
                features = replace(features, weights=own)
            if training.weights == IMAGENET:
                training = replace(training, weights=own)
        return replace(spec, training=training, features=features)


def refuse_missing_data(
    to_run: Sequence[Planned], machine: Machine, dataless: Iterable[str]
) -> None:
    """Raise BadInput if data are missing: which, who needs them, and what can run without."""
    missing: dict[str, str] = {}
    needing: dict[str, None] = {}
    looked_for = cache(partial(_missing, root=machine.root))
    for planned in to_run:
        spec = machine.localised(planned.spec)
        for name, why in looked_for(spec.data.name, _weights(spec)).items():
            missing.setdefault(name, why)
            needing.setdefault(planned.artefact)
    if not missing:
        return
    able = dict.fromkeys(p.artefact for p in to_run if p.artefact not in needing)
    others = " ".join([*able, *dataless])
    reasons = _no_root(machine.root) or "\n".join(dict.fromkeys(missing.values()))
    raise BadInput(
        f"{reasons}\n"
        f"{', '.join(needing)} cannot run without {', '.join(missing)}: get what is missing with "
        f"'fedraw data fetch {' '.join(missing)} --data DIR' and give --data DIR; without it there "
        f"is 'fedraw reproduce {others}', and everything on embedded data with --scale smoke"
    )


def prepare_all(specs: Iterable[Spec], root: Path | None, progress: Progress) -> None:
    """Decode images and compute features once, before processes need them."""
    kinds = {json.dumps([s.tables().get("data"), s.tables().get("features")]): s for s in specs}
    for spec in kinds.values():
        prepare(spec, root, progress)


def _no_root(root: Path | None) -> str | None:
    """Why there is no data root at all, or None."""
    try:
        data_root(root)
    except BadInput as problem:
        return str(problem)
    return None


def _weights(spec: Spec) -> str | None:
    return spec.training.weights if spec.features is None else spec.features.weights


def _missing(dataset: str, weights: str | None, root: Path | None) -> dict[str, str]:
    """What is missing and why, by the name under which it can be fetched."""
    found: dict[str, str] = {}
    try:
        if dataset in BATCHES:
            BATCHES[dataset](data_root(root, dataset)).facts()
        if dataset in LESIONS:
            LESIONS[dataset](data_root(root, dataset))
    except BadInput as problem:
        found[dataset] = str(problem)
    try:
        if weights is not None:
            _refuse_absent(weights_file(weights, root))
    except BadInput as problem:
        found[_PUBLISHED] = str(problem)
    return found


def _refuse_absent(weights: Path) -> None:
    if not weights.is_file():
        raise BadInput(f"the weights {weights} do not exist; give another file with --weights")
