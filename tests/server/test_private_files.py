"""Only the owner may read a federation's folder, because it has label counts and updates."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.conftest import MakeEngine

from fedraw.strategies.fedraw import FedRAW


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """Set a umask under which everyone may read new files."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable(folder: Path) -> dict[str, str]:
    """The files and folders that others than the owner can access."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    wanted = {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    return {str(path): oct(mode) for path, mode in modes.items() if mode != wanted[path]}


@pytest.mark.usefixtures("open_to_all")
def test_every_file_and_folder_is_private(make_engine: MakeEngine) -> None:
    engine = make_engine(FedRAW(buffer=2), arrivals=30, snapshot_every=3.0)
    folder = engine.settings.folder
    engine.accept(20)
    engine.restart()
    engine.accept(25)
    assert list((folder / "updates").iterdir()) and list((folder / "checkpoint").iterdir())
    assert readable(folder) == {}
    engine.run(lambda: engine.coordinator.finished is not None)
    engine.coordinator.close(engine.now)
    assert (folder / "model.safetensors").exists()
    assert readable(folder) == {}


@pytest.mark.usefixtures("open_to_all")
def test_a_readable_log_becomes_private_and_a_folder_keeps_its_mode(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(FedRAW(buffer=2))
    engine.accept(4)
    log, folder = engine.settings.folder / "events.jsonl", engine.settings.folder
    log.chmod(0o644)
    folder.chmod(0o750)  # an operator lets a group see what is there
    engine.restart()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
