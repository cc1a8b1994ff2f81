"""What a run of limited length changes, and FedAvg, which waits for all sites."""

from __future__ import annotations

import numpy as np
import pytest

from fedraw.auditing.horizon import (
    ADDING,
    AVERAGING,
    WAITING,
    Horizon,
    cautions,
    fit_of,
    round_time,
)
from fedraw.auditing.methods import METHODS, Verdict
from fedraw.auditing.prediction import Audit, audit

# Three quick sites of 90 samples, and a slow one of 30 that alone holds `odd`.
COUNTS = {site: {"common": 90} for site in "abc"} | {"d": {"common": 10, "odd": 20}}
SECONDS = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 4.0}


def found(**options: object) -> Audit:
    return audit(COUNTS, SECONDS, 2, **options)  # type: ignore[arg-type]


def test_fedavg_hears_every_site_in_every_round_and_weighs_it_by_its_samples() -> None:
    one = found()
    np.testing.assert_allclose(one.influence["fedavg"], [0.3, 0.3, 0.3, 0.1])
    np.testing.assert_array_equal(one.presence["fedavg"], 1)
    assert one.rare_presence["fedavg"] == 100
    # Two thirds of a tenth of the model, of 20 in 300 samples: exactly fair.
    assert one.label_influence["fedavg"][1] == pytest.approx(1)


def test_many_clients_are_grouped_without_a_change_for_fedavg() -> None:
    rng = np.random.default_rng(1)
    many = {i: {"a": int(n)} for i, n in enumerate(rng.integers(1, 100, 5000))}
    many[0] |= {"odd": 50}
    one = audit(many, rng.uniform(1, 9, 5000))
    np.testing.assert_allclose(one.influence["fedavg"], one.samples / one.samples.sum())
    grid = next(s for s in one.what_if if (s.method, s.buffer) == ("fedavg", one.buffer))
    np.testing.assert_allclose(grid.standing, one.standing["fedavg"], rtol=1e-6)


def test_a_horizon_is_counted_in_arrivals_and_aggregations() -> None:
    one = found(arrivals=130)
    # The slow site sends 1/4 of 13/4 of all arrivals: 10 of 130.
    assert one.updates.tolist() == pytest.approx([130, 10])
    assert one.horizon.updates("fedavg").tolist() == pytest.approx([130, 32.5])
    counted = {m: one.aggregations(m) for m in ("fedavg", "fedbuff", "fedraw", "ace")}
    assert counted == {"fedavg": 32.5, "fedbuff": 65, "fedraw": 130, "ace": 130}


@pytest.mark.parametrize(
    ("rate", "many", "expected"),
    [
        ([1.0], [1], 1.0),
        ([1.0], [2], 1.5),  # E max = 1 + 1/2, and two arrivals take 1
        ([1.0, 0.5], [1, 1], (1 + 2 - 1 / 1.5) * 1.5 / 2),  # E max = 1/r + 1/q − 1/(r + q)
    ],
)
def test_a_round_takes_as_long_as_its_slowest_client(
    rate: list[float], many: list[int], expected: float
) -> None:
    assert round_time(np.array(rate), np.array(many)) == pytest.approx(expected, rel=1e-3)


def test_every_method_has_the_fit_of_its_family() -> None:
    families = {method: fit_of(method) for method in METHODS}
    assert {m for m, fit in families.items() if fit is WAITING} == {"fedavg"}
    assert {m for m, fit in families.items() if fit is AVERAGING} == {"fedfa", "fedraw", "area"}
    assert {"fedbuff", "ca2fl", "fedraw-replay"} <= {m for m, f in families.items() if f is ADDING}


@pytest.mark.parametrize("method", METHODS)
def test_a_longer_run_never_lowers_the_expected_recall(method: str) -> None:
    share, coverage = np.array([0.01, 0.3, 1.0]), np.array([1, 3, 9])
    standing = np.array([0.05, 0.3, 1.0])
    recalls = [
        Horizon(arrivals, 9, share, coverage).recall(method, standing, 4)
        for arrivals in (1, 10, 200, 3000, 10**6)
    ]
    assert np.all(np.diff(recalls, axis=0) >= 0)
    assert np.all(np.diff(recalls[2]) > 0), "nor does a higher standing"


@pytest.mark.parametrize(
    ("arrivals", "standing", "expected"),
    [(20, 0.5, "late"), (3000, 0.5, "kept"), (20, 0.1, "at risk"), (3000, 0.01, "lost")],
)
def test_only_a_label_that_its_standing_keeps_is_late(
    arrivals: int, standing: float, expected: Verdict
) -> None:
    run = Horizon(arrivals, 20, np.array([0.5]), np.array([10]))
    assert run.verdicts("fedbuff", np.array([standing]), 10) == (expected,)


@pytest.mark.parametrize(
    ("arrivals", "clients", "words"),
    [
        (3000, 12, []),
        (3000, 32, []),
        (600, 12, ["runs of 3,000 arrivals, not of 600."]),
        (9000, 12, ["runs of 3,000 arrivals, and none was longer."]),
        (3000, 4, ["12 to 32 sites, not with 4."]),
        (200, 1000, ["runs of 3,000 arrivals, not of 200.", "12 to 32 sites, not with 1,000."]),
    ],
)
def test_what_was_not_calibrated_is_said(arrivals: int, clients: int, words: list[str]) -> None:
    said = cautions(arrivals, clients)
    assert [sentence.endswith(end) for sentence, end in zip(said, words, strict=True)] == [
        True for _ in words
    ]
