"""Sites that send sums: real messages and client apps in memory, then real processes."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import load_file
from tests.flower.deployment import Deployment
from tests.flower.memory_grid import MemoryGrid, context_of, identity

from fedraw.core.private_sums import SumsPrivacy
from fedraw.core.sums import SumsShape, digest
from fedraw.errors import BadInput
from fedraw.flower import client_app, server_app, sums_app
from fedraw.flower.sums import feature_map_facts
from fedraw.server.forgetting import forget
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.one_pass import OnePass

pytestmark = pytest.mark.usefixtures("identity")
assert identity

APP = Path(__file__).parents[2] / "examples" / "flower-one-pass"
LABELS = ("cat", "dog", "owl")
NODES = {11: "north", 12: "south", 13: "east"}
OWN = {"north": {"cat": 30, "dog": 9}, "south": {"cat": 12, "dog": 22}, "east": {"owl": 25}}


def priced(context: Context) -> tuple[Any, Any]:
    """Samples with two targets each, in place of their labels."""
    inputs, _ = samples(context)
    return inputs, (inputs @ [[0.5, 0], [0, 1], [-0.5, 0]] + 1).astype(np.float32)


def one_price(context: Context) -> tuple[Any, Any]:
    inputs, targets = priced(context)
    return inputs, targets[:, 0]


def high_price(context: Context) -> tuple[Any, Any]:
    inputs, targets = priced(context)
    return inputs, 1000 * targets


class Doubled:
    """A feature map of three numbers, each twice as large."""

    def __init__(self, name: str = "doubled", times: float = 2.0) -> None:
        self.digest, self.width, self.times = name, 3, times

    def features(self, inputs: Any) -> Any:
        return self.times * np.asarray(inputs, np.float32)


def samples(context: Context) -> tuple[Any, list[str]]:
    own = OWN[str(context.node_config["site"])]
    labels = [label for label, count in own.items() for _ in range(count)]
    rng = np.random.default_rng(sum(map(ord, str(context.node_config["site"]))))
    return 3 * np.eye(3)[[LABELS.index(own) for own in labels]] + rng.normal(
        size=(len(labels), 3)
    ), labels


def lead(folder: Path, app: Any = None, strategy: Any = None, **more: Any) -> MemoryGrid:
    """Run a server until the federation ends."""
    contexts = {n: Context(1, n, {"site": site}, RecordDict(), {}) for n, site in NODES.items()}
    grid = MemoryGrid(app or sums_app(samples, Doubled()), contexts, **more.pop("grid", {}))
    settings = {"folder": folder, "min_clients": 3, "poll": 0.01, "back_off": 0.05,
                "labels": LABELS, "seconds": 20.0, **more}  # fmt: skip
    server = server_app(strategy=strategy or OnePass(), feature_map=Doubled, settings=settings)
    server(grid, Context(1, 1, {}, RecordDict(), {}))
    return grid


def log(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


def test_every_site_is_asked_once(tmp_path: Path) -> None:
    grid = lead(tmp_path)
    assert log(tmp_path, "end")[0]["reason"] == "every member was heard"
    assert sorted(r["client"] for r in log(tmp_path, "arrival")) == ["east", "north", "south"]
    asked = [m for m in grid.pushed if m.metadata.message_type == "train"]
    assert len(asked) == 3
    assert not any("arrays" in message.content for message in asked)  # no site needs the model
    model = load_file(tmp_path / "model.safetensors")
    assert model["weight"].shape == (3, 3)
    inputs, labels = samples(context_of(site="east"))
    best = np.argmax(2 * inputs @ model["weight"].T + model["bias"], axis=1)
    assert np.mean([LABELS[i] == label for i, label in zip(best, labels, strict=True)]) > 0.9


def test_the_totals_are_those_of_all_samples(tmp_path: Path) -> None:
    lead(tmp_path)
    found = sorted((tmp_path / "updates").glob("*.safetensors"))
    total = np.sum([load_file(path)["vector"] for path in found], axis=0)
    parts = [samples(context_of(site=site)) for site in OWN]
    labels = np.array([LABELS.index(label) for _, own in parts for label in own])
    # A float of twice the input, as the site computes it.
    inputs = np.concatenate([2.0 * np.asarray(own, np.float32) for own, _ in parts])
    assert digest(total) == digest(SumsShape(3, 3).of_samples(inputs, labels))


def test_sites_may_test_the_solved_model(tmp_path: Path) -> None:
    lead(tmp_path, sums_app(samples, Doubled(), test=samples), federated_evaluation=True)
    last = log(tmp_path, "evaluation")[-1]
    assert last["final"]
    assert last["sites"] == 3
    assert set(last["recall"]) == set(LABELS)
    assert last["metrics"]["GlobalAcc"] > 80


REGRESSION = OnePass(readout="regression")
PRICES = {"strategy": REGRESSION, "labels": ("rent", "price")}


def test_sites_with_targets_give_a_regression(tmp_path: Path) -> None:
    app = sums_app(priced, Doubled(), test=priced)
    lead(tmp_path, app, federated_evaluation=True, **PRICES)
    assert log(tmp_path, "end")[0]["reason"] == "every member was heard"
    model = load_file(tmp_path / "model.safetensors")  # of features that are doubled
    expected = np.array([[0.25, 0, -0.25], [0, 0.5, 0]])
    assert model["weight"] == pytest.approx(expected, abs=1e-3)
    assert model["bias"] == pytest.approx([1, 1], abs=1e-2)
    assert [own["counts"] for own in log(tmp_path, "joined")] == [{"all": 39}, {"all": 34},
                                                                  {"all": 25}]  # fmt: skip
    last = log(tmp_path, "evaluation")[-1]
    assert last["own"]["MSE"] < 1e-4
    assert last["recall"] == {}
    assert forget(tmp_path, "east").version == 4


def test_a_private_regression_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()

    def own(context: Context) -> tuple[Any, Any]:
        context.node_config["private-folder"] = str(tmp_path / "keys")
        return priced(context)

    app = sums_app(own, Doubled(), privacy=SumsPrivacy(epsilon=4.0))
    lead(tmp_path / "run", app, OnePass(epsilon=4.0, readout="regression"),
         labels=("rent", "price"))  # fmt: skip
    assert [own["counts"] for own in log(tmp_path / "run", "joined")] == [{"not told": 1}] * 3
    assert log(tmp_path / "run", "end")[0]["reason"].startswith("every member was heard")


def other_labels(context: Context) -> tuple[Any, list[str]]:
    inputs, labels = samples(context)
    return inputs, ["kat" if label == "cat" else label for label in labels]


def short(context: Context) -> tuple[Any, list[str]]:
    inputs, labels = samples(context)
    return inputs[:-1], labels


WRONG = [
    (sums_app(samples, Doubled("tripled")),
     "this site has the feature map tripled, and the server expects doubled; give the site"),
    (sums_app(samples, Doubled("doubled", 99.0)), "beyond ±16, where sums are clipped"),
    (sums_app(other_labels, Doubled()),
     "the label 'kat', which is not among the server's labels; did you mean 'cat'"),
    (sums_app(short, Doubled()), "samples and .* labels; give one label for each sample"),
    (sums_app(one_price, Doubled()), "gives targets of a regression, and the server asks for lab"),
]  # fmt: skip
WRONG_TARGETS = [
    (sums_app(samples, Doubled()), "this site has labels of type <U3; give an array of a float"),
    (sums_app(one_price, Doubled()), "has 1 targets for each sample, and the server asks for 2"),
    (sums_app(high_price, Doubled()), "100% of the targets are beyond ±16.*; divide the targets"),
]


@pytest.mark.parametrize(("app", "words", "more"), [
    *((*own, {}) for own in WRONG), *((*own, PRICES) for own in WRONG_TARGETS)
])  # fmt: skip
def test_a_site_that_cannot_send_sums_says_why(
    app: Any, words: str, more: dict[str, Any], tmp_path: Path
) -> None:
    lead(tmp_path, app, seconds=0.6, **more)
    said = " ".join(str(r["reason"]) for r in log(tmp_path, "note"))
    assert re.search(words, said), said
    assert {record["client"] for record in log(tmp_path, "arrival")} <= {"east"}


def test_a_message_with_another_map_is_refused_by_the_server(tmp_path: Path) -> None:
    def tampered(reply: Message) -> Message:
        if "sums" in reply.content:
            reply.content["sums"]["fedraw.feature-map"] = "other"
        return reply

    lead(tmp_path, seconds=0.6, grid={"tamper": tampered})
    assert "sent sums of the feature map other" in log(tmp_path, "rejected")[0]["reason"]


def test_a_site_of_sums_is_not_trained(tmp_path: Path) -> None:
    contexts = {n: Context(1, n, {"site": site}, RecordDict(), {}) for n, site in NODES.items()}
    grid = MemoryGrid(sums_app(samples, Doubled()), contexts)
    settings = {"folder": tmp_path, "min_clients": 3, "poll": 0.01, "seconds": 0.6}
    model = {"weight": np.zeros((3, 3), np.float32), "bias": np.zeros(3, np.float32)}
    server = server_app(initial_model=lambda: model, strategy=FedRAW(2), settings=settings)
    server(grid, Context(1, 1, {}, RecordDict(), {}))
    said = " ".join(str(r["reason"]) for r in log(tmp_path, "note"))
    assert "the server asks this site to train, and it can only send sums" in said


def test_a_site_that_trains_is_refused_where_sums_are_asked(tmp_path: Path) -> None:
    def train(arrays: Any, config: Any, context: Context) -> Any:
        raise AssertionError("never reached, because no model is sent")

    def label_counts(context: Context) -> Mapping[str, int]:
        return OWN[str(context.node_config["site"])]

    lead(tmp_path, client_app(train=train, label_counts=label_counts), seconds=0.6)
    assert "record 'arrays' is missing" in " ".join(r["reason"] for r in log(tmp_path, "note"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": OnePass()}, "server_app has no feature_map"),
        ({"strategy": OnePass(), "feature_map": Doubled, "initial_model": dict},
         "server_app has initial_model, and the model of OnePass is a linear layer"),
        ({"strategy": FedRAW(2), "feature_map": Doubled},
         "server_app has feature_map, and FedRAW trains a model"),
        ({"strategy": FedRAW(2)}, "server_app has no initial_model"),
        ({"strategy": OnePass(), "feature_map": "missing.safetensors"},
         "missing.safetensors cannot be read as a feature map"),
        ({"strategy": REGRESSION, "feature_map": Doubled, "and": {"labels": ()}},
         "OnePass needs the labels, or the names of a regression's targets, .*labels has 0 names"),
    ],
)  # fmt: skip
def test_a_server_needs_a_model_or_a_feature_map(
    arguments: dict[str, Any], words: str, tmp_path: Path
) -> None:
    settings = {"folder": tmp_path, "seconds": 9.0, "labels": LABELS, **arguments.pop("and", {})}
    app = server_app(settings=settings, **arguments)
    with pytest.raises(BadInput, match=words):
        app(MemoryGrid(sums_app(samples, Doubled()), {}), Context(1, 1, {}, RecordDict(), {}))


def test_a_server_reads_the_facts_of_a_file_without_torch(tmp_path: Path) -> None:
    from fedraw.learning.feature_maps import relu

    made = relu((3,), width=5, seed=1)
    made.save(tmp_path / "map.safetensors")
    assert feature_map_facts(tmp_path / "map.safetensors") == (made.digest, 5)


BUDGET = SumsPrivacy(epsilon=4.0)


def private_app(folder: Path, privacy: SumsPrivacy | None = BUDGET) -> Any:
    """An app whose site keeps its key in a folder."""

    def own_samples(context: Context) -> tuple[Any, list[str]]:
        context.node_config["private-folder"] = str(folder)
        return samples(context)

    return sums_app(own_samples, Doubled(), privacy=privacy)


def private_lead(folder: Path, **more: Any) -> MemoryGrid:
    (folder / "keys").mkdir(exist_ok=True, parents=True)
    app = more.pop("app", None) or private_app(folder / "keys")
    strategy = more.pop("strategy", None) or OnePass(epsilon=4.0)
    return lead(folder / "federation", app, strategy, rare_labels=("owl",), **more)


def vectors(folder: Path) -> dict[int, Any]:
    found = sorted((folder / "federation" / "updates").glob("*.safetensors"))
    return {i: load_file(path)["vector"] for i, path in enumerate(found)}


def test_sites_with_noise_declare_nothing_and_send_noisy_sums(tmp_path: Path) -> None:
    private_lead(tmp_path)
    folder = tmp_path / "federation"
    (start,), arrivals = log(folder, "start"), log(folder, "arrival")
    assert len(arrivals) == 3
    assert start["rare_labels"] == ["owl"]
    assert [own["counts"] for own in log(folder, "joined")] == [{"not told": 1}] * 3
    sent = vectors(tmp_path)
    shape = SumsShape(3, 3)
    counts = [shape.counts(own).tolist() for own in sent.values()]
    exact = [[own.get(label, 0) for label in LABELS] for own in OWN.values()]
    assert not any(own in exact for own in counts)
    assert log(folder, "end")[0]["reason"].startswith("every member was heard")


def test_a_site_that_is_asked_again_sends_the_same_noise(tmp_path: Path) -> None:
    private_lead(tmp_path)
    first = sorted(digest(own) for own in vectors(tmp_path).values())
    (tmp_path / "federation").rename(tmp_path / "before")
    private_lead(tmp_path)
    assert sorted(digest(own) for own in vectors(tmp_path).values()) == first
    keys = sorted((tmp_path / "keys").iterdir())
    assert [key.name for key in keys] == [f"fedraw-{name}.key" for name in sorted(OWN)]
    assert {oct(key.stat().st_mode & 0o777) for key in keys} == {"0o600"}
    for key in keys:
        key.unlink()
    (tmp_path / "federation").rename(tmp_path / "second")
    private_lead(tmp_path)
    assert not set(first) & {digest(own) for own in vectors(tmp_path).values()}


DISAGREE: list[tuple[Any, Any, str]] = [
    (None, OnePass(epsilon=4.0), "asks for sums with epsilon = 4.0, and this site agrees to None"),
    (BUDGET, OnePass(epsilon=8.0), "with epsilon = 8.0, and this site agrees to 4.0"),
    (BUDGET, OnePass(epsilon=4.0, delta=1e-3), "with delta = 0.001, and this site agrees to 1e-05"),
    (BUDGET, OnePass(epsilon=4.0, clip=3.0), "with clip = 3.0, and this site agrees to 1.0"),
    (SumsPrivacy(4.0, group=5), OnePass(epsilon=4.0), "group = 1, and this site agrees to 5"),
]


@pytest.mark.parametrize(("own", "strategy", "words"), DISAGREE)
def test_other_terms_are_refused_by_the_site(
    own: Any, strategy: Any, words: str, tmp_path: Path
) -> None:
    private_lead(tmp_path, app=private_app(tmp_path / "keys", own), strategy=strategy, seconds=0.6)
    notes = " ".join(str(r["reason"]) for r in log(tmp_path / "federation", "note"))
    assert words in notes, notes
    assert not log(tmp_path / "federation", "arrival")


def test_a_damaged_key_is_not_replaced_silently(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "fedraw-east.key").write_text("not a key")
    private_lead(tmp_path, seconds=0.6)
    notes = " ".join(str(r["reason"]) for r in log(tmp_path / "federation", "note"))
    assert "fedraw-east.key is damaged" in notes


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return log(folder, kind) if path.exists() else []


@pytest.mark.slow
def test_the_only_holder_of_two_labels_answers_once_and_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four sites in processes of their own, TLS and keys, as in the example."""
    folder = tmp_path / "federation"
    slow = {"delay": 45.0}  # Flower reports a lost node after about a minute
    sites: dict[str, Any] = {"west": {}, "north": slow, "south": slow, "east": slow}
    with Deployment(tmp_path, sites) as deployment:
        config: dict[str, Any] = {"fedraw.folder": str(folder), "fedraw.min_clients": 1}
        config["fedraw.absence"] = 5.0
        run = deployment.run_app(APP, config)
        deadline = time.monotonic() + 300
        while not read(folder, "arrival") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert read(folder, "arrival")[0]["client"] == "west"
        deployment.kill_site("west")
        assert run.wait(600) == "finished:completed", run.log()
    last = read(folder, "evaluation")[-1]
    with capsys.disabled():
        print(f"\nrecall of 8 and 9: {last['recall']['8']:.1f}, {last['recall']['9']:.1f}; "
              f"GlobalAcc {last['metrics']['GlobalAcc']:.1f}")  # fmt: skip
    assert "west" in [record["client"] for record in read(folder, "left")]
    assert read(folder, "end")[0]["reason"] == "every member was heard"
    assert min(last["recall"]["8"], last["recall"]["9"]) > 90
    before = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    forget(folder, "west")
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != before
