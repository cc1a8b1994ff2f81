"""A description of the machine and the versions of a measurement, which its figures depend on."""

from __future__ import annotations

import os
import platform
import sys
from datetime import date
from pathlib import Path


def headline() -> str:
    """Return the command, the date, the cores, the processor, the versions and the load before."""
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    load = os.getloadavg()[0]
    return (
        f"{command}: {date.today()}, {os.cpu_count()} cores ({processor()}), "
        f"Python {platform.python_version()}, load before {load:.1f}"
    )


def processor() -> str:
    """Return the name of the processor if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
