"""The arena: its design, the choice of rates, ranks and differences, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fedraw.experiment.spec import Spec
from fedraw.strategies.catalog import CATALOG
from fedraw_studies.arena_design import Arena, arena_artefact, arena_at, artefact_names
from fedraw_studies.arena_render import write_arena
from fedraw_studies.arena_results import ArenaResults, arena_results, rates_toml
from fedraw_studies.artefacts import ARENA, ARENA_DATASETS, Scale, study_file
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.outcomes import outcomes
from fedraw_studies.plan import key_of, settings_of

CPU, SMOKE = Scale.named("cpu"), Scale.named("smoke")
COMMITTED = Path(__file__).parents[1] / "results" / "cpu"
LABELS = [str(label) for label in range(10)]


def cell(spec: Spec, seed: int, accuracy: float, rare: float) -> CellRecord:
    content: dict[str, Any] = {
        "metrics": {"GlobalAcc": accuracy},
        "tail": {"GlobalAcc": accuracy, "AvgRare": rare}, "influence": {},
        "recall": dict.fromkeys(LABELS, accuracy), "recall_tail": dict.fromkeys(LABELS, rare),
        "curve": [(60, accuracy, rare)], "data": {},
        "fedraw": "0", "seconds": 1.0, "date": "", "cores": 2, "machine": "",
    }  # fmt: skip
    return CellRecord(key=key_of(spec), seed=seed, spec=settings_of(spec), **content)


def results(out: Path, arena: Arena, scale: Scale, dataset: str = "digits") -> ArenaResults:
    return arena_results(arena, dataset, outcomes(CellFiles(out), scale, artefact_names(dataset)))


def write_scores(
    out: Path, arena: Arena, scores: Mapping[tuple[str, str], Sequence[tuple[float, float]]]
) -> None:
    for row in arena.rows("digits"):
        for n, own in enumerate(scores.get((row.setting.name, row.method.name), ())):
            CellFiles(out).write(cell(arena.spec(row), arena.seeds("digits")[n], *own), "paper")


# One pass trains nothing, so it has no rate to tune; its study has the arena's federations.
TRAINING = {n for n, m in CATALOG.items() if not m.is_ablation and n != "one-pass"}


def test_every_method_of_the_catalogue_is_in_the_arena() -> None:
    known = {own.strategy["name"] for own in arena_at(CPU).methods}
    assert known >= TRAINING


def test_every_method_has_the_same_budget_and_no_test_seed_is_tuned_on() -> None:
    arena = arena_at(CPU)
    tuned = [method for method in arena.methods if method.tuned is not None]
    assert {len(method.values) for method in tuned} == {9}
    without = [method for method in arena.methods if method.tuned is None]
    assert {method.name for method in without} == {"FedAvg", "FedFa", "AREA", "FedRAW"}
    assert not any("server_lr" in _settings(method.strategy["name"]) for method in without)
    for dataset in ARENA_DATASETS:
        assert not set(arena.tuning_seeds) & set(arena.seeds(dataset))


def _settings(name: str) -> set[str]:
    return set(CATALOG[name].factory.__dataclass_fields__)


def test_tuning_is_at_10x_on_a_third_of_the_length() -> None:
    tuning, plain, remedied = (arena_artefact(name, CPU) for name in artefact_names("digits"))
    (usual,) = {row.spec.run.events for row in (*plain.rows, *remedied.rows)}
    assert {row.spec.run.events for row in tuning.rows} == {usual // 3}
    assert {(row.spec.speeds.kind, row.spec.speeds.ratio) for row in tuning.rows} == {("ratio", 10)}
    assert {row.spec.training.loss for row in remedied.rows} == {"fedlc"}
    assert len(plain.rows) == 21 * 6


def test_what_is_not_tuned_yet_waits() -> None:
    assert arena_artefact("arena-digits", CPU).waits_for == ""
    assert arena_artefact("arena-cifar10-tuning", CPU).waits_for == ""
    waits = arena_artefact("arena-cifar10", CPU).waits_for
    assert "no rate for FedBuff" in waits
    assert "run 'fedraw reproduce arena-cifar10-tuning'" in waits


def test_every_spec_of_the_arena_is_an_experiment_of_its_own() -> None:
    keys = [
        key_of(row.spec)
        for name in artefact_names("digits")
        for row in arena_artefact(name, CPU).rows
    ]
    assert len(set(keys)) == len(keys)
    assert sum(bool(arena_artefact(name, SMOKE).rows) for name in ARENA) == 3


def test_large_data_sets_have_the_short_list_at_two_delays() -> None:
    names = {
        "FedAvg",
        "FedBuff",
        "FedFa",
        "CA2FL",
        "MIFA",
        "ACE",
        "FedRAW",
        "Replay",
        "Debt replay",
    }
    rows = arena_artefact("arena-emnist", CPU).rows
    assert names < {row.method for row in rows}
    assert {row.label.partition(",")[0] for row in rows} == {"2x", "10x"}
    assert len(rows) == 2 * 11
    assert len(arena_artefact("arena-digits", CPU).rows) == 6 * 21


def test_the_rates_are_those_that_the_committed_cells_choose() -> None:
    own = results(COMMITTED, arena_at(CPU), CPU)
    assert own.tuning_runs[0] == own.tuning_runs[1]
    assert list(own.disagreements()) == []
    assert tomllib.loads(rates_toml([own]))["digits"] == study_file("arena-rates")["digits"]


def test_the_merits_of_the_catalogue_are_those_of_the_committed_cells() -> None:
    arena = arena_at(CPU)
    complete = [results(COMMITTED, arena, CPU, dataset) for dataset in ("digits", "ham10000")]
    settings = [setting.name for setting in arena.settings if setting.rare == "usual"]
    assert settings == ["2x", "10x", "20x", "five holders"]
    merits = {
        method.strategy["name"]: fmean(
            own.score(name, method.name).rare.mean or 0.0 for own in complete for name in settings
        )
        for method in arena.methods
        if set(method.strategy) == {"name"}
    }
    known = {name: CATALOG[name].merit for name in merits}
    assert known == {name: pytest.approx(merit, abs=0.05) for name, merit in merits.items()}
    assert known.keys() >= TRAINING


def test_the_choice_leaves_out_values_whose_models_collapsed(tmp_path: Path) -> None:
    arena = arena_at(SMOKE)
    (seed,) = arena.tuning_seeds
    for row in arena_artefact("arena-digits-tuning", SMOKE).rows:
        high = row.label.endswith("= 2")
        CellFiles(tmp_path).write(
            cell(row.spec, seed, 12.0 if high else 60.0, 99.0 if high else 1), "paper"
        )
    own = results(tmp_path, arena, SMOKE)
    assert {name: dict(t.best.settings) for name, t in own.tunings.items() if t.best} == {
        "CA2FL": {"strategy.server_lr": 1.0},
        "Replay": {"strategy.server_lr": 1.0},
    }
    assert "lowest value of the grid" in own.tunings["CA2FL"].notes[0]


def test_ranks_and_differences_by_hand(tmp_path: Path) -> None:
    arena = arena_at(CPU)
    # Replay is first, CA2FL second and FedFa third at 10x; at IID CA2FL is first, the others equal.
    write_scores(
        tmp_path,
        arena,
        {
            ("10x", "Replay"): [(90.0, 80.0), (91.0, 84.0), (92.0, 82.0)],
            ("10x", "CA2FL"): [(91.0, 70.0), (92.0, 72.0)],
            ("10x", "FedFa"): [(80.0, 0.0), (80.0, 1.0)],
            ("IID", "Replay"): [(95.0, 90.0)],
            ("IID", "CA2FL"): [(96.0, 92.0)],
            ("IID", "FedFa"): [(95.0, 90.0)],
        },
    )
    own = results(tmp_path, arena, CPU)
    assert own.ranks("rare") == ([("CA2FL", 1.5), ("Replay", 1.75), ("FedFa", 2.75)], 2)
    known = {(d.setting, d.one, d.other): d for d in own.differences() if d.rare is not None}
    ((key, difference),) = known.items()
    assert key == ("10x", "Replay", "CA2FL")
    # 10 and 12 points: mean 11, half width 12.706 · 1.4142 / 1.4142.
    assert difference.seeds == 2
    assert difference.rare == pytest.approx((11.0, 11 - 12.706, 11 + 12.706), abs=1e-3)
    assert difference.accuracy == pytest.approx((-1.0, -1.0, -1.0))
    score = own.score("10x", "Replay")
    assert (score.done, score.needed, score.collapsed) == (3, 10, 0)


def test_table_and_page_say_what_is_finished(tmp_path: Path) -> None:
    arena = arena_at(CPU)
    scores = {
        ("10x", "Replay"): [(90.0, 80.0), (91.0, 84.0)],
        ("10x", "CA2FL"): [(91.0, 70.0), (92.0, 72.0)],
        ("10x", "FedFa"): [(8.0, 0.0)],
    }
    write_scores(tmp_path, arena, scores)
    text, _ = write_arena(outcomes(CellFiles(tmp_path), CPU, ARENA), CPU, tmp_path)
    assert "**Unfinished: 5 of 1,260 runs of the comparison.**" in text
    assert "**82.0 ± 2.8 (90.5), 2 of 10**" in text
    assert "0.0 (8.0) †1, 1 of 10" in text
    assert "Replay − CA2FL |     2 | +11.0 (-1.7 to +23.7) | **-1.0 (-1.0 to -1.0)**" in text
    page = (tmp_path / "arena.html").read_text()
    assert "<option>five holders</option>" in page
    assert page.count("<svg") == 2  # no method has every setting with rare labels
    assert "http" not in page.split("</head>")[1]


def fedraw(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedraw", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


@pytest.mark.slow
def test_the_command_runs_it_and_writes_table_page_and_rates(tmp_path: Path) -> None:
    done = fedraw("reproduce", "arena", "--scale", "smoke", "-j", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "arena-digits-tuning    4      4" in done.stderr
    out = tmp_path / "results" / "smoke"
    (digits,) = json.loads(done.stdout)["arena"]
    assert digits["runs"] == [6, 6]
    text = (out / "arena.md").read_text()
    assert "All 6 runs of the comparison are finished." in text
    assert "| FedFa  | no rate |" in text
    page = (out / "arena.html").read_text()
    assert "<option>10x</option>" in page
    assert page.count("<svg") == 3
    assert "http" not in page.split("</head>")[1]
    assert set(tomllib.loads((out / "arena-rates.toml").read_text())["digits"]) == {
        "CA2FL",
        "Replay",
    }
    # Nothing runs again, and other artefacts leave the arena as it is.
    again = fedraw("reproduce", "arena", "--scale", "smoke", "--render", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (out / "arena.md").read_text() == text
    assert again.stdout.startswith("# The arena")
