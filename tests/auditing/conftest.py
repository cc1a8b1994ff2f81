from __future__ import annotations

import sys

import pytest

from fedraw.auditing import label_counts


@pytest.fixture(params=["rows", "batches", "without pyarrow"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read row by row, through pyarrow, and as an install without it does."""
    monkeypatch.setattr(label_counts, "SMALL", 1 << 60 if request.param == "rows" else 0)
    if request.param == "without pyarrow":
        hide_pyarrow(monkeypatch)
    return str(request.param)


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_pyarrow(monkeypatch)


def hide_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as Python itself marks what is not there
    monkeypatch.delitem(sys.modules, "fedraw.storage.parquet_table", raising=False)
