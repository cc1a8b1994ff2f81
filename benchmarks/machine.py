"""What a measurement was taken on: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
import sys
from datetime import date
from pathlib import Path


def headline() -> str:
    """Command, date, cores, processor, versions, and how busy the machine was before."""
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    load = os.getloadavg()[0]
    return (
        f"{command}: {date.today()}, {os.cpu_count()} cores ({processor()}), "
        f"Python {platform.python_version()}, load before {load:.1f}"
    )


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
