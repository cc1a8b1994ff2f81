"""A Flower deployment on loopback: real SuperLink, SuperExec and SuperNodes, with TLS and keys.

Every process has a mark in its environment. The mark identifies all its child processes, some of
which Flower detaches from their process group. A guard process holds the reading end of a pipe and
kills the remaining processes when the test's process ends for any reason.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Scalar = str | int | float | bool
Isolation = Literal["process", "subprocess"]

MARK = "FEDRAW_DEPLOYMENT"
CERTIFICATES = Path(__file__).parents[2] / "examples" / "flower-app" / "make_certificates.py"
BIN = Path(sys.executable).parent
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"
FINISHED = "finished"
CONNECTED = "SuperNode ID:"  # a SuperNode logs this once the SuperLink has let it in


class DeploymentError(Exception):
    """A process did not start or a command failed; the message has the end of its log."""


@dataclass(frozen=True)
class Process:
    pid: int
    part: str  # "superlink", "superexec", "site-north", …: who started it
    command: str  # the program's name


def running(token: str) -> list[Process]:
    """All live processes of the deployment, including those that Flower has started."""
    found = []
    needle = f"{MARK}={token}/".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        for entry in environment:
            if entry.startswith(needle):
                names = [Path(word.decode()).name for word in words[:2]]
                command = names[1] if names[0].startswith("python") else names[0]
                found.append(Process(int(folder.name), entry[len(needle) :].decode(), command))
    return found


def end(token: str, chosen: Callable[[Process], bool] = lambda _: True) -> list[Process]:
    """Kill the chosen processes; they are gone when this returns."""
    ended: dict[int, Process] = {}
    while rest := [process for process in running(token) if chosen(process)]:
        for process in rest:
            ended[process.pid] = process
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return list(ended.values())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def toml_pairs(values: Mapping[str, Scalar]) -> str:
    """Format a mapping for --node-config and --run-config: name="north" delay=2.5."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())


