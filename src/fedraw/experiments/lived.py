"""What the log of a real server tells beside updates, and how quickly its federation works."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from fedraw.core.types import ClientId
from fedraw.disk.event_log import Record
from fedraw.experiments.membership import Changes
from fedraw.experiments.status import Life, Refusal, Restart
from fedraw.experiments.toml import flat

# A server is quiet while its sites train: seconds until it may have stopped, at the least.
QUIET = 600.0
# Kept of what is unbounded: notes of each kind, times of records.
NOTES, REMEMBERED = 5, 20
# So many gaps say how long a server is quiet at most.
KNOWN = 5


class Lived:
    """Takes in records one by one; what it keeps is bounded by the number of sites."""

    def __init__(self) -> None:
        self._away: dict[ClientId, Refusal] = {}
        self._restart: Restart | None = None
        self._notes = 0
        self._quarantined = 0
        self._last_notes: deque[Refusal] = deque(maxlen=NOTES)
        self._last_quarantines: deque[Refusal] = deque(maxlen=NOTES)
        self._time: float | None = None
        self._gaps: deque[float] = deque(maxlen=REMEMBERED)
        self._arrived: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)

    def observe(self, record: Record) -> None:
        match record["kind"]:
            case "arrival" | "rejected":
                if "time" in record:
                    self._arrived.append((record["time"], record["event"]))
            case "joined":
                self._away.pop(record["client"], None)
            case "left":
                self._away.pop(record["client"], None)  # the newest stands last
                self._away[record["client"]] = _told(record)
                if _is_quarantine(_told(record)):
                    self._quarantine(_told(record))
            case "restarted":
                self._restart = Restart(
                    record.get("event", 0), record.get("gap"), len(record.get("reasked", ()))
                )
                self._time = None  # nobody was there to write
                self._arrived.clear()
            case "note":
                self._note(_told(record))
        self._keep_time(record.get("time"))

    def _note(self, note: Refusal) -> None:
        self._notes += 1
        if _is_quarantine(note):
            self._quarantine(note)
        else:
            self._last_notes.appendleft(note)

    def _quarantine(self, told: Refusal) -> None:
        self._quarantined += 1
        self._last_quarantines.appendleft(told)

    def _keep_time(self, time: float | None) -> None:
        if time is None:
            return
        if self._time is not None:
            self._gaps.append(time - self._time)
        self._time = time

    def rate(self) -> float | None:
        """Updates a second, of the last ones since the server was started."""
        if len(self._arrived) < 2:
            return None
        (begun, before), (ended, event) = self._arrived[0], self._arrived[-1]
        return (event - before) / (ended - begun) if ended > begun else None

    def patience(self, start: Mapping[str, object]) -> float:
        """Seconds of silence after which the server may have stopped."""
        usual = 3 * max(self._gaps, default=0.0)
        if len(self._gaps) >= KNOWN:
            return max(QUIET, usual)
        # Until then, what it said itself: at the deadline of a training it writes a note.
        spec = start.get("spec")
        told = flat(spec) if isinstance(spec, Mapping) else {}
        deadlines = [v for key, v in told.items() if key.endswith(".deadline")]
        return max(QUIET, usual, *(float(v) for v in deadlines if isinstance(v, int | float)))

    def so_far(self, changes: Changes) -> Life:
        return Life(
            away=tuple(reversed(self._away.values())),
            changed=len(changes.clients),
            restarts=changes.restarts,
            last_restart=self._restart,
            notes=self._notes,
            quarantined=self._quarantined,
            last_notes=(*self._last_quarantines, *self._last_notes),
        )


def _is_quarantine(told: Refusal) -> bool:
    return "quarantine" in told.reason.lower()


def _told(record: Record) -> Refusal:
    return Refusal(record.get("event", 0), record.get("client"), str(record.get("reason", "")))
