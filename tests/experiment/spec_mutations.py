"""Specs with one value that nobody should write, and what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields

from fedraw.experiment.sections import (
    DataSpec,
    Drift,
    Features,
    LabelNoise,
    Metrics,
    Misreport,
    Partition,
    Run,
    Speeds,
    Summaries,
    Training,
)

SECTIONS = {
    "data": DataSpec,
    "features": Features,
    "partition": Partition,
    "speeds": Speeds,
    "misreport": Misreport,
    "drift": Drift,
    "label_noise": LabelNoise,
    "summaries": Summaries,
    "training": Training,
    "metrics": Metrics,
    "run": Run,
}
STRATEGY_KEYS = ("name", "buffer", "server_lr", "cap", "cap_at", "labels", "dedup", "threshold")
HUGE = "9" * 400
VALUES = [
    HUGE, f"-{HUGE}", "2147483648", "9223372036854775808", "-1", "0", "1", "1e400", "-1e400", "nan",
    "inf", "1e-320", "0.5", "true", '""', '"a\\u0000b"', '"\\u007f\\u001b[2J"', '"9"', f'"{HUGE}"',
    "[]", "[[]]", f"[{HUGE}]", "[-1]", "[8, 8]", '["8", 9]', "1979-05-27", "{a = 1}", '"../.."',
]  # fmt: skip
BASE = {
    "partition": {"clients": "8", "rare_labels": "[8, 9]", "clients_per_common_label": "5"},
    "training": {"kind": '"none"'},
    "strategy": {"buffer": "4"},
    "run": {"events": "30", "seeds": "[1]"},
}


def mutations(seed: int) -> Iterator[str]:
    """The texts of specs, each with one or two keys of some section replaced, without end."""
    rng = random.Random(seed)
    keys = [(name, field.name) for name, kind in SECTIONS.items() for field in fields(kind)]
    keys += [("strategy", key) for key in STRATEGY_KEYS]
    while True:
        tables = {name: dict(table) for name, table in BASE.items()}
        for _ in range(rng.choice((1, 1, 1, 2))):
            section, key = rng.choice(keys)
            tables.setdefault(section, {})[key] = rng.choice(VALUES)
        yield "".join(
            f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in table.items())
            for name, table in tables.items()
        )
