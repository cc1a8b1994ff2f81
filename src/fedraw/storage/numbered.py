"""Numbered folders, each of them whole or not there at all, and verified when read.

0000000120/manifest.json   format, number, facts, the checksum of every other file, and its own
0000000120/…               what the caller filled in
draft/                     one that is being written; a crash may leave it behind
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.storage.private import FILE, make_folder
from fedraw.storage.sync import to_disk

FORMAT = 2
MANIFEST = "manifest.json"
# Beside a folder of the same number, until that one stands.
REPLACED = ".old"


class Kept(NamedTuple):
    """A folder whose every file is what was written, and what the caller noted about it."""

    path: Path
    facts: dict[str, Any]


class NumberedFolders:
    """The newest `keep` folders below `folder`.

    `counted` is what the manifest calls the number, `needs` names facts that no manifest may lack,
    and `remedy` is what to do about a damaged one. `private` ones can be read by their owner only.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 1,
        *,
        counted: str = "number",
        needs: Collection[str] = (),
        remedy: str = "",
        private: bool = False,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep} would drop what was just written")
        self.folder = folder
        self._keep = keep
        self._counted = counted
        self._needs = frozenset(needs)
        self._private = private
        self._remedy = remedy or f"remove {folder} to begin anew"

    def write(
        self, number: int, fill: Callable[[Path], None], facts: Mapping[str, Any] | None = None
    ) -> Path:
        """Let `fill` write into a draft, then give it its name; older ones go last.

        When this returns, everything is on the disk. Any failure leaves what was there before.
        """
        facts = dict(facts or {})
        taken = facts.keys() & {"format", "sha256", "manifest", self._counted}
        if taken or number < 0:
            raise ValueError(f"{taken or number} cannot be a fact or number of a manifest")
        draft = self.folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        self._make(draft)
        try:
            fill(draft)
            self._seal(draft, {"format": FORMAT, self._counted: number, **facts})
        except BaseException:
            # Where the disk is full, others need the room.
            shutil.rmtree(draft, ignore_errors=True)
            raise
        path = self.folder / f"{number:010d}"
        if path.exists():
            replaced = path.with_suffix(REPLACED)
            shutil.rmtree(replaced, ignore_errors=True)
            path.rename(replaced)
        draft.rename(path)
        to_disk(self.folder)
        self._drop(number)
        return path

    def read(self) -> Kept | None:
        """The newest; None if there is none, BadInput if it is damaged."""
        newest = next(self.read_all(), None)
        if isinstance(newest, BadInput):
            raise newest
        return newest

    def read_all(self) -> Iterator[Kept | BadInput]:
        """All, newest first; in place of a damaged one, what is wrong with it.

        For a caller that can do with an older one, and says so. Each is verified when it is asked
        for, so that the newest costs no reading of the others.
        """
        for path in reversed(self._whole()):
            try:
                yield self._verified(path)
            except BadInput as damage:
                yield damage

    def remove(self) -> None:
        """Remove all of them; a kill in between leaves no folder that looks damaged."""
        draft = self.folder / "draft"
        for path in self._whole():
            shutil.rmtree(draft, ignore_errors=True)
            path.rename(draft)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self, draft: Path) -> None:
        new = not self.folder.is_dir()
        if self._private:
            make_folder(self.folder)
            make_folder(draft)
        else:
            draft.mkdir(parents=True)
        if new:
            to_disk(self.folder.parent)

    def _seal(self, draft: Path, facts: Mapping[str, Any]) -> None:
        files = sorted(path for path in draft.rglob("*") if path.is_file())
        sums = {path.relative_to(draft).as_posix(): _sha256(path) for path in files}
        content = {**facts, "sha256": sums}
        manifest = json.dumps({**content, "manifest": _digest(content)}, indent=2)
        (draft / MANIFEST).write_text(manifest, encoding="utf-8")
        for path in draft.rglob("*"):
            if self._private and path.is_file():
                path.chmod(FILE)
            to_disk(path)
        to_disk(draft)

    def _drop(self, number: int) -> None:
        """All but the newest; a higher number is of a course that was given up."""
        whole = self._whole()
        own = [path for path in whole if int(path.stem) <= number]
        kept = {*own[-self._keep :]}
        stale = self.folder.glob(f"*[0-9]{REPLACED}")
        for path in {*whole, *stale} - kept:
            shutil.rmtree(path)

    def _whole(self) -> list[Path]:
        """Finished ones, lowest number first; a draft is never one."""
        if not self.folder.is_dir():
            return []
        found = {path.name: path for path in self.folder.iterdir()}
        names = {
            name.removesuffix(REPLACED): path
            for name, path in found.items()
            if name.isdecimal() or name.removesuffix(REPLACED) not in found
        }
        return [names[name] for name in sorted(filter(str.isdecimal, names), key=int)]

    def _verified(self, folder: Path) -> Kept:
        manifest = self._manifest(folder)
        for name, expected in manifest.pop("sha256").items():
            path = folder / name
            if not path.is_file() or _sha256(path) != expected:
                raise BadInput(
                    f"{path} is damaged: its checksum is not the one in {MANIFEST}; {self._remedy}"
                )
        return Kept(folder, {k: v for k, v in manifest.items() if k != "format"})

    def _manifest(self, folder: Path) -> dict[str, Any]:
        path = folder / MANIFEST
        try:
            manifest = dict(json.loads(path.read_text(encoding="utf-8")))
            known = manifest.pop("manifest") == _digest(manifest) and manifest["format"] == FORMAT
            known = known and manifest.pop(self._counted) == int(folder.stem)
            known = known and isinstance(manifest["sha256"], dict) and self._needs <= set(manifest)
        except (OSError, ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise BadInput(f"{path} is damaged or of another version; {self._remedy}")
        return manifest


def _digest(content: Mapping[str, Any]) -> str:
    """Of a manifest without its own; facts are compared as JSON gives them back."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
