"""`fedraw.simulate`: an experiment from keyword arguments, all of its seeds at once."""

from __future__ import annotations

import inspect
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from fedraw.core.settings import Settings, keys, plain, shown
from fedraw.data.own_data import names_clients
from fedraw.errors import BadInput, FedrawError, nearest
from fedraw.eventlog.metrics import BUILT_IN, COSTS, FURTHER_MODELS
from fedraw.eventlog.records import Record
from fedraw.experiment.cells import Cell, CellObserver, resume_lines, run_cells
from fedraw.experiment.divergence import divergence
from fedraw.experiment.interrupts import interrupting_the_script
from fedraw.experiment.keywords import as_keywords, in_words_of_python
from fedraw.experiment.loading import prepare
from fedraw.experiment.options import ExecutorKind, Options
from fedraw.experiment.parts import Parts, model_factory
from fedraw.experiment.progress import ProgressLine
from fedraw.experiment.result import (
    Result,
    SeedResult,
    accepted_nothing,
    first_refusal,
    problems_of,
)
from fedraw.experiment.sections import (
    IMAGENET,
    PARTITIONS,
    SPEEDS,
    Availability,
    Calibration,
    Costs,
    DataSpec,
    Drift,
    Features,
    LabelNoise,
    Losses,
    Membership,
    Metrics,
    Misreport,
    Partition,
    Speeds,
    StrategySpec,
    Summaries,
    Training,
    is_plugin,
    refuse_non_strategy,
)
from fedraw.experiment.spec import Spec, sections, spec_settings_of
from fedraw.learning.sgd import SGD
from fedraw.strategies.catalog import CATALOG, method_of
from fedraw.strategies.protocol import Strategy

S = TypeVar("S", bound=Settings)

# Called in this process with each record of the log and its seed.
Callback = Callable[[Record, int], object]


