"""Read how many samples of each label each client holds.

Long form: the columns client, label, count. Wide form: a column client and one for each label.
"""

from __future__ import annotations

from pathlib import Path

from fedraw.errors import BadInput
from fedraw.records.entries import Counts, to_counts
from fedraw.records.label_batches import entries_of_batches
from fedraw.records.label_form import label_form
from fedraw.records.label_rows import entries_of_rows
from fedraw.records.opening import open_table

# Below this many bytes the rows are read before pyarrow is even imported.
SMALL = 1 << 22


def read_label_counts(path: Path) -> Counts:
    """The table of a CSV file (packed with gzip or not) or of a parquet file.

    Names of clients and labels are text. Large files go through pyarrow where it is installed; the
    rows have the last word about a file in which that finds anything odd.
    """
    file = open_table(path)
    form = label_form(file)
    if path.stat().st_size >= SMALL:
        try:
            return to_counts(entries_of_batches(file, form))
        except BadInput:  # also where pyarrow is missing
            pass
    return to_counts(entries_of_rows(file, form))
