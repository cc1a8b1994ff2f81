"""Measured times and logs of arrivals that are good."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tests.eventlog.logs import as_bytes, record

from fedraw.auditing.times import MeanTimes, read_times

AB = ("a", "b")


def times(folder: Path, text: str, clients: tuple[str, ...] = AB) -> MeanTimes:
    path = folder / "times.csv"
    path.write_bytes(text.encode())
    return read_times(path, clients)


def test_one_value_each_in_the_order_asked_for(tmp_path: Path) -> None:
    read = times(tmp_path, "\ufeffseconds;client\r\n2.5;b\r\n1e1; a\r\n\r\n")
    for values in (read.seconds, read.low, read.high):
        assert values.tolist() == [10, 2.5]
    assert (read.arrivals, read.notes) == (None, ())


def test_several_measurements_are_a_mean_with_an_interval(tmp_path: Path) -> None:
    read = times(tmp_path, "client,seconds\na,1\na,2\na,3\nb,7\n")
    assert read.seconds.tolist() == [2, 7]
    # sd 1, so the standard error is 1 / sqrt(3); t with 2 degrees of freedom is 4.30265
    factor = math.exp(4.30265 / math.sqrt(3) / 2)
    assert read.high[0] == pytest.approx(2 * factor)
    assert read.low[0] == pytest.approx(2 / factor)
    assert (read.low[1], read.high[1]) == (7, 7)
    assert read.arrivals is not None
    assert read.arrivals.tolist() == [3, 1]
    assert read.notes == ("a single measurement has no interval: 'b'",)


LOGS = [
    "client,timestamp\na,0\nb,1\na,4\na,8\n",
    "timestamp,client\n108,a\n100,a\n101.0,b\n104,a\n",
    "client,timestamp\na,2026-03-29T00:59:58Z\nb,2026-03-29T02:59:59+02:00\n"
    "a,2026-03-29T01:00:02Z\na,2026-03-29T01:00:06Z\n",
    # across a summer-time change in many places: without a zone there is none
    "client;timestamp\na;2026-03-29 01:59:58\nb;2026-03-29 01:59:59\n"
    "a;2026-03-29 02:00:02\na;2026-03-29 02:00:06\n",
]


@pytest.mark.parametrize("text", LOGS)
def test_a_log_is_read_as_rates(text: str, tmp_path: Path) -> None:
    read = times(tmp_path, text)  # 8 seconds: three arrivals of a, one of b
    np.testing.assert_allclose(read.seconds, [8 / 3, 8])
    np.testing.assert_allclose(read.low, [8 / 8.7673, 8 / 5.5716], rtol=1e-4)
    np.testing.assert_allclose(read.high, [8 / 0.61867, 8 / 0.025318], rtol=1e-4)
    assert read.arrivals is not None
    assert read.arrivals.tolist() == [3, 1]
    assert read.notes == ()


def test_a_client_that_never_arrived(tmp_path: Path) -> None:
    read = times(tmp_path, "client,timestamp\na,0\na,10\n", ("a", "b"))
    assert (read.seconds[1], read.high[1]) == (20, math.inf)
    assert read.low[1] == pytest.approx(10 / 2.9957, rel=1e-4)
    assert read.notes == (
        "the log has no arrival of client 'b'; a mean time of twice the log's length is assumed",
    )
    many = times(tmp_path, "client,timestamp\na,0\na,10\n", ("a", *(f"c{i}" for i in range(12))))
    assert "the log has no arrival of 12 clients ('c0', 'c1', " in many.notes[0]
    assert "'c9' and 2 more); a mean time" in many.notes[0]


def test_milliseconds_are_noticed(tmp_path: Path) -> None:
    read = times(tmp_path, "client,timestamp\na,1767225600000\nb,1767225601000\n")
    assert read.notes == (
        "the timestamps look like milliseconds but are read as seconds; only ratios are right",
    )


def test_fedraws_own_log(tmp_path: Path) -> None:
    records = [
        record("start"),
        record("joined", client=7, counts={"x": 1}),
        record("arrival", event=1, time=1.0, client=7),
        record("evaluation", event=1),
        record("arrival", event=2, time=2.5, client="b"),
        record("rejected", event=3, time=3.0, client=7, reason="NaN"),
        record("arrival", event=4, time=5.0, client=7),
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(as_bytes(records))
    for place in (path, tmp_path):  # the folder stands for its log
        read = read_times(place, ("b", "7"))
        assert read.seconds.tolist() == [4, 2]
        assert read.arrivals is not None
        assert read.arrivals.tolist() == [1, 2]


def test_an_unfinished_log_may_end_in_half_a_line(tmp_path: Path) -> None:
    whole = [record("arrival", event=n, time=float(n), client="a") for n in range(1, 4)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(as_bytes(whole)[:-10])
    read = read_times(path, ("a",))
    assert read.arrivals is not None
    assert read.arrivals.tolist() == [2]
    assert read.seconds.tolist() == [0.5]


def test_parquet_with_real_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    stamps = pyarrow.array([0, 8_000_000, 1_000_000], pyarrow.timestamp("us", "UTC"))
    parquet.write_table(pyarrow.table({"client": [1, 1, 2], "timestamp": stamps}), path)
    assert read_times(path, ("1", "2")).seconds.tolist() == [4, 8]


@given(
    measured=st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=5),
        min_size=1,
    ),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_rows_does_not_matter(
    measured: dict[str, list[float]],
    order: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = [f"{client},{value!r}" for client, values in measured.items() for value in values]
    order.shuffle(rows)  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("times")
    read = times(folder, "\n".join(["client,seconds", *rows]), tuple(measured))
    np.testing.assert_allclose(read.seconds, [np.mean(values) for values in measured.values()])
    assert (read.low <= read.seconds).all()
    assert (read.seconds <= read.high).all()


def test_the_interval_of_a_rate_holds_the_truth_95_times_in_100(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    clients = tuple(f"c{i}" for i in range(2000))
    arrivals = rng.poisson(6.0, len(clients))  # six in a window of 1, so 1/6 between two
    stamps = rng.random(arrivals.sum()).tolist()
    names = np.repeat(np.array(clients), arrivals).tolist()
    rows = "".join(f"{name},{stamp}\n" for name, stamp in zip(names, stamps, strict=True))
    read = times(tmp_path, "client,timestamp\n" + rows, clients)
    inside = (read.low <= 1 / 6) & (read.high >= 1 / 6)
    assert 0.95 <= inside.mean() <= 0.985  # exact intervals of counts hold a little more


def test_two_hundred_thousand_arrivals(tmp_path: Path) -> None:
    rows = "".join(f"site-{i % 1000},{i}.5\n" for i in range(200_000))
    read = times(tmp_path, "client,timestamp\n" + rows, tuple(f"site-{i}" for i in range(1000)))
    np.testing.assert_allclose(read.seconds, 199_999 / 200)
