from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.eventlog import federation_log
from tests.eventlog.logs import as_bytes, record

from fedraw.errors import BadInput
from fedraw.eventlog import follow
from fedraw.eventlog.follow import LogFollower, RunsFollower
from fedraw.eventlog.live import BufferSlot
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import Record, StartRecord, to_fields
from fedraw.eventlog.state import CURVE, LATEST, TREND, RunState
from fedraw.storage.lock import FolderLock

T = 1_700_000_000.0  # when the last byte was written
START = StartRecord(
    origin="simulation",
    name="fedraw",
    seed=7,
    events=100,
    labels=["cat", "dog", "owl"],
    rare_labels=["owl"],
    spec={"strategy": {"name": "fedraw", "buffer": 2}, "run": {"seeds": [7]}},
)
JOINED: list[Record] = [
    record("joined", client="a", counts={"cat": 3}),
    record("joined", client="b", counts={"cat": 1, "owl": 2}),
    record("joined", client="c", counts={"dog": 2}),
]


def arrival(event: int, client: str, buffer: str, weights: Iterable[float] = ()) -> Record:
    weights = list(weights)
    return record(
        "arrival",
        event=event,
        client=client,
        version=event,
        staleness_events=1,
        aggregated=bool(weights),
        buffer=list(buffer),
        weights=weights,
    )


def evaluation(event: int, **recall: float) -> Record:
    metrics = {"GlobalAcc": sum(recall.values()) / len(recall), "AvgRare": recall.get("owl")}
    return record("evaluation", event=event, metrics=metrics, recall=recall)


def rejected(event: int, client: str, reason: str = "it is not finite") -> Record:
    return record("rejected", event=event, client=client, reason=reason)


STORY: list[Record] = [
    START,
    *JOINED,
    arrival(1, "a", "a"),
    arrival(2, "b", "ab", [0.25, 0.75]),
    rejected(3, "c"),
    evaluation(3, cat=80.0, dog=70.0, owl=0.0),
    arrival(4, "a", "ab", [0.25, 0.75]),
]


def write(path: Path, records: Iterable[Record], at: float = T) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_bytes(records))
    os.utime(path, (at, at))
    return path


def append(path: Path, content: bytes, at: float) -> None:
    with path.open("ab") as file:
        file.write(content)
    os.utime(path, (at, at))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "seed-7" / "events.jsonl", STORY)


def followed(log: Path) -> LogFollower:
    follower = LogFollower(log)
    assert follower.poll()
    return follower


def test_status_and_detail(log: Path) -> None:
    run = followed(log)
    status, detail = run.status(T + 2), run.detail()
    assert (status.name, status.seed, status.state) == ("fedraw", 7, "running")
    assert (status.event, status.events, status.quiet) == (4, 100, 2)
    assert status.metrics == {"GlobalAcc": 50.0, "AvgRare": 0.0}
    assert detail.buffer == (BufferSlot("a", 0.25, 0, False), BufferSlot("b", 0.75, 2, True))
    assert detail.aggregated_at == 4
    assert detail.rare_clients == ("b",)
    assert detail.unheard == ("c",)
    assert detail.participation["BufPres"] == 100.0
    assert detail.rejected == {"c": 1}
    assert detail.refusals == ((3, "c", "it is not finite"),)


class Counting:
    """A file that counts the bytes read from it."""

    def __init__(self, file: Any, read: list[int]) -> None:
        self._file, self._read = file, read

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int) -> Any:
        content = self._file.read(size)
        self._read.append(len(content))
        return content


