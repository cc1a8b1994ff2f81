"""Serves the dashboard on a port: the address, the token, the socket and the server loop."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from fedraw.dashboard.app import make_app
from fedraw.dashboard.watcher import Watcher
from fedraw.errors import BadInput, MissingExtra

PORT = 8080
TOKEN = "FEDRAW_DASHBOARD_TOKEN"
# A shorter token could be guessed.
MIN_TOKEN_LENGTH = 16


class Address(NamedTuple):
    """The host and port on which a dashboard listens."""

    host: str = "127.0.0.1"
    port: int = PORT

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, port: int, token: str | None) -> str:
        """Return the URL to open in a browser."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?token={token}" if token else "")


def read_token(address: Address, file: Path | None) -> str | None:
    """Return the token from the file or the environment, or else a new one.

    A local address needs no token: without a configured one, the result is None.
    """
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInput(
                f"cannot read the token from {file}: {problem}; give a file with the token"
            ) from None
    else:
        token = os.environ.get(TOKEN, "").strip()
    source = _token_source(file)
    if source is None:
        return None if address.is_local else secrets.token_urlsafe(24)
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable():
        raise BadInput(
            f"the token in {source} has {len(token)} characters; use at least {MIN_TOKEN_LENGTH} "
            "printable ASCII characters without blanks, such as the output of openssl rand -hex 24"
        )
    if any(c in token for c in ' ;,"\\'):
        raise BadInput(
            f"the token in {source} has a blank, ';', ',', '\"' or '\\'; use other characters"
        )
    return token


def announcement(address: Address, port: int, token: str | None, file: Path | None) -> str:
    """Return the message with the dashboard's address, for the console or a log.

    It has the token only if the dashboard has made it: the operator's own token is a secret, and
    others may read the log.
    """
    source = _token_source(file)
    if source is None:
        return f"dashboard at {address.url(port, token)}"
    return f"dashboard at {address.url(port, None)} for visitors with the token in {source}"


def _token_source(file: Path | None) -> str | None:
    """Return where the operator has set the token; None if it is not set."""
    if file is not None:
        return str(file)
    return f"the environment variable {TOKEN}" if os.environ.get(TOKEN, "").strip() else None


def bind(address: Address) -> socket.socket:
    """Return a socket that listens at the address; raise BadInput if the port is in use."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(128)
    except (OSError, UnicodeError) as problem:
        listener.close()
        if isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE:
            raise BadInput(
                f"port {address.port} of {address.host} is in use, perhaps by another dashboard; "
                "choose another port with --port (0: any)"
            ) from None
        why = getattr(problem, "strerror", None) or problem
        raise BadInput(
            f"cannot listen at {address.host}, port {address.port}: {why}; choose another address "
            "with --host and --port"
        ) from None
    return listener


def serve(watcher: Watcher, listener: socket.socket, token: str | None) -> None:
    """Serve the dashboard until a signal stops the process."""
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtra("uvicorn", "dashboard") from None
    config = uvicorn.Config(
        make_app(watcher, token),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=256,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listener])
