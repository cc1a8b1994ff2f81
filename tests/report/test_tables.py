from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from fedraw.eventlog.compare import ComparisonRow, Stat
from fedraw.eventlog.summary import METRICS
from fedraw.report import tables
from fedraw.report.tables import grid

TWO_SEEDS = [
    ComparisonRow("fedraw", (42, 7), {"GlobalAcc": Stat.of([89, 91]), "Jain": Stat.of([0.9, 0.9])}),
    ComparisonRow("fedfa", (42, 7), {"GlobalAcc": Stat.of([70, 92]), "Jain": Stat.of([0.9, None])}),
]
NASTY = r"<b>|a_b [red]& 50% $x$ #1 {y} ~^\ *"


def one_seed(name: str, **values: float | None) -> ComparisonRow:
    return ComparisonRow(
        name, (42,), {metric: Stat.of([value]) for metric, value in values.items()}
    )


def printed(table: Table, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as caught:
        console.print(table)
    return [line.rstrip() for line in caught.get().splitlines()]


def test_the_terminal_shows_mean_and_spread_with_decimal_points_in_line() -> None:
    assert printed(tables.text_table(TWO_SEEDS, ["GlobalAcc", "Jain"])) == [
        "         GlobalAcc         Jain",
        "───────────────────────────────",
        "fedraw   90.0±1.0* 0.900±0.000*",
        "fedfa    81.0±11.0     –",
        "mean±sd over 2 seeds; * best of",
        "its column",
    ]


def test_with_a_single_seed_there_is_no_spread() -> None:
    rows = [one_seed("fedraw", GlobalAcc=90, BufPres=65.25), one_seed("fedfa", GlobalAcc=81.04)]
    assert printed(tables.text_table(rows)) == [
        "         GlobalAcc BufPres",
        "──────────────────────────",
        "fedraw       90.0*    65.2",
        "fedfa        81.0        –",
        "* best of its column",
    ]


def test_nine_methods_fit_eighty_columns() -> None:
    names = ["fedraw", "fedraw-weight-only", *"abcdefg"]
    spread = {metric: Stat.of([80, 98.7, 90]) for metric in METRICS}
    lines = printed(tables.text_table([ComparisonRow(name, (1, 2, 3), spread) for name in names]))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + 9 + 1, "no name is broken over two lines"


def test_the_best_is_bold_as_well() -> None:
    table = tables.text_table([one_seed("a", AvgRare=2), one_seed("b", AvgRare=1)])
    styles = [getattr(cell, "style", None) for cell in table.columns[1].cells]
    assert styles[-2:] == ["bold", ""]


def test_names_are_no_markup_in_the_terminal() -> None:
    assert "[red]" in " ".join(printed(tables.text_table([one_seed(NASTY, GlobalAcc=1)])))


@pytest.mark.parametrize(
    ("metric", "values", "stars"),
    [
        ("GlobalAcc", [50, 50, 20], [True, True, False]),
        ("GlobalAcc", [50.04, 49.96, 20], [True, True, False]),  # both read 50.0
        ("Jain", [0.991, 0.990, None], [True, False, False]),
        ("BufPres", [10, 90, 50], [False, False, False]),
        ("RareMaxStale", [10, 90, 50], [False, False, False]),
        ("GlobalAcc", [50], [False]),
    ],
)
def test_what_counts_as_best(metric: str, values: list[float | None], stars: list[bool]) -> None:
    rows = [one_seed(f"row{i}", **{metric: value}) for i, value in enumerate(values)]
    lines = printed(tables.text_table(rows, [metric]))[2:]
    assert ["*" in line for line in lines[: len(rows)]] == stars


def test_what_nobody_has_is_left_out() -> None:
    rows = [one_seed("a", GlobalAcc=None, BufPres=50), one_seed("b", GlobalAcc=None, BufPres=60)]
    assert [column.header for column in tables.text_table(rows).columns] == ["", "BufPres"]
    for text in (tables.markdown(rows), tables.csv(rows), tables.latex(rows)):
        assert "BufPres" in text
        assert "GlobalAcc" not in text


def test_nothing_at_all_is_still_a_table() -> None:
    rows = [one_seed("fedraw", GlobalAcc=None)]
    assert printed(tables.text_table(rows))[-1] == "fedraw"
    assert tables.markdown(rows) == "|        |\n| ------ |\n| fedraw |\n"
    assert tables.csv(rows) == "name,seeds,notes\nfedraw,42,\n"
    assert r"fedraw \\" in tables.latex(rows)


@pytest.mark.parametrize("rows", [[], TWO_SEEDS[:1]])
def test_any_number_of_rows_will_do(rows: Sequence[ComparisonRow]) -> None:
    assert isinstance(tables.text_table(rows), Table)
    assert "*" not in tables.markdown(rows)
    assert "bf" not in tables.latex(rows)


def test_markdown() -> None:
    assert tables.markdown(TWO_SEEDS) == (
        "|        |      GlobalAcc |              Jain |\n"
        "| ------ | -------------: | ----------------: |\n"
        "| fedraw | **90.0 ± 1.0** | **0.900 ± 0.000** |\n"
        "| fedfa  |    81.0 ± 11.0 |                 – |\n"
    )


def test_csv_has_every_digit() -> None:
    rows = [
        ComparisonRow("a,b", (1, 2), {"AvgRare": Stat.of([0.1, 0.2])}),
        one_seed("c", AvgRare=None),
    ]
    table = list(csv.DictReader(io.StringIO(tables.csv(rows))))
    assert [row["name"] for row in table] == ["a,b", "c"]
    assert table[0]["seeds"] == "1 2"
    assert float(table[0]["AvgRare_mean"]) == 0.15000000000000002
    assert float(table[0]["AvgRare_sd"]) == 0.05
    assert (table[1]["AvgRare_mean"], table[1]["AvgRare_sd"]) == ("", "")


def test_latex() -> None:
    assert tables.latex(TWO_SEEDS) == "\n".join(
        [
            r"\begin{tabular}{lrr}",
            r"\toprule",
            r"& GlobalAcc & Jain \\",
            r"\midrule",
            r"fedraw & $\mathbf{90.0} \pm 1.0$ & $\mathbf{0.900} \pm 0.000$ \\",
            r"fedfa & $81.0 \pm 11.0$ & -- \\",
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def test_names_are_escaped_in_every_format() -> None:
    rows = [one_seed(NASTY, GlobalAcc=1)]
    assert r"&lt;b&gt;\|a\_b \[red\]&amp; 50% $x$ #1 {y} \~^\\ \*" in tables.markdown(rows)
    assert (
        r"\textless{}b\textgreater{}|a\_b [red]\& 50\% \$x\$ \#1 \{y\} "
        r"\textasciitilde{}\textasciicircum{}\textbackslash{} *"
    ) in tables.latex(rows)
    assert next(csv.reader(tables.csv(rows).splitlines()[1:]))[0] == NASTY


def test_a_line_break_in_a_name_breaks_no_table() -> None:
    rows = [one_seed("two\nlines", GlobalAcc=1)]
    assert "| two lines |" in tables.markdown(rows)
    assert r"two lines & $1.0$ \\" in tables.latex(rows)


def test_a_collapsed_row_is_marked_and_has_no_star() -> None:
    """A constant answer has all of one rare label of two, and a tenth of all images."""
    sound = one_seed("sound", GlobalAcc=80, AvgRare=40)
    constant = replace(one_seed("constant", GlobalAcc=10, AvgRare=50), collapsed=1)
    rows = [sound, constant]
    assert [cell.best for column in grid(rows) for cell in column.cells] == [True, False] * 2
    shown = "\n".join(printed(tables.text_table(rows)))
    assert "constant (collapsed)" in shown
    assert "50.0*" not in shown
    assert "constant (collapsed)" in tables.markdown(rows)
    assert "**50.0**" not in tables.markdown(rows)
    assert r"\mathbf{50.0}" not in tables.latex(rows)
    assert not any(cell.best for column in grid([constant] * 2) for cell in column.cells)
