"""The paper's training-free figures: read as printed, compared as said, run by the common loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraw.errors import BadInput
from fedraw.eventlog.records import JoinedRecord
from fedraw.eventlog.state import RunState
from fedraw.experiment.cells import run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.result import SeedResult
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import Artefact, ArtefactRow, PaperValue, load_dynamics
from fedraw_studies.dynamics import DynamicsResults, distinct, dynamics_cells, findings
from fedraw_studies.outcomes import Finding


def finding(printed: str | None, *values: float | None) -> Finding:
    paper = None if printed is None else PaperValue.of(printed)
    return Finding.of("Table", "row", "BufPres", paper, dict(enumerate(values)))


@pytest.mark.parametrize(
    ("printed", "values", "decimals"),
    [
        ("60.2 ± 6.5", (60.2,), 1),
        ("336", (336.0,), 0),
        ("0.300", (0.3,), 3),
        ("+11.5 / +8.4", (11.5, 8.4), 1),
    ],
)
def test_figures_are_read_as_printed(
    printed: str, values: tuple[float, ...], decimals: int
) -> None:
    assert PaperValue.of(printed) == PaperValue(printed, values, decimals)


def test_inside_means_two_spreads_or_between_the_extremes() -> None:
    # mean 2, sd 1: from 0 to 4, and half a unit of the last digit.
    assert finding("4.0", 1, 3).inside
    assert finding("4.05", 1, 3).inside is False
    assert finding("0", 1, 3).inside
    assert finding("4", 1, 3).inside
    # mean 1, sd 3: one extreme reaches further than two spreads do.
    assert finding("10", *[0.0] * 9, 10.0).inside


def test_a_figure_counts_once_and_only_if_it_could_be_wrong() -> None:
    first = finding("2.0", 1, 3)
    other_paper = finding("2.3", 1, 3)
    other_values = finding("2.0", 1, 3.5)
    found = [
        first,
        finding("2.04", 1, 3),  # the same, printed with one more digit
        other_paper,
        other_values,
        finding("100", 100, 100),  # every seed gives it
        finding(None, 1, 3),  # not in the paper
    ]
    assert distinct(found, seeds=2) == [first, other_paper, other_values]


def test_of_several_printed_values_all_must_be_inside() -> None:
    assert finding("2.0 / 3.9", 1, 3).inside
    assert finding("2.0 / 4.2", 1, 3).inside is False


def test_a_printed_figure_is_held_to_its_rounding_only() -> None:
    exact = 0.5 / 0.95  # 0.5263…, printed as 0.526
    assert finding("0.526", exact, exact).inside
    assert finding("0.527", exact, exact).inside is False


def test_how_far_away_in_spreads() -> None:
    assert finding("5.0", 1, 3).away == pytest.approx(3)
    assert finding("2.0", 1, 3).away == 0
    assert finding("5.0", 2, 2).away is None


def test_without_a_figure_or_a_value_there_is_no_verdict() -> None:
    assert finding(None, 1, 3).inside is None
    assert finding("2.0", 1, None).inside is None
    assert finding("2.0", 1, None).away is None


def test_the_tables_of_the_paper_are_all_there() -> None:
    artefacts = {artefact.name: artefact for artefact in load_dynamics()}
    assert list(artefacts) == [
        "Table III", "Table IV", "Table S6", "Table S8", "Table S10", "Gain", "Contrast",
    ]  # fmt: skip
    assert [len(a.rows) for a in artefacts.values()] == [8, 6, 3, 6, 6, 7, 2]
    known = set(RunState().participation())
    for row in (row for artefact in artefacts.values() for row in artefact.rows):
        assert row.paper.keys() <= known
        assert row.spec.training.kind == "none"
        assert row.spec.partition.clients == 30
    figures = [f for a in artefacts.values() for r in a.rows for f in r.paper.values()]
    assert sum(figure is not None for figure in figures) == 67


def test_each_gain_is_the_difference_of_two_figures_of_the_paper() -> None:
    rows = {row.label: row for a in load_dynamics() for row in a.rows}

    def printed(label: str) -> np.ndarray[Any, Any]:
        figure = rows[label].paper["BufPres"]
        assert figure is not None
        return np.array(figure.values)

    for gain, fedfa, fedraw in [
        ("Table III, EMNIST", "EMNIST, FedFa", "EMNIST, FedRAW"),
        ("Table III, HAM10000", "HAM10000, FedFa", "HAM10000, FedRAW"),
        ("Table IV, 2x", "2x, FedFa", "2x, FedRAW"),
        ("Table IV, 10x", "10x, FedFa", "10x, FedRAW"),
        ("Table IV, 20x", "20x, FedFa", "20x, FedRAW"),
        ("Table S6", "FedFa", "FedRAW"),
    ]:
        assert printed(gain) == pytest.approx(printed(fedraw) - printed(fedfa))
        assert rows[gain].spec == rows[fedraw].spec
        assert rows[gain].minus == rows[fedfa].spec


def test_a_spec_in_several_tables_is_run_once() -> None:
    artefacts = load_dynamics()
    cells = dynamics_cells(artefacts, seeds=2)
    # III 8, IV 4 more, S6 3, S8 5 more, S10 5 more, fixed times 2.
    assert len(cells) == 2 * 27
    assert {cell.seed for cell in cells} == {1, 2}
    assert all(cell.folder is None for cell in cells)
    with pytest.raises(BadInput, match="--seeds 0"):
        dynamics_cells(artefacts, seeds=0)


def small(name: str) -> Spec:
    return Spec.from_dict(
        {
            "data": {"name": "cifar10-labels"},
            "partition": {"rare_labels": ["cat", "dog"]},
            "strategy": {"name": name},
            "training": {"kind": "none"},
            "run": {"events": 400},
        }
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_findings_are_what_the_common_loop_measures(jobs: int) -> None:
    fedfa, fedraw = small("fedfa"), small("fedraw")
    table = Artefact(
        "Toy",
        "two rows",
        "",
        (
            ArtefactRow("FedRAW", fedraw, {"BufPres": PaperValue.of("56.7"), "Aggregations": None}),
            ArtefactRow("gain", fedraw, {"BufPres": None}, minus=fedfa),
        ),
    )
    cells = dynamics_cells([table], seeds=2)
    assert [cell.spec for cell in cells] == [fedraw, fedraw, fedfa, fedfa]
    results = run_cells(cells, Options(), jobs)
    presence, aggregations, gain = findings([table], cells, results)
    of_seed = [result.summary["metrics"]["BufPres"] for result in results]
    assert (presence.low, presence.high) == (min(of_seed[:2]), max(of_seed[:2]))
    gains = of_seed[0] - of_seed[2], of_seed[1] - of_seed[3]
    assert (gain.mean, gain.low, gain.high) == (pytest.approx(sum(gains) / 2), *sorted(gains))
    assert aggregations.low is not None
    assert aggregations.low > 380
    assert min(gains) > 0


def test_differences_are_taken_seed_by_seed_and_undefined_stays_undefined() -> None:
    table = Artefact(
        "Toy", "", "", (ArtefactRow("x", small("fedraw"), {"Rho": None}, minus=small("fedfa")),)
    )
    cells = dynamics_cells([table], seeds=2)
    values = [5.0, 7.0, 1.0, None]
    results = [
        SeedResult("", cell.seed, {"metrics": {"Rho": value}}, np.zeros(0, np.float32))
        for cell, value in zip(cells, values, strict=True)
    ]
    (difference,) = findings([table], cells, results)
    assert (difference.mean, difference.low, difference.high) == (None, 4.0, 4.0)


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    found = (finding("2.5 ± 0.1", 1, 3), finding(None, 2), finding("1", 1, None))
    results = DynamicsResults(2, "by hand", found)
    results.write(tmp_path)
    assert DynamicsResults.read(tmp_path) == results
    document = results.as_json()
    assert (document["artefact"], document["seeds"]) == ("dynamics", 2)
    first, second, _ = document["rows"]
    assert first == {
        "artefact": "Table", "row": "row", "metric": "BufPres", "paper": 2.5,
        "paper_printed": "2.5 ± 0.1", "mean": 2.0, "sd": 1.0, "min": 1.0, "max": 3.0,
        "away": 0.5, "inside": True,
    }  # fmt: skip
    assert (second["paper"], second["inside"], second["mean"]) == (None, None, 2.0)
    assert not results.is_complete


@pytest.mark.parametrize(
    "text", ["", "[]", '{"rows": 1, "seeds": 3, "made": ""}', '{"rows": [1], "seeds": 3}']
)
def test_a_damaged_document_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "dynamics.json").write_text(text)
    assert DynamicsResults.read(tmp_path) is None


def test_the_committed_document_is_whole_and_counts_as_the_documentation_does() -> None:
    results = DynamicsResults.read(Path(__file__).parents[1] / "results" / "cpu")
    assert results is not None
    assert results.is_complete
    once = distinct(results.findings, results.seeds)
    assert (sum(bool(own.inside) for own in once), len(once)) == (49, 51)


def test_a_summary_names_every_metric_the_tables_ask_for() -> None:
    asked = {metric for a in load_dynamics() for row in a.rows for metric in row.paper}
    joined = JoinedRecord(event=0, time=0.0, client=0, counts={"a": 1})
    empty = RunState.of([joined]).summary()
    assert asked <= set(empty["metrics"])
