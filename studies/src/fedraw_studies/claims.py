"""The paper's claims as data, read from `paper/claims.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedraw_studies.scales import study_file

RULES = ("greater", "comparable", "below", "wider", "ordered", "within", "inside", "none")


@dataclass(frozen=True)
class Part:
    """One comparison that a claim consists of."""

    name: str
    rule: str
    artefact: str = ""
    metric: str = ""
    a: tuple[str, ...] = ()  # rows of the artefact; a sweep has several
    b: tuple[str, ...] = ()  # the rows to compare with; of several the best of each seed counts
    limit: float = 0.0  # margin or bound
    falling: bool = False
    beside: bool = False  # a condition of the claim, not the claim itself
    tables: tuple[str, ...] = ()  # training-free tables, for the rule "inside"
    why: str = ""  # why there is nothing to judge
    paper: str | None = None  # what the paper says, where no table prints it


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and its parts."""

    name: str
    text: str
    where: str
    parts: tuple[Part, ...]
    note: str = ""
    headline: bool = False


def load_claims() -> list[Claim]:
    """Load all claims, the most important first."""
    return [
        Claim(
            table["name"],
            table["claim"],
            table["where"],
            tuple(part for own in table["parts"] for part in _parts(own)),
            table.get("note", ""),
            table.get("headline", False),
        )
        for table in study_file("claims")["claims"]
    ]


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
