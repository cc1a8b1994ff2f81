"""The JSON that the page shows about runs, of bounded size.

It has times and no ages, which would change every second; the page computes ages from the times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.dashboard.watcher import RunView
from fedraw.eventlog.follow import plain
from fedraw.eventlog.goals import MARKS, Goal
from fedraw.eventlog.live import SHOWN, EvaluationPoint, SiteState

# The largest number of items that are shown of a long sequence.
MOST_SITES, MOST_LABELS, MOST_LINES, MOST_SLOTS, MOST_NAMED = 200, 300, 16, 60, 12
# The number of points of a run's curve in the list of runs, and the decimals of all numbers.
POINTS, DIGITS = 60, 4
# The fields of a run's status in the list of runs.
STATUS = (
    "name", "seed", "folder", "state", "event", "events", "rate", "written", "unread", "checkpoint",
    "metrics",
)  # fmt: skip
# Sites that need attention come first.
ORDER: dict[SiteState, int] = {
    "quarantined": 0,
    "away": 1,
    "back-off": 2,
    "waiting": 3,
    "training": 4,
}


def overview(
    views: Sequence[RunView], problems: Sequence[str], loading: str | None = None
) -> dict[str, Any]:
    """Return a row and a short curve for each run, the problems, and what is still being read."""
    rows = [plain(_row(view), DIGITS) for view in views]
    return {"runs": rows, "problems": list(problems), "loading": loading}


def _row(view: RunView) -> dict[str, Any]:
    status, detail = view.status, view.detail
    return {
        "id": view.id,
        **{name: getattr(status, name) for name in STATUS},
        "server": status.is_server,
        "problem": view.problem,
        "at_risk": len(detail.at_risk),
        "rare_at_risk": sum(risk.rare for risk in detail.at_risk),
        "members": detail.members,
        "curve": [
            [point.event, *(point.metrics.get(key) for key in SHOWN)]
            for point in _thinned(detail.curve, POINTS)
        ],
    }


def full(view: RunView) -> dict[str, Any]:
    """Return everything that the page shows about one run."""
    detail = view.detail
    found: dict[str, Any] = {
        **_row(view),
        "time": view.time,
        "changes": detail.changes,
        # Formatted here, because these numbers may have any magnitude.
        "own": [
            {**own._asdict(), "value": None if own.value is None else f"{own.value:.4g}"}
            for own in detail.own
        ],
        "mean_recall": detail.mean_recall,
        "reached": _reached(view, "AvgRare"),
        "risks": detail.at_risk[:MOST_LABELS],
        "labels": _labels(view),
        "lines": _lines(view),
        "buffer": {
            "slots": detail.buffer[:MOST_SLOTS],
            "size": len(detail.buffer),
            "capacity": detail.capacity,
            "aggregated_at": detail.aggregated_at,
            "version": detail.version,
        },
        "sites": sites_page(view),
        "site_counts": view.site_counts,
        "clients": detail.clients,
        "rare_clients": len(detail.rare_clients),
        "participation": {key: detail.participation.get(key) for key in ("RarePart", "BufPres")},
        **_incidents(view),
    }
    return {key: plain(value, DIGITS) for key, value in found.items()}


def _labels(view: RunView) -> dict[str, Any]:
    """Return labels at risk first, then rare ones, then others, each by increasing recall."""
    detail, rare = view.detail, set(view.rare_labels)
    trends = {trend.label: trend for trend in detail.labels}
    reasons = {risk.label: risk.reasons for risk in detail.at_risk}
    names = dict.fromkeys([*reasons, *trends, *detail.holders])

    def order(label: str) -> tuple[bool, bool, float]:
        trend = trends.get(label)
        return label not in reasons, label not in rare, 101.0 if trend is None else trend.recall

    def row(label: str) -> dict[str, Any]:
        trend = trends.get(label)
        return {
            "label": label,
            "rare": label in rare,
            "recall": trend and trend.recall,
            "change": trend and trend.change,
            "holders": detail.holders.get(label),
            "standing": detail.standing.get(label),
            "reasons": reasons.get(label, ()),
            "reached": _reached(view, label),
        }

    return {"rows": list(map(row, sorted(names, key=order)[:MOST_LABELS])), "total": len(names)}


def _reached(view: RunView, metric: str) -> list[float | None] | None:
    """Return the arrivals until AvgRare, or a rare label's recall, passed 50 and 80 %.

    An entry is None until the mark is passed. The result is None for what is not watched.
    """
    found = [view.detail.reached.get(str(Goal(metric, float(mark)))) for mark in MARKS]
    return [own["arrivals"] for own in found if own is not None] or None


def _lines(view: RunView) -> dict[str, Any]:
    """Return the recall over the run of labels at risk, of rare ones, and of the worst others."""
    points = view.detail.curve
    shown = [row for row in _labels(view)["rows"] if row["recall"] is not None][:MOST_LINES]
    return {
        "events": [point.event for point in points],
        "metrics": {key: [point.metrics.get(key) for point in points] for key in SHOWN},
        "labels": [
            {
                "label": row["label"],
                "rare": row["rare"],
                "at_risk": bool(row["reasons"]),
                "recall": [point.recall.get(row["label"]) for point in points],
            }
            for row in shown
        ],
        "others": len(view.detail.labels) - len(shown),
    }


def sites_page(view: RunView, offset: int = 0, search: str = "") -> dict[str, Any]:
    """Return one page of sites, those that need attention first, and the total number."""
    rare, doubted = set(view.detail.rare_clients), view.detail.doubted
    found = [site for site in view.sites if search.lower() in str(site.client).lower()]
    found.sort(key=lambda site: (ORDER[site.state], site.client not in rare, -site.silent))
    rows = []
    for site in found[offset : offset + MOST_SITES]:
        fields = site._asdict()
        del fields["silent"]  # an age
        claims = doubted.get(str(site.client), ())[:MOST_NAMED]
        rows.append({**fields, "rare": site.client in rare, "doubted": list(claims)})
    return {"rows": plain(rows, DIGITS), "offset": offset, "total": len(found)}


def _incidents(view: RunView) -> dict[str, Any]:
    """Return refusals, departures, notes, restarts and doubted claims, newest first."""
    detail = view.detail
    history = detail.history
    most_rejected = sorted(detail.rejected.items(), key=lambda item: -item[1])[:MOST_NAMED]
    return {
        "rejected": {
            "total": sum(detail.rejected.values()),
            "clients": len(detail.rejected),
            "most": most_rejected,
            "last": detail.refusals,
        },
        "away": history.away[:MOST_NAMED],
        "restarts": {"total": history.restarts, "last": history.last_restarts},
        "notes": {
            "total": history.notes,
            "quarantined": history.quarantined,
            "last": [note for note in history.last_notes if note not in history.away],
        },
        "doubted": _few(detail.doubted),
        "inferred": _few(detail.inferred),
    }


def _few(named: Mapping[str, Sequence[Any]]) -> list[Any]:
    return [(key, values[:MOST_NAMED]) for key, values in list(named.items())[: 5 * MOST_NAMED]]


def _thinned(curve: Sequence[EvaluationPoint], most: int) -> Sequence[EvaluationPoint]:
    stride = -(-len(curve) // most)
    return curve if stride <= 1 else [*curve[:-1][::stride], curve[-1]]
