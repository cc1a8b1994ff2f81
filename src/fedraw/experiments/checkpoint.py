"""A run between two arrivals, on disk: written whole or not at all, verified when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput
from fedraw.simulation.loop import Saved, Simulation, Timeline
from fedraw.strategies import snapshot

FORMAT = 1
FILES = ("state.json", "state.safetensors")

# Not more often than this, and never so often that writing takes more than a fiftieth of the time.
EVERY_SECONDS = 15.0
LARGEST_SHARE = 0.02


@dataclass(frozen=True)
class Position:
    """Where a run stands: what is saved, and how long its log was then."""

    saved: Saved
    log_bytes: int


class Checkpoints:
    """The checkpoint of one run folder, in `checkpoint/<event>/`; there is one at a time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder / "checkpoint"
        self._clock = clock
        self._next = clock() + EVERY_SECONDS

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._next

    def write(self, simulation: Simulation, log_bytes: int) -> None:
        """Save under a new name, rename, then drop the older one."""
        begun = self._clock()
        saved = simulation.save()
        draft = self._folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        snapshot.save(saved, draft)
        manifest = {
            "format": FORMAT,
            "event": saved.timeline.event,
            "log_bytes": log_bytes,
            "sha256": {name: _sha256(draft / name) for name in FILES},
        }
        (draft / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        for file in draft.iterdir():
            _to_disk(file)
        older = self._whole()
        draft.rename(self._folder / f"{saved.timeline.event:010d}")
        _to_disk(self._folder)
        for folder in older:
            shutil.rmtree(folder)
        spent = self._clock() - begun
        self._next = self._clock() + max(EVERY_SECONDS, spent / LARGEST_SHARE)

    def read(self, state: type[Any]) -> Position | None:
        """The newest checkpoint, of a strategy whose state has this type; None if there is none."""
        whole = self._whole()
        if not whole:
            return None
        folder = whole[-1]
        manifest = _manifest(folder)
        for name, expected in manifest["sha256"].items():
            if not (folder / name).is_file() or _sha256(folder / name) != expected:
                raise BadInput(
                    f"{folder / name} is damaged: its checksum is not the one in manifest.json; "
                    f"remove {folder.parent} to run this seed from its beginning"
                )
        return Position(_load(folder, state), manifest["log_bytes"])

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _whole(self) -> list[Path]:
        """Finished checkpoints, oldest first; a draft is never one."""
        if not self._folder.is_dir():
            return []
        return sorted(folder for folder in self._folder.iterdir() if folder.name.isdigit())


def can_be_saved(state: Any) -> bool:
    """Whether a user's own state is made of what `snapshot` can write and read back."""
    try:
        arrays, again = snapshot.Arrays(), snapshot.Arrays()
        tree = json.loads(json.dumps(snapshot.pack(state, arrays)))
        restored = snapshot.unpack(type(state), tree, arrays)
        return bool(json.loads(json.dumps(snapshot.pack(restored, again))) == tree)
    except (TypeError, ValueError, KeyError, NameError, AttributeError):
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"] == FORMAT and {"sha256", "log_bytes"} <= set(manifest)
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise BadInput(
            f"{path} is damaged or of another version; "
            f"remove {folder.parent} to run this seed from its beginning"
        )
    return dict(manifest)


def _load(folder: Path, state: type[Any]) -> Saved:
    tree, arrays = snapshot.read(folder)
    return Saved(
        timeline=snapshot.unpack(Timeline, tree["timeline"], arrays),
        state=snapshot.unpack(state, tree["state"], arrays),
        receivers=tree["receivers"],
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
