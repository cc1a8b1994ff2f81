"""FLARE's POC mode on loopback: a real server and real sites, provisioned, with mTLS.

`nvflare poc prepare` makes the start-up kits. Each process is started by its kit's own script and
carries a mark in its environment, by which it and all that it started are found again.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from tests.flower.deployment import MARK, Process, end, free_port, running

BIN = Path(sys.executable).parent
GUARD = Path(__file__).parents[1] / "flower" / "deployment.py"
ADMIN = "admin@nvidia.com"
SERVER_JOB, SITE_JOB = "server.runner_process", "client.worker_process"


class Poc:
    """A server and sites that run within a `with` block."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.folder = folder
        self.sites = list(sites)
        self.token = secrets.token_hex(8)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD), self.token], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self._prepare()
            self.start("server")
            for site in self.sites:
                self.start(site)
            self.until(lambda: set(self.connected()) == set(self.sites))
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

    def start(self, part: str) -> None:
        """Start the server or a site with its start-up script."""
        with (self.folder / "logs" / f"{part}.log").open("ab") as log:
            self._started[part] = subprocess.Popen(
                ["bash", str(self.kits / part / "startup" / "sub_start.sh"), "--once"],
                env=self.environment(part),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, part: str, only: str = "") -> list[Process]:
        """Kill the server or a site with its child processes, or only those of one module."""
        ended = end(self.token, lambda process: process.part == part and self._runs(process, only))
        if not only:
            self._started.pop(part).wait()
        return ended

    def submit(self, job: Path) -> str:
        with self.session() as session:
            return str(session.submit_job(str(job)))

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

    @property
    def kits(self) -> Path:
        return self.folder / "poc" / "example_project" / "prod_00"

    @property
    def workspace(self) -> Path:
        """The server's workspace."""
        return self.kits / "server"

    @contextmanager
    def session(self) -> Iterator[Session]:
        session = new_secure_session(ADMIN, str(self.kits / ADMIN), timeout=30.0)
        try:
            yield session
        finally:
            session.close()

    def connected(self) -> list[str]:
        with self.session() as session:
            return [client.name for client in session.get_connected_client_list()]

    def status(self, job: str) -> str:
        with self.session() as session:
            return str(session.get_job_status(job))

    def wait(self, job: str, seconds: float = 300.0) -> str:
        """The final status of a job."""
        self.until(lambda: self.status(job).startswith("FINISHED"), seconds, pause=2.0)
        return self.status(job)

    def until(self, what: Callable[[], bool], seconds: float = 120.0, pause: float = 0.5) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if what():
                    return
            except Exception as problem:  # the server is not there yet
                if time.monotonic() > deadline:
                    raise
                print(type(problem).__name__, problem)
            assert time.monotonic() < deadline, self.logs()
            time.sleep(pause)

    def logs(self) -> str:
        texts = [path.read_text(errors="replace") for path in (self.folder / "logs").glob("*.log")]
        return "\n".join(text[-2000:] for text in texts)

    def processes(self) -> list[Process]:
        return running(self.token)

    # --- inside

    def _runs(self, process: Process, module: str) -> bool:
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            return False
        return module.encode() in words

    def environment(self, part: str) -> Mapping[str, str]:
        return {
            **os.environ,
            MARK: f"{self.token}/{part}",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.folder / "home"),
            "NVFLARE_POC_WORKSPACE": str(self.folder / "poc"),
        }

    def _prepare(self) -> None:
        project = self.folder / "project.yml"
        self._nvflare("poc", "prepare", "-c", *self.sites)
        made: dict[str, Any] = yaml.safe_load((self.folder / "poc" / "project.yml").read_text())
        for participant in made["participants"]:
            if participant["type"] == "server":
                participant["fed_learn_port"] = free_port()
        project.write_text(yaml.safe_dump(made))
        self._nvflare("poc", "prepare", "-i", str(project), "--force")

    def _nvflare(self, *words: str) -> None:
        done = subprocess.run(
            [str(BIN / "nvflare"), *words],
            env=self.environment("nvflare"),
            cwd=self.folder,
            input="y\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
