from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.eventlog.logs import as_bytes, record
from tests.simulation.scenes import flat, simulation, steps

from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import Fixed, Recorded, jitter, poisson, read_trace
from fedraw.strategies.fedfa import FedFa


def test_memoryless_durations_have_the_clients_mean_and_an_equal_spread() -> None:
    law = poisson(np.array([1.0, 4.0]), Streams(0))
    drawn = np.array([[law.duration(i, n) for i in (0, 1)] for n in range(4000)])
    assert drawn.mean(axis=0) == pytest.approx([1, 4], rel=0.05)
    assert drawn.std(axis=0) == pytest.approx([1, 4], rel=0.07)


def test_the_next_to_arrive_is_drawn_by_speed_whoever_came_before() -> None:
    seconds = np.array([0.5, 1.0, 1.5, 3.0])
    arrivals = steps(simulation(FedFa(1), flat(4), poisson(seconds, Streams(1))), 20_000)
    senders = np.array([int(step.client) for step in arrivals])
    chance = 1 / seconds / (1 / seconds).sum()
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (senders[:-1], senders[1:]), 1)
    for row in pairs:
        expected = row.sum() * chance
        # Chi-square with 3 degrees of freedom exceeds 16.3 once in a thousand.
        assert ((row - expected) ** 2 / expected).sum() < 16.3


@pytest.mark.parametrize("law", [poisson, jitter])
def test_a_clients_durations_do_not_depend_on_how_many_others_there_are(law: type) -> None:
    few, many = law(np.ones(3), Streams(7)), law(np.ones(50), Streams(7))
    for n in range(20):
        assert [few.duration(i, n) for i in range(3)] == [many.duration(i, n) for i in range(3)]


@pytest.mark.parametrize("law", [poisson, jitter])
def test_a_duration_depends_on_nothing_but_client_and_training(law: type) -> None:
    forwards, backwards = law(np.ones(2), Streams(7)), law(np.ones(2), Streams(7))
    asked = [(i, n) for n in range(30) for i in (0, 1, 1)]
    told = {key: forwards.duration(*key) for key in asked}
    assert told == {key: backwards.duration(*key) for key in reversed(asked)}
    assert len(set(told.values())) == 60


def test_fixed_durations_are_always_the_mean() -> None:
    law = Fixed(np.array([1.0, 2.5]))
    assert [law.duration(1, n) for n in range(3)] == [2.5] * 3


def test_jitter_stays_within_its_bounds_and_uses_them() -> None:
    law = jitter(np.array([10.0]), Streams(0), spread=0.3)
    drawn = [law.duration(0, n) for n in range(500)]
    assert 7 <= min(drawn) < 7.1
    assert 12.9 < max(drawn) <= 13


@pytest.mark.parametrize("spread", [-0.1, 1, np.nan])
def test_jitter_beyond_the_mean_is_refused(spread: float) -> None:
    with pytest.raises(BadInput, match=r"speeds\.jitter = .* must be from 0 to below 1"):
        jitter(np.ones(1), Streams(0), spread)


def test_recorded_durations_begin_again_when_used_up() -> None:
    law = Recorded(["a", 2], {"a": [1.0, 2.0, 3.0], "2": [5.0]})
    assert [law.duration(0, n) for n in range(5)] == [1, 2, 3, 1, 2]
    assert [law.duration(1, n) for n in range(2)] == [5, 5]


def test_a_client_without_a_record_is_named() -> None:
    with pytest.raises(BadInput, match=r"no duration of client 'b' \(2 of 3 clients are missing\)"):
        Recorded(["a", "b", "c"], {"a": [1.0]})


def test_a_trace_of_an_unknown_client_is_refused() -> None:
    with pytest.raises(BadInput, match=r"of 'd', which is no client of this federation \(its cl"):
        Recorded(["a"], {"a": [1.0], "d": [1.0]})


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_trace_is_a_table_of_clients_and_seconds(tmp_path: Path) -> None:
    text = "seconds,client,note\n1.5,site a,x\n2, 7,\n0.5,site a,\n"
    path = written(tmp_path, "trace.csv", text)
    assert read_trace(path) == {"site a": [1.5, 0.5], "7": [2.0]}


def test_a_trace_may_be_an_event_log(tmp_path: Path) -> None:
    records = [
        record("arrival", client=3, time=1.5, start_time=0.0),
        record("evaluation", event=1),
        record("rejected", client="b", time=2.0, start_time=0.5),
        record("arrival", client=3, time=4.0, start_time=3.0),
    ]
    path = written(tmp_path, "events.jsonl", as_bytes(records).decode())
    assert read_trace(path) == {"3": [1.5, 1.0], "b": [1.5]}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "", "is empty; a header and rows are needed"),
        (
            "t.csv",
            "client,time\na,1\n",
            "column 'seconds' is missing",
        ),
        ("t.csv", "client,seconds\n", "has no durations"),
        (
            "t.csv",
            "client,seconds\na,1\nb,soon\n",
            "line 3, column 'seconds': 'soon' is not a time",
        ),
        ("t.csv", "client,seconds\na\n", "line 2 has 1 cell, the header has 2"),
        ("t.csv", "seconds,client\n1\n", "line 2 has 1 cell, the header has 2"),
        ("t.csv", "client,seconds\n,1\n", "line 2, column 'client': the name is empty"),
        (
            "t.csv",
            "client,seconds\na,0\n",
            "line 2, column 'seconds': '0' is not above 0 and finite",
        ),
        ("t.csv", "client,seconds\na,-1\n", "line 2, column 'seconds': '-1' is not above 0"),
        ("t.csv", "client,seconds\na,nan\n", "line 2, column 'seconds': 'nan' is not a time"),
        ("t.csv", "client,seconds\na,inf\n", "line 2, column 'seconds': 'inf' is not a time"),
        ("t.jsonl", "", "has no durations"),
        ("t.jsonl", "{}\n", "line 1 is not a record of an event log"),
        ("t.jsonl", "[1]\n", "line 1 is not a record of an event log"),
        ("t.jsonl", '{"kind": "arr', "line 1 is not a record of an event log"),
        ("t.jsonl", '{"kind": "arrival", "client": 1}\n', "line 1 was altered"),
        (
            "t.jsonl",
            as_bytes([{"kind": "arrival", "client": 1, "time": 0}]).decode(),
            "line 1 is not valid in an event log: its kind is 'arrival', but it lacks event",
        ),
        ("t.jsonl", "[" * 100_000 + "\n", "line 1 is not a record of an event log"),
        ("t.csv", 'client,seconds\na,"1\nb,2\n', "line 2: cannot be split into cells"),
        ("t.csv", "client,seconds\na,1e-320\n", "'1e-320' is not from 1e-100"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    with pytest.raises(BadInput, match=f"{name}.*{words}"):
        read_trace(written(tmp_path, name, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"speeds\.trace: .*missing\.csv: there is no such file"):
        read_trace(tmp_path / "missing.csv")
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff")
    with pytest.raises(BadInput, match=r"speeds\.trace: .*image\.csv: line 1 is not UTF-8"):
        read_trace(tmp_path / "image.csv")
