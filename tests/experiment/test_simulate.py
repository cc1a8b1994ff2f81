"""`fedraw.simulate`: the same logs as a SPEC.toml, in this process or in others."""

from __future__ import annotations

import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import fedraw
from fedraw.errors import BadInput
from fedraw.eventlog.goals import Goal
from fedraw.eventlog.records import JoinedRecord, Record, StartRecord
from fedraw.strategies.catalog import CATALOG, Method
from fedraw.strategies.fedfa import FedFaState
from fedraw.strategies.protocol import Contents

SMALL = fedraw.Coverage(clients=10, rare_labels=[8, 9], clients_per_common_label=6)
FREE: dict[str, Any] = {
    "strategy": fedraw.FedRAW(buffer=3),
    "partition": SMALL,
    "train": "none",
    "events": 60,
    "seeds": [1, 2],
}


def logs(folder: Path) -> list[bytes]:
    return [log.read_bytes() for log in sorted(folder.glob("seed-*/events.jsonl"))]


TOML = """
[partition]
clients = 10
rare_labels = [8, 9]
clients_per_common_label = 6
[speeds]
kind = "ratio"
ratio = 4
arrivals = "jitter"
jitter = 0.1
[strategy]
name = "fedbuff"
buffer = 3
[drift]
kind = "move"
label = 9
[training]
epochs = 1
lr = 0.05
model = "linear"
[metrics]
rare_labels = ["9"]
[run]
events = 40
evaluate_every = 20
concurrency = 5
seeds = [3]
"""


def test_keywords_and_a_file_of_the_same_content_give_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(TOML)
    fedraw.simulate(fedraw.Spec.from_file(tmp_path / "spec.toml"), out=tmp_path / "file")
    result = fedraw.simulate(
        strategy=fedraw.FedBuff(buffer=3),
        partition=SMALL,
        speeds=fedraw.Ratio(4, arrivals="jitter", jitter=0.1),
        model="linear",
        train=fedraw.SGD(epochs=1, batch=16, lr=0.05),
        drift=fedraw.Drift("move", 9),
        rare_labels=["9"],
        events=40,
        evaluate_every=20,
        concurrency=5,
        seeds=3,
        out=tmp_path / "keywords",
    )
    assert logs(tmp_path / "keywords") == logs(tmp_path / "file")
    assert result.spec == fedraw.Spec.from_file(tmp_path / "spec.toml").to_dict()


def test_keywords_take_the_place_of_settings_of_a_spec() -> None:
    spec = fedraw.Spec.from_dict({"strategy": {"name": "fedraw", "buffer": 4}})
    result = fedraw.simulate(spec, **FREE | {"strategy": None})
    assert (result.name, result.spec["strategy"]["buffer"], result.seeds) == ("fedraw", 4, (1, 2))
    assert fedraw.simulate(spec, **FREE | {"strategy": "fedfa"}).spec["strategy"]["buffer"] == 10


def test_training_by_keyword_takes_the_place_of_all_training_of_a_spec() -> None:
    trained = []

    def train(model: nn.Module, data: Any, context: Any) -> None:
        trained.append(context.client)

    spec = fedraw.Spec.from_dict({"training": {"kind": "none", "clip_norm": 0.5, "epochs": 7}})
    given: dict[str, Any] = TRAINED | {"events": 5, "strategy": fedraw.FedFa(2)}
    half: Any = np.float32(0.5)
    own = fedraw.simulate(spec, **given | {"train": train})
    assert own.arrivals()["client"] == trained
    sgd = fedraw.simulate(spec, **given | {"train": fedraw.SGD(lr=half)})
    training = sgd.spec["training"]
    assert (training["kind"], training["lr"], training["epochs"]) == ("sgd", 0.5, 2)
    assert "clip_norm" not in training


def test_a_log_in_memory_is_the_log_of_the_folder(tmp_path: Path) -> None:
    inside = fedraw.simulate(**FREE)
    fedraw.simulate(**FREE, out=tmp_path)
    assert [run.log for run in inside] == logs(tmp_path)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Net(nn.Sequential):
    """Its two settings have defaults, so it is made without arguments."""

    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, classes))


