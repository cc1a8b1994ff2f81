"""Wall time, processor time and memory of this process and all that it has started."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    seconds: float
    cpu: float  # seconds of all processes together
    peak_mb: int  # their largest resident sets added up; pages that they share count again


class Clock:
    """Starts when it is made. Looking takes some milliseconds, which are not in what it tells."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._begun = time.perf_counter()

    def spent(self) -> Spent:
        seconds = time.perf_counter() - self._begun
        return Spent(seconds, cpu_seconds() - self._cpu, peak_mb())


def cpu_seconds() -> float:
    return sum(sum(map(int, fields[11:13])) for fields in _family().values()) / TICKS


def peak_mb() -> int:
    kilobytes = 0
    for process in _family():
        lines = _read(f"/proc/{process}/status").splitlines()
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return kilobytes // 1024


def _family() -> dict[int, list[str]]:
    """This process and all below it, each with the fields of its /proc/N/stat from `state` on."""
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
    except OSError:  # gone meanwhile
        return ""
