"""Memory that two processes share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedraw.simulation.executors.workers import CONTEXT, SharedArray


def double(shared: SharedArray) -> None:
    shared.array *= 2


@pytest.mark.parametrize("has_memfd", [True, False])
def test_another_process_sees_and_changes_the_array(
    has_memfd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = SharedArray.copy_of(np.arange(6, dtype=np.float32).reshape(2, 3))
    worker = CONTEXT.Process(target=double, args=(shared,))
    worker.start()
    worker.join()
    assert shared.array.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert list(tmp_path.iterdir()) == []
    view = shared.array[1]
    shared.close()
    assert view.tolist() == [6, 8, 10]