def test_only_what_was_appended_is_read_and_parsed(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    parsed: list[bytes] = []
    opened, loads = Path.open, json.loads

    def parse(line: bytes) -> Any:
        parsed.append(line)
        return loads(line)

    write(log, [*STORY, *(arrival(5 + n, "a", "ab", [0.5, 0.5]) for n in range(1000))])
    added = as_bytes([arrival(1005, "c", "bc", [0.5, 0.5])], after=log)
    monkeypatch.setattr(Path, "open", lambda path, mode: Counting(opened(path, mode), read))
    monkeypatch.setattr(json, "loads", parse)
    run = followed(log)
    assert sum(read) == log.stat().st_size
    assert len(parsed) == len(STORY) + 1000
    read.clear()
    parsed.clear()
    with opened(log, "ab") as file:
        file.write(added)
    assert run.poll()
    assert parsed == [added]
    known = follow.HEAD + follow.MARK  # looked at again, to see that it is still the same log
    assert sum(read) == len(added) + known
    read.clear()
    assert run.poll()
    assert sum(read) == known
    assert run.state.events == 1005


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 18])
def test_the_size_of_a_read_does_not_change_the_result(
    piece: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PIECE", piece)
    whole = RunState.of(read_log(log)).summary()
    content = log.read_bytes()
    log.write_bytes(b"")
    run = LogFollower(log)
    for start in range(0, len(content), 333):
        append(log, content[start : start + 333], T)
        assert run.poll()
    assert run.state.summary() == whole


def test_an_incomplete_line_is_not_read_yet(log: Path) -> None:
    line = as_bytes([arrival(5, "c", "bc", [0.5, 0.5])], after=log)
    append(log, line[:40], T)
    run = followed(log)
    assert run.state.events == 4
    assert run.status(T + 999).state == "stopped"
    append(log, line[40:], T)
    assert run.poll()
    assert run.state.events == 5


def test_a_truncated_log_is_read_again(log: Path) -> None:
    run = followed(log)
    write(log, STORY[:6])
    assert run.poll()
    assert run.state.events == 2
    assert run.detail() == followed(log).detail()
    assert run.detail().rejected == {}


def test_a_log_replaced_by_a_longer_one_is_read_again(log: Path) -> None:
    run = followed(log)
    write(log, [replace(START, seed=8), *STORY[1:], arrival(5, "c", "bc", [0.5, 0.5])])
    assert run.poll()
    assert run.status(T).seed == 8
    assert run.detail() == followed(log).detail()


def test_reading_stops_after_its_time_and_continues_later(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PIECE", 200)
    run = LogFollower(log)
    looks = 1
    while not run.poll(0.0):
        looks += 1
        assert run.status(T).unread > 0
        assert run.status(T).rate is None
    assert looks == -(-log.stat().st_size // 200)
    assert run.state.events == 4


def test_memory_is_bounded(tmp_path: Path) -> None:
    many = [evaluation(event, cat=float(event % 100)) for event in range(1, 3001)]
    refused = [rejected(event, "c") for event in range(3001, 3101)]
    run = followed(write(tmp_path / "events.jsonl", [START, *JOINED, *many, *refused]))
    curve = run.detail().curve
    assert len(curve) <= CURVE + 1
    assert (curve[0].event, curve[-1].event) == (1, 3000)
    gaps = {b.event - a.event for a, b in pairwise(curve[:-1])}
    assert len(gaps) == 1, "thinned out evenly"
    assert len(run.state.recent) == 2 * TREND
    assert len(run.detail().refusals) == LATEST
    assert run.detail().refusals[0].event == 3100
    assert run.detail().rejected == {"c": 100}


def test_a_client_with_two_slots_has_two_ages(tmp_path: Path) -> None:
    records = [
        START,
        *JOINED,
        arrival(1, "a", "a"),
        arrival(2, "a", "aa"),
        arrival(3, "b", "aab"),
        arrival(4, "c", "aabc"),
    ]
    run = followed(write(tmp_path / "events.jsonl", records))
    slots = run.detail().buffer
    assert [(slot.client, slot.age) for slot in slots] == [("a", 3), ("a", 2), ("b", 1), ("c", 0)]
    assert [slot.weight for slot in slots] == [None] * 4


def test_labels_below_the_mean_and_falling_labels_are_listed(tmp_path: Path) -> None:
    first = [evaluation(event, cat=90.0, dog=90.0, owl=20.0) for event in (1, 2, 3)]
    then = [evaluation(event, cat=91.0, dog=75.0, owl=20.0) for event in (4, 5, 6)]
    run = followed(write(tmp_path / "events.jsonl", [START, *JOINED, *first, *then]))
    owl, dog, cat = run.detail().labels
    assert (owl.label, owl.rare, owl.behind, owl.falling, owl.change) == (
        "owl", True, True, False, 0.0,
    )  # fmt: skip
    assert (dog.label, dog.rare, dog.behind, dog.falling, dog.change) == (
        "dog", False, False, True, -15.0,
    )  # fmt: skip
    assert (cat.behind, cat.falling, cat.change) == (False, False, 1.0)
    assert run.detail().mean_recall == pytest.approx(62.0)


def test_the_end_record_means_finished_and_silence_means_stopped(log: Path) -> None:
    run = followed(log)
    assert run.status(T + follow.QUIET - 1).state == "running"
    assert run.status(T + follow.QUIET + 1).state == "stopped"
    append(log, as_bytes([record("end", event=4)], after=log), T)
    assert run.poll()
    assert run.status(T + 10**6).state == "finished"


def test_an_empty_log_is_a_starting_run(tmp_path: Path) -> None:
    run = followed(write(tmp_path / "seed-3" / "events.jsonl", []))
    status = run.status(T + 1)
    assert (status.name, status.state, status.events) == ("seed-3", "starting", None)
    assert run.detail().buffer == ()


@pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is not told elsewhere")
def test_a_waiting_server_is_not_stopped_while_its_process_lives(tmp_path: Path) -> None:
    """An open file holds the lock, so this process can act as the server."""
    path = write(tmp_path / "federation" / "events.jsonl", [])
    server = FolderLock(path.parent)
    assert followed(path).status(T + 10**6).state == "starting"
    start = replace(START, origin="server", seed=None)
    append(path, as_bytes([start, *JOINED, arrival(1, "a", "a")]), T)
    assert followed(path).status(T + 10**6).state == "running"
    server.close()
    assert followed(path).status(T + 10**6).state == "stopped"


def test_rate_and_time_left_follow_the_growth(log: Path) -> None:
    run = followed(log)
    assert run.status(T).rate is None
    assert run.status(T).seconds_left is None
    append(log, as_bytes([arrival(24, "a", "ab", [0.5, 0.5])], after=log), T + 10)
    assert run.poll()
    assert run.status(T + 10).rate == 2.0
    assert run.status(T + 13).seconds_left == (100 - 24) / 2 - 3


def test_the_first_status_has_no_rate_but_has_the_checkpoint(log: Path) -> None:
    """The rate does not use the times of other files, because the run may have paused."""
    (log.parent / "spec.toml").touch()
    checkpoint = log.parent / "checkpoint"
    (checkpoint / "0000000002").mkdir(parents=True)
    (checkpoint / "draft").mkdir()
    status = followed(log).status(T)
    assert status.checkpoint == 2
    assert status.rate is None


@pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is not told elsewhere")
def test_a_slow_run_is_not_stopped_while_its_process_lives(log: Path) -> None:
    process = FolderLock(log.parent)
    assert followed(log).status(T + 10**6).state == "running"
    process.close()
    assert followed(log).status(T + 10**6).state == "stopped"


@pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is not told elsewhere")
def test_the_end_of_a_process_that_was_seen_alive_is_noticed_at_once(log: Path) -> None:
    run = followed(log)
    assert run.status(T).state == "running"  # nobody was seen, and the log was just written
    for _ in range(2):  # killed, and resumed, and killed again
        process = FolderLock(log.parent)
        assert run.poll()
        assert run.status(T).state == "running"
        process.close()
        assert run.poll()
        assert run.status(T).state == "stopped"


def test_earlier_gaps_extend_the_time_until_stopped(log: Path) -> None:
    """Without visible locks, a run may be silent for three times its second longest gap."""
    run = followed(log)
    for event, at in ((8, T + 100), (12, T + 300)):
        append(log, as_bytes([arrival(event, "a", "ab", [0.5, 0.5])], after=log), at)
        assert run.poll()
    assert run.status(T + 590).state == "running"
    assert run.status(T + 610).state == "stopped"


def test_a_pause_does_not_count_in_the_rate(log: Path) -> None:
    run = followed(log)
    for event, at in ((8, T + 2), (12, T + 4), (16, T + 9004), (20, T + 9006)):
        append(log, as_bytes([arrival(event, "a", "ab", [0.5, 0.5])], after=log), at)
        assert run.poll()
    assert run.status(T + 9006).rate == 2.0
    assert run.status(T + 9040).state == "stopped"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "line 1 is not a record of an event log"),
        (b"\x00\x01\x02" * 1000, "line 1 is not a record of an event log"),
        (b'{\n "rows": []\n}\n', "line 1 is not a record of an event log"),
        (
            as_bytes([{**to_fields(START), "format": 9}]),
            "has format 9, and this fedraw reads format 3",
        ),
        (as_bytes(JOINED), "line 1 is not valid in an event log"),
        (as_bytes([START, START]), "line 2 is not valid in an event log"),
        (as_bytes([START, {"kind": "arrival"}]), "line 2 is not valid in an event log"),
        (as_bytes(STORY) + b"oops\n", "line 10 is not a record of an event log"),
        (b"\xff\n", "line 1 is not a record of an event log"),
        (as_bytes(STORY)[:-40] + b"\0" * 40, "line 9 is not a record of an event log"),
        (as_bytes(STORY) + b"oops", "line 10 is not a record of an event log"),
    ],
)
def test_a_file_that_is_not_a_log_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        LogFollower(path).poll()


