"""Finished runs as files, and what the tables make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.errors import BadInput, FedrawError
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import Scale
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.execute import (
    Machine,
    Workspace,
    clear_finished,
    refuse_missing_data,
    run_plan,
    unfinished,
)
from fedraw_studies.outcomes import outcomes, value_of
from fedraw_studies.plan import Planned, key_of, load_artefacts, make_plan, settings_of
from fedraw_studies.render import document, outcome_markdown, section_of, write_documents

SMOKE = Scale.named("smoke")


def planned(spec: Spec, seed: int = 42, label: str = "row") -> Planned:
    return Planned(key_of(spec), seed, spec, "s9", label, "emnist", 2.0)


def small(**strategy: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 10, "rare_labels": [9], "clients_per_common_label": 6},
            "strategy": {"name": "fedfa", "buffer": 5, **strategy},
            "run": {"events": 30, "evaluate_every": 10},
        }
    )


def workspace(folder: Path) -> Workspace:
    return Workspace(CellFiles(folder / "out"), folder / "runs")


def made_up(spec: Spec, seed: int, metrics: Mapping[str, float | None], **parts: Any) -> CellRecord:
    """A cell as a run could have left it."""
    content: dict[str, Any] = {
        "tail": {}, "recall": {str(i): 10.0 * i for i in range(10)},
        "curve": [(30, 50.0, None)], "influence": {},
        "notes": ["a note"], "data": {}, "fedraw": "0",
        "seconds": 36.0, "date": "", "cores": 2, "machine": "",
    }  # fmt: skip
    return CellRecord(
        key=key_of(spec), seed=seed, spec=settings_of(spec), metrics=metrics, **content | parts
    )


def test_a_run_leaves_one_line_that_says_what_its_folder_said(tmp_path: Path) -> None:
    place, spec = workspace(tmp_path), small()
    whole = run_seed(spec, 42, tmp_path / "whole").summary
    assert run_plan([planned(spec)], place, Machine(), jobs=1) == []
    assert not list(place.runs.iterdir())
    record = place.cells.read(f"{key_of(spec)}-42")
    assert record is not None
    for metric, value in whole["metrics"].items():
        assert record.metrics[metric] == (None if value is None else round(value, 6))
    counts = whole["confusion"]["9"]
    assert record.confusion == {"9": [counts.get(str(label), 0) for label in range(10)]}
    # Only label 9 is rare, so that AvgRare of the last five evaluations is its recall in them.
    assert record.recall_tail == {"9": round(whole["tail"]["AvgRare"], 6)}
    assert [point[0] for point in record.curve] == [10, 20, 30]
    assert record.curve[-1][1] == round(whole["metrics"]["GlobalAcc"], 2)
    assert record.rare_labels == ("9",)
    assert (record.name, record.events) == (f"{key_of(spec)}-42", 30)
    assert Spec.from_dict(record.spec) == spec
    assert place.cells.path("paper").stat().st_size < 3000


def test_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    cells = CellFiles(tmp_path)
    record = made_up(small(), 7, {"GlobalAcc": 12.5, "AvgRare": None})
    cells.write(record, "arena")
    for files in (cells, CellFiles(tmp_path)):
        assert files.read(record.name) == record
        assert files.names() == files.names("arena") == {record.name}
        assert files.names("paper") == set()
        assert files.read("nothing-1") is None
    assert [path.name for path in tmp_path.iterdir()] == ["arena.jsonl"]
    with pytest.raises(ValueError, match="already"):
        cells.write(record, "paper")


RUNS = [
    made_up(small(buffer=k), seed, {"AvgRare": float(k)}) for k in (3, 4, 5) for seed in (9, 10)
]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(st.permutations(RUNS), st.integers(0, len(RUNS)))
def test_any_order_of_appends_leaves_the_same_files(order: list[CellRecord], first: int) -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder)
        for part in (order[:first], order[first:]):  # two commands
            cells = CellFiles(out)
            cells.tidy()
            for record in part:
                cells.write(record, "late" if record.seed == 9 else "paper")
            cells.tidy()
        assert set(files_of(out)) == {"late.jsonl", "paper.jsonl"}
        for content in files_of(out).values():
            names = [(own["key"], own["seed"]) for own in map(json.loads, content.splitlines())]
            assert names == sorted(names)
            assert len(names) == 3
        assert all(CellFiles(out).read(record.name) == record for record in RUNS)


def test_a_line_that_was_torn_anywhere_is_no_run_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path, (torn, *others) = tmp_path / "paper.jsonl", RUNS[:3]
    for record in (*others, torn):
        CellFiles(tmp_path).write(record, "paper")
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for length in range(len(last)):
        path.write_bytes(whole[: len(whole) - len(last) + length])
        cells = CellFiles(tmp_path)
        # Without its newline alone, as an editor may leave it, the line is complete.
        missing = length < len(last) - 1
        assert cells.names() == {own.name for own in (RUNS[:3], others)[missing]}
        cells.tidy()
        if missing:
            cells.write(torn, "paper")
        cells.tidy()
        assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
        assert cells.damage() == CellFiles(tmp_path).damage() == []


APPENDS = """
import sys
from pathlib import Path
from fedraw_studies.cells import CellFiles
cells = CellFiles(Path(sys.argv[1]))
cells.tidy()
(record,) = map(cells.read, cells.names())
from dataclasses import replace
for seed in range(100, 100_000):
    cells.write(replace(record, seed=seed), "paper")
    print(seed, flush=True)
