"""The command, the date and the machine of a measurement."""

from __future__ import annotations

import os
import platform
import sys
from datetime import date
from pathlib import Path


def headline() -> str:
    """Return the command, the date, the cores, the processor, the Python version and the load."""
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    load = os.getloadavg()[0]
    return (
        f"{command}: {date.today()}, {os.cpu_count()} cores ({processor()}), "
        f"Python {platform.python_version()}, load before {load:.1f}"
    )


def processor() -> str:
    """Return the processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
