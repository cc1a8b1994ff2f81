from __future__ import annotations

from pathlib import Path

import pytest
from tests.eventlog.logs import as_bytes
from tests.report.hand_made import write_run

from fedraw.errors import BadInput
from fedraw.report.report_data import interruption, read_report_data


def log_of(tmp_path: Path, name: str = "fedraw", seed: int = 42) -> Path:
    return tmp_path / name / f"seed-{seed}" / "events.jsonl"


def test_each_group_has_the_histories_of_its_seeds(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path, "fedraw", seed)
        write_run(tmp_path, "fedfa", seed)
    data = read_report_data([tmp_path])
    assert data.names == ["fedfa", "fedraw"]
    assert [len(histories) for histories in data.histories.values()] == [2, 2]


def test_a_log_named_twice_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "fedraw", 42)
    assert len(list(read_report_data([folder, folder / "seed-42"]).runs)) == 1


def test_a_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42, finished=False, events_wanted=7)
    with log_of(tmp_path).open("ab") as log:
        log.write(b'{"kind":"arrival","event":3,"cli')
    ((_, run),) = read_report_data([tmp_path]).runs
    assert interruption(run) == "interrupted at event 2 of 7"


@pytest.mark.parametrize("end", [b"\0" * 60, b'{"kind":"arrival","ev' + b"\0" * 40])
def test_zeros_at_the_end_are_refused(end: bytes, tmp_path: Path) -> None:
    """A power failure may leave zeros in place of written records."""
    write_run(tmp_path, "fedraw", 42, finished=False)
    with log_of(tmp_path).open("ab") as log:
        log.write(end)
    with pytest.raises(BadInput, match=r"events\.jsonl, line 8 is not a record.* Restore the file"):
        read_report_data([tmp_path])


def test_a_finished_run_is_not_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    ((_, run),) = read_report_data([tmp_path]).runs
    assert interruption(run) == ""


def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    lines = log_of(tmp_path).read_text().splitlines(keepends=True)
    log_of(tmp_path).write_text("".join([*lines[:3], '{"kind":\n', *lines[3:]]))
    with pytest.raises(BadInput, match=r"events\.jsonl, line 4 is not a record"):
        read_report_data([tmp_path])


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    text = log_of(tmp_path).read_text().replace('"format":3', '"format":7', 1)
    log_of(tmp_path).write_text(text)
    with pytest.raises(
        BadInput, match=r"events\.jsonl has format 7, and this fedraw reads format 3"
    ):
        read_report_data([tmp_path])


def test_a_run_without_clients_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    log_of(tmp_path).write_text("")
    with pytest.raises(BadInput, match=r"seed-42.*never began; leave the run out"):
        read_report_data([tmp_path])


def test_a_record_without_a_field_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "fedraw", 42)
    line = as_bytes([{"kind": "arrival", "event": 9}], after=log_of(tmp_path))
    with log_of(tmp_path).open("ab") as log:
        log.write(line)
    with pytest.raises(BadInput, match="is not valid in an event log"):
        read_report_data([tmp_path])


def test_a_folder_without_logs_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BadInput, match=r"empty holds no run: there is no events\.jsonl.*; name a folder"
    ):
        read_report_data([tmp_path / "empty"])


def test_other_images_under_one_seed_cannot_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "fedfa", 42, data="a" * 64)
    write_run(tmp_path, "fedraw", 42, data="b" * 64)
    with pytest.raises(BadInput) as refusal:
        read_report_data([tmp_path])
    for part in ("fedfa", "fedraw", "sha256 aaaaaaaaaaaa", "sha256 bbbbbbbbbbbb", "one report"):
        assert part in str(refusal.value)


def test_another_seed_may_draw_other_images(tmp_path: Path) -> None:
    write_run(tmp_path, "fedfa", 1, data="a" * 64)
    write_run(tmp_path, "fedraw", 2, data="b" * 64)
    assert len(read_report_data([tmp_path]).groups) == 2


def test_other_labels_cannot_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "fedfa", 1, rare="owl")
    write_run(tmp_path, "fedraw", 2, rare="ibis")
    with pytest.raises(BadInput, match=r"labels differ: common, owl and common, ibis"):
        read_report_data([tmp_path])
