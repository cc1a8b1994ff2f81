from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fedraw.flower.loop import Stopped, StopSignals


def test_a_signal_takes_effect_only_in_a_wait() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        with signals.waiting():
            pass
        signal.raise_signal(signal.SIGTERM)
        done = "something that must not be cut short"
        with pytest.raises(Stopped), signals.waiting():
            done = "not reached"
        assert (done, signals.received) == ("something that must not be cut short", signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_a_wait_ends_it_at_once() -> None:
    with StopSignals() as signals, pytest.raises(Stopped), signals.waiting():
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the wait went on")


ORPHAN = """
import threading, time
from fedraw.flower.loop import Stopped, StopSignals

def serve():
    try:
        with StopSignals() as signals:
            while True:
                with signals.waiting():
                    time.sleep(0.05)
    except Stopped:
        print("left")

threading.Thread(target=serve).start()
time.sleep(0.2)
raise RuntimeError("the simulation has crashed")
"""


def test_a_thread_does_not_outlive_the_simulation_it_belongs_to() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "left\n"
    assert "the simulation has crashed" in done.stderr
