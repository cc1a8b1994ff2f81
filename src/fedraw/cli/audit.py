"""fedraw audit: which labels will be lost, before training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.audit import audit as examine
from fedraw.analysis.inputs import seconds_of
from fedraw.analysis.verdict import SHOWN, Verdict
from fedraw.cli import console
from fedraw.errors import BadInput, nearest
from fedraw.records.labels import read_label_counts
from fedraw.records.times import Times, read_times
from fedraw.report.audit_json import audit_json
from fedraw.report.audit_page import write_audit_page
from fedraw.report.audit_text import audit_text

BUFFER = 10


class FailOn(StrEnum):
    lost = "lost"
    at_risk = "at-risk"


# The best verdict that each choice refuses.
REFUSED: dict[FailOn, Verdict] = {FailOn.lost: "lost", FailOn.at_risk: "at risk"}


def audit(  # noqa: PLR0913, PLR0917 - one for each option
    labels: Annotated[
        Path,
        typer.Argument(
            metavar="LABELS.csv", help="Label counts: client,label,count, or a column per label."
        ),
    ],
    times: Annotated[
        Path | None, typer.Option(help="client,seconds, or a log of arrivals: client,timestamp.")
    ] = None,
    buffer: Annotated[
        int | None, typer.Option(help=f"Buffer size K; by default {BUFFER}.", show_default=False)
    ] = None,
    cap: Annotated[
        float | None, typer.Option(help="Cap on FedRAW's weights, by water-filling.")
    ] = None,
    rare: Annotated[
        list[str] | None,
        typer.Option(
            help="Rare labels, A,B; by default those of at most half the median coverage."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page to send around.")] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="Exit with 1 if the verdict on a label is lost, or at risk or lost."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"The method for --fail-on: {', '.join(METHODS)}; by default all."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which labels a federation is about to lose, from label counts and speeds alone."""
    judged = _methods(method, fail_on)
    read = read_label_counts(labels)
    table, notes = read.table, list(read.notes)
    known = None if times is None else read_times(times, list(map(str, table.clients)))
    if times is not None and known is not None:
        try:
            seconds_of(known.seconds, table.clients)
        except BadInput as problem:
            raise BadInput(f"{times}: {problem}") from None
        notes += known.notes
    if buffer is None and len(table) < BUFFER:
        buffer = len(table)
        notes.append(f"a buffer of {BUFFER} never fills with {buffer} clients: K={buffer} is used")
    found = examine(
        table,
        None if known is None else known.seconds,
        BUFFER if buffer is None else buffer,
        cap=cap,
        rare=None if rare is None else _names(rare, table.labels),
        interval=None if known is None or known.arrivals is None else (known.low, known.high),
    )
    source = _source(times, known)
    if out is not None:
        write_audit_page(found, out, title=f"Audit of {labels.name}", source=source, notes=notes)
        console.say(f"page: {out}")
    if json_:
        with console.naming("standard output"):
            sys.stdout.writelines(audit_json(found, source, notes))
    else:
        for part in audit_text(found, source, notes):
            console.out.print(part)
    if fail_on is not None:
        _judge(found, fail_on, judged)


def _methods(method: str | None, fail_on: FailOn | None) -> Sequence[str]:
    if method is None:
        return METHODS
    said = {name.lower(): key for key, name in SHOWN.items()}  # tables say FedRAW, Replay
    method = said.get(method.lower(), method.lower())
    if method not in METHODS:
        raise BadInput(f"--method {method!r}: {nearest(method, METHODS)}")
    if fail_on is None:
        raise BadInput("--method restricts --fail-on to one method; give --fail-on too")
    return (method,)


def _names(given: Sequence[str], labels: Sequence[object]) -> list[str]:
    """--rare A,B or --rare A --rare B; a label with a comma in its name is given on its own."""
    known = {str(label) for label in labels}
    parts = [[word] if word in known else word.split(",") for word in given]
    names = [name.strip() for part in parts for name in part if name.strip()]
    if not names:
        raise BadInput("--rare names no label; name some, or leave it out")
    return names


def _source(path: Path | None, known: Times | None) -> str:
    if path is None or known is None:
        return "no times given: all clients equally fast"
    if known.arrivals is None:
        return f"times from {path.name}"
    return f"times estimated from {known.arrivals.sum():,} rows of {path.name}"


def _judge(found: Audit, fail_on: FailOn, methods: Sequence[str]) -> None:
    """Exit with 1 exactly if the table has such a verdict."""
    endangered = found.endangered(REFUSED[fail_on], methods)
    if not endangered:
        return
    named = [f"{label} under {SHOWN[method]}" for method, label in endangered[:10]]
    more = f" and {len(endangered) - 10:,} more" if len(endangered) > 10 else ""
    words = "lost" if fail_on is FailOn.lost else "at risk or lost"
    console.say(f"fedraw: {words}: {', '.join(named)}{more}")
    raise typer.Exit(1)
