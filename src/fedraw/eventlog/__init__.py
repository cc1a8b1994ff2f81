"""Event logs: what happened in a run, the same from a simulation and from a real server.

records    one frozen dataclass for each kind of record
log_file   reads and writes logs; every line has a digest that covers all lines before it
summary    replays a log into the summary of a run (summary.json)
influence  how much of the global model comes from each client and each label
dynamics   buffer statistics: who reaches the buffer, how stale, with which weight
compare    several runs in one table
follow     follows logs that grow, for `fedraw watch` and the dashboard
status     what is known about a run that goes on: details, labels at risk; sites has its clients
skim       a first impression of a long log while it is being read

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
from fedraw.eventlog.summary import RunSummary

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
    "RunSummary",
    "ScoresRecord",
    "StartRecord",
    "find_logs",
    "read_log",
]
