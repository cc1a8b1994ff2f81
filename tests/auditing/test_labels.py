"""Files of label counts that are good, in every form."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import example, given
from pyarrow import parquet
from tests.auditing.tables import (
    Histograms,
    federations,
    histograms,
    long_rows,
    outcome,
    wide_rows,
    write_csv,
    write_parquet,
)

from fedraw.auditing.label_counts import (
    entries_of_rows,
    form_of,
    read_label_counts,
)
from fedraw.errors import MissingExtra
from fedraw.storage.tables import open_table

TWO = {"007": {"cat": 3, "dog": 1}, "b": {"cat": 5}}


@pytest.mark.parametrize(
    "text",
    [
        "client,label,count\n007,cat,3\n007,dog,1\nb,cat,5\n",
        "count,client,label\n3,007,cat\n1,007,dog\n5,b,cat\n",
        "client,label,count\r\n007,cat,3\r\n007,dog,1\r\nb,cat,5\r\n\r\n\r\n",
        "\ufeffclient;label;count\r\n007;cat;3\r\n007;dog;1\r\nb;cat;5\r\n;;\r\n",
        "client\tlabel\tcount\n007\tcat\t3\n007\tdog\t1\nb\tcat\t5",
        "client, label, count\n007, cat, 3\n007, dog, 1\nb, cat, 5\n",
        '"client","label","count"\n"007","cat","3"\n"007","dog","1"\n"b","cat","5"\n',
        "client,label,count\n007,cat,3.0\n007,dog,1e0\nb,cat,+5\nb,dog,0\n",
        "client,cat,dog\n007,3,1\nb,5,\n",
        "client,cat,dog\n007,3.0,1.0\nb,5.0,\n",
        "cat;client;dog\r\n3;007;1\r\n5;b;0\r\n",
        "\n\nclient,cat,dog\n\n007,3,1\n,,\nb,5,0\n\n",
    ],
)
def test_one_table_in_many_spellings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode())
    assert outcome(path) == (TWO, (("007", "b"), ("cat", "dog"), ()))


def test_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv.gz"
    path.write_bytes(gzip.compress(b"client,cat,dog\n007,3,1\nb,5,\n"))
    assert histograms(read_label_counts(path).table) == TWO


def test_commas_quotes_and_line_breaks_in_names(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text('client,"a,b","say ""no""","two\nlines"\n"x\r\ny",1,2,3\n5" disk,0,0,1\n')
    assert histograms(read_label_counts(path).table) == {
        "x\r\ny": {"a,b": 1, 'say "no"': 2, "two\nlines": 3},
        '5" disk': {"two\nlines": 1},
    }


@pytest.mark.parametrize(
    "text", ["client,x,cat,dog\n007,0,3,1\nb,,5,0\n", "client,label,count\n007,cat,3\n007,x,0\n"]
)
def test_a_label_without_samples_is_left_out_and_noted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    counts = read_label_counts(path)
    assert "x" not in counts.table.labels
    assert counts.notes == ("label 'x' has no samples and is left out",)


def test_many_labels_without_samples_are_one_note(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"client,cat{''.join(f',{i}' for i in range(12))}\na,1{',0' * 12}\n")
    (note,) = read_label_counts(path).notes
    assert note.startswith("12 labels have no samples and are left out: '0', '1', ")
    assert note.endswith("'9' and 2 more")


def test_a_label_that_is_the_sum_of_all_others_gets_a_note(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("client,cat,dog,total\na,3,1,4\nb,5,0,5\n")
    (note,) = read_label_counts(path).notes
    assert note.startswith("label 'total' has as many samples as all others together")
    path.write_text("client,cat,dog,total\na,3,1,4\nb,5,0,6\n")
    assert read_label_counts(path).notes == ()
    path.write_text("client,cat,dog\na,3,3\nb,5,5\n")
    assert read_label_counts(path).notes == ()


@given(federation=federations)
@example(federation={"0": {";,": 1}})  # quotes that are malformed for another delimiter
def test_every_form_gives_the_same_table(
    federation: Histograms, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    for shape, rows in (("long", long_rows(federation)), ("wide", wide_rows(federation))):
        for path in (
            write_csv(folder / f"{shape}.csv", rows),
            write_csv(folder / f"{shape}.excel.csv", rows, delimiter=";"),
            write_parquet(folder / f"{shape}.parquet", rows),
        ):
            assert histograms(read_label_counts(path).table) == federation


def test_types_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "labels"  # known by its first bytes
    columns = {
        "3": pyarrow.array([2.0, float("nan")]),
        "4": pyarrow.array([None, 7], pyarrow.uint8()),
        "client": pyarrow.array([10, 7]),
    }
    parquet.write_table(pyarrow.table(columns), path)
    assert histograms(read_label_counts(path).table) == {"10": {"3": 2}, "7": {"4": 7}}
    words = pyarrow.DictionaryArray.from_arrays([2, 0], ["dog", "nobody's", "cat"])
    columns = {"client": pyarrow.array(["a", "b"]), "label": words, "count": pyarrow.array([1, 2])}
    parquet.write_table(pyarrow.table(columns), path)
    assert histograms(read_label_counts(path).table) == {"a": {"cat": 1}, "b": {"dog": 2}}


@pytest.mark.usefixtures("no_pyarrow")
def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r"this needs pyarrow: pip install 'fedraw\[audit\]'"):
        read_label_counts(path)


def test_two_hundred_thousand_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pairs = rng.permutation(20_000 * 50)[:200_000]
    clients, labels, counts = pairs // 50, pairs % 50, rng.integers(1, 500, len(pairs))
    path = tmp_path / "labels.csv"
    with path.open("w") as file:
        file.write("client,label,count\n")
        rows = zip(clients, labels, counts, strict=True)
        file.writelines(f"site-{c:05},l{k},{n}\n" for c, k, n in rows)
    table = open_table(path)
    np.testing.assert_array_equal(entries_of_rows(table, form_of(table)).count, counts)
    read = read_label_counts(path).table
    assert (read.count.sum(), len(read.count)) == (counts.sum(), 200_000)
    site = read.clients.index(f"site-{clients[0]:05}")
    assert read.totals()[site] == counts[clients == clients[0]].sum()


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_header_and_a_name_of_any_length(tmp_path: Path, delimiter: str) -> None:
    """13,000 labels of eleven characters, and one of 200,000: csv's own limit is 131,072."""
    labels = [f"label {i:05d}" for i in range(13_000)] + ["x" * 200_000]
    path = tmp_path / "wide.csv"
    header, row = delimiter.join(["client", *labels]), delimiter.join(["a", *["1"] * len(labels)])
    path.write_text(f"{header}\n{row}\n")
    table = read_label_counts(path).table
    assert list(table.labels) == labels
    assert table.totals().tolist() == [13_001]
