"""Files of label counts that are refused with one message."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tests.auditing.tables import outcome

from fedraw.auditing.label_counts import read_label_counts
from fedraw.errors import BadInput

LONG = "client,label,count\n"
WHOLE = "; a label count is a whole number from 0 on"
QUOTE = '; a quote inside quotes is written ""'
CSV = "save it as CSV in UTF-8"

REFUSED = [
    ("", ": is empty; a header and rows are needed"),
    ("\n\n", ": is empty; a header and rows are needed"),
    (LONG, ": there are no rows below the header; add some"),
    ("client,cat\n", ": there are no rows below the header; add some"),
    (
        '{"a": {"x": 3}}\n',
        " is JSON; give a CSV or Parquet table with the columns client,label,count",
    ),
    (
        "hospital,label,count\na,x,1\n",
        ": column 'client' is missing (found 'hospital', 'label', 'count'); add or rename it",
    ),
    (
        "client,lable,count\na,x,1\n",
        ": column 'label' is missing (found 'client', 'lable', 'count'); "
        "did you mean 'lable'? Call it 'label'",
    ),
    (
        "Client,cat\na,1\n",
        ": column 'client' is missing (found 'Client', 'cat'); "
        "did you mean 'Client'? Call it 'client'",
    ),
    (
        "client,label,count,region\na,x,1,eu\n",
        ": column 'region' is not one of client, label, count; remove it",
    ),
    ("client,cat,cat\na,1,2\n", ": column 'cat' appears twice in the header; keep one of them"),
    (
        ",client,cat\n0,a,1\n",
        ": column 1 has no name in the header; name it or remove it",
    ),
    (
        LONG + "a,x,1\nb,x,1\n\na,x,2\nb,x,3\n",
        ": line 5: client 'a' and label 'x' are already on line 2; "
        "keep one row with the sum of the counts",
    ),
    (
        LONG + "a,x,1\na,y,0\na,y,0\n",
        ": line 4: client 'a' and label 'y' are already on line 3; "
        "keep one row with the sum of the counts",
    ),
    (
        "client,cat\na,1\nb,2\n a,3\n",
        ": line 4, column 'client': client 'a' is already on line 2; keep one row for each client",
    ),
    (LONG + "a,x,1\na,y,-1\n", f": line 3, column 'count': '-1' is negative{WHOLE}"),
    (LONG + "a,x,1.5\n", f": line 2, column 'count': '1.5' is fractional{WHOLE}"),
    (LONG + "a,x,many\n", f": line 2, column 'count': 'many' is not a count{WHOLE}"),
    (LONG + "a,x,0x1F\n", f": line 2, column 'count': '0x1F' is not a count{WHOLE}"),
    (LONG + "a,x,nan\n", f": line 2, column 'count': 'nan' is not a count{WHOLE}"),
    (LONG + "a,x,\n", f": line 2, column 'count': the count is missing{WHOLE}"),
    (
        LONG + "a,x,9007199254740993\n",
        f": line 2, column 'count': '9007199254740993' is too large to be exact{WHOLE}",
    ),
    ("client,cat,dog\na,1,x\n", f": line 2, column 'dog': 'x' is not a count{WHOLE}"),
    (
        '"client","two\nlines"\na,1\n"b\n",2\nc,-1\n',
        f": line 6, column 'two\\nlines': '-1' is negative{WHOLE}",
    ),
    (
        LONG + " ,x,1\n",
        ": line 2, column 'client': the name is empty; write one, or remove the row",
    ),
    (
        LONG + "a,,1\n",
        ": line 2, column 'label': the name is empty; write one, or remove the row",
    ),
    (
        LONG + "a,x,1\na,y\n",
        ": line 3 has 2 cells, the header has 3; correct it (a cell with ',' in it needs quotes)",
    ),
    (
        "client;cat\r\na;1;2\r\n",
        ": line 2 has 3 cells, the header has 2; correct it (a cell with ';' in it needs quotes)",
    ),
    (
        LONG + "a,x,0\nb,x,1\nc,x,0\n",
        ": line 2: client 'a' has no samples of any label, nor has 'c'; "
        "leave it out or report its counts",
    ),
    (
        "client,cat\na,1\nb,\n",
        ": line 3: client 'b' has no samples of any label; leave it out or report its counts",
    ),
    (
        LONG + 'a,x,1\nb,x,"1\nc,x,1\n',
        f": line 3: cannot be split into cells (unexpected end of data){QUOTE}",
    ),
    (
        LONG + '"a"",x,1\n"b",x,2\n',
        f": line 2: cannot be split into cells (',' expected after '\"'){QUOTE}",
    ),
    (LONG.encode() + b"a,x,1\n\xff,x,1\n", f": line 3 is not UTF-8; {CSV}"),
    (b"\x89PNG\r\n\x1a\n\0\0", f": is a binary file; {CSV}, or name a .parquet file"),
    (b"PK\x03\x04", f": is a workbook or a zip archive; {CSV}"),
    ("client,cat\na,1\n".encode("utf-16"), f": is UTF-16; {CSV}"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_each_refusal(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert outcome(path) == f"{path}{message}"


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    assert outcome(path) == f"{path}: there is no such file; check the path"
    assert outcome(tmp_path) == f"{tmp_path}: is a folder; name the file in it"


def test_a_packed_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv.gz"
    rows = "".join(f"site-{i * 7919 % 65536},x,{i}\n" for i in range(1, 20_000))
    path.write_bytes(gzip.compress((LONG + rows).encode())[:-5000])
    told = outcome(path)
    assert isinstance(told, str)
    assert told.startswith(f"{path}: damaged gzip file")


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"{LONG}a,x,{'1' * 5000}\n")
    assert len(str(outcome(path))) < len(str(path)) + 200


def parquet_file(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"client": ["a", "b"], "label": ["x", "x"], "count": [1, -2]},
            f": row 2, column 'count': '-2' is negative{WHOLE}",
        ),
        (
            {"client": ["a", "a"], "label": ["x", "x"], "count": [1, 2]},
            ": row 2: client 'a' and label 'x' are already on row 1; "
            "keep one row with the sum of the counts",
        ),
        (
            {"client": ["a"], "label": ["x"], "count": [float("nan")]},
            f": row 1, column 'count': the count is missing{WHOLE}",
        ),
        (
            {"client": ["a", None], "cat": [1, 2]},
            ": row 2, column 'client': the name is empty; write one, or remove the row",
        ),
        (
            {"client": [1.0], "cat": [1]},
            ": column 'client' is of type double; store names as text or integers",
        ),
        (
            {"client": ["a"], "cat": [[1, 2]]},
            ": column 'cat' is of type list<element: int64>; store numbers or text in it",
        ),
        (
            {"client": ["a"], "cat": [1], "__index_level_0__": [0]},
            ": column '__index_level_0__' is an index; write the table with index=False",
        ),
    ],
)
def test_parquet_refusals_name_the_row(
    columns: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    path = parquet_file(tmp_path / "labels.parquet", **columns)
    assert outcome(path) == f"{path}{message}"


def test_no_parquet_in_spite_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    path.write_text("client,cat\na,1\n")
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        read_label_counts(path)


NAMES = [*"abcdefg", " a", '"a"', '"a"b', 'a"b', '"a""b"', '"x\ny"', '"a,b"', "é", "", '"']
NUMBERS = [*"0123456789", "2.0", '"3"', " 4", "+5", "1e2", "", "-1", "x", '"']
OFTEN_GOOD = st.sampled_from(NAMES[:14] * 6 + NAMES)
NUMBER = st.sampled_from(NUMBERS[:15] * 6 + NUMBERS)
LONG_ROWS = st.lists(st.tuples(OFTEN_GOOD, OFTEN_GOOD, NUMBER).map(",".join), max_size=5)
WIDE_ROWS = st.lists(st.tuples(OFTEN_GOOD, NUMBER, NUMBER).map(",".join), max_size=5)
BREAKS = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
FILES = st.one_of(
    st.builds(lambda rows, end: end.join(["client,label,count", *rows, ""]), LONG_ROWS, BREAKS),
    st.builds(lambda rows, end: end.join(["client,a,b", *rows]), WIDE_ROWS, BREAKS),
    st.text('ab1,;"\n\r ', max_size=30).map("client,a\n".__add__),
)


@given(text=FILES)
def test_any_file_is_read_or_refused_in_one_sentence(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "labels.csv"
    path.write_bytes(text.encode())
    found = outcome(path)
    assert not isinstance(found, str) or found.startswith(str(path))
