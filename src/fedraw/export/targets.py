"""The targets of an export. Each target imports its library when it is used."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

from fedraw.errors import BadInput, MissingExtra
from fedraw.export.scalars import ARRIVAL, Scalars

EVALUATION = ("event", "time", "version", "series", "value")
# The number of rows that are written to a Parquet file at once.
ROW_GROUP = 50_000


class Target:
    """Receives one run: its evaluations, its arrivals if the target accepts them, and its end."""

    # TensorBoard has no tables that grow with every arrival.
    accepts_arrivals: ClassVar[bool] = False

    def scalars(self, found: Scalars) -> None:
        """Write the values of one evaluation."""
        raise NotImplementedError

    def arrival(self, row: Mapping[str, Any]) -> None:
        """Write one arrival; called only if the target accepts arrivals."""
        raise NotImplementedError

    def flush(self) -> None:
        """Make the rows so far visible to readers, if the target can do so before the end."""

    def close(self) -> None:
        """End the run, finished or not."""
        raise NotImplementedError


class CsvTarget(Target):
    """Two files of a run: `evaluations.csv`, a row per value, and `arrivals.csv`."""

    accepts_arrivals = True

    def __init__(self, name: str, out: Path) -> None:
        folder = _make_folder(out / name)
        self._files: list[IO[str]] = []
        self._evaluations = self._open(folder / "evaluations.csv", EVALUATION)
        self._arrivals = self._open(folder / "arrivals.csv", ARRIVAL)

    def _open(self, path: Path, columns: tuple[str, ...]) -> Any:
        file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        self._files.append(file)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        return writer

    def scalars(self, found: Scalars) -> None:
        """Write a row for each value."""
        self._evaluations.writerows(_rows(found))

    def arrival(self, row: Mapping[str, Any]) -> None:
        """Write the arrival's row."""
        self._arrivals.writerow(row.values())

    def flush(self) -> None:
        """Write buffered rows to the files."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """Close both files."""
        for file in self._files:
            file.close()


class ParquetTarget(Target):
    """The same two tables as Parquet files, which are readable once the export has ended."""

    accepts_arrivals = True

    def __init__(self, name: str, out: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise MissingExtra("pyarrow", "export") from None
        folder = _make_folder(out / name)
        text, whole, real = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
        kinds = {"series": text, "client": text, "aggregated": pyarrow.bool_()}
        reals = {"time", "start_time", "norm", "value"}
        self._table = pyarrow.Table.from_pydict
        self._tables: dict[str, tuple[Any, Any, list[Any]]] = {}
        for table, columns in (("evaluations", EVALUATION), ("arrivals", ARRIVAL)):
            fields = [(c, kinds.get(c, real if c in reals else whole)) for c in columns]
            schema = pyarrow.schema(fields)
            writer = parquet.ParquetWriter(folder / f"{table}.parquet", schema)
            self._tables[table] = (writer, schema, [])

    def scalars(self, found: Scalars) -> None:
        """Buffer a row for each value."""
        self._add("evaluations", _rows(found))

    def arrival(self, row: Mapping[str, Any]) -> None:
        """Buffer the arrival's row."""
        self._add("arrivals", [{**row, "client": str(row["client"])}.values()])

    def _add(self, name: str, rows: list[Any]) -> None:
        buffered = self._tables[name][2]
        buffered.extend(map(tuple, rows))
        if len(buffered) >= ROW_GROUP:
            self._write(name)

    def _write(self, name: str) -> None:
        writer, schema, buffered = self._tables[name]
        if buffered:
            columns = dict(zip(schema.names, zip(*buffered, strict=True), strict=True))
            writer.write_table(self._table(columns, schema=schema))
            buffered.clear()

    def close(self) -> None:
        """Write the buffered rows, and close both files."""
        for name, (writer, _, _) in self._tables.items():
            self._write(name)
            writer.close()


class TensorBoardTarget(Target):
    """An event file for TensorBoard, in a folder for each run."""

    def __init__(self, name: str, out: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError as missing:
            raise MissingExtra(missing.name or "tensorboard", "export") from None
        folder = _make_folder(out / name)
        for earlier in folder.glob("events.out.tfevents.*"):  # from an earlier export of this run
            earlier.unlink()
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))

    def scalars(self, found: Scalars) -> None:
        """Write one event with all values."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in found.values.items()
        ]
        wall = found.time if found.wall is None else found.wall
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=wall, step=found.event, summary=summary))

    def flush(self) -> None:
        """Write buffered events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


# By the name of the format; each is made with the name of the run and the folder of the export.
TARGETS: dict[str, Callable[[str, Path], Target]] = {
    "csv": CsvTarget,
    "parquet": ParquetTarget,
    "tensorboard": TensorBoardTarget,
}


def _rows(found: Scalars) -> list[tuple[Any, ...]]:
    position = found.event, found.time, found.version
    return [(*position, name, value) for name, value in found.values.items()]


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(
            f"cannot create the folder {folder}: {problem.strerror}; choose another out=..."
        ) from None
    return folder
