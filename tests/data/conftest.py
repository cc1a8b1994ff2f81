from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache and data root."""
    monkeypatch.setenv("FEDRAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRAW_DATA", raising=False)
