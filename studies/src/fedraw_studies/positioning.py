"""`fedraw reproduce table1`: how every method of the catalogue responds to each imbalance.

Table I of the paper answers in words, category by category. Here each method runs without training
in three small federations with one imbalance each, and the answer is a number: the weight of an
unusual client in the global model relative to that of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import fedraw
from fedraw.eventlog.records import ArrivalRecord
from fedraw.experiment.result import SeedResult
from fedraw.strategies.catalog import CATALOG, Method
from fedraw_studies.artefacts import study_file
from fedraw_studies.markdown import pipe_table

CLIENTS = 20
SAMPLES = 4  # of a client
MORE = 5  # times the samples
FASTER = 10  # times as often
BUFFER = 10
# If clients take turns, whole turns of full buffers give exact weights.
EVENTS = 5 * CLIENTS + BUFFER - 1
# Memoryless arrivals take more events to average out.
MEMORYLESS_EVENTS = 500


@dataclass(frozen=True)
class Profile:
    """The weights of unusual clients under one method; 1 is the weight of an ordinary client."""

    name: str
    samples: float  # weight of a client with five times the samples
    speed: float  # weight of a client that answers ten times as often
    most: float  # the largest share of one aggregation that this client has, in percent
    rarity: float  # weight of a client that shares half of its data's label with one other client
    asks: str  # what clients do beyond plain local training


def profile(method: Method) -> Profile:
    """Measure one method with its default settings."""
    ordinary = [[0] * SAMPLES] * CLIENTS
    large = [*ordinary[:-1], [0] * (MORE * SAMPLES)]
    half = SAMPLES // 2
    rare = [*ordinary[:-2], *[[0] * half + [1] * half] * 2]
    speed, most = _fast(method, ordinary)
    # If clients take turns, some methods weight the last clients differently whatever their data.
    usual = _run(method, ordinary)
    return Profile(
        method.name,
        samples=_weight(_run(method, large), 1) / _weight(usual, 1),
        speed=speed,
        most=most,
        rarity=_weight(_run(method, rare), 2) / _weight(usual, 2),
        asks=_asks(method),
    )


def profiles() -> list[Profile]:
    """Measure every method of the catalogue."""
    # Table I is about how updates are weighted, and one pass has none.
    return [profile(method) for method in CATALOG.values() if method.name != "one-pass"]


def table1_markdown(measured: Sequence[Profile]) -> str:
    """Write the paper's words by category, and every method's measured weights."""
    file = study_file("table1")
    categories = file["categories"]
    words = [[own["name"], _titles(own["methods"]), *own["paper"]] for own in categories]
    belongs = {name: own["name"] for own in categories for name in own["methods"]}
    lines = [
        [
            CATALOG[own.name].title,
            belongs.get(CATALOG[own.name].base.name, "–"),
            f"{own.samples:.1f}",
            f"{own.speed:.1f}",
            f"{own.most:.0f} %",
            f"{own.rarity:.1f}",
            own.asks,
        ]
        for own in measured
    ]
    head = ["method", "category", f"{MORE}x the samples", f"{FASTER}x as often"]
    head += ["most of one aggregation", "rare label", "asks of clients"]
    paper = pipe_table(
        ["category, in the paper's words", "here", *file["columns"]], words, padded=False
    )
    return f"{paper}\n{pipe_table(head, lines, padded=False)}"


def as_json(measured: Sequence[Profile]) -> list[dict[str, Any]]:
    """Return the measured profiles, ready for JSON."""
    return [asdict(own) for own in measured]


def _titles(methods: Sequence[str]) -> str:
    return ", ".join(CATALOG[name].title for name in methods) or "–"


def _fast(method: Method, labels: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the relative weight of the last client if it is fast, and its largest share."""
    seconds = [*[1.0] * (CLIENTS - 1), 1 / FASTER]
    result = _run(method, labels, seconds, MEMORYLESS_EVENTS)
    parts = [
        sum(w or 0.0 for c, w in zip(own.buffer, own.weights, strict=False) if c == CLIENTS - 1)
        for own in result.records()
        if isinstance(own, ArrivalRecord) and own.aggregated
    ]
    return _weight(result, 1), 100 * max(parts)


def _run(
    method: Method,
    labels: Sequence[Sequence[int]],
    seconds: Sequence[float] | None = None,
    events: int = EVENTS,
) -> SeedResult:
    """Run a method without training; clients take turns unless their seconds are given."""
    every = np.concatenate([np.array(own) for own in labels])
    inputs = np.zeros((len(every), 1), np.float32)
    ends = np.cumsum([len(own) for own in labels])
    result = fedraw.simulate(
        strategy=method.name,
        data=(inputs, every),
        test=(inputs, every),  # so that nothing is held out
        partition=np.split(np.arange(len(every)), ends[:-1]),
        speeds=list(seconds or [1.0] * CLIENTS),
        arrivals="fixed" if seconds is None else "poisson",
        local_test=0.0,
        train="none",
        events=events,
        seeds=42,
        progress=False,
    )
    return result.runs[0]


def _weight(result: SeedResult, unusual: int) -> float:
    """Return the mean influence of the last, unusual clients over that of the others."""
    influence = result.summary["influence"]
    every = np.array([influence.get(str(client), 0.0) for client in range(CLIENTS)])
    return float(every[-unusual:].mean() / every[:-unusual].mean())


def _asks(method: Method) -> str:
    needs = method.make().needs
    asked = [
        ("their loss", needs.loss),
        ("a proximal term", needs.proximal > 0),
        ("label counts", needs.label_evidence is not None),
    ]
    return ", ".join(what for what, wanted in asked if wanted) or "nothing"
