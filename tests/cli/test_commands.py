"""The command as a user meets it: exit codes, files, what goes where."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import SMALL, fedraw, fedraw_process

from fedraw import __version__


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_run_writes_folders_and_prints_a_table(spec: Path) -> None:
    done = fedraw("run", spec, cwd=spec.parent)
    assert done.returncode == 0, done.stderr
    assert "fedraw" in done.stdout
    assert "AvgRare" in done.stdout
    assert "runs/small" in done.stderr
    for seed in (1, 2):
        names = {file.name for file in (spec.parent / f"runs/small/seed-{seed}").iterdir()}
        assert names == {
            "spec.toml", "events.jsonl", "timing.json", "summary.json", "model.safetensors", "lock",
        }  # fmt: skip


def test_json_is_one_document_and_nothing_else(spec: Path) -> None:
    done = fedraw_process("run", spec, "--json", "--seeds", "5", cwd=spec.parent)
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    assert row["name"] == "fedraw"
    assert row["seeds"] == [5]
    assert set(row["metrics"]["AvgRare"]) == {"mean", "sd", "values"}
    compared = fedraw("compare", "runs/small", "--json", cwd=spec.parent)
    assert json.loads(compared.stdout) == document


def test_set_and_out(spec: Path) -> None:
    for buffer in (2, 3):
        changes = ("--set", f"strategy.buffer={buffer}", "--set", "training.kind=none")
        done = fedraw("run", spec, *changes, "--out", f"runs/k{buffer}", cwd=spec.parent)
        assert done.returncode == 0, done.stderr
    document = _json(fedraw("compare", "runs/k2", "runs/k3", "--json", cwd=spec.parent))
    assert [row["name"] for row in document["rows"]] == ["k2: fedraw", "k3: fedraw"]


def test_compare_in_other_forms(spec: Path) -> None:
    fedraw("run", spec, cwd=spec.parent)
    for form in ("md", "csv", "latex"):
        done = fedraw("compare", "runs/small", "--format", form, cwd=spec.parent)
        assert done.returncode == 0, done.stderr
        assert "fedraw" in done.stdout
        if form == "csv":
            rows = list(csv.reader(done.stdout.splitlines()))
            assert len({len(row) for row in rows}) == 1
        if form == "latex":
            assert r"\toprule" in done.stdout


def test_dry_run_checks_and_writes_nothing(spec: Path) -> None:
    done = fedraw("run", spec, "--dry-run", cwd=spec.parent)
    assert done.returncode == 0, done.stderr
    assert "# rare labels: ['9']\n# rare clients: [0, 1]" in done.stdout
    assert list(spec.parent.iterdir()) == [spec]
    document = _json(fedraw("run", spec, "--dry-run", "--json", cwd=spec.parent))
    assert document["clients"] == 8
    assert document["spec"]["strategy"]["cap"] == "none"
    impossible = fedraw("run", spec, "--dry-run", "--set", "strategy.buffer=9", cwd=spec.parent)
    assert impossible.returncode == 2


def test_new_writes_a_spec_that_runs(tmp_path: Path) -> None:
    assert fedraw("new", "mine.toml", cwd=tmp_path).returncode == 0
    short = ("--set", "run.events=20", "--seeds", "1")
    assert fedraw("run", "mine.toml", *short, cwd=tmp_path).returncode == 0
    again = fedraw("new", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "mine.toml exists" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "absent.toml"], "absent.toml does not exist"),
        (["run", "small.toml", "--set", "strategy.bufer=3"], "did you mean 'buffer'?"),
        (["run", "small.toml", "--set", "nonsense"], "not of the form section.key=value"),
        (["run", "small.toml", "--seeds", "a,b"], "not a list of whole numbers"),
        (["run", "small.toml", "--set", "strategy.buffer=9"], "never fills"),
        (["run", "small.toml", "--seeds", "-4"], "a seed is a whole number from 0 on"),
        (["run", "small.toml", "--seeds", str(2**64)], "a whole number has at most 64 bits"),
        (["compare", "nothing"], "nothing does not exist"),
        (["compare", "."], "holds no run"),
        (["compare", ".", "--json", "--format", "md"], "exclude each other"),
        (["new", "no/such/folder.toml"], "cannot write no/such/folder.toml"),
        (["fly"], "No such command"),
    ],
)
def test_bad_input_gets_a_message_and_exit_code_2(
    arguments: list[str], message: str, spec: Path
) -> None:
    done = fedraw(*arguments, cwd=spec.parent)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_second_run_needs_force(spec: Path) -> None:
    free = ("--set", "training.kind=none")
    assert fedraw("run", spec, *free, cwd=spec.parent).returncode == 0
    refused = fedraw("run", spec, *free, cwd=spec.parent)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert fedraw("run", spec, *free, "--force", cwd=spec.parent).returncode == 0


def test_a_folder_that_cannot_be_written_is_bad_input(spec: Path) -> None:
    (spec.parent / "file").write_text("")
    done = fedraw("run", spec, "--out", "file", cwd=spec.parent)
    assert done.returncode == 2
    words = "cannot write to file/seed-1: file is not a folder; choose another --out"
    assert done.stderr == f"fedraw: {words}\n"


def test_a_path_is_said_as_it_is(spec: Path) -> None:
    out = "runs/[red]a[/red] and a name so long that it would not fit into a line of eighty columns"
    done = fedraw("run", spec, "--set", "training.kind=none", "--out", out, cwd=spec.parent)
    assert done.returncode == 0
    assert f"written to {out}\n" in done.stderr


def test_a_run_that_takes_in_nothing_has_failed(spec: Path) -> None:
    done = fedraw("run", spec, "--set", "training.lr=1e30", "--seeds", "1", cwd=spec.parent)
    assert done.returncode == 1
    assert "seed 1: 30 of 30 updates were refused" in done.stderr
    assert "local training diverged with lr = 1e+30; lower it, for example to 1e+29" in done.stderr
    assert "accepted no update at all" in done.stderr


def test_an_absurd_learning_rate_is_said_by_the_check_and_the_result(spec: Path) -> None:
    words = "training.lr = 1000 is far above useful learning rates, which are about 0.001 to 1"
    high = ("--set", "training.lr=1000", "--set", "run.events=30", "--seeds", "1")
    for form in (("--dry-run",), ()):
        done = fedraw("run", spec, *high, *form, cwd=spec.parent)
        assert done.returncode == 0
        assert words in " ".join(done.stdout.split())


def test_a_spec_without_a_version_is_read_and_told(spec: Path) -> None:
    words = f"{spec} names no version of the format and is read as version 1; write 'version = 1'"
    text = spec.read_text(encoding="utf-8")
    for start in ("", "version = 1\n"):
        spec.write_text(start + text.replace("version = 1\n", ""), encoding="utf-8")
        done = fedraw("run", spec, "--dry-run", cwd=spec.parent)
        assert done.returncode == 0
        assert (words in done.stderr) is (start == "")


def test_a_model_that_never_changed_is_told(spec: Path) -> None:
    short = ("--set", "run.events=3", "--seeds", "1")
    done = fedraw("run", spec, *short, cwd=spec.parent)
    assert done.returncode == 0
    words = "the model never changed, because nothing was aggregated in 3 events"
    assert f"seed 1: {words}" in done.stderr


def test_a_dry_run_finds_what_the_run_would(spec: Path) -> None:
    recorded = ("--set", "speeds.arrivals=recorded", "--set", "speeds.trace=none.csv")
    done = fedraw("run", spec, "--dry-run", *recorded, cwd=spec.parent)
    assert done.returncode == 2
    assert "none.csv" in done.stderr


def test_a_log_with_a_garbled_record_is_named(spec: Path) -> None:
    fedraw("run", spec, "--set", "training.kind=none", "--seeds", "1", cwd=spec.parent)
    log = spec.parent / "runs/small/seed-1/events.jsonl"
    log.write_text(log.read_text().replace('"staleness_events"', '"stale"'))
    done = fedraw("compare", "runs/small", cwd=spec.parent)
    assert done.returncode == 2
    assert "events.jsonl, line 10 was altered" in done.stderr


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "running.md"
    block = guide.read_text().split("## From files\n\n```\n")[1].split("```")[0]
    lines = [line.split("#")[0].split() for line in block.splitlines()]
    assert len(lines) >= 6
    for line in lines:
        assert line[0] == "fedraw"
        if line[1] == "dashboard":  # serves until it is stopped; tests/dashboard runs it
            continue
        short = {
            "run": ["--set", "run.events=30", "--seeds", "1"],
            "tune": ["--events", "150", "--seeds", "1"],
        }.get(line[1], [])
        done = fedraw(*line[1:], *short, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize("command", ["demo", "run"])
def test_frequent_options_have_a_short_form(command: str, tmp_path: Path) -> None:
    done = fedraw(command, "-h", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-o, --out" in done.stdout
    assert "-j, --jobs" in done.stdout


def test_version(tmp_path: Path) -> None:
    assert fedraw("--version", cwd=tmp_path).stdout == f"{__version__}\n"


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
