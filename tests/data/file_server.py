"""A real HTTP server on loopback that serves files, and fails on request."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """One request and its response."""

    path: str
    range: str | None
    status: int = 0
    sent: int = 0


@dataclass
class FileServer:
    """Each request takes one of `statuses` and `cuts`; a cut is the last byte that is sent."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    tags: bool = True
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
            asked = Asked(self.path, self.headers.get("Range"))
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
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            start = self._start(asked, tag)
            if start >= len(content) > 0:
                asked.status = 416
                self.send_response(416)
                self.end_headers()
                return
            asked.status = 206 if start else 200
            self.send_response(asked.status)
            if server.tags:
                self.send_header("ETag", tag)
            if start:
                span = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self.send_header("Content-Range", span)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self._send(asked, content, start)

        def _start(self, asked: Asked, tag: str) -> int:
            unchanged = self.headers.get("If-Range", tag) == tag
            if asked.range is None or not server.ranges or not unchanged:
                return 0
            return int(asked.range.removeprefix("bytes=").rstrip("-"))

        def _send(self, asked: Asked, content: bytes, start: int) -> None:
            end = server.cuts.pop(0) if server.cuts else len(content)
            asked.sent = len(content[start:end])  # first, as a reader may be done before us
            self.wfile.write(content[start:end])
            if end < len(content) and server.hang is not None:
                self.wfile.flush()
                server.hang.wait(30)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
