from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from fedraw.auditing.prediction import audit, seconds_of
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import holders, rare_labels_of
from fedraw.errors import BadInput

COUNTS: dict[str, dict[Any, int]] = {
    "oslo": {"flu": 5, "cold": 5},
    "bergen": {"flu": 1, "cold": 9, 7: 2},
    "bodø": {"flu": 3, "cold": 1},
}
TABLE = LabelTable.from_counts(COUNTS)


def test_counts_or_a_table() -> None:
    assert audit(COUNTS, buffer=2).clients == TABLE.clients
    assert audit(TABLE, buffer=2).labels == TABLE.labels


LONG = [
    {"site": 1, "label": "flu", "count": 5}, {"site": 1, "label": "cold", "count": 5},
    {"site": 2, "label": "cold", "count": 9},
]  # fmt: skip
SAMPLES = pandas.DataFrame({"site": [1, 1, 2], "illness": ["flu", "cold", "cold"]})
ROWS = pandas.DataFrame({"site": [1] * 10 + [2] * 9, "illness": ["flu"] * 5 + ["cold"] * 14})
WIDE = pandas.DataFrame({"site": [1, 2], "flu": [5, np.nan], "cold": [5, 9]})


@pytest.mark.parametrize(
    "counts",
    [
        pandas.DataFrame(LONG),
        pandas.DataFrame(LONG).rename(columns={"site": "client"}),
        WIDE,
        WIDE.set_index("site"),
        pandas.DataFrame(LONG).pivot(index="site", columns="label", values="count"),
        pandas.crosstab(ROWS["site"], ROWS["illness"]),
    ],
    ids=["long", "client", "wide", "index", "pivot", "crosstab"],
)
def test_a_dataframe_is_read_like_a_file(counts: Any, tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    counts.reset_index()[[name for name in counts.reset_index() if name != "index"]].to_csv(
        path, index=False
    )
    for given in (counts, path, str(path)):
        found = audit(given, {1: 1.0, 2: 4.0}, buffer=2)
        assert found.clients == ("1", "2")
        assert dict(zip(found.labels, found.coverage, strict=True)) == {"flu": 1, "cold": 2}
        assert found.samples.tolist() == [10, 9]
        assert found.seconds.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            pandas.DataFrame(LONG).rename(columns={"site": "hospital"}),
            "the DataFrame: column 'client' is missing (found 'hospital', 'label', 'count')",
        ),
        (
            pandas.DataFrame([*LONG, {"site": 2, "label": "flu", "count": -3}]),
            "the DataFrame: row 4, column 'count': '-3' is negative",
        ),
        (
            pandas.DataFrame([*LONG, LONG[0]]),
            "the DataFrame: row 4: client '1' and label 'flu' are already on row 1; keep one row",
        ),
        (
            SAMPLES,
            "row 1, column 'illness': 'flu' is not a count; a label count is a whole number from 0 "
            "on; or if each row is one sample, count the samples first, for example "
            "with pandas.crosstab(data['site'], data[...])",
        ),
        (
            SAMPLES.assign(illness=1),
            "keep one row for each client; or if each row is one sample, count the samples first",
        ),
        (pandas.DataFrame(), "the DataFrame has no columns; give the columns site, label and"),
        (WIDE.iloc[:0], "the DataFrame: there are no rows below the header; add some"),
        (7, "counts = 7 are not label counts; give a dictionary with the counts of each client"),
        ("nowhere.csv", "nowhere.csv: there is no such file; check the path"),
    ],
)
def test_counts_of_another_form_are_refused(counts: Any, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        audit(counts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buffer": 2.0}, "buffer = 2.0 is not an integer; give a size from 1 to 3"),
        ({"buffer": "2"}, "buffer = '2' is not an integer"),
        ({"buffer": True}, "buffer = True is not an integer"),
        ({"cap": "0.5"}, "cap = '0.5' is not a weight; use a number above 0 and at most 1"),
        ({"cap": True}, "cap = True is not a weight"),
        ({"arrivals": 0}, "arrivals = 0 is not a horizon; give the number of updates that the"),
        ({"arrivals": 2.5}, "arrivals = 2.5 is not a horizon"),
        ({"arrivals": True}, "arrivals = True is not a horizon"),
        ({"baseline": "fedasync"}, "method 'fedasync' has no verdicts, because the audit has no"),
        ({"baseline": "fedagv"}, "method 'fedagv': did you mean 'fedavg'?"),
        ({"rare": 7}, "rare = 7 is not a list of labels; write brackets, such as [7]"),
        ({"rare": "flu"}, "rare = 'flu' is not a list of labels; write brackets, such as ['"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        audit(COUNTS, **arguments)


def test_numbers_and_arrays_of_numpy_are_arguments_too() -> None:
    numpy: dict[str, Any] = {
        "buffer": np.int64(2), "cap": np.float32(0.5), "rare": np.array(["flu"]),
    }  # fmt: skip
    assert audit(COUNTS, **numpy).rare_labels == ("flu",)


def test_times_in_the_order_of_the_clients() -> None:
    clients = TABLE.clients
    named = {"bodø": 3, "oslo": 1.5, "bergen": 2}
    assert seconds_of(named, clients).tolist() == [1.5, 2, 3]
    assert seconds_of([1, 2, 3], clients).tolist() == [1, 2, 3]
    assert seconds_of(np.array([1.0, 2, 3]), clients).tolist() == [1, 2, 3]
    assert seconds_of(None, clients).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, 2], "2 times for 3 clients; give one per client"),
        ([[1, 2, 3]], "3 times for 3 clients; give one per client"),
        ([1, 0, 3], "client 'bergen': 0 is not a valid time; give seconds from 1e-100"),
        ([1, 2, -3], "client 'bodø': -3 is not a valid time"),
        ([float("nan"), 2, 3], "client 'oslo': nan is not a valid time"),
        ([1, float("inf"), 3], "client 'bergen': inf is not a valid time"),
        ([1, None, 3], "client 'bergen': nan is not a valid time"),
        ([1, "fast", 3], "client 'bergen': 'fast' is not a number; give seconds above 0"),
        ({"oslo": 1, "bergen": 2, "bodø": [3]}, "client 'bodø': [3] is not a number"),
        (
            {"oslo": 1, "bergen": 2, "bodø": 3, "paris": 4},
            "the times name client 'paris', which is not",
        ),
        ({"oslo": 1, "bodø": 3}, "client 'bergen' has no time; give the time of every client"),
    ],
)
def test_times_that_are_none(times: Any, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        seconds_of(times, TABLE.clients)


def test_rare_is_held_by_half_as_many_as_the_median_label() -> None:
    assert rare_labels_of(None, TABLE) == (7,)  # coverage 3, 3, 1
    four = {i: {"a": 1, "b": 1} | ({"c": 1} if i < 2 else {}) for i in range(4)}
    assert rare_labels_of(None, LabelTable.from_counts(four)) == ("c",)
    four[3]["c"] = 1
    assert rare_labels_of(None, LabelTable.from_counts(four)) == ()
    assert rare_labels_of(None, LabelTable.from_counts({1: {"a": 1}})) == ()


def test_rare_labels_by_name_or_number() -> None:
    assert rare_labels_of(None, TABLE) == (7,)
    assert rare_labels_of(["7", "flu"], TABLE) == (7, "flu")
    assert rare_labels_of([7, "7", 7], TABLE) == (7,)
    assert rare_labels_of([], TABLE) == ()
    with pytest.raises(BadInput, match=r"rare label 'flue': .*'?flu"):
        rare_labels_of(["flue"], TABLE)


def test_holders() -> None:
    assert holders(TABLE, [7]).tolist() == [False, True, False]
    assert holders(TABLE, ["flu", 7]).tolist() == [True, True, True]
    assert holders(TABLE, []).tolist() == [False, False, False]


TIMES = pandas.DataFrame({"site": [2, 1], "seconds": [4.0, 1.5]})


@pytest.mark.parametrize("form", ["mapping", "DataFrame", "path"])
def test_times_have_the_forms_of_counts(form: str, tmp_path: Path) -> None:
    """The times of sites 1 and 2, whatever their order and form."""
    path = tmp_path / "times.csv"
    TIMES.to_csv(path, index=False)
    times = {"mapping": {1: 1.5, 2: 4.0}, "DataFrame": TIMES, "path": str(path)}[form]
    assert audit(WIDE, times).seconds.tolist() == [1.5, 4.0]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (TIMES.rename(columns={"seconds": "s"}), "columns site, s; give the columns site and seco"),
        (pandas.concat([TIMES, TIMES]), "has site '2' twice; give its mean time"),
        (TIMES.assign(seconds=["slow", 1.0]), "client '2': 'slow' is not a number"),
        ("nowhere.csv", "nowhere.csv: there is no such file"),
    ],
)
def test_times_that_say_too_little_are_refused(times: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        audit(WIDE, times)
