from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console, Group
from rich.table import Table

from fedraw.eventlog.compare import ComparisonRow, PairedDifference, Stat
from fedraw.eventlog.goals import Goal, Reached
from fedraw.eventlog.metrics import METRICS
from fedraw.report import tables
from fedraw.report.tables import grid

# In GlobalAcc the paired differences are 5, 6 and 7, so fedraw is clearly ahead; in Jain they are
# -0.02, 0.02 and 0.03.
SEEDS = (42, 7, 1)
ROWS = [
    ComparisonRow(
        "fedraw", SEEDS, {"GlobalAcc": Stat.of([89, 90, 91]), "Jain": Stat.of([0.9, 0.92, 0.94])}
    ),
    ComparisonRow(
        "fedfa", SEEDS, {"GlobalAcc": Stat.of([84, 84, 84]), "Jain": Stat.of([0.92, 0.9, 0.91])}
    ),
]
NASTY = r"<b>|a_b [red]& 50% $x$ #1 {y} ~^\ *"


def one_seed(name: str, **values: float | None) -> ComparisonRow:
    return ComparisonRow(
        name, (42,), {metric: Stat.of([value]) for metric, value in values.items()}
    )


def printed(table: Table | Group, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as caught:
        console.print(table)
    return [line.rstrip() for line in caught.get().splitlines()]


def test_the_terminal_aligns_the_decimal_points_of_mean_and_spread() -> None:
    assert printed(tables.text_table(ROWS, ["GlobalAcc", "Jain"])) == [
        "         GlobalAcc        Jain",
        "──────────────────────────────",
        "fedraw   90.0±1.0* 0.920±0.020",
        "fedfa    84.0±0.0  0.910±0.010",
        "mean±sd over 3 seeds; * ahead of every other row, seed by seed (95 %)",
    ]


@pytest.mark.parametrize(
    ("last", "metrics", "seeds", "words"),
    [
        (False, ["GlobalAcc"], 2, "mean±sd over 2 seeds, mean of the last five evaluations"),
        (True, ["GlobalAcc"], 2, "mean±sd over 2 seeds, values of the last model"),
        (False, ["GlobalAcc"], 1, "mean of the last five evaluations"),
        (False, ["BufPres"], 2, "mean±sd over 2 seeds"),
        (None, ["GlobalAcc"], 2, "mean±sd over 2 seeds"),
    ],
)
def test_the_caption_says_which_evaluations_the_values_are_of(
    last: bool | None, metrics: list[str], seeds: int, words: str
) -> None:
    values = {metric: Stat.of([50.0, 60.0][:seeds]) for metric in metrics}
    row = ComparisonRow("fedraw", tuple(range(seeds)), values, last=last)
    assert printed(tables.text_table([row], metrics))[3:] == [words]


def test_with_a_single_seed_there_is_no_spread() -> None:
    rows = [one_seed("fedraw", GlobalAcc=90, BufPres=65.25), one_seed("fedfa", GlobalAcc=81.04)]
    assert printed(tables.text_table(rows)) == [
        "         GlobalAcc BufPres",
        "──────────────────────────",
        "fedraw        90.0    65.2",
        "fedfa         81.0       –",
    ]


def test_nine_methods_fit_eighty_columns() -> None:
    names = ["fedraw", "fedraw-weight-only", *"abcdefg"]
    spread = {metric: Stat.of([80, 98.7, 90]) for metric in METRICS}
    lines = printed(tables.text_table([ComparisonRow(name, (1, 2, 3), spread) for name in names]))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + 9 + 1, "no name is broken over two lines"


def test_metrics_that_do_not_fit_follow_in_further_tables() -> None:
    """All metrics of two methods in 80 columns: no name and no metric is left out or cut."""
    spread = {metric: Stat.of([80, 98.7, 90]) for metric in METRICS}
    rows = [ComparisonRow(name, (1, 2, 3), spread) for name in ("fedraw", "fedfa")]
    lines = printed(tables.text_table(rows, METRICS))
    assert max(map(len, lines)) <= 80
    blocks = [lines[n - 2] for n, line in enumerate(lines) if line.startswith("fedraw")]
    assert len(blocks) > 1
    assert " ".join(blocks).split() == list(METRICS)
    assert sum(line.startswith("fedfa") for line in lines) == len(blocks)
    assert "…" not in "".join(lines)
    wide = printed(tables.text_table(rows, METRICS, width=250), width=250)
    assert wide[0].split() == list(METRICS), "one table is enough in a wide terminal"


def reached(arrivals: Sequence[float | None]) -> Reached:
    hours = tuple(None if own is None else own / 3600 for own in arrivals)
    return Reached({"arrivals": tuple(arrivals), "hours": hours}, (3000,) * len(arrivals), 150)


def test_a_goal_has_the_median_over_the_seeds_and_how_many_reached_it() -> None:
    goals = {Goal("AvgRare", 50): reached([300, 700, None]), Goal("owl", 80): reached([None] * 3)}
    rows = [ComparisonRow("fedraw", SEEDS, {"AvgRare": Stat.of([50, 60, 70])}, reached=goals)]
    shown = printed(tables.text_table(rows))
    assert shown[:4] == [
        "                                    arrivals         arrivals",
        "           AvgRare                   to 50 %       to owl>=80",
        "─────────────────────────────────────────────────────────────",
        "fedraw   60.0±10.0 700, 11 min 40 s (2 of 3) not within 3,000",
    ]
    caption = " ".join(shown[4:])
    assert "evaluations, 150 arrivals apart, have" in caption
    assert caption.endswith("in brackets, how many seeds got there if not all or none did")
    of_others = printed(tables.text_table(rows, ["AvgRare"]))
    assert "arrivals" not in " ".join(of_others), "nothing is explained that is not shown"
    assert "& 700, 11 min 40 s (2 of 3) &" in tables.latex(rows), "words are no formula"
    (row,) = csv.DictReader(io.StringIO(tables.csv(rows)))
    assert float(row["arrivals to 50 %_median"]) == 700
    assert (row["arrivals to owl>=80_median"], row["arrivals to owl>=80_seeds"]) == ("", "0")


def test_brackets_are_explained_only_where_there_are_some() -> None:
    goals = {
        Goal("AvgRare", 50): reached([300, 700, 900]),
        Goal("AvgRare", 80): reached([None] * 3),
    }
    row = ComparisonRow("fedraw", SEEDS, {"AvgRare": Stat.of([50, 60, 70])}, reached=goals)
    assert " ".join(printed(tables.text_table([row]))).endswith("median and virtual time")


def test_long_names_and_a_long_metric_share_a_narrow_terminal() -> None:
    name, metric = "fedbuff " + "x" * 30, "m" * 60
    lines = printed(tables.text_table([one_seed(name, **{metric: 1, "AvgRare": 2})], width=40), 40)
    assert max(map(len, lines)) <= 40
    assert sum("fedbuff" in line for line in lines) == 2, "one table for each metric"
    assert "".join(lines).count("x") == 60
    assert "".join(lines).count("m") == 60


def test_the_best_mean_is_bold() -> None:
    table = tables.text_table(ROWS).renderables[0]
    assert isinstance(table, Table)
    styles = [getattr(cell, "style", None) for cell in table.columns[1].cells]
    assert styles[-2:] == ["bold", ""]


def test_names_are_not_markup_in_the_terminal() -> None:
    assert "[red]" in " ".join(printed(tables.text_table([one_seed(NASTY, GlobalAcc=1)])))


@pytest.mark.parametrize(
    ("metric", "values", "stars"),
    [
        ("GlobalAcc", [[50, 60], [40, 50.1], [20, 30]], [True, False, False]),
        ("GlobalAcc", [[50, 60], [40, 59], [20, 30]], [False] * 3),  # 10 and 1 are within chance
        ("GlobalAcc", [[50, 60], [50, 60], [20, 30]], [False] * 3),
        ("GlobalAcc", [[50], [20]], [False] * 2),  # one seed supports nothing
        ("Jain", [[0.9, 0.91], [0.5, 0.511], [None, None]], [True, False, False]),
        ("BufPres", [[90, 91], [10, 11]], [False] * 2),
        ("RareMaxStale", [[90, 91], [10, 11]], [False] * 2),
        ("GlobalAcc", [[50, 60]], [False]),
        ("AvgRare", [[0, 0], [0, 0]], [False] * 2),
    ],
)
def test_a_star_needs_the_paired_comparison(
    metric: str, values: list[list[float | None]], stars: list[bool]
) -> None:
    rows = [
        ComparisonRow(f"row{i}", tuple(range(len(own))), {metric: Stat.of(own)})
        for i, own in enumerate(values)
    ]
    lines = printed(tables.text_table(rows, [metric]))[2:]
    assert ["*" in line for line in lines[: len(rows)]] == stars


def test_metrics_without_values_are_left_out() -> None:
    rows = [one_seed("a", GlobalAcc=None, BufPres=50), one_seed("b", GlobalAcc=None, BufPres=60)]
    assert printed(tables.text_table(rows))[0].split() == ["BufPres"]
    for text in (tables.markdown(rows), tables.csv(rows), tables.latex(rows)):
        assert "BufPres" in text
        assert "GlobalAcc" not in text


def test_a_comparison_without_rows_is_an_empty_table() -> None:
    rows = [one_seed("fedraw", GlobalAcc=None)]
    assert printed(tables.text_table(rows))[-1] == "fedraw"
    assert tables.markdown(rows) == "|        |\n| ------ |\n| fedraw |\n"
    assert tables.csv(rows) == "name,seeds,events,collapsed,notes\nfedraw,42,,0,\n"
    assert r"fedraw \\" in tables.latex(rows)


@pytest.mark.parametrize("rows", [[], ROWS[:1]])
def test_tables_have_any_number_of_rows(rows: Sequence[ComparisonRow]) -> None:
    assert ("fedraw" in "".join(printed(tables.text_table(rows)))) == bool(rows)
    assert "*" not in tables.markdown(rows)
    assert "bf" not in tables.latex(rows)


def test_a_markdown_table() -> None:
    assert tables.markdown(ROWS) == (
        "|        |      GlobalAcc |          Jain |\n"
        "| ------ | -------------: | ------------: |\n"
        "| fedraw | **90.0 ± 1.0** | 0.920 ± 0.020 |\n"
        "| fedfa  |     84.0 ± 0.0 | 0.910 ± 0.010 |\n"
        "\nmean±sd over 3 seeds; \\* ahead of every other row, seed by seed (95 %)\n"
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
    assert float(table[0]["AvgRare_sd"]) == 0.07071067811865475
    assert (table[1]["AvgRare_mean"], table[1]["AvgRare_sd"]) == ("", "")


def test_a_latex_table() -> None:
    assert tables.latex(ROWS, ["GlobalAcc", "Jain"]) == "\n".join(
        [
            r"{\footnotesize\setlength{\tabcolsep}{3pt}%",
            r"\begin{tabular}{@{}lrr@{}}",
            r"\toprule",
            r"& Global & Jain \\",
            r"\midrule",
            r"fedraw & $\mathbf{90.0}{\scriptstyle\pm1.0}$ & $0.920{\scriptstyle\pm0.020}$ \\",
            r"fedfa & $84.0{\scriptstyle\pm0.0}$ & $0.910{\scriptstyle\pm0.010}$ \\",
            r"\bottomrule",
            r"\end{tabular}}",
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


def test_a_line_break_in_a_name_does_not_break_a_table() -> None:
    rows = [one_seed("two\nlines", GlobalAcc=1)]
    assert "| two lines |" in tables.markdown(rows)
    assert r"two lines & $1.0$ \\" in tables.latex(rows)


def test_a_collapsed_row_is_marked_and_has_no_star() -> None:
    """A constant prediction recognises one of two rare labels, and a tenth of all images."""

    def row(name: str, overall: float, rare: float, collapsed: int = 0) -> ComparisonRow:
        values = {"GlobalAcc": [overall, overall + 1], "AvgRare": [rare, rare + 1]}
        stats = {metric: Stat.of(own) for metric, own in values.items()}
        return ComparisonRow(name, (1, 2), stats, collapsed=collapsed)

    rows = [row("sound", 80, 40), row("other", 70, 30), row("constant", 10, 50, collapsed=1)]
    stars = [cell.best for column in grid(rows) for cell in column.cells]
    assert stars == [True, False, False] * 2
    shown = "\n".join(printed(tables.text_table(rows)))
    assert "constant (collapsed)" in shown
    assert "50.5±0.7*" not in shown
    assert "constant (collapsed)" in tables.markdown(rows)
    assert "**50.5 ± 0.7**" not in tables.markdown(rows)
    assert r"\mathbf{50.5}" not in tables.latex(rows)
    assert not any(cell.best for column in grid([rows[2]] * 2) for cell in column.cells)


def test_own_metrics_are_shown_and_never_called_best() -> None:
    """It is unknown whether a higher value of a user's metric is better."""
    rows = [one_seed("a", rmse=0.5, Rho=1.0), one_seed("b", rmse=0.25, Rho=2.0)]
    assert printed(tables.text_table(rows)) == [
        "         rmse",
        "─────────────",
        "a         0.5",
        "b        0.25",
    ]
    assert "rmse" in tables.latex(rows)
    assert [column.metric for column in grid(rows, ["Rho"])] == ["Rho"]


def test_rows_with_different_budgets_have_a_note_in_every_format() -> None:
    rows = [
        replace(one_seed("a", GlobalAcc=1), events=(300,)),
        replace(one_seed("b", GlobalAcc=2), events=(600,), seeds=(7,)),
    ]
    for text in (
        tables.markdown(rows),
        tables.latex(rows),
        *(row["notes"] for row in csv.DictReader(io.StringIO(tables.csv(rows)))),
        "\n".join(printed(tables.text_table(rows))),
    ):
        assert "300 in a; 600 in b" in text.replace("\n", " ")
        assert "42 in a; 7 in b" in text.replace("\n", " ")


def test_paired_differences_are_shown_with_their_interval() -> None:
    clear = PairedDifference("AvgRare", "b", "a", (1, 2), (2.0, 2.5), 2.25, 1.0, 3.5)
    single = PairedDifference("GlobalAcc", "b", "a", (1,), (-2.0,), -2.0, None, None)
    lines = printed(tables.paired_table([clear, single]))
    assert lines[2].split() == ["b", "−", "a", "AvgRare", "+2.2*", "+1.0", "to", "+3.5", "2"]
    assert lines[3].split() == ["b", "−", "a", "GlobalAcc", "−2.0", "–", "1"]
