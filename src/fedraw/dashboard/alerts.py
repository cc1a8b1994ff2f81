"""Alerts: rules over the status of runs, and their delivery.

A rule fires when its condition becomes true, and again only after the condition has been false.
Alerts are queued and delivered by a separate thread, so that a receiver that is down delays
nothing else.
"""

from __future__ import annotations

import json
import logging
import queue
import shutil
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import fedraw
from fedraw.core.settings import COUNT, Settings, above, shown
from fedraw.core.text import duration, one_line
from fedraw.dashboard.watcher import RunView
from fedraw.errors import BadInput, error_context, nearest

LOGGER = logging.getLogger("fedraw.alerts")

# The largest number of queued alerts; further alerts are only logged.
MAX_QUEUED = 100
# The largest number of subjects (labels or sites) of one run for which a rule fires.
MAX_SUBJECTS = 100
# Seconds before the second attempt; each further attempt waits twice as long.
RETRY_SECONDS = 1.0


Limit = Annotated[float | None, above(0)]


@dataclass(frozen=True)
class Rules(Settings):
    """The rules that fire alerts; None or false switches a rule off."""

    table = "rules"

    last_holder_left: bool = True  # no member holds a label any more
    recall_fell: Limit = None  # the largest fall of a label's recall, in points
    site_silent: Limit = None  # the longest time without an update of a site, in seconds
    disk_low: Limit = None  # the least free space on the disk of the run, in GB
    run_stopped: bool = True  # the run stopped without completing
    run_finished: bool = False  # the run completed


@dataclass(frozen=True)
class Webhook(Settings):
    """A URL to which every alert is posted as JSON."""

    table = "webhook"

    url: str
    timeout: Annotated[float, above(0)] = 5.0  # seconds for one attempt
    attempts: Annotated[int, COUNT] = 4
    headers: tuple[str, ...] = ()  # such as "Authorization: Bearer …"

    def validate(self) -> None:
        """Refuse what is no URL or no header."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            self.refuse("url", "is not a URL; give one that begins with https:// or http://")
        for header in self.headers:
            if ":" not in header or "\n" in header or "\r" in header:
                raise BadInput(
                    f"webhook.headers has {shown(header)}; write each header as 'Name: value'"
                )

    def __call__(self, alert: Alert) -> None:
        """Post the alert; raise OSError or ValueError if the receiver does not accept it."""
        body = json.dumps(alert.as_dict()).encode()
        request = urllib.request.Request(self.url, body, method="POST")
        request.add_header("Content-Type", "application/json")
        request.add_header("User-Agent", f"fedraw/{fedraw.__version__}")
        for header in self.headers:
            name, value = header.split(":", 1)
            request.add_header(name.strip(), value.strip())
        with urllib.request.urlopen(request, timeout=self.timeout) as reply:
            reply.read(1024)


@dataclass(frozen=True)
class Command(Settings):
    """A program that gets every alert as JSON on its standard input."""

    table = "command"

    run: tuple[str, ...]
    timeout: Annotated[float, above(0)] = 30.0
    attempts: ClassVar[int] = 1

    def validate(self) -> None:
        """Refuse a program that does not exist."""
        if not self.run:
            raise BadInput("command.run is empty; list the program and its arguments")
        if shutil.which(self.run[0]) is None:
            raise BadInput(
                f"command.run: the program {shown(self.run[0])} was not found; give its path"
            )

    def __call__(self, alert: Alert) -> None:
        """Run the program; raise OSError if it fails."""
        try:
            done = subprocess.run(
                self.run,
                input=json.dumps(alert.as_dict()).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"the program ran longer than {self.timeout:g} s") from None
        if done.returncode:
            words = one_line(done.stderr.decode(errors="replace"))[-200:]
            raise OSError(f"exit code {done.returncode} {words}".rstrip())


@dataclass(frozen=True)
class AlertSettings:
    """The content of an alerts file."""

    rules: Rules = field(default_factory=Rules)
    webhook: Webhook | None = None
    command: Command | None = None

    @classmethod
    def from_file(cls, path: Path) -> AlertSettings:
        """Read an alerts file; raise BadInput with the file and the wrong key."""
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise BadInput(
                f"cannot read {path}: {problem.strerror}; give the path of an alerts file"
            ) from None
        except ValueError as problem:
            raise BadInput(
                f"{path} is not a TOML file: {problem}; see docs/how-to/dashboard.md"
            ) from None
        with error_context(path):
            return cls.from_tables(tables)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> AlertSettings:
        """Return the settings of a parsed alerts file.

        >>> AlertSettings.from_tables({"rules": {"recall_fell": 20}}).rules.recall_fell
        20.0
        """
        kinds: dict[str, type[Any]] = {"rules": Rules, "webhook": Webhook, "command": Command}
        for name in tables:
            if name not in kinds:
                raise BadInput(f"the table [{name}] is unknown; {nearest(name, kinds)}")
        return cls(**{name: kinds[name].read(table) for name, table in tables.items()})


class Alert(NamedTuple):
    """One rule that fired."""

    rule: str
    subject: str  # a label, a site or a path; empty for the run itself
    text: str  # the complete message
    run: str
    folder: str
    event: int
    time: float = 0.0  # unix seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the alert in the form that receivers get."""
        return {"alert": self.rule, **{k: v for k, v in self._asdict().items() if k != "rule"}}


