"""This version reads the folders that the previous version wrote.

`previous_release.tar.xz` has a folder that commit 8fbc905 wrote (`tests/server/engine.py`:
FedRAW(buffer=3), 14 updates accepted, then killed), before logs had several files. Such a folder is
never written again. `previous_area.tar.xz` has one that commit 3501a1f1 wrote, of AREA(buffer=2,
memory="server"), whose memory was a setting.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.server.conftest import MakeEngine

from fedraw.server.verification import verify_folder
from fedraw.strategies.area import AREA
from fedraw.strategies.fedraw import FedRAW

PREVIOUS = Path(__file__).parent / "previous_release.tar.xz"
AREAS = Path(__file__).parent / "previous_area.tar.xz"


def test_a_folder_of_the_previous_release_continues(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    shutil.unpack_archive(PREVIOUS, tmp_path)
    log = tmp_path / "federation/events.jsonl"
    start = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    assert start["spec"]["server"].keys() >= {"dashboard", "serve", "ema_decay"}  # removed since
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    engine = make_engine(FedRAW(buffer=3), snapshot_every=3.0)
    state = engine.coordinator._store.strategy_state
    assert engine.coordinator.accepted == expected["accepted"]
    assert (state.version, state.model.tolist()) == (expected["version"], expected["model"])
    assert list(state.contents.clients) == expected["buffer"]
    engine.accept(30)
    engine.restart()
    assert engine.coordinator.accepted >= 30


def test_a_folder_whose_strategy_names_a_removed_setting_continues(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    shutil.unpack_archive(AREAS, tmp_path)
    assert [
        check.problems for check in verify_folder(tmp_path / "federation") if check.problems
    ] == []
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    engine = make_engine(AREA(buffer=2), snapshot_every=3.0)
    state = engine.coordinator._store.strategy_state
    assert engine.coordinator.accepted == expected["accepted"]
    assert (state.version, state.model.tolist()) == (expected["version"], expected["model"])
    engine.accept(20)
