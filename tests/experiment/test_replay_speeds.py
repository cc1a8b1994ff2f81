"""A federation as it behaved before, with another strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import fedraw as command
from tests.eventlog.federation_log import END, STORY, write

import fedraw
from fedraw.errors import BadInput
from fedraw.eventlog.records import JoinedRecord, LeftRecord
from fedraw.experiment.spec import Spec, to_toml


def spec(clients: int = 3, **sections: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"kind": "iid", "clients": clients},
            "strategy": {"name": "fedbuff", "buffer": 2},
            "training": {"kind": "none"},
            "run": {"events": 12, "seeds": [1]},
            **sections,
        }
    )


def story(folder: Path) -> Path:
    """The log of a server; its trainings all start at 0, so the last time is each one's length."""
    write(folder / "events.jsonl", [*STORY, END])
    return folder


def test_a_servers_log_gives_times_joins_and_leaves(tmp_path: Path) -> None:
    replayed = spec().replaying(story(tmp_path))
    (run,) = fedraw.simulate(replayed, progress=False)
    # West, east and north are clients 0, 1 and 2, in the order in which they joined.
    members = [
        (r.time, r.kind, r.client)
        for r in run.records()
        if isinstance(r, JoinedRecord | LeftRecord)
    ]
    assert members == [
        (0.0, "joined", 0), (0.0, "joined", 1), (12.0, "joined", 2), (30.0, "left", 1),
        (131.0, "left", 0), (140.0, "joined", 1),
    ]  # fmt: skip
    arrivals = fedraw.Result([run]).arrivals().rows()
    met = [(row["client"], row["start_time"], row["time"]) for row in arrivals[:4]]
    # West trains for 10 and 130 seconds in turn, north for 20 and 120, east for 150.
    assert met == [(0, 0.0, 10.0), (2, 12.0, 32.0), (2, 32.0, 152.0), (2, 152.0, 172.0)]
    assert "clients stand for the sites of" in run.summary["notes"][-1]
    assert run.summary["notes"][-1].endswith("0 for west, 1 for east, 2 for north")


def test_a_simulation_replays_itself(tmp_path: Path) -> None:
    original = spec(8, speeds={"kind": "uniform"}, run={"events": 60, "seeds": [1]})
    first = fedraw.simulate(original, out=tmp_path, progress=False)
    replayed = original.replaying(tmp_path / "seed-1")
    again = fedraw.simulate(replayed, strategy="fedfa", events=30, progress=False)
    times = [
        [(r["client"], r["time"]) for r in one.arrivals().rows()[:30]] for one in (first, again)
    ]
    assert [c for c, _ in times[0]] == [c for c, _ in times[1]]
    assert [t for _, t in times[0]] == pytest.approx([t for _, t in times[1]])


def test_the_option_runs_and_its_spec_can_be_run_again(tmp_path: Path) -> None:
    story(tmp_path / "federation")
    (tmp_path / "mine.toml").write_text(to_toml(spec().to_dict()))
    done = command("run", "mine.toml", "--replay-speeds", "federation", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "mine" / "seed-1"
    (tmp_path / "again.toml").write_text((run / "spec.toml").read_text())
    done = command("run", "again.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logs = [tmp_path / "runs" / name / "seed-1" / "events.jsonl" for name in ("mine", "again")]
    assert logs[0].read_bytes() == logs[1].read_bytes()
    trace = json.loads(logs[0].read_text().splitlines()[0])["trace"]
    assert trace["sha256"] == trace["membership"]


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no events\.jsonl; name the folder of a server"):
        spec().replaying(tmp_path)
    story(tmp_path)
    with pytest.raises(BadInput, match=r"has 3 sites \(west, east, north\).*clients = 3"):
        fedraw.simulate(spec(5).replaying(tmp_path), progress=False)
    with pytest.raises(BadInput, match=r"membership says who joins and leaves, and so does"):
        spec(membership={"leaving": 0.5, "within": 9.0}).replaying(tmp_path)
    write(tmp_path / "events.jsonl", [r for r in STORY if getattr(r, "event", 0) < 5])
    with pytest.raises(BadInput, match=r"no duration of client 1 \(1 of 3 clients are missing\)"):
        fedraw.simulate(spec().replaying(tmp_path), progress=False)
