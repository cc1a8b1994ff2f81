"""Tasks and replies as plain values, and models as dictionaries of NumPy arrays.

This module does not need nvflare. A site sends a dictionary of arrays and a dictionary of strings,
numbers and label counts. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.layout import Layout
from fedraw.core.settings import checked_settings
from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.messages import (
    LARGEST_REST,
    LONGEST_REASON,
    Fields,
    as_array,
    check_count_types,
    check_tensor_type,
    model_layout,
    read_tensors,
    reply_or_failure,
)
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TrainReply,
)
from fedraw.strategies.catalog import find_method
from fedraw.strategies.protocol import Needs

# The key of fedraw's fields in the metadata of a FLARE message, and the keys of these fields.
FIELDS = "fedraw"
COUNTS, RIGHT, TOTAL, METRICS, ERROR = "counts", "right", "total", "metrics", "error"
# The metric by which some strategies weigh sites.
LOSS = "loss"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Template:
    """The tensors of a model in the user's order, and the position of each in the vector.

    Integer tensors (torch's num_batches_tracked) cannot be averaged. They are sent unchanged, so
    that a strict load_state_dict finds every key. Half and double precision become single precision
    in the vector, and `write` converts them back.

    >>> template = Template.of({"w": np.ones((2, 2), np.float32), "n": np.array(7)})
    >>> template.read({"w": np.ones((2, 2), np.float32)})
    array([1., 1., 1., 1.], dtype=float32)
    >>> {name: array.tolist() for name, array in template.write(np.zeros(4, np.float32)).items()}
    {'w': [[0.0, 0.0], [0.0, 0.0]], 'n': 7}
    """

    layout: Layout
    model: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, model: Mapping[str, Any], statistics: Collection[str] | None = None) -> Template:
        """Return the template of a model; by default running means and variances are statistics."""
        if not isinstance(model, Mapping):
            raise BadInput(
                "a model is a state_dict or a mapping from names to arrays, "
                f"not {type(model).__name__}"
            )
        arrays = {str(name): as_array(str(name), tensor) for name, tensor in model.items()}
        types = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        return cls(model_layout(types, statistics), arrays)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all tensors."""
        return sum(array.nbytes for array in self.model.values())

    def read(self, arrays: Mapping[str, Any]) -> Vector:
        """Return the arrays as one vector; integer tensors are ignored and may be missing."""
        return read_tensors(arrays, self.layout, self.model, self._checked)

    def write(self, vector: Vector) -> Arrays:
        """Return all tensors of the model with their names, shapes and types."""
        arrays = dict(self.model)
        for segment in self.layout.segments:
            numbers = vector[segment.slice].reshape(segment.shape)
            arrays[segment.name] = numbers.astype(self.model[segment.name].dtype)
        return arrays

    def _checked(self, name: str, array: object) -> npt.NDArray[Any]:
        own = self.model[name]
        if not isinstance(array, np.ndarray):
            raise RefusedUpdate(f"tensor {name!r} is {type(array).__name__}, not a NumPy array")
        check_tensor_type(name, (array.dtype, array.shape), (own.dtype, own.shape))
        return array


def read_strategy(table: Mapping[str, Any] | None) -> Any:
    """Return the strategy that a table names, with its settings.

    >>> read_strategy({"name": "fedfa", "buffer": 4}).buffer
    4
    """
    own = dict(table or {})
    method = find_method(own.pop("name", "fedraw"), "strategy.name")
    strategy = method.make(checked_settings(method.factory, own, "strategy"))
    if strategy.needs.payload is not None:
        raise BadInput(
            f"strategy.name = {method.name!r} runs on Flower and in the simulator; FLARE follows, "
            "because its sites can only send models so far; choose a method that trains, or Flower"
        )
    return strategy


@dataclass
class MessageCodec:
    """Converts tasks to plain values and plain values to replies, for one model and strategy."""

    template: Template
    needs: Needs
    _model: Vector | None = field(default=None, init=False, repr=False)
    _arrays: Arrays = field(default_factory=dict, init=False, repr=False)

    def arrays(self, model: Vector) -> Arrays:
        """Return the model as arrays, which all tasks with this model share."""
        if model is not self._model:
            self._arrays, self._model = self.template.write(model), model
        return self._arrays

    def fields(self, task: Task) -> dict[str, Any]:
        """Return the fields of a task, which a site receives in addition to the model."""
        fields: dict[str, Any] = {"kind": task.kind, "task": task.number, "version": task.version}
        if task.kind == "train":
            fields["wants_loss"] = self.needs.loss
            fields["proximal"] = float(self.needs.proximal)
            fields["settings"] = dict(task.config)
        return fields

    def read_reply(
        self, task: Task, site: str, arrays: object, fields: object, is_difference: bool = False
    ) -> Reply:
        """Return the reply, or a Failure; it never raises, whatever a site sends.

        With `is_difference`, the arrays are added to those of the task's model.
        """
        return reply_or_failure(lambda: self._read(task, site, arrays, fields, is_difference))

    def _read(
        self, task: Task, site: str, arrays: object, fields: object, is_difference: bool
    ) -> Reply:
        if not isinstance(fields, dict):
            raise RefusedUpdate(
                f"{FIELDS!r} is missing; does the site's script call fedraw.flare.join?"
            )
        checked = Fields(fields)
        if ERROR in checked:
            return Failure(f"its script failed: {checked.text(ERROR)[-LONGEST_REASON:]}")
        if task.kind == "summary":
            return LabelSummary(site, _counts(fields, COUNTS) if COUNTS in checked else {})
        number, metrics = checked.whole("task"), _metrics(fields)
        if task.kind == "evaluate":
            right, total = _counts(fields, RIGHT), _counts(fields, TOTAL)
            return EvaluateReply(site, number, right, total, metrics, checked.whole("examples"))
        vector = self.template.read(self._checked(arrays))
        if is_difference:
            assert task.model is not None
            vector = vector + task.model
        return TrainReply(
            site,
            number,
            checked.whole("version"),
            vector,
            checked.whole("examples"),
            metrics.get(LOSS),
            _counts(fields, COUNTS) if COUNTS in checked else None,
            metrics,
            is_model=True,
        )

    def _checked(self, arrays: object) -> Mapping[str, Any]:
        """Return a dictionary of arrays; refuse other types, and a reply far above the model."""
        if not isinstance(arrays, dict):
            raise RefusedUpdate(f"the model is {type(arrays).__name__}, not a dictionary of arrays")
        size = sum(len(str(name)) + getattr(array, "nbytes", 0) for name, array in arrays.items())
        most = 2 * self.template.nbytes + LARGEST_REST
        if size > most:
            raise RefusedUpdate(f"the reply has {size} bytes; the limit is {most}")
        return arrays


def _counts(fields: Mapping[str, Any], name: str) -> dict[str, int]:
    record = fields.get(name)
    if not isinstance(record, dict):
        raise RefusedUpdate(f"{name} is {record!r:.60}, not a dictionary of counts")
    return check_count_types(record, name)


def _metrics(fields: Mapping[str, Any]) -> dict[str, float]:
    record = fields.get(METRICS, {})
    if not isinstance(record, dict):
        raise RefusedUpdate(f"{METRICS} is {record!r:.60}, not a dictionary of numbers")
    for name, value in record.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(name, str) or not number:
            raise RefusedUpdate(f"metric {name!r:.60} is {value!r:.60}, not a number")
    return record
