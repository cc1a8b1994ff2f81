"""Runs whose clients come and go: the same bytes everywhere, and clear words for what is wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.small_runs import same

import fedraw
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.records import ArrivalRecord, JoinedRecord, LeftRecord, LostRecord
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec, to_toml

CONDITIONS: dict[str, Any] = {
    "availability": {"online": 0.5, "cycle": 4.0, "tied_to": "labels", "rare_online": 0.3},
    "losses": {"lost": 0.15},
    "membership": {"joining": 0.3, "leaving": 0.2, "within": 8.0},
}


def spec(name: str = "fedraw", **sections: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 10, "rare_labels": [9], "clients_per_common_label": 6},
            "strategy": {"name": name, **({"buffer": 4} if name != "fedavg" else {})},
            "training": {"epochs": 1},
            "run": {"events": 50, "evaluate_every": 20, "seeds": [1]},
            **CONDITIONS,
            **sections,
        }
    )


@pytest.mark.parametrize("name", ["fedraw", "fedavg"])
def test_all_executors_write_the_same_bytes(name: str, tmp_path: Path) -> None:
    run_seed(spec(name), 1, tmp_path / "inline")
    kinds = {record.kind for record in fedraw.load(tmp_path / "inline")[1].records()}
    assert {"joined", "left", "lost", "arrival", "end"} <= kinds
    for options in (Options("batched"), Options("processes", 2)):
        run_seed(spec(name), 1, tmp_path / options.executor, options=options)
        assert same(tmp_path / "inline", tmp_path / options.executor)


@pytest.mark.parametrize("interrupted", ["pause", "lose"])
def test_a_stopped_run_goes_on_to_the_same_bytes(interrupted: str, tmp_path: Path) -> None:
    availability = {**CONDITIONS["availability"], "interrupted": interrupted}
    wanted = spec("fedbuff", availability=availability)
    run_seed(wanted, 1, tmp_path / "whole")
    for after in (7, 11, 12):
        asked = iter(range(1, 100))
        with pytest.raises(Interrupted):
            options = Options(resume=True, stop=lambda n=after, a=asked: next(a) >= n)  # type: ignore[misc]
            run_seed(wanted, 1, tmp_path / "cut", options=options)
        with (tmp_path / "cut" / "events.jsonl").open("ab") as log:
            log.write(b'{"kind":"lost","event":21,"half a li')  # as if it had been killed
    run_seed(wanted, 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    tables = spec().to_dict()
    tables["training"] = {"kind": "none"}
    tables["run"]["events"] = 40_000
    (tmp_path / "spec.toml").write_text(to_toml(tables))
    code = "import fedraw.experiment.checkpoints as c; c.EVERY_SECONDS = c.LARGEST_SHARE = 0.2\n"
    code += "import fedraw.cli.main as m; m.main()"
    command = [sys.executable, "-c", code, "run", "spec.toml", "--jobs", "1"]
    subprocess.run([*command, "--out", "whole"], cwd=tmp_path, check=True, capture_output=True)
    kills = 0
    for _ in range(3):
        resumed = [*command, "--out", "cut", "--resume"]
        running = subprocess.Popen(resumed, cwd=tmp_path, stderr=subprocess.DEVNULL)
        checkpoint, seen = tmp_path / "cut" / "seed-1" / "checkpoint", time.monotonic() + 60
        before = set(checkpoint.glob("*"))
        while running.poll() is None and time.monotonic() < seen:
            if set(checkpoint.glob("*")) - before:
                running.send_signal(signal.SIGKILL)
                kills += running.wait() == -signal.SIGKILL
            time.sleep(0.01)
    assert kills
    subprocess.run([*command, "--out", "cut", "--resume"], cwd=tmp_path, check=True)
    for file in ("events.jsonl", "summary.json"):
        one, two = (tmp_path / run / "seed-1" / file for run in ("whole", "cut"))
        assert one.read_bytes() == two.read_bytes()


def test_all_methods_meet_the_same_clients_at_the_same_times() -> None:
    met = []
    for name in ("fedraw", "fedbuff", "fedfa"):
        (run,) = fedraw.simulate(spec(name), train="none", events=300, progress=False)
        met.append(
            [
                (record.kind, record.time, record.client)
                for record in run.records()
                if isinstance(record, ArrivalRecord | JoinedRecord | LeftRecord | LostRecord)
            ]
        )
    assert met[0] == met[1] == met[2]


def test_a_synchronous_method_pays_in_time() -> None:
    times = {}
    for name in ("fedbuff", "fedavg"):
        result = fedraw.simulate(spec(name), train="none", events=100, progress=False)
        times[name] = result.arrivals()["time"][99]
    assert times["fedavg"] > 2 * times["fedbuff"]


def test_settings_in_python_and_in_a_file_give_the_same_log() -> None:
    (file,) = fedraw.simulate(spec(), train="none", progress=False)
    sections = CONDITIONS | {"membership": dict(CONDITIONS["membership"])}
    bare = {k: v for k, v in spec().to_dict().items() if k not in CONDITIONS}
    (python,) = fedraw.simulate(
        Spec.from_dict(bare),
        train="none",
        progress=False,
        availability=fedraw.Availability(**sections["availability"]),
        losses=fedraw.Losses(**sections["losses"]),
        membership=fedraw.Membership(**sections["membership"]),
    )
    assert file.log == python.log


def test_always_online_without_losses_changes_no_arrival() -> None:
    runs = []
    for sections in ({}, {"availability": {"kind": "always"}, "losses": {}, "membership": {}}):
        tables = {k: v for k, v in spec().to_dict().items() if k not in CONDITIONS}
        result = fedraw.simulate(Spec.from_dict(tables | sections), train="none", progress=False)
        runs.append(result.arrivals())
    assert runs[0] == runs[1]


def test_a_trace_that_ends_ends_the_run_or_repeats(tmp_path: Path) -> None:
    trace = tmp_path / "online.csv"
    trace.write_text("client,start,end\n" + "".join(f"{c},0,6\n" for c in range(10)))
    settings = {"kind": "trace", "trace": str(trace), "after_trace": "stop"}
    tables = {k: v for k, v in spec().to_dict().items() if k not in CONDITIONS}
    with pytest.warns(UserWarning, match=r"ended after \d+ events: the trace of availability"):
        (run,) = fedraw.simulate(
            Spec.from_dict(tables | {"availability": settings}),
            train="none", events=500, progress=False,
        )  # fmt: skip
    assert run.finished
    assert run.summary["events"] < 500
    assert "after_trace = 'repeat' would start it again" in run.summary["ended"]
    assert fedraw.compare([run])[0].events == (run.summary["events"],)
    again = Spec.from_dict(tables | {"availability": settings | {"after_trace": "repeat"}})
    (run,) = fedraw.simulate(again, train="none", events=500, progress=False)
    assert run.summary["events"] == 500


def test_a_changed_trace_is_not_resumed(tmp_path: Path) -> None:
    trace = tmp_path / "online.csv"
    trace.write_text("client,start,end\n" + "".join(f"{c},0,6\n" for c in range(10)))
    wanted = spec(availability={"kind": "trace", "trace": str(trace)}, training={"kind": "none"})
    run_seed(wanted, 1, tmp_path / "run")
    trace.write_text("client,start,end\n" + "".join(f"{c},0,7\n" for c in range(10)))
    with pytest.raises(BadInput, match=r"its trace \(.*online\.csv\) changed since it was begun"):
        run_seed(wanted, 1, tmp_path / "run", options=Options(resume=True))


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("availability", {"online": 0}, r"availability\.online = 0 must be above 0"),
        ("availability", {"online": 1.5}, r"availability\.online = 1\.5 must be above 0 and at"),
        ("availability", {"cycle": -1}, r"availability\.cycle = -1 must be a positive"),
        ("availability", {"kind": "trace"}, r"availability\.trace is missing; kind = 'trace'"),
        ("availability", {"zones": 3}, r"zones = 3 goes with kind = 'diurnal', not with 'expon"),
        ("availability", {"after_trace": "stop"}, r"after_trace = 'stop' goes with kind = 'trace'"),
        ("availability", {"rare_online": 0.1}, r"rare_online = 0.1 goes with tied_to = 'labels'"),
        (
            "availability",
            {"tied_to": "labels"},
            r"rare_online is missing; tied_to = 'labels' n",
        ),
        ("availability", {"kind": "trace", "trace": "x.csv"}, r"x\.csv: there is no such file"),
        ("losses", {"lost": 1}, r"losses\.lost = 1 must be from 0 to below 1"),
        ("losses", {"twice": 0.1}, r"losses\.twice was removed after fedraw 0\.2; leave it out"),
        ("membership", {"joining": 0.5}, r"membership\.within is missing"),
        ("membership", {"joining": -1}, r"membership\.joining = -1 must be from 0 to 1"),
        ("membership", {"joining": 0.1, "trace": "x.csv"}, r"leave one of them out"),
        ("misreport", {"label": 9}, r"does not go with misreport"),
        ("drift", {"kind": "new", "label": 9, "declared": "again"}, r"with membership some"),
    ],
)
def test_wrong_settings_are_refused(section: str, settings: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fedraw.simulate(spec(**{section: settings}), train="none", progress=False)


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "availability.md").read_text(
    encoding="utf-8"
)


def test_the_example_of_the_page_runs_and_its_spec_says_the_same(capsys: Any) -> None:
    code, tables = (
        re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "toml")
    )
    names: dict[str, Any] = {}
    exec(code[0], names)
    fast, slow = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (fast[0], slow[0]) == ("fedraw", "fedavg")
    assert float(slow[1]) > 3 * float(fast[1])
    exec(code[1], names)
    assert "hours" in names["results"]["fedraw"].curves
    read = Spec.from_dict(tomllib.loads(tables[0]))
    assert read.availability == fedraw.Availability(
        online=0.5, tied_to="labels", rare_online=0.1, cycle=20.0
    )
    assert read.losses == fedraw.Losses(lost=0.05)
    assert read.membership == fedraw.Membership(joining=0.2, leaving=0.1, within=60.0)


def test_a_million_seldom_clients_cost_nothing_until_they_are_drawn() -> None:
    import numpy as np

    from fedraw.core.randomness import Streams
    from fedraw.simulation.availability import Renewal

    process = Renewal(np.full(1_000_000, 0.1), 20.0, Streams(1))
    assert process.phase(999_999, 1000.0).until > 1000.0
    assert len(process._drawn) == 1
