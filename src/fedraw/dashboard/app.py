"""The web application of the dashboard: the page, its event stream, metrics and health.

The application is read-only. Every stream sends only the newest state: a client that reads slowly
misses states and costs no memory, and a client that does not read at all is disconnected.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from fedraw.dashboard.metrics import exposition
from fedraw.dashboard.view import full, overview, sites_page
from fedraw.dashboard.watcher import POLL_SECONDS, Watcher
from fedraw.errors import MissingExtra
from fedraw.pages.html import fill

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

# The largest number of open event streams; further requests are refused.
MAX_STREAMS = 64
# Seconds between two heartbeats, and seconds until a client that does not read is disconnected.
HEARTBEAT, SEND_TIMEOUT = 15.0, 30.0
COOKIE = "fedraw-token"
LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")


class Feed:
    """The newest state of runs as JSON, computed once per poll for all streams."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._polls = -1
        self._texts: dict[str, str | None] = {}
        self.streams = 0  # the number of open streams

    def text(self, run_id: str) -> str | None:
        """Return the state of a run, or of all runs if the id is empty; None for an unknown id."""
        with self._lock:
            if self._polls != self._watcher.polls:
                self._polls, self._texts = self._watcher.polls, {}
            if run_id not in self._texts:
                view = self._watcher.view(run_id) if run_id else None
                if run_id and view is None:
                    return None
                state = overview_of(self._watcher) if view is None else full(view)
                self._texts[run_id] = json.dumps(state)
            return self._texts[run_id]


class EventStream:
    """Sends the state of all runs and of one of them as server-sent events."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request until its client disconnects."""
        if self._feed.streams >= MAX_STREAMS:
            await _plain(send, 503, f"{MAX_STREAMS} pages are open already; close some of them")
            return
        run_id = parse_qs(scope["query_string"].decode("latin-1")).get("run", [""])[0]
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        self._feed.streams += 1
        disconnected = asyncio.ensure_future(_until_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send_all(run_id, send, disconnected)
        except (TimeoutError, OSError):
            return  # the client does not read, or has disconnected
        finally:
            disconnected.cancel()
            self._feed.streams -= 1

    async def _send_all(self, run_id: str, send: Send, disconnected: asyncio.Future[None]) -> None:
        wanted = {"overview": "", **({"run": run_id} if run_id else {})}
        sent: dict[str, str] = {}
        last = -HEARTBEAT
        while not disconnected.done():
            parts = []
            for name, key in wanted.items():
                text = await asyncio.to_thread(self._feed.text, key)
                if text is not None and sent.get(name) != text:
                    sent[name] = text
                    parts.append(f"event: {name}\ndata: {text}\n\n")
            if parts or time.monotonic() - last >= HEARTBEAT:
                last = time.monotonic()
                body = "".join([*parts, f"event: now\ndata: {time.time():.1f}\n\n"]).encode()
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": body, "more_body": True}),
                    SEND_TIMEOUT,
                )
            await asyncio.wait([disconnected], timeout=POLL_SECONDS)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _plain(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    start = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": text.encode()})


class Guard:
    """Admits requests with the token; without a token, only requests to a local host name.

    The second rule prevents DNS rebinding: a page of another site can make its own name resolve to
    this machine, but the `Host` header of its requests has that name.
    """

    def __init__(self, app: Any, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        if self._token is None:
            if _host(headers.get(b"host", "")) in LOCAL:
                await self._app(scope, receive, send)
            else:
                await _plain(
                    send, 403, "this dashboard accepts only requests to localhost; use that name"
                )
            return
        if scope["path"] == "/health" or self._is_authorized(headers):
            await self._app(scope, receive, send)
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_token(given):  # the first address has the token, and a cookie replaces it
            cookie = f"{COOKIE}={given}; HttpOnly; SameSite=Strict; Path=/"
            await _plain(
                send, 303, "", (b"location", b"/"), (b"set-cookie", cookie.encode("latin-1"))
            )
            return
        await _plain(
            send,
            401,
            "a token is needed; open the address that 'fedraw dashboard' printed, or send the "
            "header 'Authorization: Bearer TOKEN'",
            (b"www-authenticate", b"Bearer"),
        )

    def _is_authorized(self, headers: dict[bytes, str]) -> bool:
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return True
        cookies = (part.strip().partition("=") for part in headers.get(b"cookie", "").split(";"))
        return any(name == COOKIE and self._is_token(value) for name, _, value in cookies)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def _host(header: str) -> str:
    """Return the host of a Host header, without its port.

    >>> _host("localhost:8080"), _host("[::1]:8080"), _host("evil.example")
    ('localhost', '[::1]', 'evil.example')
    """
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


def make_app(watcher: Watcher, token: str | None = None) -> Any:
    """Return the ASGI application for a watcher, which the caller starts."""
    try:
        import prometheus_client  # noqa: F401 - report a missing package now, not at a request
        from starlette.applications import Starlette
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "starlette", "dashboard") from None
    feed = Feed(watcher)
    return Guard(_routes(Starlette, watcher, feed), token)


def _routes(starlette: type[Starlette], watcher: Watcher, feed: Feed) -> Starlette:
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.responses import Response as PlainResponse
    from starlette.routing import Route

    safe = {
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    page = fill("fedraw.dashboard", "page.html", title="fedraw dashboard", live=True)
    rendered = exposition(lambda: watcher.views(sites=True))

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page, headers=safe)

    def runs(_: Request) -> Response:
        return JSONResponse(overview_of(watcher), headers=safe)

    def one_run(request: Request) -> Response:
        view = watcher.view(request.path_params["run"])
        if view is None:
            return PlainTextResponse("there is no such run; see /api/runs", 404, headers=safe)
        return JSONResponse(full(view), headers=safe)

    def sites(request: Request) -> Response:
        view = watcher.view(request.path_params["run"])
        offset = request.query_params.get("offset", "0")
        if view is None or not offset.isdecimal() or len(offset) > 9:
            text = "there is no such run, or the offset is not a whole number; see /api/runs"
            return PlainTextResponse(text, 404, headers=safe)
        search = request.query_params.get("search", "")
        return JSONResponse(sites_page(view, int(offset), search), headers=safe)

    def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainResponse(rendered(), headers={**safe, "content-type": kind})

    def health(_: Request) -> Response:
        content, status = health_of(watcher)
        return JSONResponse(content, status, headers=safe)

    routes = [
        Route("/", show_page),
        Route("/events", EventStream(feed)),
        Route("/api/runs", runs),
        Route("/api/runs/{run}", one_run),
        Route("/api/runs/{run}/sites", sites),
        Route("/metrics", metrics),
        Route("/health", health),
    ]
    return starlette(routes=routes)


def overview_of(watcher: Watcher) -> dict[str, Any]:
    """Return the state of all runs of a watcher."""
    return overview(watcher.views(), watcher.problems, watcher.loading)


def health_of(watcher: Watcher) -> tuple[dict[str, Any], int]:
    """Return the content of a health check, and its status: 503 if a run stopped or is unreadable.

    The content names no run, because the check needs no token.
    """
    views = watcher.views()
    stopped = sum(view.status.state == "stopped" for view in views)
    unreadable = sum(view.problem is not None for view in views)
    health = "failing" if stopped or unreadable else "ok" if watcher.is_complete else "reading"
    content = {"status": health, "runs": len(views), "stopped": stopped, "unreadable": unreadable}
    return content, 503 if health == "failing" else 200
