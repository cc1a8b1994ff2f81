"""`fedraw compare` on hand-made logs, called in this process to be quick."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.command import SMALL
from tests.report.hand_made import write_run

import fedraw
from fedraw.cli.compare import Format, compare
from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed, gain in ((1, 10.0), (2, 12.0)):
        write_run(tmp_path, "fedfa", seed, [(80.0, 40.0)] * 5)
        write_run(tmp_path, "fedraw", seed, [(81.0, 40.0 + gain)] * 5)
    return tmp_path


def test_metrics_can_be_chosen_and_rows_sorted(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare([runs], metrics="AvgRare, BufPres", sort="AvgRare")
    head, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["AvgRare", "BufPres"]
    assert (first.split()[0], second.split()[0]) == ("fedraw", "fedfa")


def test_two_rows_are_compared_seed_by_seed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences 10 and 12: 11 ± 12.706, with one degree of freedom."""
    compare([runs / "fedraw", runs / "fedfa"], paired_=True, metrics="AvgRare")
    shown = capsys.readouterr().out
    assert "fedraw − fedfa" in shown
    assert "+11.0 " in shown
    assert "−1.7 to +23.7" in shown
    compare([runs / "fedraw", runs / "fedfa"], paired_=True, json_=True)
    document = json.loads(capsys.readouterr().out)
    assert [own["metric"] for own in document["paired"]] == ["GlobalAcc", "AvgRare"]
    assert document["paired"][1]["differences"] == [10.0, 12.0]


def test_what_a_goal_costs_has_columns(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare([runs], until=["AvgRare>=45"], json_=True)
    fedfa, fedraw = json.loads(capsys.readouterr().out)["rows"]
    assert fedfa["reached"]["AvgRare>=45"]["arrivals"] == {"median": None, "values": [None, None]}
    assert fedraw["reached"]["AvgRare>=45"]["arrivals"] == {"median": 1.0, "values": [1.0, 1.0]}
    assert fedraw["reached"]["AvgRare>=45"]["seeds"] == 2
    with pytest.raises(BadInput, match="'AvgRare=45' is not a goal"):
        compare([runs], until=["AvgRare=45"])


def test_a_goal_is_shown_beside_the_chosen_metrics(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = "AvgRare>=10"
    compare([runs], until=[goal], metrics="GlobalAcc", format_=Format.csv)
    head = capsys.readouterr().out.splitlines()[0].split(",")
    assert head[3:-2] == [
        "GlobalAcc_mean", "GlobalAcc_sd", "arrivals to 10 %_median", "arrivals to 10 %_seeds",
        "hours to 10 %_median", "hours to 10 %_seeds",
    ]  # fmt: skip
    compare([runs], until=[goal], metrics="arrivals to 10 %", format_=Format.csv)
    assert "hours to" not in capsys.readouterr().out, "one of its columns was chosen"


def test_the_last_model_is_shown_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tail of 0, 10, 20, 30, 40, 90 is 38, and no five of them reach 50 on average."""
    write_run(tmp_path, "fedraw", 1, [(80.0, rare) for rare in (0.0, 10.0, 20.0, 30.0, 40.0, 90.0)])
    for last, value in ((False, 38.0), (True, 90.0)):
        compare([tmp_path], last=last, json_=True)
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["metrics"]["AvgRare"]["mean"] == value
        assert row["reached"]["AvgRare>=50"]["seeds"] == 0


def test_a_run_with_few_evaluations_has_no_arrivals(tmp_path: Path) -> None:
    """Four evaluations say nothing about five consecutive ones, so 'not within' would be wrong."""
    write_run(tmp_path, "fedraw", 1, [(80.0, 90.0)] * 4)
    assert fedraw.compare([tmp_path])[0].reached == {}
    with pytest.raises(BadInput, match="has 4 evaluations, and the goal AvgRare>=50 needs 5"):
        fedraw.compare([tmp_path], until=["AvgRare>=50"])


def test_the_names_of_the_rows_are_shown_beside_many_columns(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare([runs], until=["AvgRare>=10", "GlobalAcc>=20", "AvgRare>=20"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    tables = sum("──" in line for line in lines)
    assert tables > 1
    for name in ("fedraw", "fedfa"):
        assert sum(line.startswith(name) for line in lines) == tables


def test_runs_that_call_different_labels_rare_get_a_note(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs, "fedbuff", 1, [(80.0, 40.0)], rare="odd")
    write_run(runs, "fedbuff", 2, [(80.0, 40.0)], rare="odd")
    note = (
        "different rare labels, so metrics such as AvgRare are not comparable: "
        "odd in fedbuff; scarce in fedfa"
    )
    compare([runs / "fedbuff", runs / "fedfa"])
    assert note in " ".join(capsys.readouterr().out.split())
    compare([runs / "fedbuff", runs / "fedfa"], json_=True)
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == [note]
    assert document["rows"][0]["rare_labels"] == [["odd"], ["odd"]]
    compare([runs / "fedbuff", runs / "fedfa"], paired_=True, metrics="AvgRare")
    assert note in " ".join(capsys.readouterr().out.split())
    compare([runs / "fedraw", runs / "fedfa"])
    assert "rare labels" not in capsys.readouterr().out


def test_what_cannot_be_shown_is_refused(runs: Path) -> None:
    with pytest.raises(BadInput, match="no run has the metric 'AvgRar'; did you mean 'AvgRare'"):
        compare([runs], metrics="AvgRar")
    with pytest.raises(BadInput, match="no run has the metric 'age'"):
        compare([runs], sort="age")
    with pytest.raises(BadInput, match="--paired compares metrics, and --until adds no metric"):
        compare([runs], paired_=True, until=["AvgRare>=10"])
    with pytest.raises(BadInput, match="--paired needs two rows, and there is only fedraw"):
        compare([runs / "fedraw"], paired_=True)


def test_a_calibrated_model_has_columns_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = Spec.from_dict(tomllib.loads(SMALL)).with_changes(
        {"strategy.name": "fedbuff", "run.seeds": [1]}
    )
    ccvr = spec.with_changes({"calibration.kind": "ccvr"})
    plain = fedraw.simulate(spec, out=tmp_path / "plain")
    calibrated = fedraw.simulate(ccvr, out=tmp_path / "ccvr")
    found = calibrated.runs[0].summary["calibrated"]["metrics"]
    compare([tmp_path], json_=True)
    rows = {own["name"]: own["metrics"] for own in json.loads(capsys.readouterr().out)["rows"]}
    assert rows.keys() == {"plain: fedbuff", "ccvr: fedbuff"}
    own = rows["ccvr: fedbuff"]
    assert own["calibrated AvgRare"]["mean"] == pytest.approx(found["AvgRare"])
    assert "calibrated AvgRare" not in rows["plain: fedbuff"]
    compare([tmp_path])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["calibrated", "calibrated"]
    quality = ["GlobalAcc", "AvgRare", "MacroF1", "RareF1"]
    assert shown[1].split() == [*quality, "GlobalAcc", "AvgRare"]
    compare([tmp_path], metrics="calibrated MacroF1")
    assert f"{found['MacroF1']:.1f}" in capsys.readouterr().out
    both = fedraw.compare([plain, calibrated]).table()
    assert both["calibrated AvgRare"][1] == pytest.approx(found["AvgRare"])