def conditions(view: RunView, rules: Rules) -> Iterator[Alert]:
    """Yield the alerts whose conditions are true for a run now."""
    status, folder = view.status, str(view.status.folder)
    name = status.name if status.seed is None else f"{status.name}, seed {status.seed}"
    for rule, subject, text in chain(
        _label_alerts(view, rules), _site_alerts(view, rules), _run_alerts(view, rules)
    ):
        message = one_line(f"{name} ({folder}): {text}")
        yield Alert(rule, subject, message, name, folder, status.event)


def _label_alerts(view: RunView, rules: Rules) -> Iterator[tuple[str, str, str]]:
    if rules.last_holder_left:
        lost = [risk for risk in view.detail.at_risk if "last holder gone" in risk.reasons]
        for risk in lost[:MAX_SUBJECTS]:
            name = "" if risk.last_holder is None else f", {risk.last_holder},"
            text = f"the last holder of label {risk.label}{name} left"
            yield "last_holder_left", risk.label, text
    if rules.recall_fell is not None:
        changes = [(t, t.change) for t in view.detail.labels if t.change is not None]
        fallen = [(trend, -change) for trend, change in changes if change <= -rules.recall_fell]
        for trend, points in fallen[:MAX_SUBJECTS]:
            label, recall = trend.label, trend.recall
            text = f"the recall of label {label} fell by {points:.1f} points to {recall:.1f} %"
            yield "recall_fell", label, text


def _site_alerts(view: RunView, rules: Rules) -> Iterator[tuple[str, str, str]]:
    limit = rules.site_silent
    if limit is None or view.status.state == "finished":
        return
    silent = [site for site in view.sites if site.silent >= limit]
    for site in silent[:MAX_SUBJECTS]:
        client = str(site.client)
        yield (
            "site_silent",
            client,
            f"site {client} has been silent for {duration(site.silent)} ({site.state})",
        )


def _run_alerts(view: RunView, rules: Rules) -> Iterator[tuple[str, str, str]]:
    status = view.status
    if rules.disk_low is not None and status.state != "finished":
        try:
            free = shutil.disk_usage(status.folder).free / 1e9
        except OSError:
            free = None
        if free is not None and free < rules.disk_low:
            yield "disk_low", "", f"only {free:.1f} GB are free on the disk of {status.folder}"
    if rules.run_stopped and view.problem is not None:
        yield "run_stopped", "", f"the log cannot be followed: {view.problem}"
    elif rules.run_stopped and status.state == "stopped":
        yield "run_stopped", "", f"the run stopped at event {status.event} without completing"
    if rules.run_finished and status.state == "finished":
        yield "run_finished", "", f"the run completed at event {status.event}"


class Alerts:
    """Evaluates rules after every poll of the logs, and passes alerts that fire to a `Delivery`."""

    def __init__(
        self,
        rules: Rules,
        deliver: Callable[[Alert], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules
        self._deliver = deliver
        self._clock = clock
        self._active: set[tuple[str, str, str]] = set()
        self.fired = 0

    def evaluate(self, views: Sequence[RunView]) -> None:
        """Deliver alerts whose conditions have become true; skip runs that are not read yet."""
        active: set[tuple[str, str, str]] = set()
        for view in views:
            if view.status.unread and view.problem is None:
                active |= {key for key in self._active if key[0] == view.id}
                continue
            for alert in conditions(view, self._rules):
                key = (view.id, alert.rule, alert.subject)
                active.add(key)
                if key not in self._active:
                    self.fired += 1
                    self._deliver(alert._replace(time=round(self._clock(), 3)))
        self._active = active


class Delivery:
    """Logs alerts at once, and sends them to the webhook and the command in a thread."""

    def __init__(self, settings: AlertSettings) -> None:
        receivers = {"webhook": settings.webhook, "command": settings.command}
        self._receivers = {n: receiver for n, receiver in receivers.items() if receiver is not None}
        self._queue: queue.Queue[Alert | None] = queue.Queue(MAX_QUEUED)
        self._closing = threading.Event()
        self.delivered = 0
        self.failed = 0
        self._thread = threading.Thread(
            target=self._deliver_queue, name="fedraw-alerts", daemon=True
        )
        self._thread.start()

    def __call__(self, alert: Alert) -> None:
        """Log the alert, and queue it for the receivers."""
        LOGGER.warning("alert %s: %s", alert.rule, alert.text, extra={"alert": alert.as_dict()})
        if not self._receivers:
            return
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.failed += 1
            LOGGER.error("%d alerts are queued already; this one is only logged", MAX_QUEUED)

    def close(self, seconds: float = 10.0) -> None:
        """Deliver the queued alerts, for at most `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self._queue.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join(max(0.0, until - time.monotonic()))
        self._closing.set()

    def _deliver_queue(self) -> None:
        while (alert := self._queue.get()) is not None:
            for name, receiver in self._receivers.items():
                self._deliver_to(name, receiver, alert)

    def _deliver_to(self, name: str, receiver: Webhook | Command, alert: Alert) -> None:
        problem: Exception | None = None
        for attempt in range(receiver.attempts):
            if attempt and self._closing.wait(RETRY_SECONDS * 2 ** (attempt - 1)):
                break
            try:
                receiver(alert)
            except urllib.error.HTTPError as refusal:
                problem = refusal
                refusal.close()
                if 400 <= refusal.code < 500 and refusal.code not in (408, 429):
                    break  # the receiver would refuse every further attempt
            except (OSError, ValueError) as failure:
                problem = failure
            except Exception as failure:  # no error of a receiver may end the thread
                LOGGER.exception("the %s failed", name)
                problem = failure
                break
            else:
                self.delivered += 1
                return
        self.failed += 1
        LOGGER.error("the %s did not accept alert %s: %s", name, alert.rule, problem)
