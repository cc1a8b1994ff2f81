"""The server: the initial model, and its evaluation on images that no site has."""

from collections.abc import Mapping
from typing import Any

import task
import torch

from fedraw.flare import Recall


def initial_model() -> Any:
    return task.network().state_dict()


def evaluate(arrays: Mapping[str, Any]) -> Recall:
    model = task.network()
    model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()})
    return Recall.of(*task.predictions(model))
