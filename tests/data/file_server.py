"""A real HTTP server on loopback that serves files, and fails on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """One request and its response."""

    path: str
    status: int = 0
    sent: int = 0


@dataclass
class FileServer:
    """Each request takes one of `statuses` and `cuts`; a cut is the last byte that is sent."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    hang: threading.Event | None = None  # a cut then waits for it instead of closing
    asked: list[Asked] = field(default_factory=list)

    def add(self, name: str, content: bytes) -> str:
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"


@contextmanager
def serving() -> Iterator[FileServer]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server = FileServer(f"http://127.0.0.1:{http.server_port}")
    http.RequestHandlerClass = _handler(server)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        if server.hang is not None:
            server.hang.set()
        http.shutdown()
        http.server_close()
        thread.join()


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = Asked(self.path)
            server.asked.append(asked)
            content = server.files.get(self.path.partition("?")[0])
            asked.status = server.statuses.pop(0) if server.statuses else 200
            if content is None or asked.status != 200:
                asked.status = 404 if asked.status == 200 else asked.status
                self.send_response(asked.status)
                self.end_headers()
                return
            self._serve(asked, content)

        def _serve(self, asked: Asked, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self._send(asked, content)

        def _send(self, asked: Asked, content: bytes) -> None:
            end = server.cuts.pop(0) if server.cuts else len(content)
            asked.sent = len(content[:end])  # first, as a reader may be done before us
            self.wfile.write(content[:end])
            if end < len(content) and server.hang is not None:
                self.wfile.flush()
                server.hang.wait(30)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
