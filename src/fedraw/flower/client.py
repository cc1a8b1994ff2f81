"""Builds a ClientApp for fedraw's server from an existing app, or from up to three functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from operator import index
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flower.messages import (
    ACTION,
    ANSWER,
    ARRAYS,
    CONFIG,
    COUNTS,
    EXAMPLES,
    FIELDS,
    METRICS,
    OWN_KEYS,
    PROXIMAL,
    TASK,
    TRAIN_LOSS,
    VERSION,
    WANTS_LOSS,
    config_of,
    only_arrays,
    pack_counts,
    pack_metrics,
    question_of,
    read_arrays,
    recall_records,
)
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.privacy.budget import Privacy
from fedraw.privacy.rounds import PrivateAnswers
from fedraw.server.results import EvaluationOutput, EvaluationResult

# Mods that cannot work with this server, and why.
REFUSED_MODS = {
    adaptiveclipping_mod: "it needs a server that adapts the norm, and fedraw's server does not; "
    "use fixedclipping_mod or LocalDpMod",
    secagg_mod: "secure aggregation needs all sites of a round at the same time, and this server "
    "aggregates single updates; remove the mod",
}
REFUSED_MODS[secaggplus_mod] = REFUSED_MODS[secagg_mod]


@dataclass(frozen=True)
class TrainConfig:
    """The server's settings for one training."""

    version: int
    proximal: float = 0.0  # μ of the proximal term μ/2 ||w − w_start||² in the local loss
    wants_loss: bool = False  # whether the strategy needs the mean loss before training
    settings: Mapping[str, Any] = field(default_factory=dict)  # the user's settings for this site


# Returns the trained model (a state_dict, a mapping from names to arrays or an ArrayRecord), the
# number of examples and, optionally, the loss before training or a mapping of metrics.
Train = Callable[[ArrayRecord, TrainConfig, Context], tuple[Any, ...]]
CountLabels = Callable[[Context], Mapping[Any, int]]
Evaluate = Callable[[ArrayRecord, Context], EvaluationOutput]


def client_app(
    app: ClientApp | None = None,
    *,
    train: Train | None = None,
    label_counts: CountLabels | None = None,
    evaluate: Evaluate | None = None,
    mods: list[Mod] | None = None,
    privacy: Privacy | None = None,
) -> ClientApp:
    """Return a ClientApp that trains the models it receives and declares its labels.

    The site's name is `site` of the node config, "site-<partition>" in a simulation, or else
    "node-<id>". An exception of these functions counts as a failure of this site.

    Args:
        app: An existing app with `@app.train()`, and optionally `@app.evaluate()`; it is called
            unchanged. An app that does not declare labels needs no client_app around it.
        train: Trains a model, in place of `app`: (arrays, config, context) -> (model, examples).
            A third item may be the mean loss before training, or a mapping of metrics.
        label_counts: Returns the number of training samples by label. Without it, the server's
            strategy needs labels = "inferred".
        evaluate: Tests a model on the site's own data, together with `train`. It returns a Recall,
            a mapping of metrics, or both as a tuple. A mapping without a Recall needs
            `num-examples`.
        mods: Flower's mods, applied to training only. They see the complete trained model without
            integer tensors; the server computes the difference for methods that need it.
        privacy: The privacy under which this site reports its labels, in place of its counts. The
            site stores its random draws in the file `fedraw-<site>.json`, in the folder that
            `private-folder` of the node config names; by default in the folder in which the
            SuperNode was started.

    """
    if (app is None) == (train is None) or (app is not None and evaluate is not None):
        raise BadInput(
            "client_app takes either an existing app, or train and optionally evaluate; give one "
            "of the two"
        )
    if privacy is not None and label_counts is None:
        raise BadInput("privacy has no effect without label_counts; give both")
    own_mods = list(mods or ())
    for mod in [*own_mods, *getattr(app, "_mods", ())]:
        for refused, reason in REFUSED_MODS.items():
            if mod is refused:
                raise BadInput(f"{mod.__name__}: {reason}")
    inner = app if app is not None else _app_of(train, evaluate)

    def on_query(message: Message, context: Context) -> Message:
        reply = Message(RecordDict({FIELDS: _signature(message, context)}), reply_to=message)
        if label_counts is None:
            return reply
        counts = pack_counts(label_counts(context), "label_counts")
        question = question_of(message.content)
        if privacy is not None:
            answers = PrivateAnswers(privacy, private_file(context))
            reply.content[ANSWER] = ConfigRecord(answers.answer(question, counts))
        elif question:
            raise BadInput(
                "the server collects private label summaries; set client_app's argument privacy to "
                "the settings that this site agrees to"
            )
        else:
            reply.content[COUNTS] = context.state[COUNTS] = counts
        return reply

    def on_train(message: Message, context: Context) -> Message:
        signature = _signature(message, context)
        reply = _train_inside_mods(inner, own_mods, message, context)
        if reply.has_error():
            return reply
        reply.content[FIELDS] = signature
        if label_counts is not None and privacy is None:
            counts = pack_counts(label_counts(context), "label_counts")
            if _changed(context, counts):
                reply.content[COUNTS] = counts
        return reply

    def on_evaluate(message: Message, context: Context) -> Message:
        signature = _signature(message, context)
        reply = inner(message, context)
        if not reply.has_error():
            reply.content[FIELDS] = signature
        return reply

    outer = ClientApp()
    outer.query(ACTION)(on_query)
    outer.train()(on_train)
    outer.evaluate()(on_evaluate)
    return outer


