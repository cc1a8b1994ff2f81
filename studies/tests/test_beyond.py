"""The tables that are not the paper's: rows from lists, seeds of a row, what they measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedraw_studies.artefacts import BEYOND, NAMES, Scale, scale_names
from fedraw_studies.cells import CellFiles
from fedraw_studies.outcomes import outcomes
from fedraw_studies.plan import key_of, load_artefacts, make_plan

CPU = {a.name: a for a in load_artefacts([*NAMES, *BEYOND], Scale.named("cpu"))}
HEADLINE = (42, 123, 456, 789, 1011)


def test_a_row_with_lists_is_one_for_each_data_set_and_method() -> None:
    labels = [row.label for row in CPU["beyond-headline"].rows]
    assert len(labels) == 4 * 6
    assert labels[:2] == ["EMNIST, FedAvg", "EMNIST, FedFa"]
    assert labels[-1] == "ISIC-2019, Replay"
    slow = {row.label: row for row in CPU["beyond-slow"].rows}
    assert slow["CIFAR-10, 20x, Replay"].spec.speeds.ratio == 20
    assert slow["CIFAR-10, 20x, Replay"].spec.strategy.name == "fedraw-replay"


@pytest.mark.parametrize("scale", scale_names())
def test_no_two_rows_of_a_table_are_the_same(scale: str) -> None:
    for artefact in load_artefacts(BEYOND, Scale.named(scale)):
        labels = [row.label for row in artefact.rows]
        assert len(set(labels)) == len(labels), artefact.name


def test_a_row_may_have_seeds_of_its_own() -> None:
    slow = {row.label: row.seeds for row in CPU["beyond-slow"].rows}
    assert slow["EMNIST, 10x, Replay"] == HEADLINE
    assert slow["EMNIST, 10x, FedFa"] == (42,)
    assert slow["HAM10000, 10x, FedFa"] == HEADLINE
    planned = [p for p in make_plan([CPU["beyond-slow"]]) if p.label == "EMNIST, 10x, FedFa"]
    assert [p.seed for p in planned] == [42]


def test_what_the_paper_s_tables_have_run_is_not_run_again() -> None:
    paper = {p.name for p in make_plan([CPU[name] for name in NAMES])}
    ours = make_plan([CPU["beyond-headline"]])
    assert {p.spec.strategy.name for p in ours if p.name not in paper} == {"fedraw-replay"}


def test_worse_and_tail_are_read_from_the_committed_runs() -> None:
    """EMNIST, FedRAW, seed 42: the recall of 44, 45 and 46, and the last five of its curve."""
    out = Path(__file__).parents[1] / "results" / "cpu"
    (outcome,) = outcomes(CellFiles(out), "cpu", ["beyond-headline"])
    row = outcome.row("EMNIST, FedRAW")
    record = row.records[42]
    rare = [record.recall[label] or 0.0 for label in ("44", "45", "46")]
    assert row.metrics["WorseRare"].values[42] == min(rare)
    curve = [avg or 0.0 for _, _, avg in record.curve[-5:]]
    assert row.metrics["TailAvgRare"].values[42] == pytest.approx(sum(curve) / 5, abs=0.01)


def test_replay_takes_the_place_of_nothing_in_the_paper_s_keys() -> None:
    """New settings are left out of a spec while nobody uses them, so that finished runs count."""
    (fedraw,) = [r for r in CPU["table2"].rows if r.label == "EMNIST, FedRAW"]
    out = Path(__file__).parents[1] / "results" / "cpu"
    assert f"{key_of(fedraw.spec)}-42" in CellFiles(out).names()