"""


def test_a_process_that_is_killed_while_it_appends_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    CellFiles(tmp_path).write(RUNS[0], "paper")
    command = [sys.executable, "-c", APPENDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.kill()
        told += map(int, process.stdout.read().split())
    cells = CellFiles(tmp_path)
    cells.tidy()
    seeds = [json.loads(line)["seed"] for line in cells.path("paper").read_bytes().splitlines()]
    assert len(seeds) == len(set(seeds)) == len(cells.names())
    # The last one may be on the disk although the process could not tell it any more.
    assert seeds[: len(told) + 1] == [RUNS[0].seed, *told]
    assert len(seeds) <= len(told) + 2


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the write fails in the same way."""
    path = tmp_path / "paper.jsonl"
    CellFiles(tmp_path).write(RUNS[0], "paper")
    size = path.stat().st_size
    code = APPENDS.replace("cells.tidy()", f"cells.tidy(); {LIMIT.format(size + size // 2)}")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stderr
    assert path.stat().st_size == size


LIMIT = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"
)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda line: line[:200], "column"),
        (lambda line: "", "Expecting value"),
        (lambda line: "[]", "it is not a JSON object"),
        (lambda line: "{}", "it has no key, seed, spec"),
        (lambda line: line.replace('"buffer":5', '"buffer":6'), "its spec is not that of its key"),
        (lambda line: line.replace('"metrics"', '"metrix"'), "it has no metrics;"),
        (lambda line: line.replace('"notes"', '"knots"'), "unexpected keyword argument 'knots'"),
        (lambda line: line.replace('"curve":[[', '"curve":[0,['), "not iterable"),
        (lambda line: line.replace("36.0", "37.0") + "\n" + line, "different results of the same"),
    ],
)
def test_a_damaged_line_is_named_and_stops_the_plan(
    tmp_path: Path, damage: Callable[[str], str], why: str
) -> None:
    place, plan = workspace(tmp_path), [planned(small())]
    place.cells.write(made_up(small(), 42, {}), "paper")
    place.cells.write(made_up(small(), 43, {}), "paper")
    assert unfinished(plan, place) == []
    path = place.cells.path("paper")
    line, other = path.read_text().splitlines()
    path.write_text(f"{damage(line)}\n{other}\n")
    place = workspace(tmp_path)
    with pytest.raises(BadInput, match=rf"paper.jsonl, line [12] .*{why}.*delete"):
        unfinished(plan, place)
    with pytest.raises(BadInput, match="delete"), place.locked():
        pass
    assert len(place.cells.damage()) == 1
    path.write_text(f"{other}\n")
    assert unfinished(plan, workspace(tmp_path)) == plan


def test_equal_lines_of_two_files_are_one_run(tmp_path: Path) -> None:
    """Somebody has joined the results of two machines that began with the same runs."""
    CellFiles(tmp_path).write(RUNS[0], "paper")
    line = (tmp_path / "paper.jsonl").read_bytes()
    (tmp_path / "arena.jsonl").write_bytes(line + line)
    cells = CellFiles(tmp_path)
    cells.tidy()
    assert cells.names("paper") == cells.names() == {RUNS[0].name}
    assert files_of(tmp_path) == {"paper.jsonl": line, "arena.jsonl": b""}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_told_and_the_others_are_kept(tmp_path: Path, jobs: int) -> None:
    place = workspace(tmp_path)
    wrong = planned(small(buffer=11, name="fedraw"), label="too large")  # of ten clients
    plan = [planned(small()), wrong, planned(small(buffer=4))]
    told: dict[int, CellRecord | FedrawError | OSError] = {}
    (failure,) = run_plan(plan, place, Machine(), jobs=jobs, done=told.__setitem__)
    assert failure.planned == wrong
    assert "never fills" in failure.why
    assert isinstance(told[1], BadInput)
    assert sorted(told) == [0, 1, 2]
    assert place.cells.names() == {plan[0].name, plan[2].name}
    assert unfinished(plan, place) == [wrong]


