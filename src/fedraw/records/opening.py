"""Open a table of any known format."""

from __future__ import annotations

from pathlib import Path

from fedraw.records.csv_file import open_csv
from fedraw.records.files import is_parquet, require_file
from fedraw.records.parquet_file import open_parquet
from fedraw.records.table_file import TableFile


def open_table(path: Path) -> TableFile:
    """Parquet by its suffix or first bytes; everything else must be CSV, gzip-packed or not."""
    require_file(path)
    return open_parquet(path) if is_parquet(path) else open_csv(path)
