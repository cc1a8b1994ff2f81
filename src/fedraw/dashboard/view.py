"""What the page shows of runs, as JSON of bounded size.

Ages are not part of it, because they would change every second: the page works them out from the
times that are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.dashboard.watcher import RunView
from fedraw.eventlog.sites import SiteState, SiteStatus
from fedraw.eventlog.status import SHOWN, EvaluationPoint, Incident, LabelRisk

# The most that is shown of sequences that may be long.
MOST_SITES, MOST_LABELS, MOST_LINES, MOST_SLOTS, MOST_NAMED = 200, 300, 16, 60, 12
# The points of a run's curve in the list of all runs.
POINTS = 60
# Sites that need attention come first.
ORDER: dict[SiteState, int] = {
    "quarantined": 0,
    "away": 1,
    "back-off": 2,
    "waiting": 3,
    "training": 4,
}


def overview(views: Sequence[RunView], problems: Sequence[str]) -> dict[str, Any]:
    """All runs, a row and a short curve each."""
    return {"runs": [_row(view) for view in views], "problems": list(problems)}


def _row(view: RunView) -> dict[str, Any]:
    status, detail = view.status, view.detail
    return {
        "id": view.id,
        "name": status.name,
        "seed": status.seed,
        "folder": str(status.folder),
        "state": status.state,
        "server": status.is_server,
        "event": status.event,
        "events": status.events,
        "rate": _rounded(status.rate, 3),
        "written": round(status.written, 1),
        "unread": status.unread,
        "checkpoint": status.checkpoint,
        "problem": view.problem,
        "metrics": {key: _rounded(value) for key, value in status.metrics.items()},
        "at_risk": len(detail.at_risk),
        "rare_at_risk": sum(risk.rare for risk in detail.at_risk),
        "members": detail.members,
        "curve": [
            [p.event, *(_rounded(p.metrics.get(key)) for key in SHOWN)]
            for p in _thinned(detail.curve, POINTS)
        ],
    }


def full(view: RunView) -> dict[str, Any]:
    """One run with everything that the page shows of it."""
    detail = view.detail
    return {
        **_row(view),
        "time": round(view.time, 1),
        "changes": {key: _rounded(value) for key, value in detail.changes.items()},
        "serving": {key: _rounded(value) for key, value in detail.serving.items()},
        "mean_recall": _rounded(detail.mean_recall),
        "risks": [_risk(risk) for risk in detail.at_risk[:MOST_LABELS]],
        "labels": _labels(view),
        "lines": _lines(view),
        "buffer": {
            "slots": [
                {
                    "client": str(slot.client),
                    "weight": _rounded(slot.weight, 4),
                    "age": slot.age,
                    "rare": slot.rare,
                }
                for slot in detail.buffer[:MOST_SLOTS]
            ],
            "size": len(detail.buffer),
            "capacity": detail.capacity,
            "aggregated_at": detail.aggregated_at,
            "version": detail.version,
        },
        "sites": sites_page(view),
        "site_counts": view.site_counts,
        "clients": detail.clients,
        "rare_clients": len(detail.rare_clients),
        "participation": {
            key: _rounded(detail.participation.get(key)) for key in ("RarePart", "BufPres")
        },
        **_incidents(view),
    }


def _risk(risk: LabelRisk) -> dict[str, Any]:
    own = risk._asdict()
    last = risk.last_holder
    return {
        **own,
        "last_holder": None if last is None else str(last),
        "standing": _rounded(risk.standing, 3),
        "recall": _rounded(risk.recall),
        "change": _rounded(risk.change),
    }


def _labels(view: RunView) -> dict[str, Any]:
    """The labels at risk, then rare ones, then the others, the lowest recall first."""
    detail, rare = view.detail, set(view.rare_labels)
    trends = {trend.label: trend for trend in detail.labels}
    reasons = {risk.label: risk.reasons for risk in detail.at_risk}
    names = dict.fromkeys([*reasons, *trends, *detail.holders])

    def place(label: str) -> tuple[bool, bool, float]:
        trend = trends.get(label)
        return label not in reasons, label not in rare, 101.0 if trend is None else trend.recall

    rows = []
    for label in sorted(names, key=place)[:MOST_LABELS]:
        trend = trends.get(label)
        rows.append(
            {
                "label": label,
                "rare": label in rare,
                "recall": trend and _rounded(trend.recall),
                "change": trend and _rounded(trend.change),
                "holders": detail.holders.get(label),
                "standing": _rounded(detail.standing.get(label), 3),
                "reasons": list(reasons.get(label, ())),
            }
        )
    return {"rows": rows, "total": len(names)}


def _lines(view: RunView) -> dict[str, Any]:
    """The recall of labels over the run: of those at risk, of rare ones, of the worst others."""
    points = view.detail.curve
    shown = [row for row in _labels(view)["rows"] if row["recall"] is not None][:MOST_LINES]
    return {
        "events": [point.event for point in points],
        "metrics": {key: [_rounded(point.metrics.get(key)) for point in points] for key in SHOWN},
        "serving": {key: [_rounded(point.serving.get(key)) for point in points] for key in SHOWN},
        "labels": [
            {
                "label": row["label"],
                "rare": row["rare"],
                "at_risk": bool(row["reasons"]),
                "recall": [_rounded(point.recall.get(row["label"])) for point in points],
            }
            for row in shown
        ],
        "others": len(view.detail.labels) - len(shown),
    }


def sites_page(view: RunView, offset: int = 0, search: str = "") -> dict[str, Any]:
    """Some sites, those that need attention first, and how many there are."""
    rare = set(view.detail.rare_clients)
    found = [site for site in view.sites if search.lower() in str(site.client).lower()]
    found.sort(key=lambda site: (ORDER[site.state], site.client not in rare, -site.silent))
    rows = [_site(view, site, site.client in rare) for site in found[offset : offset + MOST_SITES]]
    return {"rows": rows, "offset": offset, "total": len(found)}


def _site(view: RunView, site: SiteStatus, rare: bool) -> dict[str, Any]:
    return {
        "client": str(site.client),
        "state": site.state,
        "rare": rare,
        "arrivals": site.arrivals,
        "rejected": site.rejected,
        "heard": _rounded(site.heard),
        "staleness": _rounded(site.staleness),
        "last_staleness": site.last_staleness,
        "until": _rounded(site.until),
        "reason": site.reason,
        "doubted": list(view.detail.doubted.get(str(site.client), ()))[:MOST_NAMED],
    }


def _incidents(view: RunView) -> dict[str, Any]:
    """Refusals, departures, notes, restarts and doubts, newest first."""
    detail = view.detail
    history = detail.history
    most = sorted(detail.rejected.items(), key=lambda item: -item[1])[:MOST_NAMED]
    return {
        "rejected": {
            "total": sum(detail.rejected.values()),
            "clients": len(detail.rejected),
            "most": [[client, count] for client, count in most],
            "last": [_incident(incident) for incident in detail.refusals],
        },
        "away": [_incident(incident) for incident in history.away[:MOST_NAMED]],
        "restarts": {
            "total": history.restarts,
            "last": [restart._asdict() for restart in history.last_restarts],
        },
        "notes": {
            "total": history.notes,
            "quarantined": history.quarantined,
            "last": [_incident(i) for i in history.last_notes if i not in history.away],
        },
        "doubted": _few(detail.doubted),
        "inferred": _few(detail.inferred),
    }


def _incident(incident: Incident) -> dict[str, Any]:
    client = incident.client
    return {**incident._asdict(), "client": None if client is None else str(client)}


def _few(named: Mapping[str, Sequence[Any]]) -> list[list[Any]]:
    shown = list(named.items())[: 5 * MOST_NAMED]
    return [[key, [str(value) for value in values[:MOST_NAMED]]] for key, values in shown]


def _thinned(curve: Sequence[EvaluationPoint], most: int) -> Sequence[EvaluationPoint]:
    stride = -(-len(curve) // most)
    if stride <= 1:
        return curve
    return [*curve[:-1][::stride], curve[-1]]


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