def test_a_folder_with_the_name_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(BadInput, match="cannot read"):
        RunsFollower(tmp_path).poll()


def test_runs_that_begin_later_are_followed_too(tmp_path: Path) -> None:
    end = record("end", event=4)
    write(tmp_path / "seed-7" / "events.jsonl", [*STORY, end])
    watched = RunsFollower(tmp_path)
    assert watched.poll()
    assert not watched.is_over(T + 1), "another seed may be about to begin"
    assert watched.is_over(T + 60)
    write(tmp_path / "seed-8" / "events.jsonl", [replace(START, seed=8)], at=T + 2)
    assert watched.poll()
    assert not watched.is_over(T + 60)
    assert [(s.name, s.seed, s.state) for s in watched.statuses(T + 3)] == [
        ("fedraw", 7, "finished"),
        ("fedraw", 8, "starting"),
    ]
    assert watched.latest.status(T).seed == 8


def test_the_folder_of_one_finished_run_is_over_at_once(log: Path) -> None:
    append(log, as_bytes([record("end", event=4)], after=log), T)
    for path in (log.parent, log):
        watched = RunsFollower(path)
        assert watched.poll()
        assert watched.is_over(T)


def test_runs_of_one_strategy_have_distinct_names(tmp_path: Path) -> None:
    for buffer in (2, 3):
        spec = {"strategy": {"buffer": buffer}, "run": {"seeds": [7]}}
        write(tmp_path / f"k{buffer}" / "events.jsonl", [replace(START, spec=spec), *STORY[1:]])
    watched = RunsFollower(tmp_path)
    assert watched.poll()
    assert [s.name for s in watched.statuses(T)] == ["k2: fedraw", "k3: fedraw"]


