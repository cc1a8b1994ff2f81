"""Public data sets, pre-trained weights and frozen features, from a spec to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.releases_on_disk import (
    lay_out_cifar10,
    lay_out_emnist,
    lay_out_ham10000,
    lay_out_isic2019,
)

import fedraw
from fedraw.errors import BadInput
from fedraw.eventlog.compare import compare
from fedraw.experiment.options import Options
from fedraw.experiment.result import SeedResult
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.learning.models import build
from fedraw.report.page import write_report
from fedraw.report.tables import csv, latex, markdown

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "real"
# A release of a few images needs a federation of a few clients.
SMALL = {
    "partition.clients": 4,
    "partition.clients_per_rare_label": 1,
    "partition.clients_per_common_label": 2,
    "strategy.buffer": 2,
    "training.batch": 4,
    "training.epochs": 1,
    "run.events": 3,
    "run.seeds": [1],
    "run.evaluate_every": 100,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    lay_out_emnist(root, train=4)
    lay_out_cifar10(root)
    lay_out_ham10000(root, images=70)
    lay_out_isic2019(root, images=80)
    weights = root / "weights" / "resnet18-f37072fd.pth"
    weights.parent.mkdir()
    module = build("resnet18", (3, 32, 32), 1000, np.random.default_rng(7), "imagenet")
    torch.save(module.state_dict(), weights)
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRAW_DATA", raising=False)
    return tmp_path / "cache"


def example(name: str, **changes: Any) -> Spec:
    own = {key.replace("__", "."): value for key, value in changes.items()}
    return Spec.from_file(EXAMPLES / f"{name}.toml", SMALL | own)


def run_one(spec: Spec, root: Path, folder: Path | None = None, **options: Any) -> SeedResult:
    return run_seed(spec, 1, folder, options=Options(data_root=root, **options))


@pytest.mark.parametrize("name", ["emnist", "ham10000-features"])
def test_examples_run_from_the_data_root(name: str, root: Path) -> None:
    size = {"data__size": 32} if name != "emnist" else {}
    result = run_one(example(name, **size), root)
    assert result.summary["finished"]
    assert result.summary["metrics"]["GlobalAcc"] is not None


@pytest.mark.parametrize("name", ["cifar10", "ham10000", "isic2019"])
def test_examples_of_large_networks_are_ready_to_run(name: str, root: Path) -> None:
    size = {"data__size": 32} if name != "cifar10" else {}
    scenario = Scenario.of(example(name, **size), 1, options=Options(data_root=root))
    parameters = {"cifar10": 11_173_962, "ham10000": 11_180_103, "isic2019": 11_180_616}
    assert scenario.trainer is not None
    assert scenario.trainer.layout.parameter_count == parameters[name]
    assert scenario.clients.dataset.input_shape == (3, 32, 32)


def test_another_model_takes_over_neither_stem_nor_weights() -> None:
    changed = example("ham10000", training__model="cnn").training
    assert (changed.model, changed.weights, changed.batch) == ("cnn", None, 4)
    assert example("cifar10", training__model="resnet18").training.stem == "cifar"
    assert example("cifar10", training__model="cnn").training.stem is None


def test_every_example_is_tried_above() -> None:
    tried = {"emnist", "ham10000-features", "cifar10", "ham10000", "isic2019"}
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == tried


def test_worker_processes_read_the_mapped_images_and_write_the_same_log(
    root: Path, tmp_path: Path
) -> None:
    spec = example("emnist")
    run_one(spec, root, tmp_path / "inline")
    run_one(spec, root, tmp_path / "processes", executor="processes", workers=1)
    for file in ("events.jsonl", "model.safetensors"):
        assert (tmp_path / "inline" / file).read_bytes() == (
            tmp_path / "processes" / file
        ).read_bytes()


def test_counts_that_differ_from_the_release_are_in_every_result(
    root: Path, tmp_path: Path
) -> None:
    note = "emnist: 188 train images, official 112,800"
    folder = tmp_path / "run" / "seed-1"
    result = run_one(example("emnist"), root, folder)
    assert note in result.summary["notes"]
    assert note in json.loads((folder / "summary.json").read_text())["notes"]
    rows = compare([folder])
    assert note in rows.as_json()["rows"][0]["notes"]
    assert all(note in table(rows) for table in (markdown, csv, latex))
    write_report([folder], tmp_path / "report.html")
    assert note in (tmp_path / "report.html").read_text()


def test_the_defaults_of_a_hold_out_are_spelled_out() -> None:
    spec = Spec.from_dict({"data": {"name": "ham10000"}})
    assert spec.to_dict()["data"] == {
        "name": "ham10000",
        "size": 64,
        "holdout": "random",
        "normalise": "none",
    }
    assert "size" not in Spec.from_dict({"data": {"name": "cifar10"}}).to_dict()["data"]


def test_a_grouped_hold_out_keeps_each_lesion_on_one_side(root: Path) -> None:
    # Two images of one colour to a lesion: no colour and position tells them apart but the rows.
    spec = example("ham10000-features", data__size=32, training__kind="none")
    dataset = Scenario.of(spec, 1, options=Options(data_root=root)).clients.dataset
    assert dataset.inputs.rows is not None
    assert dataset.test_inputs.rows is not None
    lesions = {int(row) // 2 for row in dataset.inputs.rows}
    assert lesions.isdisjoint(int(row) // 2 for row in dataset.test_inputs.rows)


class TestFeatures:
    def spec(self, **changes: Any) -> Spec:
        return example("ham10000-features", data__size=32, **changes)

    def dataset(self, root: Path, seed: int = 1, **changes: Any) -> fedraw.Dataset:
        told: list[str] = []
        options = Options(data_root=root, data_progress=lambda what, done, total: told.append(what))
        self.told = told
        return Scenario.of(self.spec(**changes), seed, options=options).clients.dataset

    def test_they_take_the_place_of_pixels_and_say_where_they_are_from(self, root: Path) -> None:
        dataset = self.dataset(root)
        assert dataset.input_shape == (512,)
        assert dataset.inputs.dtype == np.float32
        assert len(dataset.inputs) + len(dataset.test_inputs) == 70
        assert dataset.inputs.is_mapped
        words = "features of resnet18, resnet18-f37072fd.pth: 100 tensors loaded"
        assert words in dataset.notes

    def test_seeds_share_them(self, root: Path) -> None:
        one = self.dataset(root, seed=1)
        assert "features of ham10000" in self.told
        two = self.dataset(root, seed=2)
        assert self.told == []
        assert one.inputs.rows is not None
        assert two.inputs.rows is not None
        assert not np.array_equal(one.inputs.rows, two.inputs.rows)
        assert np.array_equal(one.inputs.everything()[:], two.inputs.everything()[:])

    def test_they_are_computed_anew_when_something_changes(self, root: Path) -> None:
        made = {self.dataset(root).sha256()}
        changes: list[dict[str, Any]] = [
            {"data__normalise": "none"},
            {"data__size": 33},
            {"features__statistics": "estimated"},
        ]
        for change in changes:
            spec = example("ham10000-features", **({"data__size": 32} | change))
            other = Scenario.of(spec, 1, options=Options(data_root=root)).clients.dataset
            assert other.sha256() not in made, change
            made.add(other.sha256())

    def test_chosen_layers_are_standardised_on_the_clients_training_samples(
        self, root: Path
    ) -> None:
        changes: dict[str, Any] = {"features__layers": [1, 2], "features__pool": "mean+std"}
        plain = self.dataset(root, **changes)
        spec = self.spec(**changes, features__standardise=True)
        clients = Scenario.of(spec, 1, options=Options(data_root=root)).clients
        dataset, rows = clients.dataset, np.concatenate(clients.epochs[0].indices)
        assert dataset.input_shape == (2 * (64 + 128),)
        own = dataset.inputs.take(rows)
        known = plain.inputs.take(rows).astype(np.float64)
        mean, sd = known.mean(axis=0), known.std(axis=0)
        alive = sd > 0  # random weights have maps that are zero everywhere
        np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(own.std(axis=0)[alive], 1, atol=1e-4)
        # Test images are scaled by the same numbers, and have no part in them.
        expected = (plain.test_inputs[:] - mean) / np.where(alive, sd, 1)
        np.testing.assert_allclose(dataset.test_inputs[:], expected, rtol=1e-4, atol=1e-4)

    def test_standardising_computes_no_features_again(self, root: Path) -> None:
        self.dataset(root)
        self.dataset(root, features__standardise=True)
        assert self.told == []

    @pytest.mark.parametrize(
        ("layers", "words"),
        [([], "must name layers from 1 to 4"), ([5], "from 1 to 4"), ([3, 2], "ascending order")],
    )
    def test_impossible_layers_are_refused(self, layers: list[int], words: str) -> None:
        with pytest.raises(BadInput, match=rf"features.layers = .*{words}"):
            self.spec(features__layers=layers)

    def test_an_mlp_head_trains_in_the_batched_executor_as_inline(
        self, root: Path, tmp_path: Path
    ) -> None:
        spec = self.spec(features__standardise=True, training__model="mlp")
        for executor in ("inline", "batched"):
            run_one(spec, root, tmp_path / executor, executor=executor)
        one, two = (tmp_path / e / "events.jsonl" for e in ("inline", "batched"))
        assert one.read_bytes() == two.read_bytes()

    def test_they_need_images(self) -> None:
        flat = fedraw.from_arrays(np.eye(8), [0, 1] * 4, rng=np.random.default_rng(0))
        spec = Spec.from_dict({"features": {"weights": "none.pth"}})
        with pytest.raises(BadInput, match=r"shape \(8,\); leave features out"):
            fedraw.simulate(spec, data=flat)


class TestWeights:
    def test_the_first_model_is_the_files(self, root: Path) -> None:
        scenario = Scenario.of(
            example("ham10000", data__size=32), 1, options=Options(data_root=root)
        )
        state = torch.load(root / "weights" / "resnet18-f37072fd.pth", weights_only=True)
        first = state["conv1.weight"].numpy().ravel()
        assert np.array_equal(scenario.setup.model[: first.size], first)
        loaded = "resnet18-f37072fd.pth: 100 tensors loaded; new: fc.weight, fc.bias"
        assert loaded in scenario.notes

    def test_the_published_ones_are_asked_for_by_name(self, tmp_path: Path) -> None:
        lay_out_ham10000(tmp_path)
        with pytest.raises(BadInput, match="fedraw data fetch resnet18"):
            Scenario.of(example("ham10000", data__size=32), 1, options=Options(data_root=tmp_path))

    def test_a_path_is_relative_to_the_spec(self, tmp_path: Path) -> None:
        (tmp_path / "own.toml").write_text('[training]\nweights = "mine.safetensors"\n')
        spec = Spec.from_file(tmp_path / "own.toml")
        assert spec.training.weights == str(tmp_path / "mine.safetensors")

    def test_a_run_can_start_from_the_model_another_ended_with(self, tmp_path: Path) -> None:
        changes = {
            "partition": {"rare_labels": [9]},
            "run": {"events": 30, "seeds": [1]},
        }
        first = run_seed(Spec.from_dict(changes), 1, tmp_path / "first")
        weights = str(tmp_path / "first" / "model.safetensors")
        spec = Spec.from_dict(changes | {"training": {"weights": weights}})
        assert np.array_equal(Scenario.of(spec, 1).setup.model, first.model)

    def test_a_run_is_not_resumed_with_other_weights(self, tmp_path: Path) -> None:
        file = tmp_path / "start.pth"

        def save(seed: int) -> None:
            module = build("mlp", (1, 8, 8), 10, np.random.default_rng(seed))
            torch.save(module.state_dict(), file)

        save(1)
        spec = Spec.from_dict(
            {
                "partition": {"rare_labels": [9]},
                "training": {"weights": str(file)},
                "run": {"events": 40, "seeds": [1]},
            }
        )
        events = iter(range(20))
        with pytest.raises(fedraw.Interrupted):
            run_seed(
                spec, 1, tmp_path / "run", options=Options(stop=lambda: next(events, None) is None)
            )
        save(2)
        with pytest.raises(BadInput, match=r"its weights \(.*\) changed since"):
            run_seed(spec, 1, tmp_path / "run", options=Options(resume=True))


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(BadInput, match="device = 'cuda'"):
        fedraw.simulate(
            Spec.from_dict({"partition": {"rare_labels": [9]}, "training": {"device": "cuda"}})
        )
