"""Reads the JSON files of LEAF, such as FEMNIST by writer and Shakespeare by role.

LEAF's scripts write the folders `train` and `test`, or `all_data`, each with JSON files of users
and their samples: {"users": […], "user_data": {user: {"x": […], "y": […]}}}. Samples are lists of
numbers, or texts of one length, which are read as ASCII codes. Labels are numbers or texts. The
column `user` names the user of each sample. Samples of 784 numbers become images of 28 x 28.

Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.settings import shown
from fedraw.data.arrays import from_arrays
from fedraw.data.dataset import Array, Dataset
from fedraw.errors import BadInput, error_context

# FEMNIST's samples are flattened images of this shape.
_IMAGE = (1, 28, 28)
_PIXELS = 784


def load_leaf(folder: Path, rng: np.random.Generator) -> Dataset:
    """Load the dataset of a folder that LEAF's scripts wrote.

    Without the folder `test`, a fifth of each label is held out. The users of test samples are
    ignored.
    """
    folder = Path(folder)
    x, y, users = _read(folder / ("train" if (folder / "train").is_dir() else "all_data"))
    test_x = test_y = None
    if (folder / "test").is_dir():
        test_x, test_y, _ = _read(folder / "test")
    name = folder.resolve().name
    with error_context(folder):
        return from_arrays(
            x,
            y,
            name=name,
            test_inputs=test_x,
            test_labels=test_y,
            columns={"user": users},
            rng=rng,
        )


def _read(folder: Path) -> tuple[Array, Array, Array]:
    """Return inputs, labels and users."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadInput(
            f"{folder} has no .json file; give the folder with LEAF's train and test, or all_data"
        )
    inputs: list[Any] = []
    labels: list[Any] = []
    users: list[str] = []
    for file in files:
        for user, (x, y) in _users(file).items():
            inputs += x
            labels += y
            users += [user] * len(y)
    return _as_inputs(folder, inputs), np.array(labels), np.array(users)


def _users(file: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        data = {str(user): (own["x"], own["y"]) for user, own in content["user_data"].items()}
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(
            f"{file}: is not a file of LEAF, an object with user_data, which has x and y for each "
            "user; write it again with LEAF's preprocess.sh"
        ) from None
    for user, (x, y) in data.items():
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise BadInput(
                f"{file}: user {user!r} does not have one y for each x; write the file again with "
                "LEAF's preprocess.sh"
            )
        for label in y:
            if not isinstance(label, int | float | str):
                raise BadInput(
                    f"{file}: user {user!r} has the label {shown(label)}, which is neither a "
                    "number nor a text; write the file again with one label for each sample"
                )
    return data


def _as_inputs(folder: Path, samples: list[Any]) -> Array:
    if samples and all(isinstance(sample, str) for sample in samples):
        lengths = {len(sample) for sample in samples}
        if len(lengths) > 1:
            raise BadInput(
                f"{folder}: texts have {min(lengths)} to {max(lengths)} characters; cut or pad "
                "them to one length"
            )
        codes = np.frombuffer("".join(samples).encode("ascii", "replace"), np.uint8)
        return codes.reshape(len(samples), -1).astype(np.int64)
    try:
        inputs = np.array(samples, np.float32)
    except (ValueError, TypeError):
        raise BadInput(
            f"{folder}: the samples are neither texts nor lists of numbers of one length; flatten "
            "them"
        ) from None
    return inputs.reshape(-1, *_IMAGE) if inputs.shape[1:] == (_PIXELS,) else inputs
