"""Makes a site of an existing FLARE client script, with two added lines.

    import nvflare.client as flare
    import fedraw.flare                                        # added

    flare.init()
    fedraw.flare.join(label_counts={"cat": 30, "owl": 2})      # added
    while flare.is_running():
        model = flare.receive()
        ...
        flare.send(flare.FLModel(params=network.state_dict()))

The script goes on to train what it receives. `join` wraps FLARE's client API in this process, so it
also works if a library calls the API (FLARE's callbacks for Lightning and Hugging Face).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.client.api import get_context

from fedraw.core.settings import one_of
from fedraw.core.update import difference
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flare.messages import COUNTS, ERROR, FIELDS, RIGHT, TOTAL, Template
from fedraw.server.evaluation import Recall
from fedraw.server.messages import Fields, as_array, plain_counts

LabelCounts = Mapping[Any, int] | Callable[[], Mapping[Any, int]]


def join(
    *,
    label_counts: LabelCounts | None = None,
    evaluate: Callable[[Mapping[str, Any]], Recall] | None = None,
    examples: int | None = None,
) -> None:
    """Let this script's process take part in a federation; call it once, after `flare.init()`.

    The model that `flare.receive()` returns has `meta["fedraw"]`: the `version`, the coefficient
    `proximal` of a proximal term (0: none), and whether the strategy wants the `loss`. A strategy
    that wants it takes `metrics["loss"]` of what the script sends: the mean loss of the received
    model before training.

    Args:
        label_counts: The training samples by label, or a function that returns them. A function is
            called for each task, so that the counts may change. Without it, the server's strategy
            needs labels = "inferred".
        evaluate: Tests a model (the parameters as `flare.receive()` gives them) on the site's own
            data and returns a Recall.
        examples: The number of training samples; by default the total of the label counts.

    """
    if label_counts is None and examples is None:
        raise BadInput("join needs label_counts, or else examples (the number of training samples)")
    context = get_context()
    if isinstance(context.api, SiteAPI):
        raise BadInput("join was called before in this process; call it once, after flare.init()")
    context.api = SiteAPI(context.api, label_counts, evaluate, examples)


class SiteAPI:
    """FLARE's client API, which here answers fedraw's own tasks and completes trained models."""

    def __init__(
        self,
        api: Any,
        label_counts: LabelCounts | None = None,
        evaluate: Callable[[Mapping[str, Any]], Recall] | None = None,
        examples: int | None = None,
    ) -> None:
        self._api = api
        self._label_counts = label_counts
        self._evaluate = evaluate
        self._examples = examples
        self._model: FLModel | None = None  # what the script is training
        self._declared: dict[str, int] | None = None
        if hasattr(api, "result_check_interval"):
            api.result_check_interval = 0.05  # seconds between two looks for a task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def is_running(self) -> bool:
        """Wait for a model to train; return False if the job is over."""
        return self._next(None) is not None

    def receive(self, timeout: float | None = None) -> FLModel | None:
        """Return the model to train, after answering fedraw's own tasks that come before it."""
        return self._next(timeout)

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Send a trained model, or its difference if the strategy needs that."""
        if self._model is None:
            raise BadInput("flare.send was called before flare.receive, so there is no task")
        self._complete(model)
        self._api.send(model, clear_cache)
        if clear_cache:
            self._model = None

    def clear(self) -> None:
        """Forget the model that was received."""
        self._model = None
        self._api.clear()

    def _next(self, timeout: float | None) -> FLModel | None:
        while self._model is None:
            model = self._api.receive(timeout)
            if model is None:
                return None
            asked = _fields_of(model)
            if asked.text("kind") == "train":
                one_of("sends", asked.text("sends"), ("model", "delta"))
                self._template = Template.of(model.params, asked.texts("statistics"))
                self._start = self._template.read(self._template.model)
                self._model = model
            else:
                self._answer(model, asked)
        return self._model

    def _answer(self, model: FLModel, asked: Fields) -> None:
        """Answer a task in which the script has no part."""
        try:
            told = self._summary() if asked.text("kind") == "summary" else self._tested(model)
        except Exception as error:  # the script can still train
            told = {ERROR: f"{type(error).__name__}: {error}"}
        told["task"] = asked.whole("task")
        self._api.send(FLModel(metrics={}, meta={FIELDS: told}))

    def _summary(self) -> dict[str, Any]:
        self._declared = self._counts()
        return {} if self._declared is None else {COUNTS: self._declared}

    def _tested(self, model: FLModel) -> dict[str, Any]:
        if self._evaluate is None:
            raise BadInput("this site's script gives join no function evaluate")
        recall = self._evaluate(model.params)
        if not isinstance(recall, Recall):
            raise BadInput(f"evaluate gives {type(recall).__name__}; it has to give a Recall")
        return {
            RIGHT: plain_counts(recall.right, "right"),
            TOTAL: plain_counts(recall.total, "total"),
        }

    def _counts(self) -> dict[str, int] | None:
        counts = self._label_counts() if callable(self._label_counts) else self._label_counts
        return None if counts is None else plain_counts(counts, "label_counts")

    def _complete(self, model: FLModel) -> None:
        """Turn what the script sends into the reply that the strategy needs."""
        assert self._model is not None
        asked, counts = _fields_of(self._model), self._counts()
        told: dict[str, Any] = {"task": asked.whole("task"), "version": asked.whole("version")}
        told["examples"] = (
            sum((counts or {}).values()) if self._examples is None else self._examples
        )
        told["examples"] = index(told["examples"])
        if asked.truth("loss"):
            told["loss"] = _loss_of(model)
        # A reply with new counts can be lost, so they go with every later reply until the server
        # asks for a summary again.
        if counts is not None and counts != self._declared:
            told[COUNTS], self._declared = counts, None
        model.params = self._parameters(model, asked.text("sends"))
        model.params_type = ParamsType.DIFF if asked.text("sends") == "delta" else ParamsType.FULL
        model.optimizer_params = None
        model.metrics = None
        model.meta = {FIELDS: told}

    def _parameters(self, model: FLModel, sends: str) -> dict[str, Any]:
        """Return the tensors to send, of the type that the script works with."""
        assert self._model is not None
        if not isinstance(model.params, Mapping):
            raise BadInput("flare.send got no params; send FLModel(params=model.state_dict())")
        arrays = {str(name): as_array(str(name), tensor) for name, tensor in model.params.items()}
        try:
            vector = self._template.read(arrays)
        except RefusedUpdate as error:
            raise BadInput(f"the script sends another model than it was handed: {error}") from None
        if model.params_type == ParamsType.DIFF:  # of every tensor, statistics included
            vector = vector + self._start
        if sends == "delta":
            vector = difference(vector, self._start, self._template.layout)
        trained = {segment.name for segment in self._template.layout.segments}
        written = self._template.write(vector)
        return {name: _like(self._model.params[name], written[name]) for name in trained}


def _fields_of(model: FLModel) -> Fields:
    fields = (model.meta or {}).get(FIELDS)
    if not isinstance(fields, dict):
        raise BadInput(
            "this task has no fields of fedraw; the server's job needs fedraw's controller "
            "(fedraw.flare.FederationRecipe)"
        )
    return Fields(fields)


def _loss_of(model: FLModel) -> float:
    loss = (model.metrics or {}).get("loss")
    try:
        return float(loss)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadInput(
            "the server's strategy weighs sites by their loss; send FLModel(..., metrics={'loss': "
            f"x}}) with the mean loss of the received model before training, not {loss!r:.40}"
        ) from None


def _like(tensor: Any, array: Any) -> Any:
    """Return the array as a tensor of torch if the given tensor is one."""
    return tensor.new_tensor(array) if hasattr(tensor, "new_tensor") else array
