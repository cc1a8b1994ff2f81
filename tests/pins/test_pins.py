"""The redesign of the library changes nothing that a user sees."""

from __future__ import annotations

import json

import pytest
from tools.pins import Pins, difference, found, pinned

PINNED = pinned()


@pytest.fixture(scope="module")
def now() -> Pins:
    result: Pins = json.loads(json.dumps(found()))
    return result


@pytest.mark.parametrize("part", PINNED)
def test_specs_summaries_and_views_are_what_they_were(now: Pins, part: str) -> None:
    assert now[part].keys() == PINNED[part].keys()
    for name, pin in PINNED[part].items():
        assert difference(pin, now[part][name], name) is None


def test_a_difference_is_found_wherever_it_is() -> None:
    pin = {"a": [1.0, {"b": "x"}]}
    assert difference(pin, {"a": [1.0 + 1e-12, {"b": "x"}]}) is None
    for other in ({"a": [1.1, {"b": "x"}]}, {"a": [1.0]}, {"a": [1.0, {"b": "x", "c": 1}]}, {}):
        assert difference(pin, other) is not None
