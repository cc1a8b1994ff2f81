"""The updates that rollbacks have removed, which still count for the privacy of their sites.

A server has used them, and everyone has seen its models. So a rollback adds their numbers to a
file, which no later rollback shortens.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write

DISCARDED = "discarded.json"


def discarded_updates(folder: Path) -> Counter[str]:
    """Return the number of updates of each site that rollbacks have removed from a folder."""
    total: Counter[str] = Counter()
    for updates in _read(folder / DISCARDED).values():
        total.update(updates)
    return total


def add_discarded(folder: Path, rollback: str, updates: Mapping[str, int]) -> None:
    """Add the updates that a rollback is about to remove.

    `rollback` names what is removed. A rollback that was interrupted and is repeated has the same
    name, and finds fewer updates than before, so the larger number of each site counts.
    """
    known = _read(folder / DISCARDED)
    known[rollback] = dict(Counter(known.get(rollback, {})) | Counter(updates))
    content = json.dumps(known, indent=2) + "\n"
    atomic_write(folder / DISCARDED, content.encode(), private=True)


def _read(path: Path) -> dict[str, dict[str, int]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): {site: operator.index(count) for site, count in updates.items()}
            for name, updates in found.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise BadInput(
            f"{path} is not a list of updates that rollbacks have removed; restore it from a backup"
        ) from None
