from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.engine import Engine

Found = Callable[..., Engine]


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    """Makes federations below `tmp_path`, and closes their logs in the end."""
    engines: list[Engine] = []

    def make(*args: Any, folder: str = "federation", **settings: Any) -> Engine:
        engines.append(Engine(tmp_path / folder, *args, **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.coordinator._store.log.close()