def for_any(shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes, bias=bias))


TRAINED: dict[str, Any] = FREE | {"train": None, "events": 20, "evaluate_every": 20, "seeds": [1]}


@pytest.mark.parametrize("model", [net, Net, for_any])
def test_a_model_is_a_function_of_nothing_or_of_shape_and_classes(model: Any) -> None:
    result = fedraw.simulate(model=model, **TRAINED)
    assert result.spec["training"]["model"] == model.__name__.lower()
    assert result.state_dict()["1.weight"].shape == (10, 64)


def adam(model: nn.Module, data: Any, context: Any) -> dict[str, float]:
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for inputs, labels in data:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimiser.step()
    return {"batch": len(inputs), "loss": loss.item()}


def test_training_of_ones_own_gets_batches_of_the_size_asked_for() -> None:
    result = fedraw.simulate(model=net, **TRAINED | {"train": adam, "batch": 1000, "events": 60})
    assert result.spec["training"]["kind"] == "adam"
    assert result.spec["parts"] == {"model": "net", "train": "adam"}
    assert result.last["GlobalAcc"][0] > 25
    assert min(result.arrivals()["train batch"]) > 16  # all samples of a client are one batch


def test_own_metrics_have_columns(tmp_path: Path) -> None:
    def hits(predicted: Any, truth: Any) -> float:
        return float((np.asarray(predicted).argmax(1) == np.asarray(truth)).mean())

    often = TRAINED | {"evaluate_every": 4}
    result = fedraw.simulate(model=net, metrics={"hits": hits}, **often)
    accuracy, own = result.summary["GlobalAcc"], result.summary["hits"]
    assert own[0] * 100 == pytest.approx(accuracy[0])
    assert {"hits", "rare hits"} <= set(result.curves.columns)
    assert repr(result).splitlines()[1].split()[-1] == "hits"
    # Every column of the curves is a goal, for a result as for a comparison.
    for metric in ("hits", "rare hits", "GlobalAcc"):
        assert result.until(f"{metric}>=0")["event"] == [4]
        (row,) = fedraw.compare([result], until=[f"{metric}>=0"])
        assert row.reached[Goal(metric, 0)].median("arrivals") == 4
    assert result.until("GlobalAcc>=101")["event"] == [None]
    with pytest.raises(BadInput, match=r"has no evaluation with the metric 'hit'; did you mean"):
        result.until("hit>=0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (1, "has the name 1; a name is a text"),
        *((name, "a column of the tables has this name") for name in
          ("seed", "seeds", "event", "events", "time", "version", "name", "collapsed", "MB")),
        ("rare acc", "tables give columns with 'rare ' another meaning"),
        ("calibrated acc", "tables give columns with 'calibrated '"),
        ("training acc", "tables give columns with 'training '"),
        ("acc sd", "tables give columns with ' sd'"),
    ],
)  # fmt: skip
def test_a_metric_cannot_have_the_name_of_another_column(name: Any, words: str) -> None:
    with pytest.raises(BadInput, match=f"metrics .*{words}"):
        fedraw.simulate(metrics={name: lambda outputs, targets: 0.0}, **TRAINED)


def test_a_module_is_where_all_seeds_start_from() -> None:
    module = net()
    with pytest.warns(UserWarning, match="the model never changed"):
        result = fedraw.simulate(model=module, **TRAINED | {"events": 1, "seeds": [1, 2]})
    for seed in (1, 2):
        assert (result.state_dict(seed)["1.weight"] == module[1].weight).all()  # type: ignore[index]
    module.load_state_dict(result.state_dict())


