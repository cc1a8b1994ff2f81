"""Ctrl-C while a run starts or ends, when it cannot stop between two arrivals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedraw.errors import Interrupted
from fedraw.eventlog.records import Record, StartRecord
from fedraw.experiment.cells import Cell, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.spec import Spec

# Progress is reported every 20 events within a run, and once when the last event is done.
EVENTS = 30


def cells(folder: Path, count: int) -> list[Cell]:
    spec = Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": "fedraw", "buffer": 4},
            "training": {"kind": "none"},
            "run": {"events": EVENTS},
        }
    )
    return [Cell(spec, seed, folder / f"seed-{seed}") for seed in range(1, count + 1)]


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "interrupted before the run was finished"),
        (3, "interrupted with 1 of 3 runs finished"),
    ],
)
@pytest.mark.parametrize("moment", ["start", "end"])
def test_the_message_fits_the_number_of_runs(
    tmp_path: Path, moment: str, count: int, message: str
) -> None:
    last = min(count, 2) - 1  # the only run, or the second of three

    def observe(number: int, record: Record) -> None:
        if moment == "start" and number == last and isinstance(record, StartRecord):
            press_ctrl_c()

    def progress(number: int, events: int) -> None:
        if moment == "end" and number == last and events == EVENTS:
            press_ctrl_c()

    with pytest.raises(Interrupted) as stopped:
        run_cells(cells(tmp_path, count), Options(), 1, progress, observe=observe)
    assert str(stopped.value) == message
    resumed = run_cells(cells(tmp_path, count), Options(resume=True), 1)
    assert [run.summary["events"] for run in resumed] == [EVENTS] * count


# Ctrl-C reaches all processes of a terminal, so the script sends it to its process group.
SCRIPT = """
import os, signal, sys
import fedraw
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
pressed = []
def press(record, seed):
    if record.kind == "arrival" and not pressed:
        pressed.append(seed)
        os.killpg(0, signal.SIGINT)
def run():
    fedraw.simulate(strategy="fedbuff", train="none", events=10**6, seeds=[1, 2], callbacks=press,
                    {arguments})
if __name__ == "__main__":
    {call}
"""


def script(tmp_path: Path, arguments: str, call: str = "run()") -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(SCRIPT.format(arguments=arguments, call=call))
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("jobs=1", "interrupted at event 1 of 1000000"),
        ("jobs=1, out='runs'", "interrupted at event 1 of 1000000; continue with resume=True"),
        ("jobs=2", "interrupted; each run stopped where it was"),
        ("jobs=2, executor='processes'", "interrupted at event 1 of 1000000"),
    ],
)
def test_ctrl_c_ends_a_script_with_one_line(tmp_path: Path, arguments: str, line: str) -> None:
    done = script(tmp_path, arguments)
    assert (done.returncode, done.stderr.splitlines()) == (130, [line])


@pytest.mark.parametrize("caught", ["KeyboardInterrupt", "fedraw.Interrupted"])
def test_a_script_can_catch_ctrl_c(tmp_path: Path, caught: str) -> None:
    call = f"try:\n        run()\n    except {caught} as stop:\n        print('caught', stop)"
    done = script(tmp_path, "jobs=1", f"{call}\n    raise ValueError('its own')")
    assert done.stdout == "caught interrupted at event 1 of 1000000\n"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: its own"
