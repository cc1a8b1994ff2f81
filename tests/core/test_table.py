from __future__ import annotations

import sys

import pytest

from fedraw.core.table import Table
from fedraw.errors import BadInput


def test_a_long_table_shows_its_ends_and_how_long_it_is() -> None:
    lines = repr(Table({"event": list(range(100))})).splitlines()
    assert lines[1].strip() == "0" and lines[6].strip() == "…" and lines[-2].strip() == "99"
    assert lines[-1] == "(100 rows)"


def test_rows_that_lack_a_value_have_none() -> None:
    table = Table.of_rows([{"a": 1}, {"b": 2}], ("c",))
    assert table.columns == ("c", "a", "b")
    assert table["a"] == [1, None] and table["c"] == [None, None]


def test_a_table_in_a_notebook_is_escaped() -> None:
    html = Table({"<b>": ["<script>"]})._repr_html_()
    assert "<th>&lt;b&gt;</th>" in html and "<td>&lt;script&gt;</td>" in html


def test_a_wrong_column_is_named_with_a_near_one() -> None:
    with pytest.raises(KeyError, match="no column 'AvgRar'; did you mean 'AvgRare'"):
        Table({"AvgRare": [1.0]})["AvgRar"]
    with pytest.raises(BadInput, match="one length"):
        Table({"a": [1], "b": []})


def test_only_to_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pip install pandas"):
        Table({"a": [1]}).to_frame()


def test_a_frame_has_the_columns_and_rows_of_the_table() -> None:
    pytest.importorskip("pandas")
    frame = Table({"seed": [1, 2], "AvgRare": [1.5, None]}).to_frame()
    assert list(frame.columns) == ["seed", "AvgRare"]
    assert frame["AvgRare"].isna().tolist() == [False, True]
