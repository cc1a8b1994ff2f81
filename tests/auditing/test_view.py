"""The terminal, the page and the JSON document show the same view."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html import escape, unescape

import pytest
from rich.console import Console

from fedraw.auditing.methods import COLUMNS, METHODS, title
from fedraw.auditing.page import render_page
from fedraw.auditing.prediction import audit
from fedraw.auditing.terminal import terminal_parts
from fedraw.auditing.view import AuditView, cost_cells, grid_title, json_document
from fedraw.auditing.words import TIED, plain_text, standing_percent, standing_text

COUNTS = {f"site {i}": {"benign": 60 + i, "malign": 30 + i} for i in range(11)}
COUNTS["clinic"] = {"benign": 40, "odd": 25}
SECONDS = dict.fromkeys(COUNTS, 1.0) | {"clinic": 6.0}


@pytest.fixture(scope="module")
def view() -> AuditView:
    found = audit(COUNTS, SECONDS, baseline="fedfa")
    return AuditView(found, "times.csv", ("a note",), "a federation")


@pytest.fixture(scope="module")
def terminal(view: AuditView) -> str:
    return printed(view)


def printed(view: AuditView) -> str:
    console = Console(file=io.StringIO(), width=1000, color_system=None)
    for part in terminal_parts(view):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_headline_recommendation_and_notes_are_the_same_everywhere(
    view: AuditView, terminal: str
) -> None:
    page, document = render_page(view), json.loads("".join(json_document(view)))
    headline = "1 of 3 labels is about to be lost under FedFa"
    assert view.headline == document["headline"] == headline
    assert document["recommendation"]["reason"] == view.recommendation.reason
    for words in (view.headline, view.replay, view.staleness, *view.notes):
        assert words in terminal
        assert words.replace("'", "&#x27;") in page
    assert plain_text(view.lead) in terminal
    assert str(view.recommendation) in terminal


@pytest.mark.parametrize(
    ("method", "headline", "lead"),
    [
        (
            "fedfa",
            "1 of 3 labels is about to be lost under FedFa",
            "If the server averages the last 10 updates, regardless of sender (FedFa), label odd",
        ),
        # Every client has a twelfth of the weight, and 25 of the clinic's 65 samples are odd. The
        # median label has 385 of 1,165 samples: sqrt((25/65 / 12) / (385/1165) / 12) = 0.090.
        (
            "ca2fl",
            "1 of 3 labels is at risk under CA2FL",
            "If the server runs CA2FL with K=10, label odd has too little influence on the model. "
            f"It is held by 1 client and has a standing of 9.0{TIED}%; it would be kept from "
            f"13{TIED}% on.",
        ),
        # ACE weights clients as CA2FL does, without a buffer.
        ("ace", "1 of 3 labels is at risk under ACE", "If the server runs ACE, label odd has"),
        (
            "fedraw-replay",
            "No label is at risk under Replay",
            "This holds if the server runs Replay with K=10, but not under FedAvg, FedFa, FedBuff",
        ),
    ],
)
def test_the_headline_is_about_the_method_that_was_asked_for(
    view: AuditView, method: str, headline: str, lead: str
) -> None:
    own = replace(view, method=method)
    page, document = unescape(render_page(own)), json.loads("".join(json_document(own)))
    assert own.headline == document["headline"] == headline
    assert f"<h1>{headline}</h1>" in page
    assert printed(own).startswith(f"{headline}\n{lead}")
    assert f'<p class="lead">{lead}' in page.replace("<bdi>", "").replace("</bdi>", "")


def test_labels_are_ordered_by_the_method_that_was_asked_for() -> None:
    """FedFa forgets the one label of a slow site, and FedRAW the smallest of nine common labels."""
    counts = {f"site {i}": {f"common {n}": 50 for n in range(8)} for i in range(11)}
    for site in counts.values():
        site["small"] = 1
    counts["clinic"] = {"odd": 400}
    found = audit(counts, dict.fromkeys(counts, 1.0) | {"clinic": 6.0}, baseline="fedfa")
    assert AuditView(found, "").worst_first[0].label == "odd"
    view = AuditView(found, "", method="fedraw")
    assert view.worst_first[0].label == "small"
    standing = [row.methods["fedraw"].standing for row in view.worst_first]
    assert standing == sorted(standing)
    assert "Labels, worst first under FedRAW" in printed(view)


def test_verdicts_are_the_same_everywhere(view: AuditView, terminal: str) -> None:
    page, document = render_page(view), json.loads("".join(json_document(view)))
    for row, entry in zip(view.labels, document["labels"], strict=True):
        assert entry["verdict"] == row.verdict
        assert any(str(row.label) in line and row.verdict in line for line in terminal.splitlines())
        assert f",{row.verdict}\n" in page or f',"{row.verdict}"\n' in unescape(page), "in the CSV"
        for method in METHODS:
            assert entry["verdicts"][method] == row.methods[method].verdict
        for method in COLUMNS:
            found = row.methods[method]
            assert f"<b>{standing_percent(found.standing, method)}</b>" in page


def test_the_grid_is_the_same_everywhere(view: AuditView, terminal: str) -> None:
    page, document = render_page(view), json.loads("".join(json_document(view)))
    lines = {line.split("  ")[0].strip(): line for line in terminal.splitlines() if line}
    for cell, entry in zip(view.settings, document["what_if"], strict=True):
        assert (entry["worst_standing"], entry["verdict"]) == (cell.standing, cell.verdict)
        mark = "*" if cell.recommended else ""
        words = f"{standing_text(cell.standing, cell.method)}{mark} {cell.verdict}"
        assert words in terminal
        star = f"★{TIED}" if cell.recommended else ""
        assert f"<b>{star}{escape(standing_text(cell.standing, cell.method))}</b>" in page
    assert sum(cell.recommended for cell in view.settings) == 1
    assert {grid_title(method, cap) for method, cap in view.grid()[1]} <= set(lines)


def test_what_methods_ask_for_is_the_same_everywhere(view: AuditView, terminal: str) -> None:
    page, document = render_page(view), json.loads("".join(json_document(view)))
    assert [cost.method for cost in view.costs] == list(METHODS) == list(document["methods"])
    lines = {line.split("  ")[0].strip(): line for line in terminal.splitlines() if line}
    for cost in view.costs:
        assert document["methods"][cost.method]["server_models"] == cost.models
        cells = cost_cells(cost)
        assert "".join(f"<td>{words}</td>" for words in cells) in page
        assert all(words in lines[title(cost.method)] or "%" in words for words in cells)
    by_method = {cost.method: cost for cost in view.costs}
    clients, size = len(view.audit.clients), view.audit.buffer
    assert by_method["ca2fl"].models == 4 + size + clients
    assert by_method["fedraw-replay-debt"].models == 3 + size
    assert by_method["fedraw"].labels and not by_method["fedbuff"].labels
