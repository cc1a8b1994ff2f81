"""What holds for all tests, those in the docstrings of `src` included."""

from __future__ import annotations

import signal
from importlib.util import find_spec

from hypothesis import HealthCheck, settings

# With --import-mode=importlib, pytest executes a collected module of a package that nobody has
# imported yet, although importing its parent package has just imported that module: its classes
# would then exist twice. Importing the package first avoids this.
import fedraw  # noqa: F401

pytest_plugins = ["tests.suite.guards"]

# How long a machine takes for an example says nothing about what is tested.
settings.register_profile("fedraw", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedraw")

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nvflare is installed only in the environment that `make flare` makes. The other modules of
# fedraw.flare need none.
if find_spec("nvflare") is None:
    need_nvflare = ("controller", "recipe", "site", "supervise")
    collect_ignore = [f"src/fedraw/flare/{name}.py" for name in need_nvflare]
