from __future__ import annotations

import sys

import pytest


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as an install without pyarrow does."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as Python itself marks what is not there
    monkeypatch.delitem(sys.modules, "fedraw.storage.parquet_table", raising=False)
