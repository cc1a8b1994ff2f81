"""fedraw reproduce as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from tests.cli.command import fedraw

from fedraw_studies.artefacts import BEYOND, EVIDENCE, NAMES
from fedraw_studies.cells import CellFiles
from fedraw_studies.execute import Workspace
from fedraw_studies.plan import key_of_settings
from fedraw_studies.render import section_of


def test_dynamics_prints_json_and_writes_both_forms(tmp_path: Path) -> None:
    options = ("--seeds", 1, "--out", "again", "--json")
    done = fedraw("reproduce", "dynamics", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.pop("run")["reused"] == 0
    assert document == json.loads((tmp_path / "again" / "dynamics.json").read_text())
    rows = {(row["artefact"], row["row"], row["metric"]): row for row in document["rows"]}
    same = rows["Table III", "EMNIST, FedRAW", "BufPres"]
    assert same["mean"] == rows["Table S10", "2", "BufPres"]["mean"]
    assert (same["paper"], same["sd"]) == (72.7, 0.0)
    largest = rows["Table S8", "attack, no defence", "AttackerWeightMax"]
    assert round(largest["mean"], 3) == largest["paper"] == 0.526
    text = (tmp_path / "again" / "dynamics.md").read_text()
    assert "`fedraw reproduce dynamics --seeds 1`" in text
    assert "## Table S8" in text
    assert {path.name for path in tmp_path.iterdir()} == {"again"}


def test_an_unknown_artefact_is_bad_input(tmp_path: Path) -> None:
    done = fedraw("reproduce", "dynamic", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown artefact 'dynamic'; did you mean 'dynamics'?" in done.stderr


def test_an_unknown_scale_and_seeds_of_what_has_its_own_are_bad_input(tmp_path: Path) -> None:
    done = fedraw("reproduce", "s9", "--scale", "smok", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown scale 'smok'; did you mean 'smoke'?" in done.stderr
    done = fedraw("reproduce", "s9", "--seeds", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert "--seeds 3 is for dynamics" in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_data_it_says_what_to_fetch_and_what_can_be_run(tmp_path: Path) -> None:
    done = fedraw("reproduce", "table2", "--scale", "paper", "--data", "absent", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "72     72 not measured" in done.stderr
    assert "the data root absent is not a folder" in done.stderr
    assert "fedraw data fetch emnist cifar10 ham10000 resnet18 isic2019" in done.stderr
    assert "'fedraw reproduce fig2 dynamics'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    # What is already there needs no data.
    assert fedraw("reproduce", "fig2", cwd=tmp_path).returncode == 0


def test_a_dry_run_tells_the_budget(tmp_path: Path) -> None:
    done = fedraw("reproduce", "--scale", "cpu", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    budget = json.loads(done.stdout)
    assert [own["name"] for own in budget["artefacts"]][:2] == ["table2", "table3"]
    assert budget["artefacts"][0]["runs"] == 24 * 5
    assert budget["to_run"] == budget["runs"] == sum(a["runs"] for a in budget["artefacts"])
    assert "in all" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_part_of_a_plan_by_data_set_and_seed(tmp_path: Path) -> None:
    command = ("reproduce", "table2", "table3", "--scale", "level", "--dry-run", "--json")
    done = fedraw(*command, "--dataset", "ham10000", "--seed", 42, "--seed", 2001, cwd=tmp_path)
    budget = json.loads(done.stdout)
    assert {own["name"]: own["runs"] for own in budget["artefacts"]} == {"table2": 12, "table3": 4}
    done = fedraw(*command, "--dataset", "ham1000", cwd=tmp_path)
    assert done.returncode == 2
    assert "--dataset 'ham1000' is unknown; did you mean 'ham10000'" in done.stderr
    done = fedraw(*command, "--dataset", "emnist", "--seed", 43, cwd=tmp_path)
    assert done.returncode == 2
    assert "--dataset emnist --seed 43 selects no run of table2, table3;" in done.stderr
    assert "seeds: 42, 123, 456, 789, 1011" in done.stderr
    done = fedraw("reproduce", "table4", "--scale", "level", "--dataset", "ham10000", cwd=tmp_path)
    assert done.returncode == 2
    assert "--dataset ham10000 selects no run of table4; data sets: emnist" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_missing_stops_the_plan_before_it_starts(tmp_path: Path) -> None:
    done = fedraw("reproduce", "fig1", "--scale", "smoke", "--device", "cuda:77", cwd=tmp_path)
    assert done.returncode == 2
    assert "device = 'cuda:77' is not available" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_no_folder_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = fedraw("reproduce", "fig1", "--scale", "smoke", "-o", "file/out", cwd=tmp_path)
    assert done.returncode == 2
    told = "fedraw: cannot write to file/out/runs: Not a directory; choose another --out"
    assert done.stderr.splitlines()[-1] == told
    assert "cannot be used" not in done.stderr


def test_a_second_reproduction_of_one_folder_is_refused_and_one_of_another_runs(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results" / "smoke"
    with Workspace(CellFiles(out), out / "runs").locked():
        again = fedraw("reproduce", "fig1", "--scale", "smoke", "--jobs", 1, cwd=tmp_path)
        assert again.returncode == 2
        assert "another process is running in results/smoke/runs; wait for it" in again.stderr
        elsewhere = ("--jobs", 1, "--out", tmp_path / "other")
        done = fedraw("reproduce", "fig1", "--scale", "smoke", *elsewhere, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert not (out / "runs").exists()
    assert CellFiles(tmp_path / "other").names() == set(runs_of(finished))


def test_a_scale_without_an_artefact_says_which_it_has(tmp_path: Path) -> None:
    done = fedraw("reproduce", "table2", "s1", "--scale", "ham10000", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "scale ham10000 has no table2; it has fig1, table4, s1" in done.stderr
    done = fedraw("reproduce", "--scale", "ham10000", "--dry-run", "--json", cwd=tmp_path)
    names = [own["name"] for own in json.loads(done.stdout)["artefacts"]]
    assert {"table4", "s9"} < set(names)
    assert "table2" not in names


def test_two_artefacts_from_nothing_to_tables_and_never_again(tmp_path: Path) -> None:
    command = ("reproduce", "table4", "fig2", "--scale", "smoke")
    done = fedraw(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "table4         6      6" in done.stderr
    assert "# Table IV: rare clients 2, 10 and 20 times as slow" in done.stdout
    assert "| 20x, FedRAW | paper |" in done.stdout
    assert "# Figure 2" in done.stdout
    out = tmp_path / "results" / "smoke"
    stored = (out / "paper.jsonl").read_text()
    assert len(runs_of(tmp_path)) == 6
    assert not (tmp_path / "results" / "smoke" / "runs").exists()
    assert (section_of("table4", out) or "absent") in done.stdout
    again = fedraw(*command, "--json", cwd=tmp_path)
    assert "table4         6      0" in again.stderr
    assert "nothing: all are finished" in again.stderr
    document = json.loads(again.stdout)
    assert [own["name"] for own in document["artefacts"]] == ["fig2", "table4"]
    assert (out / "paper.jsonl").read_text() == stored
    # Two of S9's twelve runs are Table IV's; a run of settings that are gone is left alone.
    gone = with_other_buffer(json.loads(stored.splitlines()[0]))
    (out / "paper.jsonl").write_text(f"{stored}{json.dumps(gone)}\n")
    dry = fedraw("reproduce", "s9", "--scale", "smoke", "--dry-run", cwd=tmp_path)
    assert "s9            12     10" in dry.stderr
    told = "results/smoke: 1 finished run has settings that no artefact of its study has at scale"
    assert f"{told} smoke" in dry.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Figure 1 is finished."""
    folder = tmp_path_factory.mktemp("finished")
    done = fedraw("reproduce", "fig1", "--scale", "smoke", "--jobs", 1, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_damaged_line_stops_the_plan_before_it_starts(finished: Path, tmp_path: Path) -> None:
    copytree(finished, tmp_path, dirs_exist_ok=True)
    command = ("reproduce", "fig1", "--scale", "smoke")
    path = tmp_path / "results" / "smoke" / "paper.jsonl"
    first, *others = lines_of(tmp_path)
    path.write_text("".join([first[:500] + "\n", *others]))
    for option in ((), ("--dry-run",), ("--force",)):
        done = fedraw(*command, *option, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "results/smoke/paper.jsonl, line 1 cannot be used" in done.stderr
    rendered = fedraw(*command, "--render", cwd=tmp_path)
    assert rendered.returncode == 0
    assert "results/smoke/paper.jsonl, line 1 cannot be used" in rendered.stderr
    path.write_text("".join(others))
    assert fedraw(*command, cwd=tmp_path).returncode == 0
    assert runs_of(tmp_path) == runs_of(finished)


def test_finished_runs_of_version_0_2_are_imported_and_not_run_again(
    finished: Path, tmp_path: Path
) -> None:
    out, cells = tmp_path / "results" / "smoke", tmp_path / "results" / "smoke" / "cells"
    cells.mkdir(parents=True)
    for name, run in runs_of(finished).items():
        timed = {**run, "seconds": 1.0, "date": "2026-01-01"}
        spec = {**run["spec"], "run": {**run["spec"]["run"], "seeds": [run["seed"]]}}
        old = {"format": 1, "name": "fedfa", "events": 30, "label_influence": {}, "notes": []}
        (cells / f"{name}.json").write_text(json.dumps({**old, **timed, "spec": spec}))
    command = ("reproduce", "fig1", "--scale", "smoke", "--json")
    refused = fedraw(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert "python tools/import_cells.py results/smoke/cells results/smoke'" in refused.stderr
    tool = Path(__file__).parents[2] / "tools" / "import_cells.py"
    for imported in (3, 0):
        done = subprocess.run(
            [sys.executable, tool, cells, out], capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"{imported} of 3 runs imported")
    assert runs_of(tmp_path) == runs_of(finished)
    rmtree(cells)
    again = fedraw(*command, cwd=tmp_path)
    assert json.loads(again.stdout)["run"]["reused"] == 3


def with_other_buffer(run: dict[str, Any]) -> dict[str, Any]:
    run["spec"]["strategy"]["buffer"] = 9
    return {**run, "key": key_of_settings(run["spec"])}


def without_clock(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("seconds", "date")}


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A plan whose runs write a checkpoint on every event, with --jobs 1: slow enough to kill."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import fedraw.experiment.checkpoints as c; c.EVERY_SECONDS = 0\n"
    code += "c.LARGEST_SHARE = 1e9; import fedraw.cli.main as m; m.main()"
    command = [sys.executable, "-c", code, "reproduce", "fig1", "--scale", "smoke", *options]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def lines_of(folder: Path) -> list[str]:
    """The complete lines of the file of finished runs, in the order of the file."""
    path = folder / "results" / "smoke" / "paper.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]


def runs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The finished runs by name; none stands twice."""
    runs = [without_clock(json.loads(line)) for line in lines_of(folder)]
    by_name = {f"{run['key']}-{run['seed']}": run for run in runs}
    assert len(by_name) == len(runs)
    return by_name


def is_in_its_second_run(folder: Path) -> bool:
    """One run is finished, and the run after it has a checkpoint."""
    under_way = folder / "results" / "smoke" / "runs"
    return len(lines_of(folder)) == 1 and any(under_way.glob("*/checkpoint/0*"))


@pytest.mark.slow
def test_killed_in_the_middle_of_a_plan_it_goes_on_to_the_same_runs(
    finished: Path, tmp_path: Path
) -> None:
    process = start(tmp_path, "--jobs", "1")
    wait_until(lambda: is_in_its_second_run(tmp_path), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (first,) = lines_of(tmp_path)
    assert len(list((tmp_path / "results" / "smoke" / "runs").glob("*/events.jsonl"))) == 1
    with (tmp_path / "results" / "smoke" / "paper.jsonl").open("a") as file:
        file.write(first[:300])  # killed while it appended the second run
    process = start(tmp_path, "--jobs", "2")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert first in lines_of(tmp_path)
    assert list(runs_of(tmp_path)) == sorted(runs_of(tmp_path))
    assert not (tmp_path / "results" / "smoke" / "runs").exists()
    assert runs_of(tmp_path) == runs_of(finished)


@pytest.mark.parametrize(
    ("sent", "jobs"),
    [(signal.SIGINT, "1"), pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow)],
)
def test_asked_to_stop_it_says_how_far_it_came(
    sent: signal.Signals, jobs: str, finished: Path, tmp_path: Path
) -> None:
    process = start(tmp_path, "--jobs", jobs)
    under_way = tmp_path / "results" / "smoke" / "runs"
    wait_until(lambda: any(p.stat().st_size for p in under_way.glob("*/events.jsonl")), process)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "of 3 runs are finished" in errors
    assert "run the same command to continue" in errors
    assert "Traceback" not in errors
    done = fedraw("reproduce", "fig1", "--scale", "smoke", "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert runs_of(tmp_path) == runs_of(finished)


@pytest.mark.slow
def test_the_whole_paper_on_embedded_data(tmp_path: Path) -> None:
    done = fedraw("reproduce", "--scale", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "results" / "smoke"
    summary = json.loads((out / "summary.json").read_text())
    assert [own["name"] for own in summary["artefacts"]] == list(NAMES)
    assert all(own["complete"] for own in summary["artefacts"])
    assert all(section_of(name, out) for name in NAMES)
    assert {"paper", "dynamics", "verdicts"} <= {path.stem for path in out.glob("*.md")}


@pytest.mark.slow
def test_a_group_stands_for_its_tables_and_the_paper_s_are_not_begun_by_it(tmp_path: Path) -> None:
    done = fedraw("reproduce", "beyond-rates", "evidence-drift", "--scale", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "results" / "smoke"
    assert section_of("beyond-rates", out)
    assert section_of("evidence-drift", out)
    assert section_of("beyond-headline", out) is None, "it shares a run, and nobody asked for it"
    known = fedraw("reproduce", "evidence", "--scale", "smoke", "--dry-run", cwd=tmp_path)
    assert all(name in known.stderr for name in EVIDENCE)


@pytest.mark.slow
def test_everything_beyond_the_paper_on_embedded_data(tmp_path: Path) -> None:
    done = fedraw("reproduce", "beyond", "evidence", "--scale", "smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "results" / "smoke"
    summary = json.loads((out / "summary.json").read_text())
    complete = {own["name"] for own in summary["artefacts"] if own["complete"]}
    assert {*BEYOND, *EVIDENCE} <= complete
