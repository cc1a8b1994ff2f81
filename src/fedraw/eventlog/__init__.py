"""Event logs of runs, in the same format for simulations and real servers.

records    one frozen dataclass for each kind of record
log_file   reads and writes logs; every line has a digest that covers all lines before it
segments   the numbered files of a long log, read as one
summary    replays a log into the summary of a run (summary.json)
influence  the share of the global model that comes from each client and each label
dynamics   buffer statistics: presence, participation, staleness and weights of rare clients
costs      hours, bytes and energy of a run, and the costs of reaching a goal
compare    several runs in one table
follow     follows growing logs, for `fedraw watch` and the dashboard
status     the status and details of a running run, and its labels at risk
sites      the state of each client

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