def test_indices_divide_the_data_as_a_function_does() -> None:
    shares = np.array_split(np.arange(1000), 5)
    own: dict[str, Any] = FREE | {"speeds": fedraw.Equal(), "seeds": [1]}
    given = fedraw.simulate(**own | {"partition": shares})
    called = fedraw.simulate(**own | {"partition": lambda labels, classes, rng: shares})
    assert given.arrivals() == called.arrivals()
    assert given.spec["partition"]["clients"] == 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "fedrow"}, "strategy = 'fedrow' is unknown; did you mean 'fedraw'"),
        ({"strategy": fedraw.FedRAW}, r"strategy = FedRAW is a class; give FedRAW\(\)"),
        (
            {"strategy": 3},
            "strategy = 3 is not a strategy: it has no needs and no start and no step",
        ),
        ({"strategy": "mine:Own"}, r'not listed; write plugins = \["mine"\]'),
        (
            {"model": 3},
            "model = 3 is not a model; give the name of one, a torch module",
        ),
        ({"model": lambda shape: net()}, "needs 1 arguments; give a function without arguments"),
        ({"partition": 5}, "partition = 5 is not a partition; give fedraw.Coverage"),
        ({"partition": fedraw.IID}, r"partition = IID: write fedraw.IID\(\.\.\.\)"),
        (
            {"partition": lambda labels: [[0]]},
            r"partition: <lambda>\(labels\) is called with \(labels, classes, rng\)",
        ),
        ({"speeds": "correlated"}, r"speeds = 'correlated': write fedraw.Correlated\(...\)"),
        ({"speeds": 3.0}, "speeds = 3.0 are not speeds"),
        ({"speeds": "fast"}, "speeds = 'fast' is not the path of a trace; give such a path"),
        ({"train": lambda model: None}, r"is called with \(model, data, context\)"),
        (
            {"metrics": {"AvgRare": max}},
            "metrics has 'AvgRare', which is the name of a built-in metric",
        ),
        ({"callbacks": 3}, "callbacks = 3 must be a list of functions"),
        ({"callbacks": [lambda record: None]}, r"is called with \(record, seed\)"),
        ({"train": "adam"}, "train = 'adam' is not a way to train; give fedraw.SGD"),
        ({"train": fedraw.SGD}, r"train = SGD: write fedraw.SGD\(...\)"),
        ({"serve": True}, "run.serve was removed after fedraw 0.2; leave it out"),
        ({"bits": 8}, "strategy.bits was removed after fedraw 0.2; use strategy.name = 'ca2fl'"),
        ({"spec": "my.toml"}, r"write fedraw.simulate\(fedraw.Spec.from_file\('my.toml'\)\)"),
        ({"batch": 8}, r"batch = 8 is for a function; write fedraw.SGD\(batch=8\)"),
        ({"metrics": [max]}, "must be functions by name"),
        ({"metrics": {"a": 1}}, "must be functions by name"),
        ({"rare_labels": "89"}, "rare_labels = '89' must be a list of labels"),
        ({"events": 10.5}, "^events = 10.5 must be a whole number"),
        ({"events": 9 * 10**18}, "must be from 1 to 1,000,000,000"),
        ({"seeds": [1, 1]}, "^seeds has 1 twice"),
        ({"seeds": "42"}, "^seeds = '42' must be a list"),
        ({"drift": {"kind": "move"}}, r"drift = .*: give fedraw.Drift\(...\)"),
        ({"jobs": 0}, "jobs = 0 must be a whole number, at least 1"),
        ({"out": 3}, "out = 3 must be a path"),
        ({"resume": "yes"}, "resume = 'yes' must be true or false"),
        ({"resume": True}, "only a run with a folder can be resumed"),
        ({"callbacks": [3]}, "callbacks has 3; give functions"),
        ({"executor": "threads"}, "executor = 'threads' must be 'inline' or 'batched'"),
        ({"device": 3}, "^device = 3 must be a text"),
        ({"data": "digts"}, "digts"),
        (
            {"strategy": "fedraw", "buffer": 3},
            r"of the method 'fedraw'; write strategy=fedraw.FedRAW\(buffer=3\)",
        ),
        (
            {"strategy": "fedraw-dedup-only", "buffer": 3},
            r"write strategy=fedraw.FedRAW\(weighting='uniform', buffer=3\)",
        ),
        (
            {"strategy": "fedfa", "server_lr": 0.5},
            "server_lr = 0.5 is not a setting of the method 'fedfa'; methods with .* are fedbuff,",
        ),
        ({"lr": 0.5}, r"lr = 0.5 is a setting of train; write train=fedraw.SGD\(lr=0.5\)"),
        ({"alpha": 1}, r"a setting of partition; write partition=fedraw.Dirichlet\(alpha=1\)"),
        (
            {"strategy": "fedraw", "bufer": 3},
            r"'bufer'; did you mean 'buffer', a setting of strategy=fedraw.FedRAW\(...\)\?",
        ),
        ({"rare_labels": [99]}, "^rare_labels = 99: dataset 'digits' has no label number 99"),
        ({"evaluate_every": 0}, "^evaluate_every = 0 must be at least 1"),
        ({"receivers": "rare-first"}, "; set concurrency below partition.clients = "),
        ({"evaluate_evry": 9}, "has no argument 'evaluate_evry'; did you mean 'evaluate_every'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_remedy(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fedraw.simulate(**FREE | {"seeds": [1]} | wrong)


@pytest.mark.parametrize("method", CATALOG.values(), ids=list(CATALOG))
def test_every_setting_of_a_method_is_told_where_it_belongs(method: Method) -> None:
    for key, value in method.spec_settings.items():
        wanted: dict[str, Any] = {"strategy": method.name, key: value}
        with pytest.raises(BadInput, match=r"write strategy=fedraw\.") as refused:
            fedraw.simulate(**wanted)
        advice = str(refused.value).partition("strategy=")[2]
        assert eval(advice) == method.make({key: value}), "the same method, not another one"


def test_a_partition_of_data_that_are_divided_already_is_refused() -> None:
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    table = {"age": np.arange(20), "ill": y, "site": y}
    for data in ([(x, y), (x, y)], fedraw.Columns(table, labels="ill", client="site")):
        with pytest.raises(BadInput, match="which client holds each sample, and a partition"):
            fedraw.simulate(data=data, partition=fedraw.IID(clients=2), events=5)


_X, _Y = np.arange(80, dtype=np.float32).reshape(40, 2), np.arange(40) % 4
_SOME = _Y < 2


@pytest.mark.parametrize(
    ("wanted", "notes"),
    [
        ({"data": (_X, _Y)}, []),
        (
            {"data": (_X[_SOME], _Y[_SOME]), "test": (_X, _Y)},
            ["the test set has labels that no client holds, so no method can learn them: 2, 3"],
        ),
        (
            {"data": (_X, _Y), "test": (_X[_SOME], _Y[_SOME]), "rare_labels": [1, 3]},
            ["the test set has no sample of some labels, so their recall is unknown: 2, 3"],
        ),
        (
            {"data": (_X, _Y + 1)},
            [
                "neither a client nor the test set has a sample of some labels, for which the "
                "model has outputs: 0"
            ],
        ),
    ],
)
def test_labels_that_somebody_does_not_know_are_named(
    wanted: dict[str, Any], notes: list[str]
) -> None:
    given = {"partition": fedraw.IID(clients=2), "strategy": "fedavg", "events": 4, "seeds": [1]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = fedraw.simulate(**cast(Any, given), train="none", **wanted)
    assert [str(warning.message) for warning in said] == notes
    start = next(r for r in result[1].records() if isinstance(r, StartRecord))
    assert list(start.notes) == notes
    assert all(note in repr(fedraw.compare(result)) for note in notes)


def test_a_label_that_appears_in_a_drift_is_held() -> None:
    drift = fedraw.Drift(kind="new", label=9)
    result = fedraw.simulate(**FREE | {"seeds": [1], "drift": drift})
    start = next(r for r in result[1].records() if isinstance(r, StartRecord))
    assert start.notes == ()


def test_a_model_that_does_not_fit_is_told_what_the_samples_are() -> None:
    x, y = np.zeros((40, 28, 28), np.uint8), np.arange(40) % 2
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(1352, 2))
    given: dict[str, Any] = {"partition": fedraw.IID(clients=2), "strategy": "fedavg", "seeds": [1]}
    with pytest.raises(BadInput, match=r"shape \(28, 28\) and type .*need a channel axis"):
        fedraw.simulate(data=(x, y), model=model, **given)
    with pytest.raises(BadInput, match=r"labels of dataset 'arrays' have a float type"):
        fedraw.simulate(data=(x, y.astype(float)), model="linear", **given)
    with pytest.raises(BadInput, match=r"^rare_labels = \[1\]: the labels .* float type"):
        fedraw.simulate(data=(x, y.astype(float)), model="linear", rare_labels=[1], **given)


@dataclass(frozen=True)
class Mistaken(fedraw.FedFa):
    """FedFa, and a mistake in what it returns."""

    mistake: str = ""

    def start(self, setup: fedraw.Setup) -> Any:
        state, receivers = super().start(setup)
        if self.mistake == "double":
            state.model = state.model.astype(np.float64)
        return state if self.mistake == "start" else (state, receivers)

    def step(self, state: Any, event: Any) -> Any:
        before = state.version
        state, receivers = super().step(state, event)
        match self.mistake:
            case "alone":
                return state
            case "nothing":
                return None
            case "bare":
                return state, 3
            case "text":
                return state, "3"
            case "stranger":
                return state, ["nobody"]
            case "unhashable":
                receivers = cast(Any, [[3]])
            case "list":
                state.model = state.model.tolist()
            case "column":
                state.model = state.model[:, None]
            case "same version":
                state.model = state.model.copy()
            case "earlier version":
                state.version -= 2
            case "in place" if state.version == before:
                state.model += 1
            case "in place":
                state.model = state.model.copy()  # an array that this strategy does not freeze
        return state, receivers


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("start", "strategy Mistaken returned FedFaState instead of a state and receivers"),
        ("double", "strategy Mistaken has a model of type float64"),
        ("alone", "strategy Mistaken returned FedFaState instead of a state and receivers"),
        ("nothing", "strategy Mistaken returned NoneType instead of a state and receivers"),
        ("bare", "strategy Mistaken returned 3 as the receivers; return a list of clients"),
        ("text", "strategy Mistaken returned '3' as the receivers; return a list of clients"),
        ("stranger", "strategy Mistaken names the receiver 'nobody', which is not a client"),
        ("unhashable", r"strategy Mistaken names the receiver \[3\], which is not a client"),
        ("list", "strategy Mistaken has a model of type list; models are flat float32 arrays"),
        (
            "column",
            r"strategy Mistaken has a model of type float32 and shape \(0, 1\); models are",
        ),
        (
            "same version",
            "Mistaken has a new model and the version 0 after version 0; add 1 to state.version",
        ),
        ("earlier version", "Mistaken has a new model and the version -2 after version 0; add 1"),
        ("in place", "Mistaken writes to an array that was handed in or out .* state.version"),
    ],
)
def test_mistakes_of_a_strategy_are_named(mistake: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        fedraw.simulate(**FREE | {"strategy": Mistaken(mistake=mistake), "seeds": [1]})


@dataclass(eq=False)
class Shown(FedFaState):
    """The state of FedFa with its contents in another form."""

    show: Any = None

    @property
    def contents(self) -> Any:
        return self.show(super().contents)


@dataclass(frozen=True)
class Answering(fedraw.FedFa):
    """FedFa with its receivers and contents in another form."""

    receivers: Any = list
    show: Any = tuple

    def start(self, setup: fedraw.Setup) -> Any:
        state, receivers = super().start(setup)
        return Shown(**vars(state), show=self.show), self.receivers(receivers)

    def step(self, state: Any, event: Any) -> Any:
        state, receivers = super().step(state, event)
        return state, self.receivers(receivers)


@pytest.mark.parametrize("form", [np.array, lambda values: list(np.array(values))])
def test_numbers_of_numpy_in_an_answer_are_numbers(form: Any) -> None:
    own = Answering(3, receivers=form, show=lambda found: Contents(*map(form, found)))
    result = fedraw.simulate(**FREE | {"strategy": own})
    plain = fedraw.simulate(**FREE | {"strategy": fedraw.FedFa(3)})
    assert result.arrivals() == plain.arrivals()
    assert result.summary == plain.summary


@pytest.mark.parametrize("contents", [None, ([], [])])
def test_contents_of_another_type_are_refused(contents: Any) -> None:
    own = Answering(3, show=lambda found: contents)
    with pytest.raises(BadInput, match=r"strategy Answering has contents .*; give Contents\(cl"):
        fedraw.simulate(**FREE | {"strategy": own})


def test_everything_may_be_left_out() -> None:
    result = fedraw.simulate(events=20, seeds=[1])
    assert repr(result[1]) == "SeedResult(fedraw, seed 1, 20 events)"
    assert fedraw.compare({"mine": result})[0].name == "mine"


def test_only_a_spec_goes_without_a_keyword() -> None:
    with pytest.raises(BadInput, match="write strategy='fedraw'"):
        fedraw.simulate("fedraw")  # type: ignore[arg-type]


TEXT: Any = "5"  # where a number belongs


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedraw.Coverage(clients=0), "partition.clients = 0"),
        (
            lambda: fedraw.Coverage(clients=cast(int, "10")),
            "clients = '10' must be a whole",
        ),
        (lambda: fedraw.Dirichlet(alpha=0), "partition.alpha = 0 must be a positive number"),
        (lambda: fedraw.Ratio(-1), "speeds.ratio = -1 "),
        (lambda: fedraw.Equal(jitter=0.1), "speeds.jitter = 0.1 goes with arrivals = 'jitter'"),
        (lambda: fedraw.LabelNoise(TEXT), "label_noise.share = '5' must be a finite number"),
        (lambda: fedraw.Losses(lost=TEXT), "losses.lost = '5' must be a finite number"),
        (lambda: fedraw.Drift("move", 3, at=TEXT), "drift.at = '5' must be a finite number"),
        (lambda: fedraw.Availability(online=TEXT), "availability.online = '5' must be a finite"),
        (lambda: fedraw.Membership(joining=TEXT), "membership.joining = '5' must be a finite"),
        (lambda: fedraw.Costs(watts=TEXT), "costs.watts = '5' must be a finite number"),
        (lambda: fedraw.Calibration(samples=TEXT), "calibration.samples = '5' must be a whole"),
        (lambda: fedraw.Misreport(3, liars=TEXT), "misreport.liars = '5' must be a whole number"),
        (
            lambda: fedraw.DataSpec("digits", imbalance=TEXT),
            "data.imbalance = '5' must be a finite",
        ),
        (lambda: fedraw.Features("imagenet", layers=TEXT), "features.layers = '5' must be a list"),
    ],
)
def test_a_section_refuses_the_impossible_at_once(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


def test_callbacks_get_every_record_with_its_seed(tmp_path: Path) -> None:
    seen: list[tuple[int, Record]] = []
    fedraw.simulate(
        **FREE, out=tmp_path, callbacks=[lambda record, seed: seen.append((seed, record))]
    )
    starts = [(seed, r.seed) for seed, r in seen if isinstance(r, StartRecord)]
    assert starts == [(1, 1), (2, 2)]
    assert len(seen) == sum(log.count(b"\n") for log in logs(tmp_path))


class FedBuff(fedraw.FedFa):
    """A user's strategy that is called like a published method, which it is not."""


def test_an_own_strategy_is_never_logged_as_a_published_method() -> None:
    result = fedraw.simulate(**FREE | {"strategy": FedBuff()})
    assert result.name == "own-fedbuff"
    assert result.spec["parts"] == {"strategy": "own-fedbuff"}


def test_an_absurd_learning_rate_is_told() -> None:
    with pytest.warns(UserWarning, match=r"^train.lr = 1000 is far above useful learning rates"):
        fedraw.simulate(**TRAINED | {"train": fedraw.SGD(lr=1000)})


@pytest.mark.filterwarnings("ignore:.*the model never changed")
@pytest.mark.filterwarnings("ignore:train.lr = 1e.39 is far above useful")
def test_updates_that_are_not_finite_are_told_as_the_command_does() -> None:
    with (
        pytest.warns(UserWarning, match=r"20 of 20 updates were refused.*NaN or infinite"),
        pytest.raises(fedraw.FedrawError, match=r"diverged with lr = 1e\+39; lower it"),
    ):
        fedraw.simulate(**TRAINED | {"train": fedraw.SGD(lr=1e39)})


# No guard: a worker that imported this script would start the runs once more.
SCRIPT = """
import fedraw
from torch import nn
print("script")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(x.flatten(1))

def in_turn(labels, classes, rng):
    return [range(i, 800, 8) for i in range(8)]

seen = set()
result = fedraw.simulate(
    strategy="fedfa", partition=in_turn, speeds=fedraw.Equal(), model=Net, rare_labels=[9],
    events=20, evaluate_every=10, seeds=[1, 2], jobs=2, out="runs",
    callbacks=[lambda record, seed: seen.add((seed, record.kind))],
)
print(result.seeds, sorted(seed for seed, kind in seen if kind == "end"))
print(*result.state_dict(2))
"""


def test_jobs_run_from_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "script\n(1, 2) [1, 2]\nhead.weight head.bias\n", done.stderr
    again = SCRIPT.replace("jobs=2", "jobs=1").replace('"runs"', '"again"')
    (tmp_path / "again.py").write_text(again)
    with chdir(tmp_path):
        runpy.run_path("again.py", run_name="__main__")
    assert logs(tmp_path / "runs") == logs(tmp_path / "again")


def test_what_cannot_be_sent_to_another_process_is_named() -> None:
    lock = __import__("threading").Lock()

    def locked() -> nn.Module:
        with lock:
            return net()

    with pytest.raises(BadInput, match="model = locked cannot be sent to a worker process"):
        fedraw.simulate(model=locked, jobs=2, **TRAINED | {"seeds": [1, 2]})


def source_of(scale: float) -> Callable[[], nn.Module]:
    def scaled() -> nn.Module:
        model = net()
        nn.init.constant_(model[1].bias, scale)  # type: ignore[index]
        return model

    return scaled


def test_a_run_of_own_parts_goes_on_with_the_same_parts_only(tmp_path: Path) -> None:
    own: dict[str, Any] = TRAINED | {"out": tmp_path}
    whole = fedraw.simulate(model=source_of(0.5), **own)
    again = fedraw.simulate(model=source_of(0.5), resume=True, **own)
    assert again.summary == whole.summary
    with pytest.raises(BadInput, match=r"the source of one of its own parts \(model\) changed"):
        fedraw.simulate(model=source_of(0.25), resume=True, **own)
    with pytest.raises(BadInput, match=r"given in Python: model \('scaled'\).*plugins"):
        fedraw.simulate(resume=True, **own)


@dataclass(frozen=True)
class Decaying(fedraw.FedFa):
    """FedFa with a list among its settings, which no spec can hold."""

    rates: tuple[float, ...] = ()


def test_a_run_goes_on_with_the_same_lists_in_its_parts_only(tmp_path: Path) -> None:
    own: dict[str, Any] = FREE | {"out": tmp_path, "seeds": [1]}
    whole = fedraw.simulate(**own | {"strategy": Decaying(rates=(0.1, 0.2))})
    again = fedraw.simulate(**own | {"strategy": Decaying(rates=(0.1, 0.2))}, resume=True)
    assert again.summary == whole.summary
    with pytest.raises(BadInput, match=r"the source of one of its own parts \(strategy\) changed"):
        fedraw.simulate(**own | {"strategy": Decaying(rates=(0.1, 0.3))}, resume=True)


def test_the_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fedraw.simulate(**FREE, progress=True)
    assert capsys.readouterr().err == ""


def test_given_seconds_may_be_exact_and_clients_may_train_on_all_their_samples() -> None:
    given: dict[str, Any] = {
        "data": (np.zeros((40, 3), np.float32), np.arange(40) % 2),
        "test": (np.zeros((4, 3), np.float32), np.arange(4) % 2),
        "partition": [range(20), range(20, 40)],
        "strategy": fedraw.FedAsync(),
        "speeds": [1.0, 2.5],
        "train": "none",
        "events": 4,
        "seeds": [1],
    }
    exact = fedraw.simulate(arrivals="fixed", local_test=0.0, **given)
    assert exact.arrivals()["time"] == [1.0, 2.0, 2.5, 3.0]
    counts = [r.counts for r in exact[1].records() if isinstance(r, JoinedRecord)]
    assert counts == [{"0": 10, "1": 10}] * 2
    with pytest.raises(BadInput, match="arrivals = 'fixed' goes with the seconds of each client"):
        fedraw.simulate(arrivals="fixed", events=5)
