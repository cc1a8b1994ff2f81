"""Exports, read back with the library of each format."""

from __future__ import annotations

import csv
import threading
from pathlib import Path

import pytest
from tests.cli.command import fedraw
from tests.eventlog.federation_log import END, STORY, write
from tests.eventlog.logs import as_bytes, record
from tests.report.hand_made import write_run

from fedraw.errors import BadInput
from fedraw.export import TARGETS, export_runs

RARE = "scarce"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs", "fedraw", 7)


def test_csv_files_have_all_values(run: Path, tmp_path: Path) -> None:
    (done,) = export_runs([run], TARGETS["csv"], tmp_path / "out")
    assert (done.name, done.evaluations, done.arrivals) == ("fedraw-seed-7", 2, 2)
    assert done.finished
    folder = tmp_path / "out/fedraw-seed-7"
    rows = list(csv.DictReader((folder / "evaluations.csv").read_text().splitlines()))
    found = {(row["event"], row["series"]): float(row["value"]) for row in rows}
    assert found["2", "GlobalAcc"] == 90.0
    assert found["1", f"recall/{RARE}"] == 20.0
    assert found["2", "participation/RarePart"] == 50.0
    assert found["2", "federation/members"] == 2.0
    arrivals = list(csv.DictReader((folder / "arrivals.csv").read_text().splitlines()))
    assert [(row["client"], row["staleness_events"]) for row in arrivals] == [
        ("a", "4"),
        ("b", "8"),
    ]


def test_parquet_files_have_all_values(run: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: make install")
    export_runs([run], TARGETS["parquet"], tmp_path)
    frame = pandas.read_parquet(tmp_path / "fedraw-seed-7/evaluations.parquet")
    recall = frame[frame.series == f"recall/{RARE}"]
    assert recall[["event", "value"]].values.tolist() == [[1.0, 20.0], [2.0, 50.0]]
    arrivals = pandas.read_parquet(tmp_path / "fedraw-seed-7/arrivals.parquet")
    assert arrivals.client.tolist() == ["a", "b"]
    assert arrivals.aggregated.all()


def test_tensorboard_reads_all_values(tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    log = write(tmp_path / "server/events.jsonl", [*STORY, END])
    for _ in range(2):  # a second export replaces the first
        (done,) = export_runs([log.parent], TARGETS["tensorboard"], tmp_path / "out")
    assert (done.evaluations, done.arrivals) == (1, None)  # it has no place for arrivals
    board = reading.EventAccumulator(str(tmp_path / "out/server"))
    board.Reload()
    (owl,) = board.Scalars("recall/owl")
    assert (owl.step, owl.value) == (5, 60.0)
    assert board.Scalars("federation/members")[0].value == 2.0


def test_following_continues_to_the_end_of_the_run(tmp_path: Path) -> None:
    log = write(tmp_path / "server/events.jsonl", STORY[:8])
    later = [*STORY[8:], END]

    def grow() -> bool:
        if later:
            with log.open("ab") as file:
                file.write(as_bytes([later.pop(0), *([later.pop(0)] if later else [])], after=log))
        return False

    def slowly() -> None:
        while later:
            grow()

    writer = threading.Thread(target=slowly)
    writer.start()
    (done,) = export_runs([log.parent], TARGETS["csv"], tmp_path / "out", follow=True)
    writer.join()
    assert (done.evaluations, done.arrivals, done.finished) == (1, 4, True)


def test_following_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press_ctrl_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedraw.export.export.time.sleep", press_ctrl_c)
    log = write(tmp_path / "server/events.jsonl", STORY)
    (done,) = export_runs([log.parent], TARGETS["csv"], tmp_path / "out", follow=True)
    assert (done.evaluations, done.finished) == (1, False)


@pytest.mark.parametrize("to", [[], ["--to", "excel"]])
def test_the_command_lists_the_targets_if_none_or_an_unknown_one_is_given(
    run: Path, tmp_path: Path, to: list[str]
) -> None:
    done = fedraw("export", run, *to, cwd=tmp_path)
    assert done.returncode == 2
    assert "'--to'" in done.stderr
    for name in TARGETS:
        assert name in done.stderr


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        export_runs([tmp_path / "none"], TARGETS["csv"], tmp_path / "out")
    one = write(tmp_path / "a/server/events.jsonl", STORY)
    write(tmp_path / "b/server/events.jsonl", STORY)
    with pytest.raises(BadInput, match="would both be written as server"):
        export_runs([tmp_path / "a", tmp_path / "b"], TARGETS["csv"], tmp_path / "out")
    one.write_bytes(one.read_bytes() + as_bytes([record("end")]))
    with pytest.raises(BadInput, match="was altered"):
        export_runs([tmp_path / "a"], TARGETS["csv"], tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file/server: Not a directory; choose another out="):
        export_runs([tmp_path / "a"], TARGETS["csv"], tmp_path / "file")