def test_everything_as_json(log: Path) -> None:
    watched = RunsFollower(log.parent.parent)
    assert watched.poll()
    document = json.loads(json.dumps(watched.as_json(T + 1), allow_nan=False))
    (run,) = document["runs"]
    assert document["latest"] == run["folder"] == str(log.parent)
    assert run["state"] == "running"
    assert run["metrics"] == {"GlobalAcc": 50.0, "AvgRare": 0.0}
    assert run["buffer"][1] == {"client": "b", "weight": 0.75, "age": 2, "rare": True}
    assert run["labels"][0]["label"] == "owl"
    assert run["rejected"] == {"c": 1}


def test_a_real_server(tmp_path: Path) -> None:
    log = write(tmp_path / "federation" / "events.jsonl", federation_log.STORY)
    run = followed(log)
    status, detail = run.status(T + 300), run.detail()
    assert (status.seed, status.events, status.is_server) == (None, None, True)
    assert status.state == "running"
    assert status.rate == 2 / 30, "by its own times, since it was restarted"
    assert (detail.members, detail.clients) == (2, 3)
    assert detail.unheard == ()
    history = detail.history
    assert history.away == ((4, "west", federation_log.QUARANTINED),)
    assert history.restarts == 1
    assert history.last_restarts == ((2, 75.0, 2),)
    assert (history.notes, history.quarantined, history.changed) == (2, 1, 3)
    assert history.last_notes == (
        (4, "west", federation_log.QUARANTINED),
        (4, None, "node 9 did not tell who it is"),
        (2, "east", federation_log.OVERDUE),
    )