@in_words_of_python
def simulate(  # noqa: PLR0913 - one for each thing that a user may choose
    spec: Spec | None = None,
    *,
    strategy: str | Strategy[Any] | None = None,
    data: Any = None,
    partition: Partition | Callable[..., Any] | Sequence[Any] | None = None,
    speeds: Speeds | Sequence[float] | Any = None,
    arrivals: Literal["poisson", "fixed", "jitter"] | None = None,
    local_test: float | None = None,
    model: Any = None,
    train: SGD | Callable[..., Any] | Literal["none"] | None = None,
    batch: int | None = None,
    weights: str | Path | None = None,
    test: Any = None,
    rare_labels: Sequence[int | str] | None = None,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    evaluate_every: int | None = None,
    events: int | None = None,
    concurrency: int | None = None,
    receivers: Literal["uniform", "rare-first"] | None = None,
    availability: Availability | None = None,
    losses: Losses | None = None,
    membership: Membership | None = None,
    costs: Costs | None = None,
    features: Features | str | Callable[..., Any] | Any = None,
    drift: Drift | None = None,
    label_noise: LabelNoise | None = None,
    misreport: Misreport | None = None,
    summaries: Summaries | None = None,
    calibration: Calibration | None = None,
    seeds: int | Sequence[int] | None = None,
    device: str | None = None,
    jobs: int = 1,
    executor: ExecutorKind = "inline",
    address: str | None = None,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Simulate a federation and return the result of all seeds.

    Arguments that are left out have the values of `spec`, or else the defaults of `Spec()`. A
    SPEC.toml and keyword arguments of the same content give the same event log, byte for byte.

    Args:
        spec: The settings that are not given as arguments, for example
            `fedraw.Spec.from_file("my.toml")`.
        strategy: The name of a method, a strategy such as `fedraw.FedRAW(buffer=10)`, or your own.
        data: The name of a data set; `fedraw.DataSpec(...)` to use a part of it; or your own data:
            (X, y), a `fedraw.Dataset`, a torch or Hugging Face data set, `fedraw.Columns(...)` of
            a data frame, or one data set per client.
        partition: `fedraw.Coverage(...)`, `fedraw.Dirichlet(...)`, `fedraw.IID(...)` or
            `fedraw.ByColumn(...)`; a function of the labels, the number of classes and a generator
            that returns the samples of each client; or the list of these samples.
        speeds: `fedraw.Correlated()`, `fedraw.Uniform()`, `fedraw.Equal()`, `fedraw.Ratio(10)` or
            `fedraw.Stragglers(6, 10)`; the seconds of each client; or the path of a trace of
            recorded durations.
        arrivals: With the seconds of each client: "poisson" (default) draws durations with this
            mean, "fixed" takes exactly these, "jitter" draws from 0.8 to 1.2 times these.
        local_test: The share of each client's samples that is reserved for its local test,
            0.2 by default; with 0, clients train on all of them.
        model: The name of a model, a torch module, a function without arguments that returns one,
            or a function of the input shape and the number of classes. All seeds start from the
            weights of a module; a function draws new weights for each seed.
        train: `fedraw.SGD(...)`; your own function; or "none" to simulate arrivals and buffers
            without a model.
        batch: The size of the mini-batches that your own training function gets.
        weights: The file of the initial weights, or "imagenet".
        test: Your own test data, in the form of `data`.
        rare_labels: The labels that the metrics call rare; by default those of the partition.
        metrics: Your own metric functions by name, for every evaluation.
        evaluate_every: The number of events between two evaluations.
        events: The number of updates that reach the server.
        concurrency: The number of clients that train at the same time; by default all.
        receivers: Which client trains next below full concurrency: any, or rare clients first.
        availability: When clients are online; by default always.
        losses: The probability that an update is lost.
        membership: Clients that join and leave during the run.
        costs: The costs of computing and sending, in seconds, bytes and energy.
        features: Train on features of the inputs: `fedraw.Features(...)`, "convolutions", "relu",
            a torch module or a function that maps a batch of samples to rows of features, or a
            feature map from `fedraw.learning.feature_maps`.
        drift: A label that moves to other clients, or appears, during the run.
        label_noise: Wrong training labels.
        misreport: Clients that report false label counts.
        summaries: Private reports of label counts.
        calibration: Training of the output layer on virtual features after the run; the
            resulting model is evaluated and written as well.
        seeds: One seed, or several; each is a separate run.
        device: Where torch computes: "cpu", "cuda", "cuda:1" or "mps".
        jobs: The number of processes that run seeds in parallel; with the executors "processes" and
            "ray", the number of workers that train the clients of one seed.
        executor: What trains the clients: "inline", "batched", "processes" or "ray". The result
            does not depend on it.
        address: The address of a Ray cluster; by default one is started.
        data_root: The folder of the public data sets; by default that of FEDRAW_DATA.
        out: The folder for the runs, with a folder `seed-N` for each seed. Without it, nothing is
            written, and the log is kept in memory.
        resume: Continue the unfinished runs in `out` and keep the finished ones. The settings and
            your own objects must be the same.
        force: Replace the runs in `out`.
        progress: Show a progress line if standard error is a terminal or a notebook, and with
            `resume` where each run continues.
        callbacks: Functions that are called in this process with each record of the log and its
            seed. An error in one of them stops the run.

    >>> result = simulate(
    ...     strategy="fedfa",
    ...     partition=Partition(clients=12, clients_per_common_label=6),
    ...     speeds=Speeds("equal"), train="none", events=50, seeds=[1, 2])
    >>> result.seeds, len(result.arrivals())
    ((1, 2), 100)

    """
    own, parts = choose(
        spec,
        strategy=strategy,
        data=data,
        partition=partition,
        speeds=speeds,
        arrivals=arrivals,
        local_test=local_test,
        model=model,
        train=train,
        batch=batch,
        weights=weights,
        test=test,
        rare_labels=rare_labels,
        metrics=metrics,
        evaluate_every=evaluate_every,
        events=events,
        concurrency=concurrency,
        receivers=receivers,
        availability=availability,
        losses=losses,
        membership=membership,
        costs=costs,
        features=features,
        drift=drift,
        label_noise=label_noise,
        misreport=misreport,
        summaries=summaries,
        calibration=calibration,
        seeds=seeds,
        device=device,
    )
    folder = None if out is None else _path("out", out)
    workers = _jobs(jobs)
    options = Options(
        executor,
        workers if address is None or jobs != 1 else 0,
        address,
        None if data_root is None else _path("data_root", data_root),
        resume=resume,
        force=force,
        keep_log=True,
    )
    return _run(own, parts, folder, options, workers, progress, callbacks)


def _run(
    spec: Spec,
    parts: Parts,
    folder: Path | None,
    options: Options,
    jobs: int,
    progress: bool,
    callbacks: Iterable[Callback],
) -> Result:
    seeds, called = spec.run.seeds, _callbacks(callbacks)
    cells = [Cell(spec, s, None if folder is None else folder / f"seed-{s}") for s in seeds]

    def observe(number: int, record: Record) -> None:
        for callback in called:
            callback(record, seeds[number])

    with interrupting_the_script(folder):
        runs = _run_all(cells, parts, options, jobs, progress, observe if called else None)
    own_train = parts.train is not None or "train" in spec.plugin_parts
    diverged = divergence(runs, None if own_train else spec.training.lr)
    failed = any(map(accepted_nothing, runs))
    cautions = dict.fromkeys(as_keywords(one) for run in runs for one in run.cautions)
    for problem in (*cautions, *problems_of(runs), *(() if failed else diverged)):
        warnings.warn(problem, stacklevel=4)  # the caller of `simulate`
    if failed:
        reasons = "; ".join((first_refusal(runs), *diverged))
        raise FedrawError(f"a run accepted no update at all: {reasons}")
    return Result(runs)


def _run_all(
    cells: Sequence[Cell],
    parts: Parts,
    options: Options,
    jobs: int,
    progress: bool,
    observe: CellObserver | None,
) -> list[SeedResult]:
    """Run all seeds, with a progress line if it is wanted."""
    shown = _flag("progress", progress)
    if parts.data is None and len(cells) > 1:
        prepare(cells[0].spec, options.data_root)
    if options.resume and shown:
        for text in resume_lines(cells):
            print(text, file=sys.stderr)
    events = [cell.spec.run.events for cell in cells]
    line = ProgressLine(events, 1 if options.has_workers else jobs)
    with closing(line), options.connected():
        return run_cells(
            cells, options, jobs, line if shown else None, parts=parts, observe=observe
        )


# The sections that arguments of the same name set.
_SECTIONS = (
    "availability",
    "losses",
    "membership",
    "costs",
    "drift",
    "label_noise",
    "misreport",
    "summaries",
    "calibration",
)
_RUN = ("events", "evaluate_every", "concurrency", "receivers", "seeds")


def choose(spec: Spec | None, **wanted: Any) -> tuple[Spec, Parts]:
    """Return the spec with the changes by keyword arguments of `simulate`, and the user's parts.

    An argument that is absent or None keeps the setting of the spec.
    """
    if spec is not None and not isinstance(spec, Spec):
        hint = f"strategy={spec!r}" if isinstance(spec, str) else "a fedraw.Spec"
        if isinstance(spec, str | os.PathLike) and str(spec).endswith(".toml"):
            hint = f"fedraw.simulate(fedraw.Spec.from_file({str(spec)!r}))"
        raise BadInput(f"simulate({shown(spec)}): write {hint}; give all else by keyword")
    base, given = Spec() if spec is None else spec, wanted.get
    if all(value is None for value in wanted.values()):
        return base, Parts()
    changes: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    _choose_strategy(given("strategy"), changes, parts)
    _choose_data(given("data"), given("test"), changes, parts)
    changes["partition"] = _partition(base, given("partition"), given("local_test"), parts)
    changes["speeds"] = _speeds(base, given("speeds"), given("arrivals"), parts)
    changes["training"] = _training(base, wanted, parts)
    changes["metrics"] = _metrics(base, given("metrics"), given("rare_labels"), parts)
    changes["run"] = _changed(base.run, _run_settings({key: given(key) for key in _RUN}))
    _choose_features(given("features"), changes, parts)
    kinds = sections()
    for name in _SECTIONS:
        section = given(name)
        if section is not None:
            if not isinstance(section, kinds[name]):
                kind = kinds[name].__name__
                raise BadInput(f"{name} = {shown(section)}: give fedraw.{kind}(...)")
            changes[name] = section
    return replace(base, **changes), Parts(**parts)


def _changed(section: S, changes: Mapping[str, Any]) -> S:
    """Return a section with other values of some keys; None leaves a key as it is."""
    given = {key: value for key, value in changes.items() if value is not None}
    return replace(section, **given) if given else section


def _choose_strategy(wanted: Any, changes: dict[str, Any], parts: dict[str, Any]) -> None:
    if wanted is None:
        return
    if isinstance(wanted, str):
        if wanted not in CATALOG and not is_plugin(wanted):
            raise BadInput(f"strategy = {wanted!r} is unknown; {nearest(wanted, CATALOG)}")
        changes["strategy"] = StrategySpec.read({"name": wanted})
        return
    if isinstance(wanted, type):
        raise BadInput(f"strategy = {wanted.__name__} is a class; give {wanted.__name__}()")
    refuse_non_strategy(wanted, f"strategy = {shown(wanted)}")
    method = method_of(wanted)
    if method is not None:
        named = StrategySpec(method.base.name, spec_settings_of(wanted))
        if named.make() == wanted:
            changes["strategy"] = named
            return
    parts["strategy"] = wanted


def _choose_data(wanted: Any, test: Any, changes: dict[str, Any], parts: dict[str, Any]) -> None:
    if isinstance(wanted, str | os.PathLike):
        is_file = not isinstance(wanted, str) or wanted.endswith(".npz")
        path = str(Path(wanted).absolute())
        changes["data"] = DataSpec("npz", path) if is_file else DataSpec(str(wanted))
    elif isinstance(wanted, DataSpec):
        changes["data"] = wanted
    elif wanted is not None:
        parts["data"] = wanted
    if test is not None:
        parts["test"] = test


def _partition(
    base: Spec, wanted: Any, local_test: float | None, parts: dict[str, Any]
) -> Partition:
    if wanted is not None and names_clients(parts.get("data")):
        raise BadInput(
            "the data say which client holds each sample, and a partition is given too; leave "
            "the partition out, or give one dataset without clients"
        )
    chosen = base.partition
    if isinstance(wanted, Partition):
        chosen = wanted
    elif any(wanted is way for way in PARTITIONS):
        raise BadInput(f"partition = {wanted.__name__}: write fedraw.{wanted.__name__}(...)")
    elif callable(wanted) and not isinstance(wanted, type):
        _refuse_signature("partition", wanted, "labels", "classes", "rng")
        parts["partition"] = wanted
    elif isinstance(wanted, list | tuple | np.ndarray | Mapping):
        parts["partition"] = wanted if isinstance(wanted, Mapping) else list(wanted)
    elif wanted is not None:
        raise BadInput(
            f"partition = {shown(wanted)} is not a partition; give fedraw.Coverage(...), "
            "fedraw.Dirichlet(...), fedraw.IID(...) or fedraw.ByColumn(...), a function, or "
            "the samples of each client"
        )
    return _changed(chosen, {"local_test": local_test})


def _speeds(base: Spec, wanted: Any, arrivals: str | None, parts: dict[str, Any]) -> Speeds:
    chosen, ways = base.speeds, {way.__name__: way for way in SPEEDS}
    if isinstance(wanted, Speeds):
        chosen = wanted
    elif isinstance(wanted, str) and wanted.capitalize() in ways:
        raise BadInput(f"speeds = {wanted!r}: write fedraw.{wanted.capitalize()}(...)")
    elif any(wanted is way for way in SPEEDS):
        raise BadInput(f"speeds = {wanted.__name__}: write fedraw.{wanted.__name__}(...)")
    elif isinstance(wanted, str | os.PathLike):
        if not Path(wanted).exists():
            raise BadInput(
                f"speeds = {str(wanted)!r} is not the path of a trace; give such a path, "
                "fedraw.Correlated(), fedraw.Uniform(), fedraw.Equal(), fedraw.Ratio(10) or "
                "fedraw.Stragglers(6, 10), or the seconds of each client"
            )
        chosen = Speeds(chosen.kind, arrivals="recorded", trace=str(Path(wanted).absolute()))
    elif hasattr(wanted, "__len__"):
        parts["speeds"] = wanted
    elif wanted is not None:
        raise BadInput(
            f"speeds = {shown(wanted)} are not speeds; give fedraw.Correlated(), "
            "fedraw.Uniform(), fedraw.Equal(), fedraw.Ratio(10) or fedraw.Stragglers(6, 10), the "
            "seconds of each client, or the path of a trace"
        )
    if arrivals is not None and "speeds" not in parts:
        raise BadInput(
            f"arrivals = {arrivals!r} goes with the seconds of each client; write for "
            f"example fedraw.Uniform(arrivals={arrivals!r})"
        )
    return _changed(chosen, {"arrivals": arrivals})


def _training(base: Spec, wanted: Mapping[str, Any], parts: dict[str, Any]) -> Training:
    """Return the section [training]: the model, and how clients train it."""
    changes: dict[str, Any] = {"device": wanted.get("device")}
    model, weights, train = (wanted.get(key) for key in ("model", "weights", "train"))
    chosen = base.training
    if isinstance(model, str):
        chosen = replace(chosen, model=model, stem=None)
    elif model is not None:
        parts["model"] = model_factory(model)
    if weights is not None:
        changes["weights"] = weights if weights == IMAGENET else str(_path("weights", weights))
    if train == "none":
        changes["kind"] = "none"
    elif isinstance(train, SGD):
        own = {key: getattr(train, key) for key in keys(SGD)}
        chosen = replace(chosen, **own, kind="sgd")
    elif callable(train) and not isinstance(train, type):
        _refuse_signature("train", train, "model", "data", "context")
        parts["train"] = train
        changes["kind"] = "sgd" if chosen.kind == "none" else None
    elif train is SGD:
        raise BadInput("train = SGD: write fedraw.SGD(...)")
    elif train is not None:
        raise BadInput(
            f"train = {shown(train)} is not a way to train; give fedraw.SGD(...), a function "
            'train(model, data, context), or "none"'
        )
    batch = wanted.get("batch")
    if batch is not None and "train" not in parts:
        raise BadInput(f"batch = {batch} is for a function; write fedraw.SGD(batch={batch})")
    return _changed(chosen, {**changes, "batch": batch})


def _metrics(base: Spec, wanted: Any, rare_labels: Any, parts: dict[str, Any]) -> Metrics:
    if isinstance(rare_labels, str):
        raise BadInput(f"rare_labels = {rare_labels!r} must be a list of labels")
    if wanted is not None:
        if not isinstance(wanted, Mapping) or not all(map(callable, wanted.values())):
            raise BadInput(f"metrics = {shown(wanted)} must be functions by name, as a dict")
        for name, function in wanted.items():
            _refuse_metric_name(name)
            _refuse_signature(f"metrics[{name!r}]", function, "outputs", "targets")
        parts["metrics"] = dict(wanted)
    return _changed(base.metrics, {"rare_labels": rare_labels})


def _choose_features(wanted: Any, changes: dict[str, Any], parts: dict[str, Any]) -> None:
    if isinstance(wanted, str):
        changes["features"] = Features.read({"backbone": wanted})
    elif isinstance(wanted, Features):
        changes["features"] = wanted
    elif (callable(wanted) or hasattr(wanted, "digest")) and not isinstance(wanted, type):
        changes["features"] = None
        parts["features"] = wanted
    elif wanted is not None:
        raise BadInput(
            f"features = {shown(wanted)} are not features; give fedraw.Features(...), "
            '"convolutions", "relu", a torch module, or a function of a batch of samples'
        )


def _run_settings(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, with one seed as a list, and 1e4 events as a whole number."""
    given = {key: plain(value) for key, value in wanted.items()}
    if isinstance(given["seeds"], int):
        given["seeds"] = [given["seeds"]]
    events = given["events"]
    if isinstance(events, float) and math.isfinite(events) and events == int(events):
        given["events"] = int(events)
    return given


# The columns of results and comparisons that are no metrics.
_COLUMNS = {"seed", "seeds", "event", "events", "time", "version", "name", "collapsed", *COSTS}
# The further columns of a metric begin or end so.
_PREFIXES = ("rare ", *(f"{model} " for model in FURTHER_MODELS), "training ")
_SUFFIX = " sd"


def _refuse_metric_name(name: Any) -> None:
    """Refuse the name of an own metric under which a table has another column."""
    if not isinstance(name, str):
        raise BadInput(f"metrics has the name {shown(name)}; a name is a text")
    if name in BUILT_IN:
        raise BadInput(
            f"metrics has {name!r}, which is the name of a built-in metric; choose another"
        )
    if name in _COLUMNS:
        raise BadInput(
            f"metrics has {name!r}, and a column of the tables has this name; choose another"
        )
    affixes = [prefix for prefix in _PREFIXES if name.startswith(prefix)]
    affixes += [_SUFFIX] if name.endswith(_SUFFIX) else []
    if affixes:
        raise BadInput(
            f"metrics has {name!r}, and tables give columns with {affixes[0]!r} another meaning; "
            "choose another name"
        )


def _callbacks(wanted: Any) -> list[Callback]:
    if not callable(wanted) and not isinstance(wanted, Iterable):
        raise BadInput(f"callbacks = {shown(wanted)} must be a list of functions")
    called = [wanted] if callable(wanted) else list(wanted)
    wrong = next((each for each in called if not callable(each)), None)
    if wrong is not None:
        raise BadInput(f"callbacks has {shown(wrong)}; give functions of a record and its seed")
    for callback in called:
        _refuse_signature("callbacks", callback, "record", "seed")
    return called


def _refuse_signature(name: str, function: Any, *arguments: str) -> None:
    """Refuse a function that cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as problem:
        raise BadInput(
            f"{name}: {getattr(function, '__name__', function)}{signature} is called with "
            f"({', '.join(arguments)}), which does not fit ({problem})"
        ) from None


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise BadInput(f"{name} = {shown(value)} must be a path")
    return Path(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name} = {shown(value)} must be True or False")
    return value


def _jobs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"jobs = {shown(value)} must be a whole number, at least 1")
    return value
