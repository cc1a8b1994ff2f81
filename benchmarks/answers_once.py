"""Measures what is left of rare labels whose holders answer once and are gone, by method.

    python -m benchmarks.answers_once [SEEDS]

The arena's federation on digits: 30 clients, two holders of each of 8 and 9, 1,500 arrivals, its
rates. Every client takes 0.8 to 1.2 s for an update. The holders of 8 and 9 leave after 1.5 s, so
that each of them has answered once. One pass uses the default map. Values are percentages of the
last model.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import headline, mean_and_spread

from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import ArrivalRecord
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw_studies.arena_design import arena_at
from fedraw_studies.artefacts import Scale
from fedraw_studies.late import short_spec

TRAINED = ("FedAvg", "FedRAW", "CA2FL", "Replay")
FIRST_SEED = 9301


def experiments() -> dict[str, dict[str, Any]]:
    """Return the experiment of each method, in which nobody leaves."""
    arena = arena_at(Scale.named("cpu"))
    methods = {method.name: method for method in arena.of("digits").methods}
    speeds = {"speeds": {"kind": "equal", "arrivals": "jitter", "jitter": 0.2}}
    found = {
        name: short_spec(arena, "digits", arena.setting("10x"), methods[name]).to_dict() | speeds
        for name in TRAINED
    }
    return {"One pass": found["FedAvg"] | {"strategy": {"name": "one-pass"}}, **found}


def run(tables: Mapping[str, Any], seed: int, folder: Path) -> tuple[set[int], float, float]:
    """Run an experiment; return how often holders answered, AvgRare and GlobalAcc."""
    spec = Spec.from_dict(tables)
    rare = set(map(str, spec.partition.rare_labels or ()))
    counts = Scenario.of(spec, seed).clients.table.counts()
    holders = [str(client) for client, own in counts.items() if rare & set(map(str, own))]
    trace = folder / "leaving.csv"
    rows = [f"{client},1.5,left" for client in holders]
    trace.write_text("\n".join(["client,time,change", *rows]) + "\n", encoding="utf-8")
    leaving = Spec.from_dict({**tables, "membership": {"trace": str(trace)}})
    metrics = run_seed(leaving, seed, folder / "run").summary["metrics"]
    records = read_log(folder / "run" / "events.jsonl")
    heard = Counter(str(own.client) for own in records if isinstance(own, ArrivalRecord))
    return {heard[client] for client in holders}, metrics["AvgRare"], metrics["GlobalAcc"]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    print(f"{headline()}; seeds {seeds[0]} to {seeds[-1]}\n")
    print("| method | answers of each holder | AvgRare | GlobalAcc |\n|---|--:|--:|--:|")
    for name, tables in experiments().items():
        answers: set[int] = set()
        rare, everywhere = [], []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                heard, its_rare, its_all = run(tables, seed, Path(folder))
            answers |= heard
            rare.append(its_rare)
            everywhere.append(its_all)
        said = ", ".join(map(str, sorted(answers)))
        values = f"{mean_and_spread(rare)} | {mean_and_spread(everywhere)}"
        print(f"| {name} | {said} | {values} |", flush=True)


if __name__ == "__main__":
    main()
