"""Public traces become tables, and a pickle that wants to run code is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from examples.scale.convert_trace import BadTrace, convert_trace, main, write_trace

from fedraw.experiment.costs import read_devices
from fedraw.simulation.availability import RecordedAvailability, read_intervals

DEVICES = {
    432802: {"computation": 162.0, "communication": 5648.0},
    7: {"computation": 50, "communication": 1000},
}
BEHAVIOUR = {
    1: {"duration": 9, "active": [0, 60], "inactive": [30, 90], "finish_time": 100, "model": "x"},
    2: {"active": [10, 20, 80], "inactive": [25, 40], "finish_time": 100},
    3: {"active": [], "inactive": [], "finish_time": 100},
}
PHONE = """2020-01-02 00:00:00\tbattery_charged_on
2020-01-02 00:00:10\tscreen_lock
2020-01-02 00:00:20\tWIFI
2020-01-02 00:00:25\t80.0%
2020-01-02 00:01:00\tscreen_unlock
2020-01-02 00:01:30\tscreen_lock
2020-01-02 00:02:00\t4G
"""


def pickled(content: Any, tmp_path: Path) -> Path:
    path = tmp_path / "trace.pkl"
    path.write_bytes(pickle.dumps(content))
    return path


def test_fedscale_devices_have_speed_and_bandwidth(tmp_path: Path) -> None:
    header, rows = convert_trace("fedscale-devices", pickled(DEVICES, tmp_path))
    # Three times the forward pass, in seconds; kilobits as megabits.
    assert rows[0] == pytest.approx((0, 0.486, 5.648, 5.648))
    assert rows[1] == pytest.approx((1, 0.15, 1.0, 1.0))
    write_trace(header, rows, tmp_path / "devices.csv")
    found = read_devices(tmp_path / "devices.csv", [0, 1])
    assert found["seconds_per_sample"].tolist() == pytest.approx([0.486, 0.15])
    assert found["upload_mbit"].tolist() == [5.648, 1.0]


def test_fedscale_availability_has_intervals(tmp_path: Path) -> None:
    header, rows = convert_trace("fedscale-availability", pickled(BEHAVIOUR, tmp_path))
    # Overlapping intervals are joined, an open end is the end, and one never online is left out.
    assert rows == [(0, 0, 30), (0, 60, 90), (1, 10, 40), (1, 80, 100)]
    write_trace(header, rows, tmp_path / "online.csv")
    online = RecordedAvailability([0, 1], read_intervals(tmp_path / "online.csv"), repeat=True)
    assert online.phase(1, 30.0) == (True, 40.0)


def test_flash_devices_are_ready_when_locked_charging_and_in_a_wireless_network(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state_traces.json"
    later = PHONE.replace("2020-01-02 00:0", "2020-01-02 00:1")
    phones = {"a": {"messages": PHONE, "model": "x"}, "b": {"messages": later, "model": "y"}}
    path.write_text(json.dumps(phones))
    _, rows = convert_trace("flash", path)
    assert rows == [(0, 0, 40), (0, 70, 100), (1, 600, 640), (1, 670, 700)]


def test_clients_are_drawn_with_the_seed(tmp_path: Path) -> None:
    path = pickled({i: {"computation": i + 1, "communication": 1} for i in range(50)}, tmp_path)
    drawn = [convert_trace("fedscale-devices", path, 10, seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [row[0] for row in drawn[0]] == list(range(10))
    with pytest.raises(BadTrace, match="has 50 usable clients, not 51; ask for fewer"):
        convert_trace("fedscale-devices", path, 51)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def test_a_pickle_that_wants_to_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = pickled({1: Evil()}, tmp_path)
    with pytest.raises(BadTrace, match=r"refused: it imports \w+\.system, .* may run code"):
        convert_trace("fedscale-devices", path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("fedscale-devices", b"no pickle", "is not a pickle|refused"),
        ("fedscale-devices", pickle.dumps([1, 2]), "expected a dictionary of clients"),
        ("fedscale-devices", pickle.dumps({1: {"speed": 3}}), r"client '1' .*KeyError: 'comp"),
        (
            "fedscale-devices",
            pickle.dumps({1: {"computation": 1, "communication": -5}}),
            r"communication = -5 are not above 0",
        ),
        (
            "fedscale-availability",
            pickle.dumps({1: {"active": [1], "inactive": [2, 3], "finish_time": 9}}),
            "1 times in active, 2 in inactive",
        ),
        ("flash", b"{", "is not valid JSON"),
        ("flash", b'{"a": {"messages": "today\\twifi"}}', "client 'a' does not have the form"),
        ("leaf", b"{}", "unknown trace format 'leaf'; known: fedscale-devices"),
    ],
)
def test_a_file_of_another_format_is_refused(
    kind: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadTrace, match=message):
        convert_trace(kind, path)


def test_the_script_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "online.csv"
    file = str(pickled(BEHAVIOUR, tmp_path))
    main(["fedscale-availability", file, "--clients", "1", "-o", str(out)])
    assert "online.csv: 2 rows of 1 clients" in capsys.readouterr().out
    assert out.read_text().startswith("client,start,end\n0,")
    pickled({1: Evil()}, tmp_path)
    with pytest.raises(SystemExit, match="refused: it imports"):
        main(["fedscale-devices", file, "-o", str(tmp_path / "x.csv")])
    assert not (tmp_path / "owned").exists()
