"""The audit as a whole: numbers one can follow by hand, and what must hold of any federation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedraw
from fedraw.auditing.methods import COLUMNS, METHODS
from fedraw.auditing.prediction import audit
from fedraw.errors import BadInput
from fedraw.strategies.catalog import CATALOG, settings_of

TEN = {i: {"common": 90} for i in range(9)} | {9: {"common": 50, "odd": 40}}
SLOW = dict.fromkeys(range(9), 1.0) | {9: 4.0}

FEDERATIONS = st.dictionaries(
    st.integers(0, 40),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 500), min_size=1),
    min_size=2,
    max_size=12,
)


def test_by_hand() -> None:
    """Client 9 has rate 1/4 of 9.25, and 4/9 of its samples are odd: 40 of 900 in all."""
    found = audit(TEN, SLOW, buffer=5)
    share = 0.25 / 9.25
    assert found.rare_labels == ("odd",)
    assert found.coverage.tolist() == [10, 1]
    assert found.rare_presence["fedfa"] == pytest.approx(100 * (1 - (1 - share) ** 5))
    assert found.label_influence["fedfa"][1] == pytest.approx(share * (4 / 9) / (40 / 900))
    assert found.label_influence["ca2fl"][1] == pytest.approx(0.1 * (4 / 9) / (40 / 900))
    # FedRAW: client 9 in the buffer with e_4(nine ones)/4 of e_5; then it weighs S = 5/90 + 4/9.
    with_nine, without = 126 / 4, 126.0  # (9 choose 4) and (9 choose 5) subsets
    chance = with_nine / (with_nine + without)
    score, common = 50 / 90 / 10 + 40 / 90, 1 / 10
    weight = chance * score / (score + 4 * common)
    assert found.presence["fedraw"][9] == pytest.approx(chance)
    assert found.influence["fedraw"][9] == pytest.approx(weight, rel=1e-5)
    assert found.label_influence["fedraw"][1] == pytest.approx(weight * 10, rel=1e-5)
    # Two labels: the median of their fair shares is a half, of their coverage more than a quarter.
    assert found.standing["fedfa"][1] == pytest.approx((share * (4 / 9) / 0.5 * share) ** 0.5)
    assert found.verdicts["fedfa"] == ("kept", "lost")
    # One client in G, of share p: it comes every 1/p arrivals.
    assert found.rare_staleness == pytest.approx(1 / share)
    # Replay: a score above twice the median of 1/10, which nine others have: W = S / (S + 0.9).
    assert found.replayed.tolist() == [9]
    rare = score / (score + 9 * common)
    alone = share**5  # five arrivals of client 9: then it has it all
    assert found.influence["fedraw-replay"][9] == pytest.approx(rare * (1 - alone) + alone)
    assert found.presence["fedraw-replay"][9] == 1
    assert found.rare_presence["fedraw-replay"] == 100
    assert found.presence["fedraw-replay"][0] == pytest.approx(1 - (1 - 1 / 9.25) ** 5)
    assert found.holders_share == pytest.approx([1, share])
    assert found.arrivals_until_heard(1) == pytest.approx(12 / share)


@settings(deadline=None, max_examples=40)
@given(counts=FEDERATIONS, data=st.data())
def test_of_any_federation(counts: dict[int, dict[str, int]], data: st.DataObject) -> None:
    times = {client: data.draw(st.floats(1e-3, 1e3)) for client in counts}
    size = data.draw(st.integers(1, len(counts)))
    found = audit(counts, times, size)
    for method in METHODS:
        assert found.influence[method].sum() == pytest.approx(1)
        # Weighted by fair shares, the multiples of the fair shares are one on average.
        assert (found.label_influence[method] @ found.fair_share) == pytest.approx(1)
        assert np.all((found.presence[method] >= 0) & (found.presence[method] <= 1 + 1e-12))
    assert found.presence["fedraw"].sum() == pytest.approx(size)
    everyone = {label for histogram in counts.values() for label in histogram}
    assert set(found.labels) == everyone
    order = found.worst_first()
    assert sorted(order) == list(range(len(everyone)))
    assert str(found.recommendation)


@settings(deadline=None, max_examples=25)
@given(counts=FEDERATIONS, factor=st.floats(1e-3, 1e3))
def test_only_ratios_of_times_matter(counts: dict[int, dict[str, int]], factor: float) -> None:
    times = {client: 1.0 + client for client in counts}
    one = audit(counts, times, 2)
    other = audit(counts, {client: factor * s for client, s in times.items()}, 2)
    for method in METHODS:
        np.testing.assert_allclose(
            one.label_influence[method], other.label_influence[method], rtol=1e-6
        )


def test_equal_clients_have_fair_shares_under_every_method() -> None:
    found = audit({i: {"a": 10, "b": 30} for i in range(12)}, buffer=4)
    for method in METHODS:
        np.testing.assert_allclose(found.label_influence[method], 1, rtol=1e-6)
    assert found.rare_labels == ()
    assert found.rare_presence == dict.fromkeys(METHODS)
    assert found.slower == ()
    assert found.recommendation.method == "fedavg"
    assert "no label is at risk" in str(found.recommendation)


def test_a_cap_takes_weight_from_the_rare_client() -> None:
    free = audit(TEN, SLOW, 5)
    capped = audit(TEN, SLOW, 5, cap=0.25)
    assert capped.influence["fedraw"][9] < free.influence["fedraw"][9]
    # Present a fifth of the time, and then it weighs the cap.
    assert capped.influence["fedraw"][9] == pytest.approx(0.2 * 0.25, rel=1e-2)
    np.testing.assert_array_equal(capped.influence["fedfa"], free.influence["fedfa"])


def test_slower_holders_are_worse_off_but_for_ca2fl() -> None:
    rows = audit(TEN, None, 5).slower
    assert [row.ratio for row in rows] == [1, 2, 5, 10, 20]
    for before, after in itertools.pairwise(rows):
        for method in ("fedfa", "fedbuff", "fedraw"):
            one, other = before.settings[method], after.settings[method]
            assert other.label_influence[1] < one.label_influence[1]
            assert one.rare_presence is not None
            assert other.rare_presence is not None
            assert other.rare_presence < one.rare_presence
        cached = [row.settings["ca2fl"].label_influence[1] for row in (before, after)]
        assert cached[0] == cached[1]
        # Replay weighs what it keeps alike, but for rounds of nothing else.
        for row in (before, after):
            replayed = row.settings["fedraw-replay"]
            assert replayed.label_influence[1] == pytest.approx(3.57, abs=0.01)
            assert replayed.rare_presence == 100
    # Four times as slow than all others is what SLOW says.
    slow = audit(TEN, SLOW, 5)
    quick = audit(TEN, dict.fromkeys(range(10), 1.0), 5)
    assert slow.label_influence["fedraw"][1] < quick.label_influence["fedraw"][1]


def test_times_known_badly_leave_much_open_and_well_little() -> None:
    widths = []
    seconds = np.array([SLOW[i] for i in range(10)])
    for factor in (2.0, 1.1):
        found = audit(TEN, SLOW, 5, interval=(seconds / factor, seconds * factor))
        assert found.standing_interval is not None
        interval = found.standing_interval["fedraw"]
        assert interval.low[1] < found.standing["fedraw"][1] < interval.high[1]
        widths.append(interval.high[1] - interval.low[1])
    assert widths[0] > 3 * widths[1]
    assert audit(TEN, SLOW, 5).standing_interval is None
    # Never heard: only one end of the interval is known.
    open_end = np.where(seconds > 1, np.inf, seconds)
    found = audit(TEN, SLOW, 5, interval=(seconds / 2, open_end))
    assert found.standing_interval is not None
    assert np.isfinite(found.standing_interval["fedraw"].high).all()


def test_defaults_are_those_of_the_strategies() -> None:
    """A simulation and a server make strategies from the catalogue, with the same defaults."""
    many = {i: {"common": 9} for i in range(40)}
    made = {method: settings_of(CATALOG[method].make()) for method in METHODS}
    buffers = {method: own["buffer"] for method, own in made.items() if "buffer" in own}
    assert buffers.pop("fedvarp") == 1, "with a larger one it is CA2FL"
    assert set(buffers.values()) == {audit(many).buffer}
    assert made["fedraw"]["cap"] == "none"
    assert audit(many).cap is None
    assert audit(TEN).buffer == 10
    assert audit({i: TEN[i] for i in (0, 1, 9)}).buffer == 3, "with 3 clients, 10 never fills"
    # Client 9 has 2.2 times the median score: whether replay keeps it is the strategy's threshold.
    counts = {i: {"common": 90} for i in range(9)} | {9: {"common": 78, "odd": 12}}
    scores = audit(counts).scores
    assert scores[9] / scores[0] == pytest.approx((78 / 90 / 10 + 12 / 90) * 10)
    assert made["fedraw-replay"]["threshold"] < scores[9] / scores[0] < 2.3
    assert audit(counts).replayed.tolist() == [9]


def test_what_a_notebook_shows_is_short() -> None:
    assert repr(audit(TEN, SLOW, 5)) == (
        "<Audit of 10 clients, 2 labels, K=5; FedAvg: 0 lost, 1 at risk; FedFa: 1 lost, 0 at "
        "risk; FedBuff: 1 lost, 0 at risk; CA2FL: 0 lost, 1 at risk; FedRAW: 0 lost, 1 at risk; "
        "Replay: 0 lost, 0 at risk; recommends Debt replay, K=5>"
    )


def test_what_a_notebook_shows_names_labels_that_are_late() -> None:
    shown = repr(audit(TEN, SLOW, 5, arrivals=10))
    assert shown.startswith(
        "<Audit of 10 clients, 2 labels, K=5; FedAvg: 0 lost, 1 at risk, 1 late"
    )


def test_a_label_table_does_as_well_as_histograms() -> None:
    table = fedraw.LabelTable.from_counts(TEN)
    one, other = audit(table, [SLOW[i] for i in range(10)], 5), audit(TEN, SLOW, 5)
    for method in METHODS:
        np.testing.assert_array_equal(one.label_influence[method], other.label_influence[method])
    assert fedraw.audit is audit


def test_one_client_and_one_label_just_work() -> None:
    alone = audit({"only": {"x": 3}}, buffer=1)
    assert alone.label_influence["fedraw"].tolist() == [1.0]
    assert alone.presence["fedraw"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"buffer": 11}, "buffer of 11 is larger.*with 10 clients.*1 to 10"),
        ({"buffer": 0}, "buffer of 0 holds nothing"),
        ({"cap": 0.1}, r"cap = 0\.1 is below 1/5"),
        ({"seconds": SLOW | {3: 1e-30}}, "client 9 takes 4 seconds and client 3 1e-30.*units"),
        ({"rare": ["od"]}, "rare label 'od': did you mean 'odd'"),
        ({"seconds": {0: 1.0}}, "client 1 has no time"),
        ({"seconds": SLOW | {"x": 1.0}}, "client 'x', which is not in the label counts"),
        ({"seconds": SLOW | {3: 0.0}}, "client 3: 0 is not a valid time"),
        ({"seconds": SLOW | {3: float("nan")}}, "client 3: nan is not a valid time"),
        ({"seconds": [1.0, 2.0]}, "2 times for 10 clients"),
        ({"counts": {}}, "no client reports any labels"),
        ({"counts": {"a": {}}}, "client 'a' reports no labels"),
    ],
)
def test_bad_input(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"counts": TEN, "seconds": SLOW, "buffer": 5} | changes
    with pytest.raises(BadInput, match=words):
        audit(**arguments)


def test_a_hundred_thousand_clients_agree_with_a_sample_of_themselves() -> None:
    """Copies of one small federation: each copy's clients weigh a copy's part."""
    rng = np.random.default_rng(0)
    small = {i: {f"l{j}": int(rng.integers(1, 30)) for j in range(3)} for i in range(20)}
    small |= {20: {"l0": 5, "odd": 20}}
    seconds = rng.uniform(0.5, 3, 21)
    copies = 5000
    many = {(i, c): small[i] for c in range(copies) for i in small}
    table = fedraw.LabelTable.from_counts({f"{i}-{c}": h for (i, c), h in many.items()})
    found = audit(table, np.tile(seconds, copies), 10)
    assert len(found.clients) == 105_000
    for method in METHODS:
        weight = found.influence[method].reshape(copies, 21)
        if "replay" in method:  # of 5000 who are as rare, or as much in debt, it keeps ten
            assert found.replayed.tolist() == [21 * c + 20 for c in range(10)]
            weight = weight[10:]
        np.testing.assert_allclose(weight, np.broadcast_to(weight[0], weight.shape), rtol=1e-9)
        assert found.influence[method].sum() == pytest.approx(1)
    # The buffer hardly ever holds a client twice among so many: FedRAW's is WeightOnly's then.
    only = next(s for s in found.what_if if (s.method, s.buffer) == ("fedraw-weight-only", 10))
    np.testing.assert_allclose(found.label_influence["fedraw"], only.label_influence, rtol=2e-3)


def test_grouping_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 4,096 clients those alike are taken together: against every client for itself."""
    rng = np.random.default_rng(1)
    clients, labels = 5000, 60
    start, stride = (labels * rng.random(clients) ** 3).astype(int), rng.integers(1, 20, clients)
    column = (start[:, None] + stride[:, None] * np.arange(3)) % labels
    table = fedraw.LabelTable.from_entries(
        list(range(clients)),
        list(range(labels)),
        np.repeat(np.arange(clients), 3),
        column.ravel(),
        rng.integers(1, 200, 3 * clients),
    )
    seconds = np.exp(rng.normal(0, 1, clients))
    grouped = audit(table, seconds, 10)
    monkeypatch.setattr("fedraw.auditing.presence.MOST_GROUPS", clients)
    exact = audit(table, seconds, 10)
    for method in METHODS:
        own, alone = grouped.influence[method], exact.influence[method]
        np.testing.assert_allclose(own, alone, rtol=0.02)
        np.testing.assert_allclose(
            grouped.label_influence[method], exact.label_influence[method], rtol=5e-3
        )
    for one, other in zip(grouped.what_if, exact.what_if, strict=True):
        np.testing.assert_allclose(one.label_influence, other.label_influence, rtol=0.04)


