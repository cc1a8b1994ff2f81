"""Log messages as JSON, one object per line, for log collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from fedraw.core.text import printable


class JsonFormatter(logging.Formatter):
    """Formats a log message as one line of JSON.

    >>> record = logging.LogRecord("fedraw.server", logging.INFO, "", 0, "%d sites", (4,), None)
    >>> record.created = 0.0
    >>> JsonFormatter().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "logger": "fedraw.server", \
"message": "4 sites"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; `extra={"alert": …}` and exceptions become separate fields."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        for name in ("alert", "progress"):
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
