"""The demo: ten methods on embedded data that shows silent rarity failure."""

from __future__ import annotations

from collections.abc import Sequence

from fedraw.eventlog.compare import ComparisonRow
from fedraw.experiment.spec import Spec
from fedraw.strategies.catalog import CATALOG

SEEDS = (42, 123, 456)
RARE_LABELS = (8, 9)


def demo_specs(seeds: Sequence[int] = SEEDS) -> list[Spec]:
    """Return one spec per method: digits on 30 clients, labels 8 and 9 on two slow clients each."""
    partition = {"clients": 30, "rare_labels": list(RARE_LABELS)}
    return [
        Spec.from_dict(
            {
                "data": {"name": "digits"},
                "partition": partition,
                "speeds": {"kind": "correlated"},
                "strategy": {"name": method.name},
                "run": {"events": 3000, "evaluate_every": 150, "seeds": list(seeds)},
            }
        )
        for method in CATALOG.values()
        if method.demo
    ]


def conclusion(rows: Sequence[ComparisonRow]) -> str:
    """Return one sentence that says what the table shows."""
    by_name = {row.name: row.metrics for row in rows}
    collapsed = [row.name for row in rows if row.collapsed and row.name in ("fedfa", "fedraw")]
    if collapsed:
        return f"No conclusion: {' and '.join(collapsed)} collapsed to the level of chance."

    def mean(name: str, metric: str) -> float:
        return by_name[name][metric].mean or 0.0

    lost, kept = mean("fedfa", "AvgRare"), mean("fedraw", "AvgRare")
    verb = "keeps" if kept > lost else "does not keep"
    return (
        f"FedFa reaches {mean('fedfa', 'GlobalAcc'):.1f} % GlobalAcc, yet recognises "
        f"{lost:.1f} % of the rare digits 8 and 9; FedRAW, which changes only the server, "
        f"{verb} them: {kept:.1f} %, at {mean('fedraw', 'GlobalAcc'):.1f} % GlobalAcc."
    )
