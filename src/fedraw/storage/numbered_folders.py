"""Numbered folders that are complete or absent, and are verified when they are read.

0000000120/manifest.json   format, number, metadata, the checksum of every other file, and its own
0000000120/…               the caller's files
draft/                     an incomplete folder; it may remain after a crash
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.storage.files import PRIVATE_FILE, make_private_folder, sync

FORMAT = 2
MANIFEST = "manifest.json"
# The suffix of a folder while a new folder of the same number replaces it.
REPLACED = ".old"


class VerifiedFolder(NamedTuple):
    """A folder whose files match their checksums, and the metadata of its manifest."""

    path: Path
    metadata: dict[str, Any]


class NumberedFolders:
    """Writes and reads numbered folders, and removes old ones.

    Args:
        folder: The parent folder.
        keep: The number of newest folders to keep; or a function that receives the numbers of all
            folders, lowest first, and returns the numbers to keep.
        number_key: The key of the number in the manifest.
        required: Metadata that every manifest must have.
        remedy: The remedy in messages about a damaged folder.
        private: Whether only the owner can read the folders.

    """

    def __init__(
        self,
        folder: Path,
        keep: int | Callable[[Sequence[int]], Collection[int]] = 1,
        *,
        number_key: str = "number",
        required: Collection[str] = (),
        remedy: str = "",
        private: bool = False,
    ) -> None:
        if isinstance(keep, int) and keep < 1:
            raise ValueError(f"keep = {keep} would remove the folder that was just written")
        self.folder = folder
        self._keep = keep if callable(keep) else lambda numbers: numbers[-keep:]
        self._number_key = number_key
        self._required = frozenset(required)
        self._private = private
        self._remedy = remedy or f"remove {folder} to start again"

    def write(
        self, number: int, fill: Callable[[Path], None], metadata: Mapping[str, Any] | None = None
    ) -> Path:
        """Let `fill` write into a draft, rename the draft, then remove older folders.

        Everything is on the disk when the method returns. A failure keeps the earlier folders.
        """
        metadata = dict(metadata or {})
        taken = metadata.keys() & {"format", "sha256", "manifest", self._number_key}
        if taken or number < 0:
            raise ValueError(f"{taken or number} cannot be metadata or the number of a manifest")
        draft = self.folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        self._make_draft(draft)
        try:
            fill(draft)
            self._write_manifest(draft, {"format": FORMAT, self._number_key: number, **metadata})
        except BaseException:
            # On a full disk, other files need the space.
            shutil.rmtree(draft, ignore_errors=True)
            raise
        path = self.folder / f"{number:010d}"
        if path.exists():
            replaced = path.with_suffix(REPLACED)
            shutil.rmtree(replaced, ignore_errors=True)
            path.rename(replaced)
        draft.rename(path)
        sync(self.folder)
        self._remove_old(number)
        return path

    def read(self) -> VerifiedFolder | None:
        """Return the newest folder, or None; raise BadInput if it is damaged."""
        newest = next(self.read_all(), None)
        if isinstance(newest, BadInput):
            raise newest
        return newest

    def read_all(self) -> Iterator[VerifiedFolder | BadInput]:
        """Yield all folders, newest first; for a damaged folder, yield the error.

        So a caller can use an older folder and report the damage. Each folder is verified only when
        it is requested, so reading the newest does not read the others.
        """
        for path in reversed(self._complete()):
            try:
                yield self._verify(path)
            except BadInput as damage:
                yield damage

    def manifests(self) -> dict[int, dict[str, Any]]:
        """Return the metadata of all folders by number, lowest first.

        Folders with a damaged manifest are skipped. The checksums of other files are not verified.
        """
        found: dict[int, dict[str, Any]] = {}
        for path in self._complete():
            with suppress(BadInput):
                found[int(path.stem)] = self._manifest(path)
        return found

    def remove(self) -> None:
        """Remove all folders; if the process is killed, the remaining folders are undamaged."""
        for path in self._complete():
            self._rename_to_draft(path)
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_others(self, number: int) -> None:
        """Remove all folders but this one."""
        for path in self._complete():
            if int(path.stem) != number:
                shutil.rmtree(self._rename_to_draft(path))
        sync(self.folder)

    def _rename_to_draft(self, path: Path) -> Path:
        """Rename a folder before it is removed: if the process is killed, it is not damaged."""
        draft = self.folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        return path.rename(draft)

    def _make_draft(self, draft: Path) -> None:
        new = not self.folder.is_dir()
        if self._private:
            make_private_folder(self.folder)
            make_private_folder(draft)
        else:
            draft.mkdir(parents=True)
        if new:
            sync(self.folder.parent)

    def _write_manifest(self, draft: Path, metadata: Mapping[str, Any]) -> None:
        files = sorted(path for path in draft.rglob("*") if path.is_file())
        sums = {path.relative_to(draft).as_posix(): _sha256(path) for path in files}
        content = {**metadata, "sha256": sums}
        manifest = json.dumps({**content, "manifest": _digest(content)}, indent=2)
        (draft / MANIFEST).write_text(manifest, encoding="utf-8")
        for path in draft.rglob("*"):
            if self._private and path.is_file():
                path.chmod(PRIVATE_FILE)
            sync(path)
        sync(draft)

    def _remove_old(self, number: int) -> None:
        """Remove old folders, and folders with a higher number, whose history was abandoned."""
        complete = self._complete()
        own = {int(path.stem): path for path in complete if int(path.stem) <= number}
        kept = {own[kept] for kept in self._keep(list(own))}
        stale = self.folder.glob(f"*[0-9]{REPLACED}")
        for path in {*complete, *stale} - kept:
            shutil.rmtree(self._rename_to_draft(path))

    def _complete(self) -> list[Path]:
        """Return the complete folders, lowest number first; a draft is not complete."""
        if not self.folder.is_dir():
            return []
        found = {path.name: path for path in self.folder.iterdir()}
        names = {
            name.removesuffix(REPLACED): path
            for name, path in found.items()
            if name.isdecimal() or name.removesuffix(REPLACED) not in found
        }
        return [names[name] for name in sorted(filter(str.isdecimal, names), key=int)]

    def _verify(self, folder: Path) -> VerifiedFolder:
        manifest = self._manifest(folder)
        for name, expected in manifest.pop("sha256").items():
            path = folder / name
            if not path.is_file() or _sha256(path) != expected:
                raise BadInput(
                    f"{path} is damaged: its checksum does not match {MANIFEST}; {self._remedy}"
                )
        return VerifiedFolder(folder, {k: v for k, v in manifest.items() if k != "format"})

    def _manifest(self, folder: Path) -> dict[str, Any]:
        path = folder / MANIFEST
        try:
            manifest = dict(json.loads(path.read_text(encoding="utf-8")))
            known = manifest.pop("manifest") == _digest(manifest) and manifest["format"] == FORMAT
            known = known and manifest.pop(self._number_key) == int(folder.stem)
            known = (
                known and isinstance(manifest["sha256"], dict) and self._required <= set(manifest)
            )
        except (OSError, ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise BadInput(f"{path} is damaged or of another version; {self._remedy}")
        return manifest


def _digest(content: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest's content."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
