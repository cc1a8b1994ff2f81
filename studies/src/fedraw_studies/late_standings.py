"""The standing of each rare label of "Lost, or late?", as the audit computes it before training.

The audit needs the label counts and times of the clients, and these need the data. So the standings
are computed once, where the data are, and kept in `OUT/late-standings.json` beside the cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedraw.auditing import audit
from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.options import Options
from fedraw.storage.files import atomic_write
from fedraw_studies.execute import Machine
from fedraw_studies.late import LateRow

FILE = "late-standings.json"
BUFFER = 10
_DECIMALS = 6

# By federation (data set, setting, seed), then by method, then by rare label.
Standings = dict[str, dict[str, dict[str, float]]]


def federation(row: LateRow, seed: int) -> str:
    """Return the key of the clients of a run, which do not depend on the method."""
    return f"{row.dataset}, {row.setting.name}, {seed}"


def read_standings(out: Path) -> Standings:
    """Read the standings that are known; none if there is no file."""
    try:
        found: Standings = json.loads((out / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def complete_standings(
    out: Path, runs: Iterable[tuple[LateRow, int]], machine: Machine
) -> Standings:
    """Return the standings of these runs; compute unknown ones if the data are there."""
    known = read_standings(out)
    for row, seed in runs:
        if (key := federation(row, seed)) not in known:
            try:
                known[key] = _standings(row, seed, machine)
            except BadInput:  # without the data, the document says less
                continue
    ordered = {key: known[key] for key in sorted(known)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in ordered.items()]
    atomic_write(out / FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return known


def _standings(row: LateRow, seed: int, machine: Machine) -> dict[str, dict[str, float]]:
    spec = machine.localised(row.spec)
    clients = draw_clients(spec, Streams(seed), options=Options(data_root=machine.root))
    found = audit(clients.table, clients.seconds, buffer=BUFFER)
    labels = [str(label) for label in found.labels]
    rare = {clients.dataset.label_names[label] for label in clients.rare_labels}

    def of(standing: Mapping[str, float]) -> dict[str, float]:
        return {k: round(float(v), _DECIMALS) for k, v in standing.items() if k in rare}

    return {
        method: of(dict(zip(labels, own, strict=True))) for method, own in found.standing.items()
    }
