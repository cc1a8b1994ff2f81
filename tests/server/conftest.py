from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.engine import Engine

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """A function that opens a federation below `tmp_path`; every log is closed after the test."""
    engines: list[Engine] = []

    def make(*args: Any, folder: str = "federation", **settings: Any) -> Engine:
        engines.append(Engine(tmp_path / folder, *args, **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.coordinator._store.log.close()
