"""Tuning: the same small grid for every method, on seeds that no test uses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedraw
from fedraw.errors import BadInput, FedrawError, TrainingFailed
from fedraw.eventlog.compare import Stat
from fedraw.experiment.spec import Spec
from fedraw.experiment.tuning import Grid, Tuning, TuningPoint

KEY = "strategy.server_lr"
BUFF = Spec.from_dict({"strategy": {"name": "fedbuff"}})


def point(rate: Any, *scores: float | None, collapsed: int = 0, key: str = KEY) -> TuningPoint:
    stat = Stat.of(scores)
    return TuningPoint({key: rate}, {"GlobalAcc": stat}, stat, collapsed)


def tuned(*points: TuningPoint, spec: Spec = BUFF) -> Tuning:
    (key,) = points[0].settings
    grid = Grid(spec, {key: [own.settings[key] for own in points]}, (1, 2))
    return Tuning(grid, points, ("GlobalAcc",))


def test_several_keys_make_a_grid() -> None:
    grid = Grid(BUFF, {KEY: [0.5, 1], "training.lr": [0.1, 0.2]}, (1, 2), events=500)
    values = [tuple(own.values()) for own in grid.points]
    assert values == [(0.5, 0.1), (0.5, 0.2), (1, 0.1), (1, 0.2)]
    assert str(grid) == "8 runs of 500 events: 4 points, 2 seeds"
    cells = grid.cells(Path("out"))
    assert [cell.seed for cell in cells] == [1, 2] * 4
    assert cells[0].folder == Path("out/server_lr=0.5,training.lr=0.1/seed-1")
    assert cells[-1].spec.training.lr == 0.2


def small(**more: Any) -> dict[str, Any]:
    partition = fedraw.Coverage(clients=8, rare_labels=[9], clients_per_common_label=5)
    return {
        "strategy": "fedbuff",
        "partition": partition,
        "events": 30,
        "evaluate_every": 10,
        "progress": False,
    } | more


def test_the_highest_score_wins_unless_a_model_has_collapsed() -> None:
    points = [point(1, 70, 80), point(2, 90, 90, collapsed=1), point(3, 80, 72), point(4, 99, None)]
    tuning = tuned(*points)
    assert tuning.settings == {KEY: 3}
    assert tuning.spec.strategy.settings["server_lr"] == 3
    assert tuning.spec.run == BUFF.run
    assert [row["chosen"] for row in tuning.table.rows()] == [False, False, True, False]
    assert tuning.notes == (
        "1 of 4 points have a collapsed model in at least one seed and cannot be chosen",
    )


def test_of_equal_points_the_first_is_chosen() -> None:
    assert tuned(point(2, 70), point(1, 70), point(3, 60)).settings == {KEY: 2}


def test_nothing_is_chosen_where_everything_collapsed() -> None:
    tuning = tuned(point(1, 70, collapsed=2))
    assert tuning.best is None
    assert tuning.as_json()["chosen"] is None
    with pytest.raises(FedrawError, match="no point can be chosen"):
        _ = tuning.spec


@pytest.mark.parametrize(
    ("key", "values", "best", "said"),
    [
        (KEY, [0.25, 1, 0.5], 0.25, "lowest value of the grid"),
        (KEY, [1, 3, 1.5], 3, "add for example 6"),
        (KEY, [1, 2, 3], 2, None),
        (KEY, [1, 2], 1, "lowest"),
        (KEY, [1], 1, None),
        ("strategy.buffer", [1, 2], 1, None),  # a buffer has at least one place
        ("strategy.buffer", [5, 10], 10, "add for example 20"),
        ("training.momentum", [0.0, 0.5], 0.0, None),
        ("training.momentum", [0.0, 0.5], 0.5, "highest"),
        ("strategy.staleness", ["none", "polynomial"], "none", None),
        ("strategy.unique", [False, True], True, None),
    ],
)
def test_a_choice_at_the_edge_of_the_grid_is_reported(
    key: str, values: list[Any], best: Any, said: str | None
) -> None:
    points = [point(value, 9.0 if value == best else 5.0, key=key) for value in values]
    notes = tuned(*points).notes
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


@pytest.mark.parametrize(
    ("over", "more", "message"),
    [
        ({}, {}, "nothing to tune"),
        ({"strategy.serverlr": [1]}, {}, r"unknown key 'serverlr'; did you mean 'server_lr'\?"),
        ({KEY: [1, -1]}, {}, "server_lr = -1 must be a positive number"),
        ({KEY: [1, 1.0]}, {}, "has the value 1 twice"),
        ({KEY: "12"}, {}, "must be a list of values"),
        ({KEY: []}, {}, "must be a list of values"),
        ({"run.events": [10, 20]}, {}, "describes the problem, not a method"),
        ({"strategy.name": ["fedbuff"]}, {}, "tune each method separately"),
        ({KEY: [1]}, {"seeds": (1, 123, 42)}, "123, 42 are in run.seeds"),
        ({KEY: [1]}, {"seeds": ()}, "run.seeds is empty"),
        ({KEY: [1]}, {"by": ("AvgRar",)}, "did you mean 'AvgRare'"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(
    over: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        Grid(BUFF, over, **{"seeds": (1, 2), **more})


def test_a_grid_without_models_is_refused() -> None:
    with pytest.raises(BadInput, match="trains no model"):
        fedraw.tune(train="none", over={"strategy.buffer": [5]})
    with pytest.raises(BadInput, match="over = None must be the values of each key, such as"):
        fedraw.tune(over=None)  # type: ignore[arg-type]


def test_the_score_is_the_mean_of_the_metrics_over_the_last_evaluations(tmp_path: Path) -> None:
    over = {KEY: [0.5, 1], "training.lr": [0.1]}
    wanted = small(over=over, seeds=[1], out=tmp_path / "runs")
    tuning = fedraw.tune(**wanted)
    assert [p.settings for p in tuning.points] == tuning.grid.points
    first = fedraw.load(tmp_path / "runs" / "server_lr=0.5,training.lr=0.1")
    tails = [run.summary["tail"] for run in first]
    expected = [(tail["GlobalAcc"] + tail["AvgRare"]) / 2 for tail in tails]
    assert tuning.points[0].score.values == pytest.approx(expected)
    assert tuning.by == ("GlobalAcc", "AvgRare")
    # Continued with another value and another rule: finished runs are kept.
    log = tmp_path / "runs" / "server_lr=1,training.lr=0.1" / "seed-1" / "events.jsonl"
    before = log.stat().st_mtime_ns
    over[KEY].append(2)
    again = fedraw.tune(**wanted, resume=True, last=True, by="MacroF1")
    assert log.stat().st_mtime_ns == before
    assert len(again.points) == 3
    assert again.points[0].score.values == tuple(run.summary["metrics"]["MacroF1"] for run in first)
    with pytest.raises(BadInput, match="already holds a finished run"):
        fedraw.tune(**wanted)


def test_the_written_spec_holds_the_choice_and_its_table(tmp_path: Path) -> None:
    tuning = tuned(point(1, 70, 80), point(3, 80, 72))
    file = tmp_path / "tuned.toml"
    tuning.write(file)
    assert Spec.from_file(file) == BUFF.with_changes({KEY: 3})
    comment = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert "Chosen: strategy.server_lr = 3" in " ".join(comment)
    assert comment[-2:] == [
        "#         1  75.0 ± 7.1     0 of 2",
        "#         3  76.0 ± 5.7     0 of 2  *",
    ]
    assert all(len(line) <= 100 for line in comment)
    tuning.write(file)  # an earlier choice may be replaced
    file.write_text(file.read_text().removeprefix("#"))
    with pytest.raises(BadInput, match="was not written by a tuning"):
        tuning.write(file)
    assert tomllib.loads(tuning.to_text())["strategy"]["server_lr"] == 3


def test_without_rare_labels_the_overall_accuracy_decides() -> None:
    tuning = fedraw.tune(
        strategy="fedbuff", partition=fedraw.IID(clients=8), over={KEY: [1]}, seeds=[1], events=10,
        progress=False,
    )  # fmt: skip
    assert tuning.by == ("GlobalAcc",)
    with pytest.raises(BadInput, match="no run has the metric 'AvgRare'"):
        fedraw.tune(
            strategy="fedbuff", partition=fedraw.IID(clients=8), over={KEY: [1]}, seeds=[1],
            events=10, by="AvgRare", progress=False,
        )  # fmt: skip


def fails_above(model: Any, data: Any, context: Any) -> dict[str, float]:
    if context.lr > 0.5:
        raise FloatingPointError("diverged")
    return {}


def test_own_parts_are_tuned_and_a_point_that_fails_is_not_chosen() -> None:
    own = small(train=fails_above, seeds=[1])
    tuning = fedraw.tune(**own, over={"training.lr": [0.1, 0.9]})
    assert tuning.points[1].collapsed == 1
    assert tuning.points[1].score.mean is None
    with pytest.raises(BadInput, match="parts that were given in Python"):
        tuning.to_text()
    with pytest.raises(TrainingFailed, match="diverged"):
        fedraw.tune(**own, over={"training.lr": [0.8]})
    with pytest.raises(BadInput, match="no argument 'trian'"):
        fedraw.tune(**own, over={"training.lr": [0.8]}, trian=fails_above)


def test_less_of_an_own_metric_is_better_with_a_minus() -> None:
    wrong = {"Wrong": lambda outputs, targets: float((outputs.argmax(1) != targets).mean())}
    tuning = fedraw.tune(
        **small(by="-Wrong", seeds=[1]), over={"training.lr": [0.001, 0.2]}, metrics=wrong
    )
    assert tuning.settings == {"training.lr": 0.2}