def test_a_restarted_server_may_have_another_limit(tmp_path: Path) -> None:
    def restarted(**limit: int) -> Any:
        return record("restarted", event=5, time=160.0, gap=1.0, reasked=[], **limit)

    log = write(tmp_path / "events.jsonl", [*federation_log.STORY, restarted(events=2000)])
    run = followed(log)
    assert run.status(T + 300).events == 2000
    append(log, as_bytes([restarted()], after=log), T + 301)
    assert run.poll()
    assert run.status(T + 302).events == 2000, "a record of an earlier version has no limit"
    append(log, as_bytes([restarted(events=0)], after=log), T + 303)
    assert run.poll()
    assert run.status(T + 304).events is None


def test_a_server_is_quiet_while_its_sites_train(tmp_path: Path) -> None:
    founded = write(tmp_path / "young" / "events.jsonl", federation_log.STORY[:3])
    young = followed(founded)
    assert young.status(T + 890).state == "starting", "the deadline of its first training"
    assert young.status(T + 910).state == "stopped"
    start, *rest = federation_log.STORY
    minutes: list[dict[str, Any]] = [to_fields(known) for known in rest]
    slow = [start, *(record(**{**own, "time": 60 * own["time"]}) for own in minutes)]
    run = followed(write(tmp_path / "slow" / "events.jsonl", slow))
    assert run.status(T + 1790).state == "running", "it was silent for ten minutes before"
    assert run.status(T + 1810).state == "stopped"
    append(run.log, as_bytes([federation_log.END], after=run.log), T + 2000)
    assert run.poll()
    assert run.status(T + 2000).state == "finished"


def test_memory_for_a_server_is_bounded(tmp_path: Path) -> None:
    note = federation_log.member("note", 4, 133.0, "east", reason="a late update")
    run = followed(write(tmp_path / "events.jsonl", [*federation_log.STORY, *([note] * 1000)]))
    history = run.detail().history
    assert history.notes == 1002
    assert len(history.last_notes) <= 2 * LATEST
    assert history.last_notes[0].reason == federation_log.QUARANTINED


def test_a_server_as_json(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl", federation_log.STORY)
    watched = RunsFollower(tmp_path)
    assert watched.poll()
    (run,) = json.loads(json.dumps(watched.as_json(T), allow_nan=False))["runs"]
    assert run["members"] == 2
    assert run["history"]["last_restarts"] == [{"event": 2, "gap": 75.0, "reasked": 2}]
