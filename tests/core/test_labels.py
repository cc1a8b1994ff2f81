from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.core.histograms import Counts, federations

from fedraw.core.labels import LARGEST_COUNT, LabelTable
from fedraw.errors import BadInput


def test_shares_are_of_the_clients_own_samples() -> None:
    table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"dog": 5}})
    assert table.clients == ("a", "b")
    assert table.labels == ("cat", "dog")
    assert table.share.tolist() == [0.75, 0.25, 1.0]
    assert table.totals().tolist() == [4, 5]


def test_coverage_counts_holders_not_samples() -> None:
    table = LabelTable.from_counts({1: {"cat": 900, "dog": 1}, 2: {"dog": 1}, 3: {"dog": 7}})
    assert dict(zip(table.labels, table.coverage().tolist(), strict=True)) == {"cat": 1, "dog": 3}


def test_a_claimed_share_without_a_count_covers_nothing() -> None:
    """As a misreport makes it; one sample, on the other hand, is enough to hold a label."""
    start, column, count = np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([1, 0, 5])
    table = LabelTable(("a", "b"), ("x", "y"), start, column, count, np.array([1.0, 0.9, 1.0]))
    assert table.coverage().tolist() == [2, 0]


def test_fair_share_weighs_every_sample_the_same() -> None:
    table = LabelTable.from_counts({1: {"cat": 6}, 2: {"cat": 1, "dog": 1}})
    assert table.fair_shares().tolist() == [7 / 8, 1 / 8]


def test_a_zero_count_is_as_good_as_an_absent_one() -> None:
    table = LabelTable.from_counts({1: {"cat": 2, "dog": 0}, 2: {"dog": 1}})
    assert table.coverage().tolist() == [1, 1]
    assert table.row(0) == slice(0, 1)


def test_entries_may_come_in_any_order() -> None:
    rows, columns, counts = [1, 0, 1], [1, 0, 0], np.array([3, 2, 1])
    table = LabelTable.from_entries(["a", "b"], ["x", "y"], rows, columns, counts)
    assert table.row_of_entry().tolist() == [0, 1, 1]
    assert table.column.tolist() == [0, 0, 1]
    assert table.count.tolist() == [2, 1, 3]


def test_counts_of_whole_floats_and_numpy_integers_are_counts() -> None:
    counts: Any = {"a": {"x": 3.0, "y": np.int32(2), "z": np.float32(1)}}
    assert LabelTable.from_counts(counts).count.tolist() == [3, 2, 1]


def test_the_largest_count_is_still_exact() -> None:
    table = LabelTable.from_counts({"a": {"x": LARGEST_COUNT}, "b": {"x": 1}})
    assert table.totals().tolist() == [2**53, 1]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (-1, r"count -1(\.0)? is negative"),
        (-np.inf, "count -inf is negative"),
        (2.5, r"count 2\.5 is fractional"),
        (np.nan, "count nan is not a number"),
        (np.inf, "count inf is too large"),
        (2**54, r"count (18014398509481984|1\.8014\d+e\+16) is too large"),
        (2**63, r"count (9223372036854775808|9\.223372036854776e\+18) is too large"),
        (10**30, r"count 1e\+30 is too large"),
        pytest.param(10**400, "count inf is too large", id="beyond any float"),
        pytest.param(-(10**400), "count -inf is negative", id="below any float"),
        (True, "count True is not a number"),
        (np.True_, "count .*True.* is not a number"),
        ("7", "count '7' is not a number"),
        (None, "count None is not a number"),
        ([1, 2], r"count \[1, 2\] is not a number"),
        (1j, "count 1j is not a number"),
    ],
)
@pytest.mark.parametrize("company", [{}, {"cat": 1}, {"cat": 2.0}, {"cat": np.int64(4)}])
def test_what_is_no_count_is_named(count: Any, words: str, company: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"client 'b', label 'dog': {words}.*whole number from 0 on"):
        LabelTable.from_counts({"a": {"cat": 3}, "b": {**company, "dog": count}})


@pytest.mark.parametrize("histogram", [[1, 2], 3, "cat", None])
def test_a_client_without_a_histogram_is_named(histogram: Any) -> None:
    told = f"client 'b': {histogram!r} is not a histogram; give the count of each label, such as"
    with pytest.raises(BadInput, match=re.escape(told)):
        LabelTable.from_counts({"a": {"cat": 3}, "b": histogram})


def test_an_array_with_a_bad_count_names_the_row_it_belongs_to() -> None:
    with pytest.raises(BadInput, match="client 'b', label 'x': count -4 is negative"):
        LabelTable.from_entries(["a", "b"], ["x"], [1, 0], [0, 0], np.array([-4, 1]))


def test_a_boolean_array_is_no_counts() -> None:
    with pytest.raises(BadInput, match=r"client 'a', label 'x': count .*True.* is not a number"):
        LabelTable.from_entries(["a"], ["x"], [0], [0], np.array([True]))


@pytest.mark.parametrize("silent", [{}, {"cat": 0}])
def test_a_client_without_labels_has_no_score(silent: dict[Any, int]) -> None:
    with pytest.raises(BadInput, match=r"client 'b' reports no labels.*leave it out or report"):
        LabelTable.from_counts({"a": {"cat": 1}, "b": silent})


def test_of_many_clients_without_labels_ten_are_named() -> None:
    counts: Counts = {0: {"cat": 1}, **{i: {} for i in range(1, 14)}}
    with pytest.raises(BadInput, match="client 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more reports"):
        LabelTable.from_counts(counts)


def test_a_label_nobody_holds_has_no_coverage() -> None:
    with pytest.raises(BadInput, match="label 'unicorn' is held by no client; leave it out"):
        LabelTable.from_counts({"a": {"cat": 1, "unicorn": 0}})
    with pytest.raises(BadInput, match="label 'unicorn' is held by no client; leave it out"):
        LabelTable.from_matrix("a", ["cat", "unicorn"], np.array([[1, 0]]))


def test_a_label_reported_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="client 'a' reports label 'y' twice; add the counts"):
        LabelTable.from_entries(["a"], ["x", "y"], [0, 0, 0], [1, 0, 1], [1, 2, 3])


def test_a_federation_needs_a_client() -> None:
    with pytest.raises(BadInput, match=r"no client reports any labels.*at least one client"):
        LabelTable.from_counts({})


@given(federations)
def test_a_table_says_what_it_was_told(counts: Counts) -> None:
    table = LabelTable.from_counts(counts)
    told = {
        client: {
            table.labels[column]: n
            for column, n in zip(
                table.column[table.row(i)].tolist(), table.count[table.row(i)].tolist(), strict=True
            )
        }
        for i, client in enumerate(table.clients)
    }
    assert told == counts
    assert np.add.reduceat(table.share, table.start[:-1]) == pytest.approx(1)


def test_more_samples_than_64_bits_hold_are_refused() -> None:
    counts = {client: {"a": 2**53} for client in range(600)}
    with pytest.raises(BadInput, match=r"5\.4e\+18 samples in total are too many"):
        LabelTable.from_counts(counts)
