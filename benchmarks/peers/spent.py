"""Wall time, CPU time and memory of this process and its descendants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """The resources of a measurement."""

    seconds: float
    cpu: float  # CPU seconds of all processes together
    peak_mb: int  # sum of the largest resident sets; shared pages count several times


class Clock:
    """Measures from its construction; reading it takes some milliseconds, which do not count."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._start = time.perf_counter()

    def spent(self) -> Spent:
        """Return the resources since the construction."""
        seconds = time.perf_counter() - self._start
        return Spent(seconds, cpu_seconds() - self._cpu, peak_mb())


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants so far."""
    return sum(sum(map(int, fields[11:13])) for fields in _process_tree().values()) / TICKS


def peak_mb() -> int:
    """Return the sum of the largest resident sets in MB."""
    kilobytes = 0
    for process in _process_tree():
        lines = _read(f"/proc/{process}/status").splitlines()
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return kilobytes // 1024


def _process_tree() -> dict[int, list[str]]:
    """Return this process and its descendants, with the fields of /proc/N/stat from `state` on."""
    every = {
        int(path.name): _read(f"{path}/stat").rpartition(")")[2].split()
        for path in Path("/proc").glob("[0-9]*")
    }
    found: dict[int, list[str]] = {}
    new = {os.getpid()}
    while new:
        found |= {process: every[process] for process in new if every[process]}
        new = {process for process, fields in every.items() if fields and int(fields[1]) in new}
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended
        return ""
