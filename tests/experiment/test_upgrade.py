"""This version continues runs that version 0.2 was asked to stop.

`previous_release.tar.xz` has folders that commit 3501a1f1 wrote, each stopped at event 20 of 40,
and the hash of the log of the same run when nobody stopped it. `losses` has clients that go
offline, and updates that are lost; `area` names the memory of AREA's server, which was a setting.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from fedraw.errors import BadInput
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec

PREVIOUS = Path(__file__).parent / "previous_release.tar.xz"


@pytest.mark.parametrize("name", ["losses", "area"])
def test_a_run_of_the_previous_release_continues_to_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    shutil.unpack_archive(PREVIOUS, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    folder = tmp_path / name
    run_seed(Spec.from_file(folder / "spec.toml"), 1, folder, options=Options(resume=True))
    log = (folder / "events.jsonl").read_bytes()
    assert hashlib.sha256(log).hexdigest() == expected[name]


def test_a_run_of_the_previous_release_with_other_losses_is_not_resumed(tmp_path: Path) -> None:
    shutil.unpack_archive(PREVIOUS, tmp_path)
    folder = tmp_path / "losses"
    other = Spec.from_file(folder / "spec.toml", {"losses.lost": 0.3})
    with pytest.raises(BadInput, match=r"its losses\.lost was 0\.2 and is now 0\.3"):
        run_seed(other, 1, folder, options=Options(resume=True))
