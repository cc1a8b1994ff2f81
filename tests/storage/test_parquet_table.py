"""Timestamps in Parquet files, with and without pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from fedraw.auditing.times import read_times
from fedraw.errors import BadInput
from fedraw.storage.parquet_table import open_parquet

SECOND = 1_000_000_000  # in nanoseconds


def arrivals(folder: Path, stamps: list[int], unit: str, zone: str | None = None) -> Path:
    """Write a log of arrivals of the client 'a'."""
    path = folder / "log.parquet"
    column = pyarrow.array(stamps, pyarrow.timestamp(unit, zone))
    parquet.write_table(pyarrow.table({"client": ["a"] * len(stamps), "timestamp": column}), path)
    return path


def test_nanoseconds_are_read_without_pandas(tmp_path: Path) -> None:
    """A module that cannot be imported takes the place of pandas in a process of its own."""
    path = arrivals(tmp_path, [1, 4 * SECOND + 1, 8 * SECOND + 1], "ns", "UTC")
    (tmp_path / "labels.csv").write_text("client,label,count\na,x,1\n")
    (tmp_path / "pandas.py").write_text("raise ImportError('pandas is not installed')\n")
    done = subprocess.run(
        [sys.executable, "-m", "fedraw", "audit", "labels.csv", "--times", path.name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_times(path, ["a"]).seconds.tolist() == [8 / 3]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_timestamps_of_every_unit_and_zone_are_iso_8601(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    path = arrivals(tmp_path, [1_767_225_601 * per_second], unit, zone)
    ((_, (_, text)),) = open_parquet(path).rows()
    moment = datetime.fromisoformat(text)
    assert (moment.tzinfo is None) == (zone is None)
    in_utc = moment.replace(tzinfo=UTC) if zone is None else moment
    assert in_utc == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_year_that_python_does_not_have_is_refused_with_its_row(tmp_path: Path) -> None:
    path = arrivals(tmp_path, [0, 2**61], "us")
    with pytest.raises(BadInput, match=r"log\.parquet: row 2, column 'timestamp': .*write seconds"):
        read_times(path, ["a"])
