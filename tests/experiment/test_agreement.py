"""Sections that contradict each other, and settings that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.experiment.clients import draw_clients
from fedraw.experiment.spec import Spec

AGAIN = {"drift": {"kind": "move", "label": 9, "declared": "again"}}
RARE_FIRST = {"receivers": "rare-first", "concurrency": 10}
LIE = {"label": 9}
SECRET = {"mechanism": "randomised-response", "epsilon": 2.0}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"strategy": {"labels": "checked"}, "summaries": SECRET},
            "no claims",
        ),
        ({"strategy": {"labels": "inferred"}, "summaries": SECRET}, "protect"),
        ({**AGAIN, "summaries": SECRET}, "drift.declared = 'again' reports"),
        ({**AGAIN, "misreport": LIE}, "including those of the attackers"),
        (
            {"drift": {"kind": "new", "label": 9, "at": 0.9999}, "run": {"events": 300}},
            "drift.at = 0.9999 is at the end of run.events = 300",
        ),
        ({"run": {"receivers": "rare-first"}}, "below partition.clients = 30"),
        ({"run": {**RARE_FIRST, "concurrency": 30}}, "below partition.clients = 30"),
        ({"run": RARE_FIRST, "strategy": {"labels": "inferred"}}, "they report none"),
        ({"strategy": {"labels": "checked"}, "training": {"kind": "none"}}, "strategy.labels"),
        ({"misreport": {**LIE, "support": 0.1}, "training": {"kind": "none"}}, "misreport.support"),
        ({"label_noise": {"share": 0.1}, "training": {"kind": "none"}}, "label_noise"),
        ({"misreport": {**LIE, "support": float("nan")}}, "misreport.support = nan"),
        ({"misreport": {**LIE, "support": -1.0}}, "misreport.support = -1.0 must be a positive"),
        ({"misreport": {**LIE, "share": 2.0, "form": "hidden"}}, "misreport.share = 2.0"),
        ({"misreport": {**LIE, "liars": 2, "client": 3}}, "misreport.client = 3 names one"),
        ({"summaries": {"mechanism": "randomised-response"}}, r"summaries\.epsilon is missing"),
        (
            {"strategy": {"name": "fedraw-replay", "mass": 0.0}},
            "mass = 0.0 must be above 0 and",
        ),
        ({"strategy": {"name": "fedraw-replay", "floor": 1e9}}, "floor = 1000000000.0 must be"),
    ],
)
def test_refused_when_it_is_read(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Spec.from_dict({**tables})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"misreport": {"label": 42}},
            "misreport.label = 42: dataset 'digits' has no label number",
        ),
        (
            {"drift": {"kind": "move", "label": "cat"}},
            "drift.label = 'cat': dataset 'digits' has no label 'cat'",
        ),
        ({"misreport": {**LIE, "liars": 27}}, "only 26 clients could be; ask for fewer"),
        (
            {"drift": {"kind": "move", "label": 3}},
            r"drift.label = 3: 20 clients hold it, and only \d+ that could receive it",
        ),
        (
            {"summaries": {"mechanism": "randomised-response", "epsilon": 1000.0}},
            "epsilon = 1000 is 100 for each of 10 labels",
        ),
    ],
)
def test_refused_when_clients_are_drawn(tables: dict[str, Any], message: str) -> None:
    spec = Spec.from_dict({"partition": {"rare_labels": [8, 9]}, **tables})
    with pytest.raises(BadInput, match=message):
        draw_clients(spec, Streams(42))


def test_a_drift_that_leaves_someone_without_data_is_refused() -> None:
    lonely = {"clients": 11, "rare_labels": [9], "clients_per_common_label": 1}
    spec = Spec.from_dict({"partition": lonely, "drift": {"kind": "move", "label": 9}})
    with pytest.raises(BadInput, match=r"drift.label = 9: client \d+ has nothing else to train on"):
        draw_clients(spec, Streams(42))


@pytest.mark.parametrize("seed", [1, 41])
def test_a_label_moves_to_clients_that_had_none_of_it(seed: int) -> None:
    """Also if only another label is called rare."""
    tables = {
        "partition": {"rare_labels": [8, 9]},
        "metrics": {"rare_labels": [8]},
        "drift": {"kind": "move", "label": 9},
    }
    clients = draw_clients(Spec.from_dict(tables), Streams(seed))
    before, after = (
        {client for client, counts in table.counts().items() if counts.get("9")}
        for table in (epoch.table for epoch in clients.epochs)
    )
    assert len(before) == len(after) == 2
    assert not before & after
