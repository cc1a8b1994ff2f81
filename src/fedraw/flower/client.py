"""Makes a Flower ClientApp of up to three functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import index
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedraw.core.settings import one_of
from fedraw.core.types import Vector
from fedraw.core.update import difference
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flower.messages import (
    ARRAYS,
    COUNTS,
    FIELDS,
    RIGHT,
    TOTAL,
    fields_of,
    pack_counts,
    read_arrays,
)
from fedraw.flower.tensors import Template, record_of
from fedraw.server.evaluation import Recall

# The key under which Flower's mod for fixed clipping looks for its norm.
CLIPPING_NORM = "clipping_norm"


@dataclass(frozen=True)
class TrainConfig:
    """What the server's strategy asks of one training."""

    version: int
    proximal: float = 0.0  # μ of a term μ/2 ||w − w_start||² in the local loss; 0: none
    wants_loss: bool = False  # whether it needs the mean loss before training


# Returns the trained model (a state_dict, a mapping from names to arrays or an ArrayRecord), the
# number of examples and, if asked for, the loss.
Train = Callable[[ArrayRecord, TrainConfig, Context], tuple[Any, ...]]
CountLabels = Callable[[Context], Mapping[Any, int]]
Evaluate = Callable[[ArrayRecord, Context], Recall]