@given(FEDERATIONS)
@settings(max_examples=30, deadline=None)
def test_what_is_endangered_is_what_the_verdicts_say(counts: dict[int, dict[str, int]]) -> None:
    found = audit(counts, buffer=1)
    said = {
        (method, label): word
        for method in COLUMNS
        for label, word in zip(found.labels, found.verdicts[method], strict=True)
    }
    assert set(found.endangered("lost")) == {pair for pair, w in said.items() if w == "lost"}
    assert set(found.endangered("at risk")) == {pair for pair, w in said.items() if w != "kept"}
    assert set(found.endangered("at risk", ["ca2fl"])) <= set(found.endangered("at risk"))


@given(
    st.lists(
        st.floats(min_value=0, exclude_min=True, allow_infinity=False), min_size=10, max_size=10
    )
)
@example([1e-320] * 10)
@example([5e-324, *[1e-320] * 9])
@example([1.7e308] * 10)
@example([1e300, *[1e308] * 9])
@settings(max_examples=40, deadline=None)
def test_any_times_give_finite_figures_or_a_refusal(times: list[float]) -> None:
    try:
        found = audit(TEN, times, buffer=5)
    except BadInput as problem:
        assert "client" in str(problem)
        return
    for method in METHODS:
        assert np.isfinite(found.standing[method]).all()
        assert np.isfinite(found.influence[method]).all()
    assert np.isfinite(found.holders_slowness).all()
