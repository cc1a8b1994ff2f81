"""What the paper claims, and by which rule each claim is judged: `paper/claims.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedraw_studies.scales import study_file
from fedraw_studies.server_state import model_copies

RULES = ("greater", "comparable", "below", "wider", "ordered", "within", "inside", "none")
DYNAMICS = "dynamics"
# Not of the runs: counted from a state, and measured by a benchmark.
SERVER_STATE, BENCHMARK = "server-state", "benchmark"


@dataclass(frozen=True)
class Part:
    """One comparison."""

    name: str
    rule: str
    artefact: str = ""
    metric: str = ""
    a: tuple[str, ...] = ()  # rows of the artefact; along a sweep several
    b: tuple[str, ...] = ()  # what it is set against; of several the best
    limit: float = 0.0  # margin or bound
    falling: bool = False
    beside: bool = False  # a condition of the claim, not the claim
    tables: tuple[str, ...] = ()  # of the training-free figures
    why: str = ""  # there is nothing to judge
    paper: str | None = None  # what the paper says, where no table has it


@dataclass(frozen=True)
class Claim:
    name: str
    text: str
    where: str
    parts: tuple[Part, ...]
    note: str = ""
    headline: bool = False


def load_claims() -> list[Claim]:
    """In the order of the file, which is that of their weight."""
    return [
        Claim(
            table["name"],
            table["claim"],
            table["where"],
            tuple(part for own in table["parts"] for part in _parts(own)),
            table.get("note", ""),
            table.get("headline", False),
        )
        for table in _file()["claims"]
    ]


def fixed_values(artefact: str, row: str) -> tuple[float, ...]:
    """Of what is counted or was measured elsewhere.

    >>> fixed_values("server-state", "CA2FL, N = 30")
    (35.0,)
    """
    table = _file()[artefact][row]
    return (model_copies(**table),) if artefact == SERVER_STATE else tuple(table)


def fixed_rows(artefact: str) -> list[str]:
    return list(_file()[artefact])


@cache
def _file() -> dict[str, Any]:
    return study_file("claims")


def _parts(table: Mapping[str, Any]) -> Iterator[Part]:
    for entry in table.get("each", [""]):
        metric, name = table.get("metric", "").replace("{}", entry), table.get("name", "{}, {m}")
        yield Part(
            name.replace("{}", entry).replace("{m}", metric).removesuffix(f", {entry}"),
            table["rule"],
            table.get("artefact", ""),
            metric,
            _rows(table.get("a", ()), entry),
            _rows(table.get("b", ()), entry),
            table.get("margin", table.get("bound", 0.0)),
            table.get("falling", False),
            table.get("beside", False),
            tuple(table.get("tables", ())),
            table.get("why", ""),
            table.get("paper"),
        )


def _rows(rows: str | Sequence[str], entry: str) -> tuple[str, ...]:
    several = [rows] if isinstance(rows, str) else rows
    return tuple(row.replace("{}", entry) for row in several)