def test_finished_runs_are_not_touched_and_leftovers_go(tmp_path: Path) -> None:
    place, plan = workspace(tmp_path), [planned(small()), planned(small(buffer=4))]
    place.cells.write(made_up(small(), 42, {"GlobalAcc": 1.0}), "paper")
    assert unfinished(plan, place) == plan[1:]
    run_seed(small(), 42, place.folder(plan[0]))  # killed after the run was stored
    clear_finished(plan, place)
    assert not place.folder(plan[0]).exists()


def test_a_run_folder_that_is_finished_is_stored_without_running(tmp_path: Path) -> None:
    place, plan = workspace(tmp_path), [planned(small())]
    run_seed(small(), 42, place.folder(plan[0]))
    timing = place.folder(plan[0]) / "timing.json"
    content = json.loads(timing.read_text())
    timing.write_text(json.dumps({**content, "seconds": 12345.0}))  # would not come out again
    assert run_plan(plan, place, Machine(), jobs=1) == []
    record = place.cells.read(plan[0].name)
    assert record is not None
    assert record.seconds == 12345.0


def test_outcomes_are_made_of_cells_alone(tmp_path: Path) -> None:
    (artefact,) = load_artefacts(["s9"], SMOKE)
    cells = CellFiles(tmp_path)
    for row, value in zip(artefact.rows[:2], (30.0, 40.0), strict=True):
        cells.write(made_up(row.spec, 42, {"GlobalAcc": 70.0, "AvgRare": value}), "paper")
    (outcome,) = outcomes(CellFiles(tmp_path), "smoke", ["s9"])
    first, third = outcome.rows[0], outcome.rows[2]
    own = first.metrics["AvgRare"]
    assert own.paper is not None
    assert (own.paper.printed, own.not_comparable, own.values) == ("20.92", None, {42: 30.0})
    assert first.records[42].curve == [(30, 50.0, None)]
    assert first.records[42].recall["3"] == 30.0
    assert first.values("AvgRare") == {42: 30.0}
    assert (third.seeds, third.missing, third.metrics["AvgRare"].mean) == ((), (42,), None)
    assert outcome.is_begun
    assert not outcome.is_complete
    text = outcome_markdown(outcome)
    assert "8x8 digits instead of every data set" in text
    assert "Not run yet: K = 5, FedFa: seed 42;" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[3].split("|")][2:5] == ["ours", "70.00", "30.00"]


def test_lost_recovered_confusion_and_recall_are_derived_seed_by_seed(tmp_path: Path) -> None:
    attack, cats, first = load_artefacts(["s8", "s7", "fig1"], SMOKE)[::-1][:3]
    by_name = {a.name: a for a in (attack, cats, first)}
    cells = CellFiles(tmp_path)
    rare = {"no attack": 30.0, "attack, no defence": 20.0, "attack, naive cap 0.3": 24.0}
    for row in by_name["s8"].rows:
        if row.label in rare:
            own = {"GlobalAcc": 70.0, "AvgRare": rare[row.label]}
            cells.write(made_up(row.spec, 42, own), "paper")
    dog = by_name["s7"].rows[1]
    matrix = {"3": [1] * 10, "5": list(range(10))}
    cells.write(made_up(dog.spec, 42, {}, confusion=matrix), "paper")
    cells.write(made_up(by_name["fig1"].rows[0].spec, 42, {}), "paper")
    s8, s7, fig1 = (
        next(o for o in outcomes(CellFiles(tmp_path), SMOKE) if o.name == name)
        for name in ("s8", "s7", "fig1")
    )
    assert s8.row("attack, no defence").metrics["AvgRareLost"].mean == 10
    capped = s8.row("attack, naive cap 0.3").metrics
    assert capped["AvgRareRecovered"].mean == pytest.approx(40)
    assert capped["GlobalAccRecovered"].mean is None  # nothing was lost
    assert s8.row("no attack").metrics["AvgRareLost"].mean is None
    assert s7.row("FedFa, dog").metrics["as 7"].mean == 7
    assert fig1.row("Exp 1").metrics["RareRecall"].mean == 70  # of label 7, the first


