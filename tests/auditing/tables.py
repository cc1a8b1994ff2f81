"""Write label counts in every form, and compare what was read."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
from hypothesis import strategies as st
from pyarrow import parquet

from fedraw.auditing import label_counts
from fedraw.core.labels import LabelTable
from fedraw.errors import BadInput

Histograms = Mapping[str, Mapping[str, int]]
Result = dict[str, dict[str, int]]

# Anything that can stand in UTF-8, without blanks around it.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6).map(
    str.strip
).filter(bool) | st.sampled_from(["007", '"', 'a"b', "a,b", "a;b", "x\ny", "é", "count 1", "-"])
label_names = names.filter(lambda name: name not in ("client", "label", "count"))
federations: st.SearchStrategy[Histograms] = st.dictionaries(
    names,
    st.dictionaries(label_names, st.integers(1, 2**53), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


def histograms(table: LabelTable) -> Result:
    """The table as one dictionary for each client."""
    return {
        str(client): {
            str(table.labels[column]): int(count)
            for column, count in zip(
                table.column[table.row(i)], table.count[table.row(i)], strict=True
            )
        }
        for i, client in enumerate(table.clients)
    }


def outcome(path: Path) -> tuple[Result, tuple[Any, ...]] | str:
    """What was read, with the order of names and the notes; or the refusal."""
    try:
        counts = label_counts.read_label_counts(path)
    except BadInput as refusal:
        return str(refusal)
    table = counts.table
    return histograms(table), (table.clients, table.labels, counts.notes)


def long_rows(federation: Histograms) -> list[list[Any]]:
    rows = [[c, label, n] for c, counts in federation.items() for label, n in counts.items()]
    return [["client", "label", "count"], *rows]


def wide_rows(federation: Histograms) -> list[list[Any]]:
    columns = list(dict.fromkeys(label for counts in federation.values() for label in counts))
    rows = [[c, *(counts.get(name) for name in columns)] for c, counts in federation.items()]
    return [["client", *columns], *rows]


def write_csv(path: Path, rows: list[list[Any]], **dialect: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **dialect).writerows(rows)
    return path


def write_parquet(path: Path, rows: list[list[Any]]) -> Path:
    columns = [pyarrow.array(column) for column in zip(*rows[1:], strict=True)]
    parquet.write_table(pyarrow.table(columns, names=rows[0]), path)
    return path
