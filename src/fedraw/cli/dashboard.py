"""`fedraw dashboard`: follow runs and servers in a browser."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.core.json_log import JsonFormatter
from fedraw.dashboard.alerts import Alerts, AlertSettings, Delivery
from fedraw.dashboard.serve import PORT, Address, announcement, bind, read_token, serve
from fedraw.dashboard.watcher import Watcher


def dashboard(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…", help="Folders of runs or servers; they may appear later."
        ),
    ],
    port: Annotated[int, typer.Option(help="The port; 0 takes any free one.", max=65535)] = PORT,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than localhost need a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that visitors need."),
    ] = None,
    alerts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with rules for alerts.")
    ] = None,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Log one JSON object per line to standard error.")
    ] = False,
) -> None:
    """Follow runs and servers in a browser until Ctrl-C is pressed; this changes nothing."""
    address = Address(host, port)
    token = read_token(address, token_file)
    settings = None if alerts is None else AlertSettings.from_file(alerts)
    _log_to_stderr(json_log)
    listener = bind(address)
    watcher = Watcher(folders)
    delivery = None
    if settings is not None:
        delivery = Delivery(settings)
        rules = Alerts(settings.rules, delivery)
        watcher.on_poll(lambda: rules.evaluate(watcher.views(sites=True)))
    where = announcement(address, listener.getsockname()[1], token, token_file)
    console.say(f"{where} (press Ctrl-C to stop)")
    watcher.start()
    try:
        # Ctrl-C and a service manager's SIGTERM end it alike: with the delivery of queued alerts.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        serve(watcher, listener, token)
    except KeyboardInterrupt:
        pass
    finally:
        for end in (signal.SIGTERM, signal.SIGINT):  # it ends already
            signal.signal(end, signal.SIG_IGN)
        watcher.stop()
        if delivery is not None:
            delivery.close()


def _log_to_stderr(json_log: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if json_log else plain)
    logging.getLogger("fedraw").addHandler(handler)
    logging.getLogger("fedraw").setLevel(logging.INFO)
