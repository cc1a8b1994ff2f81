"""Settings from tables: what each type of a field accepts, and what the errors say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fedraw.core.settings import Settings, checked_settings
from fedraw.errors import BadInput
from fedraw.strategies.qfedavg import QFedAvg


@dataclass(frozen=True)
class Section(Settings):
    events: int = 1
    lr: float = 0.1
    nesterov: bool = False
    name: str = "a"
    kind: Literal["one", "two"] = "one"
    layers: tuple[int, ...] = ()
    ratio: float | None = None
    trace: Path | None = None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("events", 2**63 - 1, 2**63 - 1),
        ("events", -(2**63), -(2**63)),
        ("lr", 1, 1.0),
        ("lr", 0.5, 0.5),
        ("nesterov", True, True),
        ("kind", "two", "two"),
        ("layers", [2, 3], (2, 3)),
        ("layers", (2, 3), (2, 3)),
        ("ratio", 10, 10.0),
        ("trace", "a/b.csv", Path("a/b.csv")),
    ],
)
def test_values_get_the_type_of_their_field(key: str, value: Any, expected: Any) -> None:
    found = getattr(Section.read({key: value}, "section"), key)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("events", 2**63, "section.events = 9223372036854775808 must be a whole number"),
        ("events", 2**63, "a whole number has at most 64 bits"),
        ("events", -(2**63) - 1, "a whole number has at most 64 bits"),
        ("events", 1.0, "section.events = 1.0 must be a whole number"),
        ("events", True, "section.events = True must be a whole number"),
        ("lr", math.nan, "section.lr = nan must be a finite number"),
        ("lr", math.inf, "section.lr = inf must be a finite number"),
        ("lr", "0.1", "section.lr = '0.1' must be a finite number"),
        ("lr", False, "section.lr = False must be a finite number"),
        ("lr", 2**63, "a whole number has at most 64 bits"),
        ("nesterov", 1, "section.nesterov = 1 must be true or false"),
        ("name", 7, "section.name = 7 must be a text"),
        ("kind", "three", "section.kind = 'three' must be 'one' or 'two'"),
        ("layers", [1, "2"], r"section.layers = \[1, '2'\] must be a list, each a "),
        ("layers", 3, "section.layers = 3 must be a list, each a whole number"),
        ("layers", [2**63], "a whole number has at most 64 bits"),
        ("ratio", "fast", "section.ratio = 'fast' must be a finite number"),
        ("trace", 1, "section.trace = 1 must be a text"),
    ],
)
def test_other_values_are_refused_by_name(key: str, value: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Section.read({key: value}, "section")


def test_a_setting_that_the_data_determine_is_a_key_of_servers_and_not_of_specs() -> None:
    assert checked_settings(QFedAvg, {"lr": 1}, "strategy") == {"lr": 1.0}
    with pytest.raises(BadInput, match=r"\[strategy\] has the unknown key 'lr'; known: name, p, q"):
        checked_settings(QFedAvg, {"lr": 1}, "strategy", of_method=True)
