"""Sections of a spec are read as before their rules became annotations.

`parity.json.xz` has the outcome of 60,000 random tables under the reader of version 0.2: a checksum
of the values, or 0 if the table was refused. It lives until the third part of the redesign ends.
"""

from __future__ import annotations

import json
import lzma
import math
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedraw.errors import BadInput
from fedraw.experiment.spec import sections

PINNED = json.loads(lzma.decompress(Path(__file__).with_name("parity.json.xz").read_bytes()))
TABLES = 60_000
VALUES = [
    "x" * 9, "", "9", "dirichlet", "iid", "column", "ratio", "stragglers", "jitter", "recorded",
    "fixed", "diurnal", "trace", "labels", "speed", "repeat", "lose", "step", "cosine", "fedlc",
    "logit-adjusted", "global", "hidden", "invented", "none", "resnet18", "mod:f", "grouped",
    "ham10000", "rare-first", "all", "again", "new", "convolutions", "relu", "mean+std",
    "estimated", "cifar", "label", "imagenet", 2147483648, 2**63 - 1, 2**63, -1, 0, 1, 2, 24,
    math.inf, math.nan, 1e-320, 0.5, 0.9, 1.5, True, False, None, [], [[]], [-1], [8, 8],
    ["8", 9], [1, 2], [2, 1], (1, 2),
]  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "features": {"weights": "w"},
    "drift": {"kind": "move", "label": 8},
    "misreport": {"label": 8},
    "label_noise": {"share": 0.5},
    "summaries": {"mechanism": "randomised-response"},
}


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the random tables: each needed key nearly always, and up to three others."""
    rng, keys = random.Random(3), PINNED["keys"]
    for _ in range(TABLES):
        section = rng.choice(list(keys))
        needed = NEEDED.get(section, {})
        table = {key: value for key, value in needed.items() if rng.random() < 0.95}
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
            table[rng.choice(keys[section])] = rng.choice(VALUES)
        yield section, table


def outcome(section: str, table: dict[str, Any]) -> int:
    """Return the checksum of the values that a table gives; 0 if it is refused."""
    try:
        read = sections()[section].read(table)
    except BadInput:
        return 0
    values = {key: getattr(read, key) for key in PINNED["keys"][section]}
    return zlib.crc32(repr(values).encode()) or 1


def test_sixty_thousand_tables_are_read_as_by_version_0_2() -> None:
    different = [
        (section, table)
        for (section, table), pinned in zip(tables(), PINNED["outcomes"], strict=True)
        if outcome(section, table) != pinned
    ]
    assert not different
    assert sum(map(bool, PINNED["outcomes"])) > 10_000
