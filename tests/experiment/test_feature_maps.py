"""Feature maps in specs and in `fedraw.simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedraw
from fedraw.core.randomness import Streams
from fedraw.data import cache
from fedraw.errors import BadInput
from fedraw.experiment.loading import feature_map, load_dataset, standardised
from fedraw.experiment.spec import Spec
from fedraw.learning.feature_maps import convolutions, relu
from fedraw.learning.features import backbone

SMALL: dict[str, Any] = {
    "data": "digits",
    "strategy": fedraw.FedRAW(buffer=2),
    "partition": fedraw.IID(clients=4),
    "speeds": fedraw.Equal(),
    "model": "linear",
    "train": fedraw.SGD(epochs=1, batch=64, lr=0.05),
    "events": 6,
    "evaluate_every": 6,
    "seeds": 1,
    "progress": False,
}
CONVOLUTIONS = {"backbone": "convolutions", "width": 40}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def loaded(features: dict[str, Any], **data: Any) -> fedraw.Dataset:
    spec = Spec.from_dict({"features": features, "data": data})
    return load_dataset(spec, Streams(1))


def notes(result: fedraw.Result) -> str:
    (seed,) = result
    return "; ".join(seed.summary["notes"])


class TestSpec:
    def test_old_specs_are_written_as_before(self) -> None:
        spec = Spec.from_dict({"features": {"weights": "/w.pth"}})
        assert spec.to_dict()["features"] == {
            "weights": "/w.pth",
            "backbone": "resnet18",
            "stem": "imagenet",
            "statistics": "stored",
        }

    @pytest.mark.parametrize(
        ("given", "written"),
        [
            ({"backbone": "convolutions"}, {"backbone": "convolutions"}),
            ({"backbone": "relu", "seed": 0}, {"backbone": "relu"}),
            ({"backbone": "relu", "width": 9, "seed": 4}, None),
            ({"backbone": "convolutions", "standardise": True}, None),
        ],
    )
    def test_settings_at_their_defaults_are_not_written(
        self, given: dict[str, Any], written: dict[str, Any] | None
    ) -> None:
        spec = Spec.from_dict({"features": given})
        assert spec.to_dict()["features"] == (given if written is None else written)
        assert Spec.from_dict(spec.to_dict()).features == spec.features

    @pytest.mark.parametrize(
        ("features", "words"),
        [
            ({}, "features.weights is missing; backbone = 'resnet18' needs .* 'convolutions'"),
            ({"backbone": "resnet"}, "features.backbone = 'resnet' must be 'resnet18' or"),
            ({"weights": "w.pth", "width": 9}, "features.width = 9 goes with backbone = 'conv"),
            ({"weights": "w.pth", "seed": 9}, "features.seed = 9 goes with backbone = 'conv"),
            (
                CONVOLUTIONS | {"weights": "imagenet"},
                "weights = 'imagenet' goes with backbone = 're",
            ),
            (CONVOLUTIONS | {"stem": "cifar"}, "features.stem = 'cifar' goes with backbone = 'r"),
            (CONVOLUTIONS | {"statistics": "estimated"}, "'resnet18', not with 'convolutions'"),
            (CONVOLUTIONS | {"layers": [2]}, r"features.layers = \[2\] goes with"),
            (CONVOLUTIONS | {"pool": "mean+std"}, "features.pool = .* goes with"),
            (CONVOLUTIONS | {"width": 0}, "features.width = 0 must be from 1 to 8,192"),
            (CONVOLUTIONS | {"width": 8193}, "features.width = 8193 must be from 1 to 8,192"),
            (CONVOLUTIONS | {"width": "wide"}, "features.width = 'wide' must be a whole number"),
            (CONVOLUTIONS | {"seed": -1}, "features.seed = -1 must be at least 0"),
        ],
    )
    def test_what_is_refused(self, features: dict[str, Any], words: str) -> None:
        with pytest.raises(BadInput, match=words):
            Spec.from_dict({"features": features})


class TestLoading:
    def test_samples_are_replaced_by_the_features_of_the_map(self) -> None:
        plain, found = load_dataset(Spec(), Streams(1)), loaded(CONVOLUTIONS)
        one = convolutions((1, 8, 8), 40)
        assert found.input_shape == (40,)
        assert np.array_equal(found.inputs[:50], one.features(plain.inputs[:50]))
        assert np.array_equal(found.test_inputs[:], one.features(plain.test_inputs[:]))
        assert f"feature map convolutions, 40 features, digest {one.digest[:16]}" in found.notes
        assert (plain.map_digest, found.map_digest) == (None, one.digest)
        spec = Spec.from_dict({"features": CONVOLUTIONS})
        assert feature_map(spec, (1, 8, 8)).digest == one.digest

    def test_without_a_width_the_inputs_decide(self) -> None:
        flat = fedraw.from_arrays(np.eye(12), [0, 1] * 6, rng=np.random.default_rng(0))
        spec = Spec.from_dict({"features": {"backbone": "relu"}})
        assert load_dataset(spec, Streams(1), flat).input_shape == (512,)

    def test_whole_numbers_of_a_table_are_read_as_floats(self) -> None:
        table = np.arange(36).reshape(12, 3)
        data = fedraw.from_arrays(table, [0, 1] * 6, rng=np.random.default_rng(0))
        spec = Spec.from_dict({"features": {"backbone": "relu", "width": 5}})
        found = load_dataset(spec, Streams(1), data)
        assert np.array_equal(found.inputs[:], relu((3,), 5).features(data.inputs.as_floats()))

    def test_they_are_computed_once_for_a_map(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def folders() -> int:
            return len([path for path in own_cache.glob("*-features-*") if path.is_dir()])

        loaded(CONVOLUTIONS)
        first = folders()
        loaded(CONVOLUTIONS | {"standardise": True})
        assert folders() == first
        loaded(CONVOLUTIONS | {"seed": 1})
        assert folders() == 2 * first
        loaded(CONVOLUTIONS | {"width": 41})
        assert folders() == 3 * first

    def test_features_cached_by_earlier_versions_stay_valid(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The key of an entry is the hash of its facts, so these may not change."""
        network = backbone("resnet18", (3, 8, 8), np.random.default_rng(0), "cifar")
        torch.save(network.state_dict(), tmp_path / "w.pth")
        seen: list[cache.Facts] = []
        entry = cache.entry

        def noted(name: str, facts: cache.Facts, *rest: Any) -> cache.Entry:
            seen.append(facts)
            return entry(name, facts, *rest)

        monkeypatch.setattr(cache, "entry", noted)
        images = np.zeros((6, 3, 8, 8), np.uint8)
        data = fedraw.from_arrays(images, [0, 1] * 3, rng=np.random.default_rng(0))
        features = {"weights": str(tmp_path / "w.pth"), "stem": "cifar"}
        load_dataset(Spec.from_dict({"features": features}), Streams(1), data)
        assert set(seen[0]) == {
            *("backbone", "stem", "statistics", "weights"),
            *("version", "normalise", "device", "images"),
        }
        chosen = {"layers": [1, 2], "pool": "mean+std", "standardise": True}
        spec = Spec.from_dict({"features": features | chosen})
        load_dataset(spec, Streams(1), data)
        assert set(seen[-1]) - set(seen[0]) == {"layers", "pool"}

    def test_estimated_statistics_are_said_to_be_pooled_knowledge(self, tmp_path: Path) -> None:
        network = backbone("resnet18", (3, 8, 8), np.random.default_rng(0), "cifar")
        torch.save(network.state_dict(), tmp_path / "w.pth")
        images = np.random.default_rng(0).integers(256, size=(12, 3, 8, 8)).astype(np.uint8)
        data = fedraw.from_arrays(images, [0, 1] * 6, rng=np.random.default_rng(0))
        said, digests = {}, set()
        for statistics in ("stored", "estimated"):
            features = {"weights": str(tmp_path / "w.pth"), "stem": "cifar"}
            spec = Spec.from_dict({"features": features | {"statistics": statistics}})
            said[statistics] = "; ".join(load_dataset(spec, Streams(1), data).notes)
            digests.add(load_dataset(spec, Streams(1), data).map_digest)
        assert len(digests) == 2
        assert "pooled knowledge" in said["estimated"]
        assert "pooled knowledge" not in said["stored"]
        assert "feature map resnet18, 512 features, digest" in said["stored"]

    def test_a_network_needs_images_and_a_map_plain_pixels(self) -> None:
        flat = fedraw.from_arrays(np.eye(8), [0, 1] * 4, rng=np.random.default_rng(0))
        for features, data, words in (
            ({"weights": "w.pth"}, {}, r"shape \(8,\); leave features out, or use .* 'relu'"),
            (CONVOLUTIONS, {}, r"needs images .* got \(8,\); reshape the inputs, or use 'relu'"),
            (CONVOLUTIONS, {"normalise": "imagenet"}, "normalise = 'imagenet' .* set it to 'none'"),
        ):
            spec = Spec.from_dict({"features": features, "data": data})
            with pytest.raises(BadInput, match=words):
                load_dataset(spec, Streams(1), flat)

    def test_standardised_features_are_those_of_another_map(self) -> None:
        plain = loaded(CONVOLUTIONS)
        rows = [standardised(plain, np.arange(count)).map_digest for count in (50, 60)]
        assert len({plain.map_digest, *rows}) == 3
        assert standardised(load_dataset(Spec(), Streams(1)), np.arange(9)).map_digest is None


