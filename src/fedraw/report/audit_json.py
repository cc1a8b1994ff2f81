"""An audit as one JSON document, written piece by piece: a million clients are a large one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.what_if import Slower, WhatIf


def audit_json(audit: Audit, times: str, notes: Sequence[str] = ()) -> Iterator[str]:
    """The text in pieces; `rare_presence` in percent, the clients' chances from 0 to 1."""
    head = {
        "federation": _federation(audit, times, notes),
        "rare_presence": audit.rare_presence,
        "labels": [_label(audit, i) for i in range(len(audit.labels))],
        "what_if": [_setting(audit, setting) for setting in audit.what_if],
        "slower": [_slower(audit, row) for row in audit.slower],
        "recommendation": _recommendation(audit),
    }
    yield json.dumps(head, indent=2)[:-2] + ',\n  "clients": [\n'
    last = len(audit.clients) - 1
    for i in range(len(audit.clients)):
        yield f"    {json.dumps(_client(audit, i))}{',' if i < last else ''}\n"
    yield "  ]\n}\n"


def _federation(audit: Audit, times: str, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "clients": len(audit.clients),
        "labels": len(audit.labels),
        "samples": int(audit.samples.sum()),
        "rare_labels": list(audit.rare_labels),
        "rare_clients": int(audit.holds_rare.sum()),
        "rare_staleness": audit.rare_staleness,
        "replayed_clients": int(audit.replayed.size),
        "buffer": audit.buffer_size,
        "cap": audit.cap,
        "times": times,
        "notes": list(notes),
    }


def _label(audit: Audit, i: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "label": audit.labels[i],
        "coverage": int(audit.coverage[i]),
        "fair_share": float(audit.fair_share[i]),
        "rare": audit.labels[i] in audit.rare_labels,
        "holders_slowness": float(audit.holders_slowness[i]),
        "holders_share": float(audit.holders_share[i]),
        "influence": {m: float(audit.label_influence[m][i]) for m in METHODS},
        "standing": {m: float(audit.standing[m][i]) for m in METHODS},
        "verdict": audit.in_words(i),
        "verdicts": {m: audit.verdicts[m][i] for m in METHODS},
    }
    if audit.label_interval is not None:
        document["interval"] = {
            m: [float(audit.label_interval[m].low[i]), float(audit.label_interval[m].high[i])]
            for m in METHODS
        }
    return document


def _client(audit: Audit, i: int) -> dict[str, Any]:
    return {
        "client": audit.clients[i],
        "score": float(audit.scores[i]),
        "samples": int(audit.samples[i]),
        "seconds": float(audit.seconds[i]) if audit.times_known else None,
        "presence": {m: float(audit.presence[m][i]) for m in METHODS},
        "influence": {m: float(audit.influence[m][i]) for m in METHODS},
    }


def _setting(audit: Audit, setting: WhatIf) -> dict[str, Any]:
    return {
        "method": setting.method,
        "buffer": setting.buffer_size,
        "cap": setting.cap,
        "worst_label": audit.labels[setting.worst],
        "worst_influence": float(setting.label_influence[setting.worst]),
        "worst_standing": float(setting.standing[setting.worst]),
        "verdict": setting.verdict,
        "rare_presence": setting.rare_presence,
    }


def _slower(audit: Audit, row: Slower) -> dict[str, Any]:
    rare = [audit.labels.index(label) for label in audit.rare_labels]
    return {
        "ratio": row.ratio,
        "worst_rare_influence": {m: float(row.label_influence[m][rare].min()) for m in METHODS},
        "worst_rare_standing": {m: float(row.standing[m][rare].min()) for m in METHODS},
        "verdicts": {m: row.worst(m, rare)[1] for m in METHODS},
        "rare_presence": row.rare_presence,
    }


def _recommendation(audit: Audit) -> dict[str, Any]:
    found = audit.recommendation
    return {
        "method": found.method,
        "buffer": found.buffer_size,
        "cap": found.cap,
        "label": found.label,
        "before": found.before,
        "after": found.after,
        "reason": found.reason,
    }
