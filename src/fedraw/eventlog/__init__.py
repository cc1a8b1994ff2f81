"""Event logs of runs, in the same format for simulations and real servers.

records    one frozen dataclass for each kind of record
log_file   reads and writes logs; every line has a digest that covers all lines before it
state      the state of a run after its records, which every view asks
metrics    the formula of every metric
goals      when a run reached a value
live       the sites, labels at risk and latest incidents of a running run
follow     follows growing logs, for `fedraw watch` and the dashboard
compare    several runs in one table
summary    seals the summary of a finished run in summary.json

`docs/reference/event-log.md` describes the format field by field.
"""

from fedraw.eventlog.log_file import LogWriter, Position, find_logs, read_log
from fedraw.eventlog.records import (
    FORMAT,
    KINDS,
    ArrivalRecord,
    ClearedRecord,
    DeclaredRecord,
    DoubtedRecord,
    EndRecord,
    EvaluationRecord,
    JoinedRecord,
    LeftRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    RestartedRecord,
    ScoresRecord,
    StartRecord,
)
from fedraw.eventlog.state import RunState

__all__ = [
    "FORMAT",
    "KINDS",
    "ArrivalRecord",
    "ClearedRecord",
    "DeclaredRecord",
    "DoubtedRecord",
    "EndRecord",
    "EvaluationRecord",
    "JoinedRecord",
    "LeftRecord",
    "LogWriter",
    "NoteRecord",
    "Position",
    "Record",
    "RejectedRecord",
    "RestartedRecord",
    "RunState",
    "ScoresRecord",
    "StartRecord",
    "find_logs",
    "read_log",
]
