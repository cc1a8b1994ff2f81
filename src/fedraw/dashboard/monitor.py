"""The process that a server starts for its dashboard and its alerts.

It is a process of its own, so that training is not slowed, a failure of it hurts nobody, and it can
still tell that the server died. The server holds the writing end of its standard input: when that
closes, the monitor looks at the log a last time, delivers what is due, and ends. Its log messages
go to its standard output, one JSON object a line, and the server logs them.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedraw.core.json_log import JsonFormatter
from fedraw.dashboard.alerts import Alerts, AlertSettings, Delivery
from fedraw.dashboard.serve import Address, bind, read_token, serve
from fedraw.dashboard.watcher import RunView, Watcher
from fedraw.errors import BadInput, FedrawError

LOGGER = logging.getLogger("fedraw.dashboard")

# A restarted server may start its monitor before the last one has gone: seconds to wait for the
# port, and seconds that the last deliveries may take.
PORT_WAIT, LAST_WORDS = 60.0, 10.0


class Monitor:
    """The server's side: starts the process, and passes its messages on."""

    def __init__(
        self,
        folder: Path,
        address: str = "",
        token_file: Path | None = None,
        alerts: Path | None = None,
    ) -> None:
        self.check(address, token_file, alerts)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedraw.dashboard.monitor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        settings = {
            "folder": str(folder),
            "address": address,
            "token_file": None if token_file is None else str(token_file),
            "alerts": None if alerts is None else str(alerts),
        }
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died already, and its messages say why
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()
        self._reader = threading.Thread(target=self._pass_on, name="fedraw-monitor", daemon=True)
        self._reader.start()

    @staticmethod
    def check(address: str, token_file: Path | None, alerts: Path | None) -> None:
        """Refuse settings that the process would refuse, while somebody still reads the message."""
        if address:
            read_token(Address.parse(address), token_file)
        if alerts is not None:
            AlertSettings.from_file(alerts)

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
                level = logging.getLevelName(told["level"])
                extra = {"alert": told["alert"]} if "alert" in told else {}
                LOGGER.log(level, "%s", told["message"], extra=extra)
            except (ValueError, LookupError, TypeError):
                LOGGER.info("%s", line.decode(errors="replace").rstrip())

    def close(self) -> None:
        """Let the process finish what it delivers, and end."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(LAST_WORDS + 10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def monitored(
    folder: Path, address: str, token_file: Path | None, alerts: Path | None
) -> Iterator[None]:
    """In this block, a monitor runs beside a server if its settings want a dashboard or alerts."""
    if not address and alerts is None:
        yield
        return
    monitor = Monitor(folder, address, token_file, alerts)
    try:
        yield
    finally:
        monitor.close()


def _wait_for_end(gone: threading.Event) -> None:
    """Set the event when the server has closed its end of the pipe, as it also does by dying."""
    while sys.stdin.buffer.read(1 << 10):
        pass
    gone.set()


def run(settings: dict[str, Any]) -> None:
    """Follow one folder until the server has gone."""
    gone = threading.Event()
    threading.Thread(target=_wait_for_end, args=[gone], daemon=True).start()
    watcher = Watcher([Path(settings["folder"])])
    rules, delivery = None, None
    if settings["alerts"] is not None:
        read = AlertSettings.from_file(Path(settings["alerts"]))
        delivery = Delivery(read)
        rules = Alerts(read.rules, delivery)
        evaluate = rules.evaluate
        watcher.on_look(lambda: evaluate(watcher.views(sites=True)))
    watcher.start()
    try:
        if settings["address"]:
            _serve(settings, watcher, gone)
        gone.wait()
    finally:
        watcher.stop()
        watcher.look(LAST_WORDS)
        if rules is not None and delivery is not None:
            rules.evaluate([_without_its_server(view) for view in watcher.views(sites=True)])
            delivery.close(LAST_WORDS)


def _without_its_server(view: RunView) -> RunView:
    """The run as it is once its server has gone: it has stopped unless it has finished."""
    if view.status.state == "finished":
        return view
    return replace(view, status=replace(view.status, state="stopped"))


def _serve(settings: dict[str, Any], watcher: Watcher, gone: threading.Event) -> None:
    """Serve the dashboard; a failure is told and ends nothing else."""
    try:
        address = Address.parse(settings["address"])
        file = settings["token_file"]
        token = read_token(address, None if file is None else Path(file))
        until = time.monotonic() + PORT_WAIT
        while True:
            try:
                listener = bind(address)
                break
            except BadInput:
                if time.monotonic() > until or gone.is_set():
                    raise
                time.sleep(1.0)
        LOGGER.info("dashboard at %s", address.url(listener.getsockname()[1], token))
        serve(watcher, listener, token, until=gone.is_set)
    except FedrawError as problem:
        LOGGER.error("no dashboard: %s", problem)


def main() -> None:
    """Run the process: the settings are the first line of standard input."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("fedraw").addHandler(handler)
    logging.getLogger("fedraw").setLevel(logging.INFO)
    run(json.loads(sys.stdin.buffer.readline()))


if __name__ == "__main__":
    main()
