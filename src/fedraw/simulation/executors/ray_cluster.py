"""Connect to a Ray cluster for one command, or start one on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from fedraw.errors import BadInput, MissingExtra

# Seconds within which a cluster must answer: long enough for a slow one, short for a dead one.
ANSWERS_WITHIN = 20.0
REMEDY = "use host:port of a `ray start --head` that runs, or leave address=... out"
# Settings of a cluster that we start; the user's environment takes precedence.
LOCAL_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # If this process is killed, Ray's agents look for their server this long before they end.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
LOOPBACK = ("127.0.0.1", "::1")


def import_ray() -> Any:
    """Import Ray, or say which extra to install."""
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "ray", "ray") from None
    return ray


@contextmanager
def cluster(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """Connect to the cluster at `address`, or start one on this machine.

    If this process is connected to a cluster already, that connection is used.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    with _signals_kept(), tempfile.TemporaryDirectory(**_short_path()) as folder:
        try:
            _start(ray, cpus, folder) if address is None else _connect(ray, address)
            yield
        finally:
            ray.shutdown()


def cpus_of_cluster() -> int:
    """Return the number of CPUs of all nodes, whether in use or not."""
    return int(import_ray().cluster_resources().get("CPU", 0))


def _start(ray: Any, cpus: int | None, folder: str) -> None:
    settings = {name: os.environ.get(name, value) for name, value in LOCAL_SETTINGS.items()}
    with _environment(settings), _on_loopback(ray):
        # "local", because RAY_ADDRESS may be set. A temporary folder, because Ray would keep its
        # logs forever, and "auto" shall still find the clusters that the user has started.
        _init(ray, address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder)
    host = ray.util.get_node_ip_address()
    if host not in LOOPBACK:
        raise BadInput(
            f"Ray {ray.__version__} listens on {host}, where other machines can reach it and run "
            "code as you; use executor='processes', or start Ray yourself and give its address=..."
        )


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Make a cluster that starts now accept connections from this machine only.

    Ray listens on all interfaces unless its node has the loopback address. It replaces a given
    loopback address by one that other machines can reach, unless clusters of several machines are
    switched off, which is Ray's default on macOS and Windows.
    """
    constants = ray._private.ray_constants  # the environment was read when Ray was imported
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment({constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):  # of Ray's own processes
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _connect(ray: Any, address: str) -> None:
    _require_answer(address)
    try:
        _init(ray, address=address)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        _refuse(address, str(problem))


def _init(ray: Any, **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a tip about GPUs
        ray.init(log_to_driver=False, logging_level="error", **settings)


def _require_answer(address: str) -> None:
    """Ask in another process first: Ray itself tries for minutes, and may end this process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), ANSWERS_WITHIN).close()
        except (OSError, OverflowError) as problem:
            _refuse(address, str(problem))
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWERS_WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        _refuse(address, f"no answer within {ANSWERS_WITHIN:g} s")
    if asked.returncode:
        lines = asked.stderr.strip().splitlines()
        _refuse(address, lines[-1] if lines else "Ray gave no reason")


def _refuse(address: str, reason: str) -> NoReturn:
    raise BadInput(f"no Ray cluster at address={address!r} ({reason}); {REMEDY}") from None


def _short_path() -> dict[str, Any]:
    # Ray puts sockets there, whose paths must be short, and TMPDIR is often long.
    where = "/tmp" if os.path.isdir("/tmp") else None  # noqa: PTH112
    return {"prefix": "fedraw-ray-", "dir": where, "ignore_cleanup_errors": True}


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler, which Ray replaces and does not restore."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