def client_app(
    *,
    train: Train,
    label_counts: CountLabels | None = None,
    evaluate: Evaluate | None = None,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Return a ClientApp that trains the models it receives and declares its labels.

    The site's name is `site` of the node config, "site-<partition>" in a simulation, or else
    "node-<id>". An exception of these functions counts as a failure of this site.

    Args:
        train: Trains a model: (arrays, config, context) -> (model, examples[, loss]).
        label_counts: Returns the training samples by label. Without it, the server's strategy needs
            labels = "inferred".
        evaluate: Tests a model on the site's own data and returns a Recall.
        mods: Flower's mods, applied to training only. They see the complete trained model without
            integer tensors; the difference that some methods need is formed after them. Flower's
            `fixedclipping_mod` takes its norm from the key `clipping_norm` of the run config.

    """
    chain = list(mods or ())
    if adaptiveclipping_mod in chain:
        raise BadInput(
            "adaptiveclipping_mod needs a server that adapts its norm, which fedraw's does not; "
            "use fixedclipping_mod or LocalDpMod"
        )

    def on_query(message: Message, context: Context) -> Message:
        _clipping_norm(chain, context)  # a mistake shows now, not after the first training
        if label_counts is None:
            return _reply(message, context, {}, {})
        counts = pack_counts(label_counts(context), "label_counts")
        context.state[COUNTS] = counts
        return _reply(message, context, {}, {COUNTS: counts})

    def on_train(message: Message, context: Context) -> Message:
        return _train_inside_mods(trained, chain, message, context)

    def trained(
        message: Message, context: Context, start: ArrayRecord, template: Template
    ) -> Message:
        fields = fields_of(message.content)
        config = TrainConfig(
            fields.whole("version"), fields.number("proximal"), fields.truth("loss")
        )
        model, examples, loss = _unpack(train(start, config, context), config)
        written = template.write(_read(template, record_of(model), "train"))
        arrays = ArrayRecord({name: written[name] for name in template.headers})
        own: dict[str, Any] = {"examples": examples}
        if loss is not None:
            own["loss"] = loss
        records: dict[str, Any] = {ARRAYS: arrays}
        if label_counts is not None:
            counts = pack_counts(label_counts(context), "label_counts")
            if _changed(context, counts):
                records[COUNTS] = counts
        return _reply(message, context, own, records)

    def on_evaluate(message: Message, context: Context) -> Message:
        assert evaluate is not None
        recall = evaluate(read_arrays(message.content), context)
        if not isinstance(recall, Recall):
            raise BadInput(f"evaluate gives {type(recall).__name__}; it has to give a Recall")
        right, total = pack_counts(recall.right, "right"), pack_counts(recall.total, "total")
        return _reply(message, context, {}, {RIGHT: right, TOTAL: total})

    app = ClientApp()
    app.query()(on_query)
    app.train()(on_train)
    if evaluate is not None:
        app.evaluate()(on_evaluate)
    return app


def site_name(context: Context) -> str:
    """The stable name of this site."""
    config = context.node_config
    if "site" in config:
        return str(config["site"])
    if "partition-id" in config:
        return f"site-{config['partition-id']}"
    return f"node-{context.node_id}"


def _unpack(result: object, config: TrainConfig) -> tuple[Any, int, float | None]:
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise BadInput(
            f"train gives {type(result).__name__}; it has to give (model, examples) or "
            "(model, examples, loss)"
        )
    model, examples, *loss = result
    if config.wants_loss and not loss:
        raise BadInput(
            "the server's strategy weighs sites by their loss; let train give (model, examples, "
            "loss) with the mean loss before training"
        )
    try:
        return model, index(examples), float(loss[0]) if loss else None
    except TypeError:
        raise BadInput(
            f"train gives {examples!r:.40} examples; it has to be a whole number"
        ) from None


def _train_inside_mods(
    train: Callable[[Message, Context, ArrayRecord, Template], Message],
    mods: Sequence[Mod],
    message: Message,
    context: Context,
) -> Message:
    """Train inside the mods, then form the difference if the strategy needs it."""
    fields, start = fields_of(message.content), read_arrays(message.content)
    sends = fields.text("sends")
    one_of("sends", sends, ("model", "delta"))  # a newer server may ask for more than this
    template = Template.of(start, fields.texts("statistics") if "statistics" in fields else ())

    def innermost(message: Message, context: Context) -> Message:
        arrived = read_arrays(message.content)
        arrays = ArrayRecord({name: arrived.get(name, start[name]) for name in start})
        return train(message, context, arrays, template)

    # Integers are not part of an update, so no mod may count them as a change.
    message.content[ARRAYS] = ArrayRecord({name: start[name] for name in template.headers})
    if norm := _clipping_norm(mods, context):
        message.content[FIELDS][CLIPPING_NORM] = norm
    reply = _with_mods(innermost, mods)(message, context)
    if reply.has_error():
        return reply
    vector = _read(template, read_arrays(reply.content), "a mod")
    if sends == "delta":
        vector = difference(vector, template.read(start), template.layout)
    reply.content[ARRAYS] = template.write(vector)
    return reply


def _with_mods(innermost: ClientAppCallable, mods: Sequence[Mod]) -> ClientAppCallable:
    """Wrap the function in the mods, the first one outermost."""
    call = innermost
    for mod in reversed(mods):
        call = partial(_call, mod, call)
    return call


def _call(mod: Mod, inner: ClientAppCallable, message: Message, context: Context) -> Message:
    return mod(message, context, inner)


def _clipping_norm(mods: Sequence[Mod], context: Context) -> float | None:
    """Return the norm for Flower's fixed clipping; None if the mod is not used."""
    if fixedclipping_mod not in mods:
        return None
    norm = context.run_config.get(CLIPPING_NORM)
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not 0 < norm < inf:
        raise BadInput(
            f"fixedclipping_mod needs a positive number as {CLIPPING_NORM} of the run config "
            f"([tool.flwr.app.config] in the app's pyproject.toml); it is {norm!r:.40}"
        )
    return float(norm)


def _read(template: Template, model: ArrayRecord, source: str) -> Vector:
    try:
        return template.read(model)
    except RefusedUpdate as error:
        raise BadInput(f"{source} gives another model than it was handed: {error}") from None


def _changed(context: Context, counts: ConfigRecord) -> bool:
    """Whether the server may know other counts than these.

    A reply with new counts can be lost, so they go with every later reply until the server asks for
    a summary again.
    """
    if context.state.get(COUNTS) == counts:
        return False
    if COUNTS in context.state:
        del context.state[COUNTS]
    return True


def _reply(
    message: Message, context: Context, own: Mapping[str, Any], records: Mapping[str, Any]
) -> Message:
    asked = fields_of(message.content)
    fields = ConfigRecord(
        {
            "site": site_name(context),
            "task": asked.whole("task"),
            "version": asked.whole("version"),
            **own,
        }
    )
    return Message(RecordDict({FIELDS: fields, **records}), reply_to=message)
