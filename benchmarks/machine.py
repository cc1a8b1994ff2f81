"""What the benchmarks print alike: command, date and machine of a measurement, and spreads."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean, stdev


def headline() -> str:
    """Return the command, the date, the cores, the processor, the Python version and the load."""
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    load = os.getloadavg()[0]
    return (
        f"{command}: {date.today()}, {os.cpu_count()} cores ({processor()}), "
        f"Python {platform.python_version()}, load before {load:.1f}"
    )


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean and the sample standard deviation as text.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([1.0])
    ('2.0 ± 1.4', '1.0')
    """
    mean = f"{fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.1f}"


def processor() -> str:
    """Return the processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
