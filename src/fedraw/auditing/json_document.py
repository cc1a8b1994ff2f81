"""An audit as one JSON document, written in pieces because a million clients make a large one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fedraw.auditing.view import AuditView, ClientRow, LabelRow, SlowerColumn, WorstLabel


def json_document(view: AuditView) -> Iterator[str]:
    """The text in pieces; `rare_presence` is in percent, clients' presence from 0 to 1."""
    head = {
        "headline": view.headline,
        "federation": _federation(view),
        "rare_presence": view.audit.rare_presence,
        "labels": [_label(row) for row in view.labels],
        "what_if": [_setting(cell) for cell in view.settings],
        "slower": [_slower(column) for column in view.slower],
        "recommendation": _recommendation(view),
    }
    yield json.dumps(head, indent=2)[:-2] + ',\n  "clients": [\n'
    last = len(view.audit.clients) - 1
    for i in range(last + 1):
        yield f"    {json.dumps(_client(view.client(i)))}{',' if i < last else ''}\n"
    yield "  ]\n}\n"


def _federation(view: AuditView) -> dict[str, Any]:
    audit = view.audit
    return {
        "clients": len(audit.clients),
        "labels": len(audit.labels),
        "samples": view.samples,
        "rare_labels": list(audit.rare_labels),
        "rare_clients": view.rare_clients,
        "rare_staleness": audit.rare_staleness,
        "replayed_clients": int(audit.replayed.size),
        "buffer": audit.buffer,
        "cap": audit.cap,
        "times": view.source,
        "notes": list(view.notes),
    }


def _label(row: LabelRow) -> dict[str, Any]:
    document: dict[str, Any] = {
        "label": row.label,
        "coverage": row.coverage,
        "fair_share": row.fair_share,
        "rare": row.rare,
        "holders_slowness": row.holders_slowness,
        "holders_share": row.holders_share,
        "influence": {m: found.influence for m, found in row.methods.items()},
        "standing": {m: found.standing for m, found in row.methods.items()},
        "verdict": row.verdict,
        "verdicts": {m: found.verdict for m, found in row.methods.items()},
    }
    intervals = {m: found.interval for m, found in row.methods.items() if found.interval}
    return document | ({"interval": intervals} if intervals else {})


def _client(row: ClientRow) -> dict[str, Any]:
    return {
        "client": row.client,
        "score": row.score,
        "samples": row.samples,
        "seconds": row.seconds,
        "presence": row.presence,
        "influence": row.influence,
    }


def _setting(cell: WorstLabel) -> dict[str, Any]:
    return {
        "method": cell.method,
        "buffer": cell.buffer,
        "cap": cell.cap,
        "worst_label": cell.label,
        "worst_influence": cell.influence,
        "worst_standing": cell.standing,
        "verdict": cell.verdict,
        "rare_presence": cell.rare_presence,
    }


def _slower(column: SlowerColumn) -> dict[str, Any]:
    return {
        "ratio": column.ratio,
        "worst_rare_influence": column.lowest_influence,
        "worst_rare_standing": {m: cell.standing for m, cell in column.worst.items()},
        "verdicts": {m: cell.verdict for m, cell in column.worst.items()},
        "rare_presence": {m: cell.rare_presence for m, cell in column.worst.items()},
    }


def _recommendation(view: AuditView) -> dict[str, Any]:
    found = view.recommendation
    return {
        "method": found.method,
        "buffer": found.buffer,
        "cap": found.cap,
        "label": found.label,
        "before": found.before,
        "after": found.after,
        "reason": found.reason,
    }
