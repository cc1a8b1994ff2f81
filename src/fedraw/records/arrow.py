"""pyarrow, or what to install: imported where a table is large or parquet, never before."""

from __future__ import annotations

from fedraw.errors import MissingExtra

try:
    import pyarrow
    from pyarrow import compute, csv, parquet, types
except ImportError:
    raise MissingExtra("pyarrow", "audit") from None

__all__ = ["compute", "csv", "parquet", "pyarrow", "types"]
