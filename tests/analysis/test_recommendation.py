"""Which setting is recommended: small grids of settings, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedraw.analysis.recommendation import Recommendation, recommend
from fedraw.analysis.what_if import WhatIf

LABELS = ("common", "odd")


def grid(**odd: float) -> list[WhatIf]:
    """Settings by name: `fedraw_20_capped=0.9` is FedRAW, K = 20, with a cap, odd at 0.9."""
    usual = {"fedfa_10": 0.1, "fedraw_10": 0.2, "fedraw_20": 0.2, "fedbuff_10": 0.05}
    usual |= {"ca2fl_10": 0.05, "fedfa_20": 0.1, "fedbuff_20": 0.05, "ca2fl_20": 0.05}
    settings = []
    for name, share in (usual | odd).items():
        method, size, *capped = name.split("_")
        cap = 0.3 if capped else None
        settings.append(WhatIf(method, int(size), cap, np.array([1.1, share]), None))
    return settings


def recommended(settings: Sequence[WhatIf]) -> Recommendation:
    plain = next(s for s in settings if (s.method, s.buffer_size) == ("fedfa", 10))
    return recommend(LABELS, plain.label_influence, settings, 10)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"fedfa_10": 0.9, "fedraw_10": 2.0}, ("fedfa", 10, None)),
        ({"fedraw_10": 0.9}, ("fedraw", 10, None)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.89}, ("fedraw", 10, 0.3)),
        ({"fedraw_10": 0.9, "fedraw_10_capped": 0.82}, ("fedraw", 10, None)),
        ({"fedraw_20": 0.9, "fedbuff_10": 0.5}, ("fedraw", 20, None)),
        ({"fedbuff_10": 0.5, "ca2fl_10": 0.5}, ("fedbuff", 10, None)),
        ({"ca2fl_10": 0.4}, ("ca2fl", 10, None)),
        # Nothing keeps it: 0.6 of the 0.8 that FedRAW needs is more than 0.2 of CA2FL's 0.3.
        ({"fedraw_20": 0.6, "ca2fl_10": 0.2}, ("fedraw", 20, None)),
        ({"fedraw_20": 0.4, "ca2fl_10": 0.2}, ("ca2fl", 10, None)),
    ],
)
def test_the_least_change_that_keeps_every_label(
    odd: dict[str, float], expected: tuple[str, int, float | None]
) -> None:
    found = recommended(grid(**odd))
    assert (found.method, found.buffer_size, found.cap) == expected
    assert found.label == "odd"


def test_the_words_name_the_label_and_both_shares() -> None:
    found = recommended(grid(fedraw_10=1.18, fedraw_10_capped=1.18))
    assert str(found) == (
        "FedRAW, K=10, cap 0.3: label odd goes from 0.10 to 1.18 of its fair share; "
        "no label is at risk then"
    )


def test_where_nothing_helps_it_says_so() -> None:
    words = str(recommended(grid()))
    assert "yet label odd stays at 0.20: more holders, or quicker ones, are needed" in words
