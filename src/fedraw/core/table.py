"""A small table of columns, which results and comparisons return."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from fedraw.errors import BadInput, nearest

# A longer table shows this many rows at its beginning and as many at its end.
SHOWN_ROWS = 5
# A longer text in a cell is cut; the names of rows with several settings fit.
LONGEST_CELL = 60


class Table:
    """Named columns of the same length.

    >>> table = Table({"event": [150, 300], "AvgRare": [10.0, None]})
    >>> table["AvgRare"], len(table), table.columns
    ([10.0, None], 2, ('event', 'AvgRare'))
    >>> table
    event  AvgRare
      150    10.00
      300        –
    >>> table.rows()
    [{'event': 150, 'AvgRare': 10.0}, {'event': 300, 'AvgRare': None}]

    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"the columns of a table have one length, got {lengths}")

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Table:
        """Build a table from rows; a value that a row lacks is None.

        Args:
            rows: One mapping of names to values for each row.
            columns: The names that come first; they exist even if there are no rows.

        """
        names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
        return cls({name: [row.get(name) for row in rows] for name in names})

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, column: str) -> list[Any]:
        """Return the values of a column, one for each row."""
        if column not in self._columns:
            raise KeyError(f"there is no column {column!r}; {nearest(column, self._columns)}")
        return list(self._columns[column])

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, each as a dictionary."""
        cells = zip(*self._columns.values(), strict=True)
        return [dict(zip(self._columns, values, strict=True)) for values in cells]

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame, which needs `pip install pandas`."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise BadInput("to_frame() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._columns)

    def to_text(self) -> str:
        """Return all rows as aligned text; `repr` leaves out the middle of a long table."""
        return self._aligned([self._texts(row) for row in range(len(self))])

    def __repr__(self) -> str:
        if not self._columns:
            return "an empty table"
        shown = self._shown()
        rest = f"\n({len(self):,} rows)" if len(self) > len(shown) else ""
        return self._aligned(shown) + rest

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._shown()
        )
        rest = f"<p>{len(self):,} rows</p>" if len(self) > 2 * SHOWN_ROWS else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _shown(self) -> list[list[str]]:
        """Return the formatted cells of the rows that `repr` shows."""
        rows = range(len(self))
        if len(rows) <= 2 * SHOWN_ROWS:
            return list(map(self._texts, rows))
        first, last = (list(map(self._texts, r)) for r in (rows[:SHOWN_ROWS], rows[-SHOWN_ROWS:]))
        return [*first, ["…"] * len(self._columns), *last]

    def _texts(self, row: int) -> list[str]:
        return [_cell(values[row]) for values in self._columns.values()]

    def _aligned(self, rows: Sequence[Sequence[str]]) -> str:
        cells = [list(self._columns), *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
