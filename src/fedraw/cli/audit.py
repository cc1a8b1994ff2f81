"""fedraw audit: which labels a federation will lose, predicted before training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedraw.auditing.horizon import ARRIVALS
from fedraw.auditing.label_counts import read_label_counts
from fedraw.auditing.methods import COLUMNS, DEFAULT_BUFFER, METHODS, Verdict, audited_method, title
from fedraw.auditing.page import write_audit_page
from fedraw.auditing.prediction import Audit, seconds_of
from fedraw.auditing.prediction import audit as predict
from fedraw.auditing.terminal import brief_parts, terminal_parts
from fedraw.auditing.times import MeanTimes, read_shares, read_times
from fedraw.auditing.view import AuditView, json_document
from fedraw.cli import console
from fedraw.cli.options import Json
from fedraw.core.text import counted, several
from fedraw.errors import BadInput, error_context


class FailOn(StrEnum):
    """The verdicts that make the command fail."""

    lost = "lost"
    at_risk = "at-risk"


# The best verdict that each choice of --fail-on rejects.
REJECTED: dict[FailOn, Verdict] = {FailOn.lost: "lost", FailOn.at_risk: "at risk"}


def audit(  # noqa: PLR0913, PLR0917 - one for each option
    labels: Annotated[
        Path,
        typer.Argument(
            metavar="LABELS.csv",
            help="Label counts: the columns client,label,count, or a column per label.",
        ),
    ],
    times: Annotated[
        Path | None,
        typer.Option(
            help="Times: the columns client,seconds, or a log of arrivals: client,timestamp."
        ),
    ] = None,
    availability: Annotated[
        Path | None,
        typer.Option(
            help="The share of the time for which each client is online: the columns client,online."
        ),
    ] = None,
    arrivals: Annotated[
        int, typer.Option(help="The horizon: the updates that the server will receive.")
    ] = ARRIVALS,
    baseline: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="METHOD",
            help="The method that you run today; the recommendation is relative to it.",
            autocompletion=lambda: list(METHODS),
        ),
    ] = "fedavg",
    buffer: Annotated[
        int | None,
        typer.Option(help=f"Buffer size K; {DEFAULT_BUFFER} by default.", show_default=False),
    ] = None,
    cap: Annotated[
        float | None, typer.Option(help="Cap on FedRAW's weights, by water-filling.")
    ] = None,
    rare: Annotated[
        list[str] | None,
        typer.Option(
            help="Rare labels: A,B. By default, labels with at most half the median coverage."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write an HTML page to this file.")
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            help="Exit with code 1 if a label is lost, or if one is lost, at risk or late."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="The method of the headline instead of the one that you run today, and the only "
            f"one that --fail-on judges: {', '.join(METHODS)}.",
            autocompletion=lambda: list(METHODS),
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show every table.")] = False,
    json_: Json = False,
) -> None:
    """Predict from label counts and speeds which labels a federation will lose."""
    if out is not None:
        _refuse_input(out, (labels, times, availability))
    asked = None if method is None else _method(method, "--method")
    baseline = _method(baseline, "--from")
    if arrivals < 1:
        raise BadInput(f"--arrivals {arrivals} is no horizon; give at least one arrival")
    read = read_label_counts(labels)
    table, notes = read.table, list(read.notes)
    known = None if times is None else _times(times, table.clients)
    notes += [] if known is None else known.notes
    online = None
    if availability is not None:
        if known is not None and known.from_arrivals:
            raise BadInput(
                f"--availability: {times} has arrivals, which already include the time offline; "
                "leave the option out"
            )
        online = read_shares(availability, list(map(str, table.clients)))
        notes.append(
            f"times are divided by the share of the time for which a client is online, from "
            f"{availability.name}; this holds if clients come and go quickly"
        )
    found = predict(
        table,
        None if known is None else known.seconds,
        buffer,
        cap=cap,
        rare=None if rare is None else _names(rare, table.labels),
        interval=None if known is None or known.arrivals is None else (known.low, known.high),
        availability=None if online is None else [online[str(c)] for c in table.clients],
        arrivals=arrivals,
        baseline=baseline,
    )
    if buffer is None and found.buffer < DEFAULT_BUFFER:
        notes.append(
            f"a buffer of {DEFAULT_BUFFER} would never fill with {counted(len(table), 'client')}, "
            f"so K={found.buffer} is used"
        )
    source = _source(times, known, availability)
    view = AuditView(found, source, tuple(notes), f"Audit of {labels.name}", asked)
    if out is not None:
        write_audit_page(view, out)
        console.say(f"page: {out}")
    if json_:
        with console.naming("standard output"):
            sys.stdout.writelines(json_document(view))
    else:
        parts = terminal_parts(view) if verbose else brief_parts(view, console.out.width)
        for part in parts:
            console.out.print(part)
    if fail_on is not None:
        _judge(found, fail_on, COLUMNS if asked is None else (asked,))


def _refuse_input(out: Path, inputs: Sequence[Path | None]) -> None:
    """Refuse to write the page over a file that the audit reads."""
    if out.resolve() in {path.resolve() for path in inputs if path is not None}:
        raise BadInput(f"--out {out} is an input of the audit; name another file for the page")


def _times(path: Path, clients: Sequence[object]) -> MeanTimes:
    read = read_times(path, list(map(str, clients)))
    with error_context(path):
        seconds_of(read.seconds, list(map(str, clients)))
    return read


def _method(name: str, option: str) -> str:
    with error_context(option):
        return audited_method(name)


def _names(given: Sequence[str], labels: Sequence[object]) -> list[str]:
    """Parse `--rare A,B` or `--rare A --rare B`; a label with a comma needs its own --rare."""
    known = {str(label) for label in labels}
    parts = [[word] if word in known else word.split(",") for word in given]
    names = [name.strip() for part in parts for name in part if name.strip()]
    if not names:
        raise BadInput("--rare names no label; name at least one, or omit the option")
    return names


def _source(path: Path | None, known: MeanTimes | None, availability: Path | None) -> str:
    if path is None or known is None:
        if availability is not None:
            return "no times given, so clients differ only in how long they are online"
        return "no times given, so all clients count as equally fast"
    if known.arrivals is None:
        return f"times from {path.name}"
    return f"times estimated from {known.arrivals.sum():,} rows of {path.name}"


def _judge(found: Audit, fail_on: FailOn, methods: Sequence[str]) -> None:
    """Exit with code 1 if a label has a rejected verdict."""
    endangered = found.endangered(REJECTED[fail_on], methods)
    if not endangered:
        return
    named = several((f"{label} under {title(method)}" for method, label in endangered), most=10)
    words = "lost" if fail_on is FailOn.lost else "lost, at risk or late"
    console.say(f"fedraw: {words}: {named}")
    raise typer.Exit(1)