def test_documents_have_spread_seeds_and_reasons(tmp_path: Path) -> None:
    scale = replace(SMOKE, seeds=(42, 123, 456))
    (table,) = load_artefacts(["table2"], scale)
    cells = CellFiles(tmp_path)
    own = next(row for row in table.rows if row.label == "HAM10000, FedFa")
    other = next(row for row in table.rows if row.label == "CIFAR-10, FedFa")
    for seed, value in zip((42, 123, 456), (10.0, 20.0, 30.0), strict=True):
        for row in (own, other):
            own_values = {"AvgRare": value, "Worst10": value}
            cells.write(made_up(row.spec, seed, own_values), "paper")
    text = {
        o.name: outcome_markdown(o) for o in outcomes(CellFiles(tmp_path), scale, ["table2", "s11"])
    }
    assert "20.0 ± 8.2" in text["table2"]
    assert "62.7 ± 9.0 (b)" in text["table2"]
    assert "(b) not comparable: in the paper the worst tenth" in text["table2"].replace("\n", " ")
    assert "10.00 / 20.00 / 30.00" in text["s11"]
    every = outcomes(CellFiles(tmp_path), scale)
    content = write_documents(every, "smoke", tmp_path)
    assert content == json.loads((tmp_path / "summary.json").read_text())
    assert content == document([o for o in every if o.is_begun], "smoke") | {
        "claims": content["claims"]
    }
    assert (content["cells"], content["core_hours"], content["notes"]) == (6, 0.06, ["a note"])
    begun = {own["name"] for own in content["artefacts"]}
    assert {path.stem for path in tmp_path.glob("*.md")} == {"paper", "verdicts"}
    sections = {own.name: section_of(own.name, tmp_path) for own in every}
    assert sections == {own.name: outcome_markdown(own) if own.is_begun else None for own in every}
    assert begun == {"fig2", "table2", "fig3", "table3", "s11"}
    found = next(own for own in content["artefacts"] if own["name"] == "table2")["rows"]
    metric = next(r for r in found if r["label"] == "CIFAR-10, FedFa")["metrics"]["Worst10"]
    assert metric["paper"] == [62.7]
    assert metric["values"] == [10.0, 20.0, 30.0]
    assert "impossible" in metric["not_comparable"]


def test_a_damaged_run_is_not_quietly_missing(tmp_path: Path) -> None:
    (tmp_path / "paper.jsonl").write_text("{\n")
    with pytest.raises(BadInput, match="cannot be used"):
        outcomes(CellFiles(tmp_path), SMOKE, ["s9"])
    (outcome,) = outcomes(CellFiles(tmp_path), SMOKE, ["s9"], skip_damaged=True)
    assert outcome.rows[0].missing == (42,)


def test_missing_data_are_named_with_those_who_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDRAW_DATA", raising=False)
    artefacts = load_artefacts(["s9", "s11"], Scale.named("paper"))
    plan = make_plan(artefacts)
    with pytest.raises(BadInput) as caught:
        refuse_missing_data(plan, Machine(), ["fig2", "dynamics"])
    said = str(caught.value)
    assert said.startswith("no data root is set")
    assert said.count("no data root") == 1
    assert "s9, s11 cannot run without emnist, ham10000, resnet18" in said
    assert "fedraw data fetch emnist ham10000 resnet18 --data DIR" in said
    assert "fedraw reproduce fig2 dynamics" in said
    with pytest.raises(BadInput, match=f"(?s)emnist.*{tmp_path}.*s9"):
        refuse_missing_data(plan, Machine(tmp_path), [])
    refuse_missing_data(make_plan(load_artefacts(["s9"], SMOKE)), Machine(), [])


def test_weights_and_device_of_a_machine_make_no_other_cell(tmp_path: Path) -> None:
    (artefact,) = load_artefacts(["s11"], Scale.named("paper"))
    spec = artefact.rows[0].spec
    here = Machine(weights=tmp_path / "own.pth", device="cuda").localised(spec)
    assert (here.training.device, here.training.weights) == ("cuda", str(tmp_path / "own.pth"))
    assert make_plan([artefact])[0].key == key_of(spec)
    assert Machine().localised(spec) == spec


def test_the_swing_of_a_run() -> None:
    curve = [(10, 50.0, 90.0), *((10 * n, 60.0, rare) for n, rare in enumerate([4, 8, 4, 8, 6], 2))]
    own = made_up(small(), 42, {}, curve=curve)
    # The last five are 4, 8, 4, 8, 6: deviations -2, 2, -2, 2, 0 from 6, squares 16 in all.
    assert value_of(own, "SwingAvgRare") == pytest.approx((16 / 5) ** 0.5)
    assert value_of(own, "SwingGlobalAcc") == 0
    unknown = made_up(small(), 42, {}, curve=[(10, 50.0, None)])
    assert value_of(unknown, "SwingAvgRare") is None