class TestSimulate:
    def test_a_name_is_a_section_of_the_spec(self, tmp_path: Path) -> None:
        (one,) = fedraw.simulate(**SMALL, features="convolutions", out=tmp_path / "one")
        section = fedraw.Features(backbone="convolutions")
        two = fedraw.simulate(**SMALL, features=section, out=tmp_path / "two")
        assert one.summary["spec"]["features"] == {"backbone": "convolutions"}
        logs = [tmp_path / name / "seed-1" / "events.jsonl" for name in ("one", "two")]
        assert logs[0].read_bytes() == logs[1].read_bytes()
        assert "feature map convolutions, 540 features, digest" in notes(two)

    @pytest.mark.parametrize("kind", ["module", "function", "map"])
    def test_a_map_of_ones_own(self, kind: str, tmp_path: Path) -> None:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU())

        def pooled(batch: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool2d(batch, 2).flatten(1)

        own = {"module": module, "function": pooled, "map": relu((1, 8, 8), 30)}[kind]
        result = fedraw.simulate(**SMALL, features=own, out=tmp_path / "run")
        expected = {"module": "own, 20", "function": "own, 16", "map": "relu, 30"}[kind]
        assert f"feature map {expected} features, digest" in notes(result)
        again = fedraw.simulate(**SMALL, features=own, out=tmp_path / "run", resume=True)
        assert notes(again) == notes(result)

    def test_a_run_is_resumed_with_the_same_map_only(self, tmp_path: Path) -> None:
        fedraw.simulate(**SMALL, features=relu((1, 8, 8), 30), out=tmp_path)
        with pytest.raises(BadInput, match="cannot resume"):
            fedraw.simulate(**SMALL, features=relu((1, 8, 8), 31), out=tmp_path, resume=True)

    def test_it_takes_the_place_of_the_specs(self) -> None:
        spec = Spec.from_dict({"features": {"weights": "none.pth"}})
        result = fedraw.simulate(spec, **SMALL, features=relu((1, 8, 8), 30))
        assert "feature map relu, 30" in notes(result)

    @pytest.mark.parametrize(
        ("features", "words"),
        [
            ("relus", "features.backbone = 'relus' must be 'resnet18' or 'convolutions' or 'relu'"),
            ("resnet18", "features.weights is missing"),
            (3, "features = 3 are not features; give fedraw.Features"),
            (nn.Linear, "are not features; give"),
            (relu((5,), 3), r"shape \(1, 8, 8\), and this feature map is for \(5,\)"),
            (nn.Conv2d(1, 2, 3), "flatten or pool its output"),
        ],
    )
    def test_what_is_refused(self, features: Any, words: str) -> None:
        with pytest.raises(BadInput, match=words):
            fedraw.simulate(**SMALL, features=features)