class Deployment:
    """One SuperLink and one SuperNode per site, which run within a `with` block.

    sites: name -> node config; `site` is the name unless the config sets it.
    tls: certificates, node authentication and a secret between SuperExec and SuperLink.
    isolation: "process" runs the ServerApp under a separate SuperExec, so that it survives
    the SuperLink; "subprocess" is Flower's default.
    node_options: further options of every SuperNode.
    """

    def __init__(
        self,
        folder: Path,
        sites: Mapping[str, Mapping[str, Scalar]],
        tls: bool = True,
        isolation: Isolation = "process",
        node_options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.sites = dict(sites)
        self.tls = tls
        self.isolation = isolation
        self.node_options = list(node_options)
        self.token = secrets.token_hex(8)
        self.port = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._log_offset: dict[str, int] = {}

    def __enter__(self) -> Self:
        for name in ("logs", "home", "flower"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._guard = subprocess.Popen(
            [sys.executable, __file__, self.token], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self.port = free_port()
            self._write_connection()
            if self.tls:
                self._make_keys()
            self.start_superlink()
            if self.isolation == "process":
                self.start_superexec()
            if self.tls:
                self._register_sites()
            for name in self.sites:
                self._start_site(name)
            for name in self.sites:
                self._await_site(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- what a test does to it

    def run_app(self, app: Path, run_config: Mapping[str, Scalar] | None = None) -> Run:
        """Start an app, as `flwr run` does; only keys of the app's pyproject.toml can be set."""
        words = ["run", str(app), "deployment", "--format", "json"]
        if run_config:
            words += ["--run-config", toml_pairs(run_config)]
        return Run(self, int(self.flwr_json(*words)["run-id"]))

    def kill_server_app(self) -> list[Process]:
        return self._kill(lambda process: process.command == SERVER_APP)

    def kill_superlink(self) -> list[Process]:
        """Kill only the SuperLink; a separate SuperExec keeps running, a child SuperExec ends."""
        return self._kill(lambda process: process.command == "flower-superlink")

    def kill_superexec(self) -> list[Process]:
        """The SuperExec of the server side and the ServerApp that it runs."""
        return self._kill(lambda process: process.part == "superexec")

    def kill_site(self, name: str) -> list[Process]:
        """Kill the SuperNode and all its child processes, as if its machine lost power."""
        return self._kill(lambda process: process.part == f"site-{name}")

    def kill_client_app(self, name: str) -> list[Process]:
        part = f"site-{name}"
        return self._kill(lambda process: process.part == part and process.command == CLIENT_APP)

    def start_superlink(self) -> None:
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--database", str(self.folder / "superlink.db")]
        words += ["--isolation", self.isolation, "--disable-runtime-dependency-installation"]
        if self.tls:
            words += ["--ssl-ca-certfile", self._key("ca.pem")]
            words += ["--ssl-certfile", self._key("superlink.pem")]
            words += ["--ssl-keyfile", self._key("superlink.key")]
            words += ["--enable-supernode-auth"]
            if self.isolation == "process":
                words += ["--superexec-auth-secret-file", self._key("superexec.secret")]
        else:
            words += ["--insecure"]
        self._start("superlink", words)
        self._until("superlink", self._healthy)

    def start_superexec(self) -> None:
        words = ["flower-superexec", "--runtime-api-address", f"127.0.0.1:{self.port}"]
        if self.tls:
            words += ["--root-certificates", self._key("ca.pem")]
            words += ["--superexec-auth-secret-file", self._key("superexec.secret")]
        else:
            words += ["--insecure"]
        self._start("superexec", words)

    def start_site(self, name: str, seconds: float = 120.0) -> None:
        """Start a site and wait until it is connected.

        A SuperLink turns an authenticated node away while it still believes it online, so it is
        started again and again, as a supervisor would.
        """
        self._start_site(name)
        self._await_site(name, seconds)

    def stop(self) -> None:
        """End every process of the deployment before returning."""
        end(self.token)
        for process in self._started.values():
            process.wait()
        self._started.clear()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    # --- what a test looks at

    def processes(self) -> list[Process]:
        return running(self.token)

    def log(self, part: str) -> str:
        """The output of "superlink", "superexec" or "site-<name>", including restarts."""
        path = self.folder / "logs" / f"{part}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def flwr(self, *words: str) -> str:
        """The output of a `flwr` command against this deployment."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words],
            env=self._environment("flwr"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise DeploymentError(f"flwr {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def flwr_json(self, *words: str) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self.flwr(*words))
        if not reply.get("success"):
            raise DeploymentError(f"flwr {' '.join(words)}: {reply}")
        return reply

    # --- inside

    def _key(self, name: str) -> str:
        return str(self.folder / "keys" / name)

    def _environment(self, part: str) -> dict[str, str]:
        return {
            **os.environ,
            MARK: f"{self.token}/{part}",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.folder / "home"),
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",
        }

    def _start(self, part: str, words: list[str]) -> None:
        self._log_offset[part] = len(self.log(part))
        with (self.folder / "logs" / f"{part}.log").open("ab") as log:
            self._started[part] = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                env=self._environment(part),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _kill(self, chosen: Callable[[Process], bool]) -> list[Process]:
        ended = end(self.token, chosen)
        for process in ended:
            for part, started in list(self._started.items()):
                if started.pid == process.pid:
                    started.wait()
                    del self._started[part]
        return ended

    def _until(self, part: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if self._started[part].poll() is not None or time.monotonic() > deadline:
                raise DeploymentError(f"{part} did not start:\n{self.log(part)[-3000:]}")
            time.sleep(0.1)

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=self._key("ca.pem")) if self.tls else None
        scheme = "https" if self.tls else "http"
        url = f"{scheme}://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _make_keys(self) -> None:
        words = [sys.executable, str(CERTIFICATES), str(self.folder / "keys")]
        for name in self.sites:
            words += ["--site", name]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def _write_connection(self) -> None:
        lines = ["[superlink]", 'default = "deployment"', "", "[superlink.deployment]"]
        lines += [f'address = "127.0.0.1:{self.port}"']
        lines += [f'root-certificates = "{self._key("ca.pem")}"' if self.tls else "insecure = true"]
        (self.folder / "flower" / "config.toml").write_text("\n".join(lines) + "\n")

    def _register_sites(self) -> None:
        for name in self.sites:
            self.flwr("supernode", "register", self._key(f"{name}.pub"), "deployment")

    def _start_site(self, name: str) -> None:
        config = {"site": name, **self.sites[name]}
        words = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        words += ["--port", str(free_port()), "--node-config", toml_pairs(config)]
        words += self.node_options
        if self.tls:
            words += ["--root-certificates", self._key("ca.pem")]
            words += ["--auth-supernode-private-key", self._key(f"{name}.key")]
        else:
            words += ["--insecure"]
        self._start(f"site-{name}", words)

    def _await_site(self, name: str, seconds: float = 120.0) -> None:
        part = f"site-{name}"
        deadline = time.monotonic() + seconds
        while not self._connected(name):
            if time.monotonic() > deadline:
                raise DeploymentError(f"{part} did not connect:\n{self.log(part)[-3000:]}")
            if self._started[part].poll() is not None:
                self.kill_site(name)
                time.sleep(1.0)
                self._start_site(name)
            time.sleep(0.2)

    def _connected(self, name: str) -> bool:
        part = f"site-{name}"
        return CONNECTED in self.log(part)[self._log_offset[part] :]


@dataclass(frozen=True)
class Run:
    """An app that was started."""

    deployment: Deployment
    number: int

    def status(self) -> str:
        """Flower's status, such as "pending", "running" or "finished:completed"."""
        reply = self.deployment.flwr_json(
            "list", "deployment", "--run-id", str(self.number), "--format", "json"
        )
        return str(reply["runs"][0]["status"])

    def log(self) -> str:
        return self.deployment.flwr("log", str(self.number), "deployment", "--show")

    def stop(self) -> None:
        self.deployment.flwr("stop", str(self.number), "deployment")

    def wait(self, seconds: float) -> str:
        """The final status. Asks Flower only while no ServerApp runs: asking costs a process."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(process.command == SERVER_APP for process in self.deployment.processes()):
                time.sleep(0.3)
            elif (status := self.status()).startswith(FINISHED):
                return status
        raise DeploymentError(f"run {self.number} has not ended in {seconds} seconds")


if __name__ == "__main__":  # the guard: waits until its starter is gone, then clears up
    sys.stdin.buffer.read()
    end(sys.argv[1])
