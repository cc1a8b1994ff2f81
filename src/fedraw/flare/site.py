"""Turns an existing FLARE client script into a site of a federation, with two added lines.

    import nvflare.client as flare
    import fedraw.flare                                        # added

    flare.init()
    fedraw.flare.join(label_counts={"cat": 30, "owl": 2})      # added
    while flare.is_running():
        model = flare.receive()
        ...
        flare.send(flare.FLModel(params=network.state_dict()))

The script trains the models that it receives, as before. `join` wraps FLARE's client API in this
process, so it also works if a library calls the API (FLARE's callbacks for Lightning and Hugging
Face).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.client.api import get_context

from fedraw.errors import BadInput
from fedraw.flare.messages import COUNTS, ERROR, FIELDS, LOSS, METRICS, RIGHT, TOTAL
from fedraw.server.messages import Fields, plain_counts
from fedraw.server.results import EvaluationOutput, EvaluationResult, checked_metrics

LabelCounts = Mapping[Any, int] | Callable[[], Mapping[Any, int]]
Evaluate = Callable[[Mapping[str, Any]], EvaluationOutput]

# Seconds between two checks for a task; FLARE's default is half a second.
TASK_CHECK_INTERVAL = 0.05


def join(
    *,
    label_counts: LabelCounts | None = None,
    evaluate: Evaluate | None = None,
    examples: int | None = None,
) -> None:
    """Let this process take part in a federation; call it once, after `flare.init()`.

    The model that `flare.receive()` returns has `meta["fedraw"]` with the `version`, the server's
    `settings` for this training, the coefficient `proximal` of a proximal term (0 for none), and
    `wants_loss`. If `wants_loss` is true, the script must send `metrics["loss"]`, the mean loss of
    the received model before training.

    Args:
        label_counts: The number of training samples by label, or a function that returns it. A
            function is called for each task, so that the counts may change. Without it, the
            server's strategy needs labels = "inferred".
        evaluate: Tests a model (parameters as `flare.receive()` returns them) on the site's own
            data. It returns a Recall, a mapping from names of metrics to numbers, or both as a
            tuple.
        examples: The number of training samples; by default the total of the label counts.

    """
    if label_counts is None and examples is None:
        raise BadInput("join needs label_counts or examples (the number of training samples)")
    context = get_context()
    if isinstance(context.api, SiteAPI):
        raise BadInput("join was already called in this process; call it once, after flare.init()")
    context.api = SiteAPI(context.api, label_counts, evaluate, examples)


class SiteAPI:
    """Wraps FLARE's client API: answers fedraw's own tasks, and adds fields to trained models."""

    def __init__(
        self,
        api: Any,
        label_counts: LabelCounts | None = None,
        evaluate: Evaluate | None = None,
        examples: int | None = None,
    ) -> None:
        self._api = api
        self._label_counts = label_counts
        self._evaluate = evaluate
        self._examples = examples
        self._model: FLModel | None = None  # the model that the script is training
        self._task: dict[str, Any] = {}
        self._declared: dict[str, int] | None = None
        if hasattr(api, "result_check_interval"):
            api.result_check_interval = TASK_CHECK_INTERVAL

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def is_running(self) -> bool:
        """Wait for a model to train; return False if the job is over."""
        return self.receive() is not None

    def receive(self, timeout: float | None = None) -> FLModel | None:
        """Return the next model to train; answer fedraw's own tasks that arrive before it."""
        while self._model is None:
            model = self._api.receive(timeout)
            if model is None:
                return None
            self._task = _fields_of(model)
            if self._task["kind"] == "train":
                self._model = model
            else:
                self._answer(model)
        return self._model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Send a trained model with the fields that the server needs."""
        if self._model is None:
            raise BadInput("flare.send was called without a task; call flare.receive before it")
        if not isinstance(model.params, Mapping):
            raise BadInput("flare.send got no params; send FLModel(params=model.state_dict())")
        model.meta = {FIELDS: self._reply_fields(model.metrics or {})}
        model.metrics = None
        self._api.send(model, clear_cache)
        if clear_cache:
            self._model = None

    def clear(self) -> None:
        """Forget the model that was received."""
        self._model = None
        self._api.clear()

    def _answer(self, model: FLModel) -> None:
        """Answer one of fedraw's own tasks, which the script does not see."""
        try:
            fields = self._summary() if self._task["kind"] == "summary" else self._tested(model)
        except Exception as error:  # the script can still train
            fields = {ERROR: f"{type(error).__name__}: {error}"}
        self._api.send(FLModel(metrics={}, meta={FIELDS: {"task": self._task["task"], **fields}}))

    def _summary(self) -> dict[str, Any]:
        self._declared = self._counts()
        return {} if self._declared is None else {COUNTS: self._declared}

    def _tested(self, model: FLModel) -> dict[str, Any]:
        if self._evaluate is None:
            raise BadInput("this site cannot evaluate; give fedraw.flare.join a function evaluate")
        tested = EvaluationResult.of(self._evaluate(model.params), "evaluate")
        return {
            RIGHT: plain_counts(tested.recall.right, RIGHT),
            TOTAL: plain_counts(tested.recall.total, TOTAL),
            METRICS: {name: value for name, value in tested.own.items() if value is not None},
            "examples": int(tested.samples) or self._samples(self._counts()),
        }

    def _reply_fields(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a reply with a trained model."""
        own = checked_metrics(metrics, "the metrics of flare.send")
        if self._task["wants_loss"] and own.get(LOSS) is None:
            raise BadInput(
                "the server's strategy weighs sites by their loss; send FLModel(..., metrics="
                f"{{{LOSS!r}: x}}) with the mean loss of the received model before training"
            )
        counts = self._counts()
        fields: dict[str, Any] = {name: self._task[name] for name in ("task", "version")}
        fields["examples"] = self._samples(counts)
        fields[METRICS] = {name: value for name, value in own.items() if value is not None}
        # A reply with new counts can be lost, so every later reply has them until the server asks
        # for a summary again.
        if counts is not None and counts != self._declared:
            fields[COUNTS], self._declared = counts, None
        return fields

    def _counts(self) -> dict[str, int] | None:
        counts = self._label_counts() if callable(self._label_counts) else self._label_counts
        return None if counts is None else plain_counts(counts, "label_counts")

    def _samples(self, counts: Mapping[str, int] | None) -> int:
        return sum((counts or {}).values()) if self._examples is None else index(self._examples)


def _fields_of(model: FLModel) -> dict[str, Any]:
    """Return the checked fields of a task; refuse a task that is not from fedraw's controller."""
    fields = (model.meta or {}).get(FIELDS)
    if not isinstance(fields, dict):
        raise BadInput(
            "this task is not from fedraw's controller; build the job with "
            "fedraw.flare.FederationRecipe"
        )
    checked = Fields(fields)
    checked.whole("task")
    if checked.text("kind") == "train":
        checked.whole("version")
        checked.boolean("wants_loss")
    return fields
