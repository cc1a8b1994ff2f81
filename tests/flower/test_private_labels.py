"""Private label summaries on Flower, from the first question to the weights of an aggregation.

Coverage by hand: cat 3, dog 1, owl 1. Scores: north 3/4 · 1/3 + 1/4 = 1/2, south 1/3, west
1/4 · 1/3 + 3/4 = 5/6.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from tests.flower.deployment import Deployment
from tests.flower.memory_grid import MemoryGrid, context_of, identity
from tests.flower.private_app.hidden.apps import COUNTS, label_counts, train

from fedraw.errors import BadInput
from fedraw.flower import client_app, server_app
from fedraw.flower.client import private_file
from fedraw.flower.server import read_server_settings
from fedraw.privacy.budget import Privacy

pytest.importorskip("opendp")
pytestmark = pytest.mark.usefixtures("identity")
assert identity

APP = Path(__file__).parent / "private_app"
BITS = Privacy("randomised-response", epsilon=20.0, unit="label")
OTHER = Privacy("randomised-response", epsilon=2.0, unit="label")
SCORES = {"north": 1 / 2, "south": 1 / 3, "west": 5 / 6}


def run_config(privacy: Privacy, folder: Path) -> dict[str, Any]:
    own: dict[str, Any] = {
        "mechanism": privacy.mechanism,
        "unit": privacy.unit,
        "labels": "cat,dog,owl",
    }
    own |= {} if privacy.epsilon is None else {"epsilon": privacy.epsilon}
    return {
        "fedraw.folder": str(folder / "federation"),
        "fedraw.min-clients": 3,
        "fedraw.arrivals": 6,
        "fedraw.poll": 0.01,
        "fedraw.back_off": 0.05,
        "fedraw.strategy.buffer": 3,
        **{f"fedraw.summaries.{key}": value for key, value in own.items()},
    }


def lead(
    folder: Path,
    asked: Privacy,
    given: Privacy | None,
    before: Callable[[MemoryGrid], None] = lambda grid: None,
    **more: Any,
) -> tuple[MemoryGrid, list[dict[str, Any]]]:
    """Run a server on three sites until it ends; `before` takes the grid before each call."""
    app = client_app(train=train, label_counts=label_counts, privacy=given)
    contexts = {
        n: context_of(n, site=site, **{"private-folder": str(folder)})
        for n, site in enumerate(COUNTS, start=11)
    }
    server = server_app(initial_model=lambda: {"w": np.zeros(4, np.float32)})
    grid = MemoryGrid(app, contexts)
    grid.before = lambda call: before(grid)
    config = {**run_config(asked, folder), **more}
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return grid, read(folder / "federation")


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def check(records: list[dict[str, Any]]) -> None:
    start = records[0]
    assert start["labels"] == ["cat", "dog", "owl"]
    assert start["coverage"]["clients"] == 3
    assert start["coverage"]["labels"] == pytest.approx({"cat": 3, "dog": 1, "owl": 1}, abs=1e-5)
    joined = {r["client"]: r["counts"] for r in records if r["kind"] == "joined"}
    assert set(joined) == set(COUNTS)
    assert all({"cat", "dog", "owl"}.isdisjoint(counts) for counts in joined.values())


def test_sites_with_similar_names_have_files_of_their_own() -> None:
    names = ["ward 1", "ward_1", "ward/1", "ward-1"]
    files = [private_file(context_of(1, site=name)).name for name in names]
    assert len(set(files)) == 4
    assert files[1] == "fedraw-ward_1.json"


def test_weights_equal_the_true_scores_without_sending_counts(tmp_path: Path) -> None:
    _, records = lead(tmp_path, BITS, BITS)
    check(records)
    last = [r for r in records if r["kind"] == "arrival" and r["aggregated"]][-1]
    total = sum(SCORES.values())
    expected = {site: SCORES[site] / total for site in last["buffer"]}
    assert dict(zip(last["buffer"], last["weights"], strict=True)) == pytest.approx(
        expected, abs=1e-4
    )
    assert sorted(p.name for p in tmp_path.glob("fedraw-*.json")) == [
        "fedraw-north.json",
        "fedraw-south.json",
        "fedraw-west.json",
    ]


def test_a_restarted_server_asks_only_for_the_unchanged_scores(tmp_path: Path) -> None:
    """The server dies while it sends its first message after training began."""

    def die(grid: MemoryGrid) -> None:
        if any(message.metadata.message_type == "train" for message in grid.pushed):
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        lead(tmp_path, BITS, BITS, before=die)
    grid, records = lead(tmp_path, BITS, BITS)
    steps = [m.content["config"].get("fedraw.ask.step") for m in grid.pushed]
    assert [step for step in steps if step] == ["score"] * 3
    check(records)
    assert [r["kind"] for r in records].count("restarted") == 1
    assert not any(r["kind"] in ("declared", "left") for r in records)


@pytest.mark.parametrize(
    ("asked", "given", "words"),
    [
        (BITS, None, "set client_app's argument privacy"),
        (BITS, OTHER, "this site answers only under"),
    ],
)
def test_a_site_without_privacy_settings_is_logged(
    asked: Privacy, given: Privacy | None, words: str, tmp_path: Path, caplog: Any
) -> None:
    def give_up(grid: MemoryGrid) -> None:
        if len(grid.pushed) > 3:
            raise RuntimeError("enough")

    with caplog.at_level("WARNING", "fedraw"), pytest.raises(RuntimeError, match="enough"):
        lead(tmp_path, asked, given, before=give_up)
    assert words in caplog.text


def test_contradicting_settings_are_refused(tmp_path: Path) -> None:
    config = {**run_config(BITS, tmp_path), "fedraw.strategy.labels": "checked"}
    with pytest.raises(BadInput, match=r"strategy.labels = 'checked' does not work with private"):
        lead(tmp_path, BITS, BITS, **config)
    empty: dict[str, Any] = {"fedraw.summaries.labels": ""}
    with pytest.raises(BadInput, match="need a public list of all labels"):
        lead(tmp_path / "two", BITS, BITS, **empty)
    with pytest.raises(
        BadInput, match="epsilon is missing; mechanism = 'randomised-response' needs it"
    ):
        read_server_settings({"fedraw.summaries.mechanism": "randomised-response"}, {"arrivals": 1})
    with pytest.raises(BadInput, match="privacy has no effect without label_counts"):
        client_app(train=train, privacy=BITS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_private_labels_in_real_processes(tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    config: dict[str, Any] = {"fedraw.folder": str(tmp_path / "federation")}
    with Deployment(tmp_path, {name: {} for name in COUNTS}) as deployment:
        run = deployment.run_app(app, config)
        assert run.wait(1200) == "finished:completed", run.log()
    check(read(tmp_path / "federation"))
