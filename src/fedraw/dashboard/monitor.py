"""The process that a server starts for its dashboard and its alerts.

The monitor is a separate process, so that it does not slow training, its failure does not affect
the server, and it can report that the server died. The server holds the writing end of the
monitor's standard input. When that closes, the monitor reads the log a last time, delivers the last
alerts, and ends. It writes its log messages to its standard output, one JSON object per line, and
the server logs them.
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
from fedraw.dashboard.serve import Address, announcement, bind, read_token, serve
from fedraw.dashboard.watcher import RunView, Watcher
from fedraw.errors import BadInput, FedrawError

LOGGER = logging.getLogger("fedraw.dashboard")

# Seconds to wait for the port, because a restarted server may start its monitor before the old one
# has ended; and seconds that the last deliveries may take.
PORT_WAIT, CLOSE_SECONDS = 60.0, 10.0
# Seconds before a process that has died is started again; each further death doubles the pause.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


class Monitor:
    """The server's side: starts the process, logs its messages, and replaces it if it dies."""

    def __init__(
        self,
        folder: Path,
        address: str = "",
        token_file: Path | None = None,
        alerts: Path | None = None,
    ) -> None:
        self.check(address, token_file, alerts)
        self._settings = {
            "folder": str(folder),
            "address": address,
            "token_file": None if token_file is None else str(token_file),
            "alerts": None if alerts is None else str(alerts),
        }
        self._closing = threading.Event()
        self._changing = threading.Lock()  # held while `_process` is replaced
        self._process = self._start()
        self._keeper = threading.Thread(
            target=self._keep_running, name="fedraw-monitor", daemon=True
        )
        self._keeper.start()

    @staticmethod
    def check(address: str, token_file: Path | None, alerts: Path | None) -> None:
        """Refuse bad settings before the process starts, so that the caller gets the error."""
        if address:
            read_token(Address.parse(address), token_file)
        if alerts is not None:
            AlertSettings.from_file(alerts)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedraw.dashboard.monitor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        with suppress(OSError):  # if the process has died already, its messages say why
            process.stdin.write(json.dumps(self._settings).encode() + b"\n")
            process.stdin.flush()
        return process

    def _keep_running(self) -> None:
        """Log the messages of the process; when it dies, start it again after a pause."""
        pause = FIRST_PAUSE
        while True:
            self._relay_messages()
            code = self._process.wait()
            # After the pause, because Ctrl-C ends the process before the server closes it.
            if self._closing.wait(pause):
                return
            LOGGER.error(
                "the process of the dashboard and the alerts ended with exit code %d and is "
                "started again",
                code,
            )
            pause = min(2 * pause, LONGEST_PAUSE)
            if not self._replace_process():
                return

    def _replace_process(self) -> bool:
        """Start the process again; return False if the server closes it meanwhile."""
        with self._changing:
            if self._closing.is_set():
                return False
            _close_pipes(self._process)
            try:
                self._process = self._start()
            except OSError as problem:
                LOGGER.error("no dashboard and no alerts: the process cannot start: %s", problem)
                return False
            return True

    def _relay_messages(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                record = json.loads(line)
                level = logging.getLevelName(record["level"])
                extra = {"alert": record["alert"]} if "alert" in record else {}
                LOGGER.log(level, "%s", record["message"], extra=extra)
            except (ValueError, LookupError, TypeError):
                LOGGER.info("%s", line.decode(errors="replace").rstrip())

    def close(self) -> None:
        """Wait for the last deliveries of the process and for its end."""
        with self._changing:
            self._closing.set()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS + 10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._keeper.join(5.0)
        _close_pipes(self._process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


@contextmanager
def monitored(
    folder: Path, address: str, token_file: Path | None, alerts: Path | None
) -> Iterator[None]:
    """Run a monitor during the block if a dashboard or alerts are configured."""
    if not address and alerts is None:
        yield
        return
    monitor = Monitor(folder, address, token_file, alerts)
    try:
        yield
    finally:
        monitor.close()


def _wait_for_server_end(server_ended: threading.Event) -> None:
    """Set the event when the server closes its end of the pipe, which also happens if it dies."""
    while sys.stdin.buffer.read(1 << 10):
        pass
    server_ended.set()


def run(settings: dict[str, Any]) -> None:
    """Follow one folder until the server ends."""
    server_ended = threading.Event()
    threading.Thread(target=_wait_for_server_end, args=[server_ended], daemon=True).start()
    watcher = Watcher([Path(settings["folder"])])
    rules, delivery = None, None
    if settings["alerts"] is not None:
        read = AlertSettings.from_file(Path(settings["alerts"]))
        delivery = Delivery(read)
        rules = Alerts(read.rules, delivery)
        evaluate = rules.evaluate
        watcher.on_poll(lambda: evaluate(watcher.views(sites=True)))
    watcher.start()
    try:
        if settings["address"]:
            _serve(settings, watcher, server_ended)
        server_ended.wait()
    finally:
        watcher.stop()
        watcher.poll(CLOSE_SECONDS)
        if rules is not None and delivery is not None:
            rules.evaluate([_after_its_server(view) for view in watcher.views(sites=True)])
            delivery.close(CLOSE_SECONDS)


def _after_its_server(view: RunView) -> RunView:
    """Return the view of the run after its server ended: it has stopped unless it has finished."""
    if view.status.state == "finished":
        return view
    return replace(view, status=replace(view.status, state="stopped"))


def _serve(settings: dict[str, Any], watcher: Watcher, server_ended: threading.Event) -> None:
    """Serve the dashboard; log a failure, and keep the monitor running."""
    try:
        address = Address.parse(settings["address"])
        file = None if settings["token_file"] is None else Path(settings["token_file"])
        token = read_token(address, file)
        until = time.monotonic() + PORT_WAIT
        while True:
            try:
                listener = bind(address)
                break
            except BadInput:
                if time.monotonic() > until or server_ended.is_set():
                    raise
                time.sleep(1.0)
        LOGGER.info("%s", announcement(address, listener.getsockname()[1], token, file))
        serve(watcher, listener, token, until=server_ended.is_set)
    except FedrawError as problem:
        LOGGER.error("no dashboard: %s", problem)


def main() -> None:
    """Run the process with the settings from the first line of standard input."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("fedraw").addHandler(handler)
    logging.getLogger("fedraw").setLevel(logging.INFO)
    run(json.loads(sys.stdin.buffer.readline()))


if __name__ == "__main__":
    main()
