"""`fedraw dashboard` in a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def dashboard(*arguments: object, cwd: Path, **env: str) -> Iterator[Dashboard]:
    command = [sys.executable, "-m", "fedraw", "dashboard", *map(str, arguments), "--port", "0"]
    errors = cwd / "dashboard.err"
    with errors.open("wb") as file:
        process = subprocess.Popen(command, cwd=cwd, stderr=file, env={**os.environ, **env})
    try:
        yield Dashboard(process, errors)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


class Dashboard:
    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process = process
        self._errors = errors
        found = self.until(lambda: re.search(r"dashboard at (http://\S+)", self.errors))
        self.address = found[1]
        self.url, _, query = self.address.partition("?")
        self.token = query.removeprefix("token=")

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def until(self, ready: Callable[[], Any], seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := ready()):
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < end, self.errors
            time.sleep(0.1)
        return found

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path.lstrip("/"), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def runs(self) -> list[dict[str, Any]]:
        document: dict[str, Any] = json.loads(self.get("/api/runs")[1])
        found: list[dict[str, Any]] = document["runs"]
        return found

    def run(self, number: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get(f"/api/runs/{self.runs()[number]['id']}")[1])
        return document
