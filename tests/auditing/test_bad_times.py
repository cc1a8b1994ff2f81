"""Files of times that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.eventlog.logs import as_bytes, record

from fedraw.auditing.times import read_times
from fedraw.errors import BadInput

SECONDS = "client,seconds\n"
LOG = "client,timestamp\n"
ABOVE = "; write a number of seconds above 0"
STAMP = "; write seconds as a number from 0 on, or ISO 8601 such as 2026-01-31T08:00:00Z"
EVENTS = (
    " is not valid in an event log: its client = None has the wrong type; restore the file from a "
    "copy, or run it again with force=True"
)
NO_RECORD = (
    " is not a record of an event log; was the run cut off? Restore the file from a copy, "
    "or run it again with force=True"
)

REFUSED = [
    ("", ": is empty; a header and rows are needed"),
    (SECONDS, ": 2 clients of the label table without a time: 'a', 'b'; add a row for each"),
    (
        SECONDS + "a,1\n",
        ": 1 client of the label table without a time: 'b'; add a row for each",
    ),
    (
        SECONDS + "a,1\nz,2\nb,1\ny,2\nz,3\n",
        ": 2 clients have no label counts: 'z' (line 3), 'y' (line 5); "
        "remove the rows, or add the counts to the label table",
    ),
    (
        LOG + "a,1\nz,2\n",
        ": 1 client has no label counts: 'z' (line 3); "
        "remove the rows, or add the counts to the label table",
    ),
    (SECONDS + "a,1\nb,0\n", f": line 3, column 'seconds': '0' is not above 0 and finite{ABOVE}"),
    (SECONDS + "a,-1\n", f": line 2, column 'seconds': '-1' is not above 0 and finite{ABOVE}"),
    (
        SECONDS + "a,1e999\n",
        f": line 2, column 'seconds': '1e999' is not above 0 and finite{ABOVE}",
    ),
    (SECONDS + "a,inf\n", f": line 2, column 'seconds': 'inf' is not a time{ABOVE}"),
    (SECONDS + "a,fast\n", f": line 2, column 'seconds': 'fast' is not a time{ABOVE}"),
    (SECONDS + "a,\n", f": line 2, column 'seconds': an empty cell is not a time{ABOVE}"),
    (
        SECONDS + ",1\n",
        ": line 2, column 'client': the name is empty; write one, or remove the row",
    ),
    (LOG + "a,-1\n", f": line 2, column 'timestamp': '-1' is negative or too large{STAMP}"),
    (LOG + "a,noon\n", f": line 2, column 'timestamp': 'noon' is not a timestamp{STAMP}"),
    (LOG + "a,nan\n", f": line 2, column 'timestamp': 'nan' is not a timestamp{STAMP}"),
    (
        LOG + "a,2026-13-01\n",
        f": line 2, column 'timestamp': '2026-13-01' is not a timestamp{STAMP}",
    ),
    (
        LOG + "a,2026-01-31T08:00:00Z\nb,2026-01-31T09:00:00\n",
        ": line 3, column 'timestamp': '2026-01-31T09:00:00' is ISO 8601 without a zone, but the "
        "first timestamp is ISO 8601 with a zone; use one kind for all",
    ),
    (
        LOG + "a,12\nb,2026-01-31T09:00:00\n",
        ": line 3, column 'timestamp': '2026-01-31T09:00:00' is ISO 8601 without a zone, but the "
        "first timestamp is a number; use one kind for all",
    ),
    (LOG + "a,1\n", ": a rate needs at least two arrivals, and there is 1; let the log run longer"),
    (LOG, ": a rate needs at least two arrivals, and there is 0; let the log run longer"),
    (
        LOG + "a,5\nb,5\na,5.0\n",
        ": all 3 timestamps are equal, so no time passes between arrivals; log them with a finer "
        "resolution",
    ),
    (
        "client,second\na,1\n",
        ": column 'seconds' is missing (found 'client', 'second'); did you mean 'second'? "
        "Call it 'seconds' (or give the timestamp of every arrival in a column 'timestamp')",
    ),
    (
        "hospital,timestamp\na,1\n",
        ": column 'client' is missing (found 'hospital', 'timestamp'); add or rename it",
    ),
    (
        "client,seconds,timestamp\na,1,2\n",
        ": has both columns 'seconds' and 'timestamp'; remove one of them",
    ),
    (
        "client,seconds,site\na,1,2\n",
        ": column 'site' is not one of client, seconds; remove it",
    ),
    (as_bytes([{"kind": "arrival", "client": None}]), f", line 1{EVENTS}"),
    (as_bytes([record("end")]) + b"[1]\n", f", line 2{NO_RECORD}"),
    (as_bytes([record("end")]) + b'{"kind":"arr\n', f", line 2{NO_RECORD}"),
    (
        as_bytes([record("arrival", client="a", time=-1)]),
        f": line 1, column 'timestamp': '-1' is negative or too large{STAMP}",
    ),
    (b"client,seconds\na,1\n\xe9,2\n", ": line 3 is not UTF-8; save it as CSV in UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_each_refusal(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadInput) as refusal:
        read_times(path, ("a", "b"))
    assert str(refusal.value) == f"{path}{message}"


def test_many_unknown_clients_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(SECONDS + "".join(f"z{i},1\n" for i in range(15)))
    with pytest.raises(BadInput, match=r"15 clients have .* 'z9' \(line 11\) and 5 more; remove"):
        read_times(path, ("a",))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        read_times(tmp_path / "none.csv", ("a",))


@pytest.mark.parametrize("seconds", ["1e-320", "5e-324", "1e308", "1e101"])
def test_times_that_cannot_be_computed_with_are_refused(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(f"client,seconds\na,1\nb,{seconds}\nb,{seconds}\n")
    with pytest.raises(BadInput, match=f"line 3, column 'seconds': '{seconds}' is not from 1e-100"):
        read_times(path, ["a", "b"])


def test_a_log_within_no_time_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("client,timestamp\na,0\nb,1e-320\n")
    with pytest.raises(BadInput, match=r"log\.csv: all 2 timestamps are within 9.99989e-321"):
        read_times(path, ["a", "b"])
    path.write_text("client,timestamp\na,0\nb,1e308\n")
    with pytest.raises(BadInput, match="line 3, column 'timestamp': '1e308' is negative or too"):
        read_times(path, ["a", "b"])
