"""The demo: eleven methods on embedded data that shows silent rarity failure."""

from __future__ import annotations

from collections.abc import Sequence

from fedraw.eventlog.compare import ComparisonRow, paired
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
    """Return what the table shows after its number of arrivals, and what it does not show."""
    by_name = {row.name: row for row in rows}
    fedfa, fedraw = by_name["fedfa"], by_name["fedraw"]
    if collapsed := [row.name for row in (fedfa, fedraw) if row.collapsed]:
        return f"No conclusion: {' and '.join(collapsed)} collapsed to the level of chance."
    arrivals = f"{max(fedraw.events):,} arrivals"
    ahead = [
        f"{row.name} {_mean(row, 'AvgRare'):.1f} %"
        for row in rows
        if not row.collapsed and _is_ahead(row, fedraw)
    ]
    others = f" Ahead of FedRAW, seed by seed: {', '.join(ahead)}." if ahead else ""
    return (
        f"After {arrivals} FedFa reaches {_mean(fedfa, 'GlobalAcc'):.1f} % GlobalAcc and "
        f"recognises {_mean(fedfa, 'AvgRare'):.1f} % of the rare digits 8 and 9; FedRAW, which "
        f"changes only the server, recognises {_mean(fedraw, 'AvgRare'):.1f} %.{others} "
        f"A label that is missing after {arrivals} may come later: docs/explanation/failure.md "
        "follows the same federation to 20,000."
    )


def _mean(row: ComparisonRow, metric: str) -> float:
    return row.metrics[metric].mean or 0.0


def _is_ahead(row: ComparisonRow, other: ComparisonRow) -> bool:
    if row is other:
        return False
    difference = paired(row, other, "AvgRare")
    return difference.is_clear and difference.mean > 0