def site_name(context: Context) -> str:
    """Return the stable name of this site; see `client_app`."""
    config = context.node_config
    if "site" in config:
        return str(config["site"])
    if "partition-id" in config:
        return f"site-{config['partition-id']}"
    return f"node-{context.node_id}"


def private_file(context: Context, ending: str = "json") -> Path:
    """Return a private file of the site; no two names of sites have the same one."""
    site = site_name(context)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in site)
    if name != site:
        name = f"{name}-{sha256(site.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return Path(str(context.node_config.get("private-folder", ""))) / f"fedraw-{name}.{ending}"


def _signature(message: Message, context: Context) -> ConfigRecord:
    """Return the record of a reply that names the site and repeats the task and the version."""
    asked = config_of(message.content)
    return ConfigRecord(
        {
            "site": site_name(context),
            "task": asked.whole(TASK),
            "version": asked.whole(VERSION),
        }
    )


def _app_of(train: Train | None, evaluate: Evaluate | None) -> ClientApp:
    """Return an app of Flower's message API that calls the user's functions."""
    assert train is not None
    app = ClientApp()

    def on_train(message: Message, context: Context) -> Message:
        asked = config_of(message.content)
        own = message.content[CONFIG].items()
        config = TrainConfig(
            asked.whole(VERSION),
            asked.number(PROXIMAL),
            asked.boolean(WANTS_LOSS),
            {key: value for key, value in own if key not in OWN_KEYS},
        )
        start = read_arrays(message.content)
        template = TensorTemplate.of(start)
        model, examples, metrics = _unpack(train(start, config, context), config)
        arrays = template.write(_read(template, record_of(model), "train"))
        records = {ARRAYS: arrays, METRICS: pack_metrics(metrics, examples)}
        return Message(RecordDict(records), reply_to=message)

    app.train()(on_train)
    if evaluate is None:
        return app

    def on_evaluate(message: Message, context: Context) -> Message:
        tested = EvaluationResult.of(evaluate(read_arrays(message.content), context), "evaluate")
        own = {name: value for name, value in tested.own.items() if value is not None}
        examples = int(own.pop(EXAMPLES, tested.samples))
        if own and not examples:
            raise BadInput(
                f"evaluate returns metrics without {EXAMPLES}; add the number of test samples"
            )
        records = {METRICS: pack_metrics(own, examples), **recall_records(tested.recall)}
        return Message(RecordDict(records), reply_to=message)

    app.evaluate()(on_evaluate)
    return app


def _unpack(result: object, config: TrainConfig) -> tuple[Any, int, Mapping[str, Any]]:
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise BadInput(
            f"train returns {type(result).__name__}; it must return (model, examples), with the "
            "loss before training or a mapping of metrics as an optional third item"
        )
    model, examples, *rest = result
    metrics = rest[0] if rest else {}
    if not isinstance(metrics, Mapping):
        metrics = {TRAIN_LOSS: metrics}
    if config.wants_loss and TRAIN_LOSS not in metrics:
        raise BadInput(
            "the server's strategy weighs sites by their loss; return (model, examples, loss) from "
            f"train, with the mean loss before training, or metrics with {TRAIN_LOSS!r}"
        )
    try:
        return model, index(examples), metrics
    except TypeError:
        raise BadInput(
            f"train returns {examples!r:.40} examples; it must be a whole number"
        ) from None


def _train_inside_mods(
    train: ClientAppCallable, mods: Sequence[Mod], message: Message, context: Context
) -> Message:
    """Train inside the mods, which see only the model's float tensors.

    Integer tensors are not part of an update, so no mod may treat them as a change.
    """
    if not mods:
        return train(message, context)
    start = read_arrays(message.content)
    template = TensorTemplate.of(start)

    def floats_only(record: ArrayRecord) -> ArrayRecord:
        return ArrayRecord({name: record[name] for name in template.headers if name in record})

    def innermost(message: Message, context: Context) -> Message:
        arrived = read_arrays(message.content)
        message.content[ARRAYS] = ArrayRecord({n: arrived.get(n, start[n]) for n in start})
        reply = train(message, context)
        if not reply.has_error():
            name, trained = only_arrays(reply.content)
            reply.content[name] = floats_only(trained)
        return reply

    message.content[ARRAYS] = floats_only(start)
    call: ClientAppCallable = innermost
    for mod in reversed(mods):  # the first one is the outermost
        call = partial(_call, mod, call)
    reply = call(message, context)
    if not reply.has_error():
        _read(template, only_arrays(reply.content)[1], "a mod")
    return reply


def _call(mod: Mod, inner: ClientAppCallable, message: Message, context: Context) -> Message:
    return mod(message, context, inner)


def _read(template: TensorTemplate, model: ArrayRecord, source: str) -> Vector:
    try:
        return template.read(model)
    except RefusedUpdate as error:
        raise BadInput(
            f"{source} returns a model with other tensors than it received: {error}"
        ) from None


def _changed(context: Context, counts: ConfigRecord) -> bool:
    """Return whether these counts may differ from those that the server knows.

    A reply with new counts can be lost, so every later reply has them until the server asks for a
    summary again.
    """
    if context.state.get(COUNTS) == counts:
        return False
    if COUNTS in context.state:
        del context.state[COUNTS]
    return True
