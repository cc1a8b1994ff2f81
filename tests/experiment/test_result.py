"""Results as tables, models and plots; from memory, from folders, and while a run goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.server.engine import Engine
from torch import nn

import fedraw
from fedraw.errors import BadInput
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import EvaluationRecord
from fedraw.experiment.result import Result

SMALL = fedraw.Coverage(clients=10, rare_labels=[8, 9], clients_per_common_label=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("run")
    result = fedraw.simulate(
        strategy=fedraw.FedRAW(buffer=3),
        partition=SMALL,
        model="linear",
        events=40,
        evaluate_every=15,
        seeds=[7, 3],
        out=folder,
    )
    return result, folder


def test_the_tables_have_what_the_log_has(run: tuple[Result, Path]) -> None:
    result, folder = run
    log = list(read_log(folder / "seed-3" / "events.jsonl"))
    evaluations = [record for record in log if isinstance(record, EvaluationRecord)]
    curve = [row for row in result.curves.rows() if row["seed"] == 3]
    assert [row["event"] for row in curve] == [15, 30, 40]
    assert [row["AvgRare"] for row in curve] == [e.metrics["AvgRare"] for e in evaluations]
    recall = [row for row in result.recalls.rows() if row["seed"] == 3]
    assert [row["9"] for row in recall] == [e.recall["9"] for e in evaluations]
    arrivals = result.arrivals()
    assert (len(arrivals), set(arrivals["seed"])) == (80, {3, 7})
    assert arrivals["event"][:3] == [1, 2, 3] and set(arrivals["refused"]) == {None}


def test_the_summary_has_a_row_for_each_seed(run: tuple[Result, Path]) -> None:
    result, _ = run
    assert result.summary["seed"] == [7, 3]
    assert result.summary["AvgRare"] == [r.summary["tail"]["AvgRare"] for r in result]
    assert result.last["AvgRare"] == [r.summary["metrics"]["AvgRare"] for r in result]
    of_seven = [row["AvgRare"] for row in result.curves.rows() if row["seed"] == 7]
    assert result.summary["AvgRare"][0] == pytest.approx(sum(of_seven) / 3), "it has three so far"
    assert result[3].seed == 3 and len(result) == 2
    with pytest.raises(BadInput, match="no seed 5 in this result; it has 7, 3"):
        result[5]


def test_a_folder_gives_the_same_result(run: tuple[Result, Path]) -> None:
    result, folder = run
    loaded = fedraw.load(folder)
    assert loaded.seeds == (3, 7)
    assert loaded[7].summary == result[7].summary
    assert list(loaded.curves.rows())[:3] == list(result.curves.rows())[3:]
    for name, tensor in result.state_dict(7).items():
        assert (loaded.state_dict(7)[name] == tensor).all()
    assert fedraw.load(str(folder / "seed-7")).seeds == (7,)


def test_the_last_model_fits_the_module_by_its_names(run: tuple[Result, Path]) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.load_state_dict(run[0].state_dict())
    vector = run[0].runs[0].model
    assert module.state_dict()["1.weight"].numpy().ravel() == pytest.approx(vector[:640])


class Tied(nn.Module):
    """One layer under two names, a counter, and a scale that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.head = self.again = nn.Linear(64, 10)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(x.flatten(1))  # type: ignore[no-any-return]


def test_the_last_model_fits_a_module_with_other_names_if_it_is_not_strict() -> None:
    wanted: dict[str, Any] = {"strategy": fedraw.FedFa(2), "partition": SMALL, "seeds": 1}
    result = fedraw.simulate(**wanted, model=Tied, events=5)
    assert list(result.state_dict()) == ["head.weight", "head.bias", "scale"]
    module = Tied()
    module.load_state_dict(result.state_dict(), strict=False)
    assert (module.again.weight == result.state_dict()["head.weight"]).all()


def test_without_torch_the_tensors_are_arrays(
    run: tuple[Result, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fedraw.learning.vectors", None)
    assert isinstance(run[0].state_dict()["1.bias"], np.ndarray)


def test_a_result_shows_its_seeds_and_metrics(run: tuple[Result, Path]) -> None:
    result, folder = run
    title, head, *rows = repr(result).splitlines()
    assert title == f"fedraw: 2 seeds of 40 events, {folder}; mean of the last five evaluations"
    assert head.split()[:3] == ["seed", "GlobalAcc", "AvgRare"]
    assert [row.split()[0] for row in rows] == ["7", "3"]
    assert "<th>AvgRare</th>" in result._repr_html_()


def test_a_plot_has_a_line_for_each_seed(run: tuple[Result, Path]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    result, _ = run
    ax = result.plot("AvgRare")
    assert [line.get_label() for line in ax.lines] == ["fedraw, seed 7", "fedraw, seed 3"]
    assert ax.lines[0].get_xdata().tolist() == [15, 30, 40]
    assert result.plot("9").get_ylabel() == "recall of 9 (%)"
    with pytest.raises(BadInput, match="no metric 'AvgRar' to plot; did you mean 'AvgRare'"):
        result.plot("AvgRar")


def test_a_missing_matplotlib_is_named_with_its_remedy(
    run: tuple[Result, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"pip install 'fedraw\[report\]'"):
        run[0].plot()


def test_a_run_that_goes_on_gives_what_its_log_has(
    run: tuple[Result, Path], tmp_path: Path
) -> None:
    _, folder = run
    lines = (folder / "seed-7" / "events.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:30]) + lines[30][:20])
    live = fedraw.load(tmp_path)
    assert not live.finished and "not finished" in repr(live)
    assert 0 < len(live.arrivals()) < 40
    with pytest.raises(BadInput, match="is not finished, so it has no last model"):
        live.state_dict()


def test_a_result_never_shows_the_run_that_replaced_its_own(tmp_path: Path) -> None:
    def run(events: int) -> Result:
        wanted: dict[str, Any] = {
            "strategy": fedraw.FedRAW(buffer=3),
            "partition": SMALL,
            "seeds": 1,
        }
        return fedraw.simulate(**wanted, events=events, out=tmp_path, force=True)

    first, kept = run(10), fedraw.load(tmp_path)
    run(10)  # the same run again: nothing in the folder is different
    assert kept.curves["event"] == [10]
    kept = fedraw.load(tmp_path)
    second = run(20)
    for old in (first, kept):
        with pytest.raises(BadInput, match=r"seed-1 no longer holds the run of this result"):
            _ = old.curves
    assert first.state_dict().keys() == second.state_dict().keys()  # a model in memory
    with pytest.raises(BadInput, match="run into another folder, or load this one again"):
        kept.state_dict()
    assert second.curves["event"] == fedraw.load(tmp_path).curves["event"] == [20]


def test_a_folder_of_different_runs_is_for_compare(tmp_path: Path) -> None:
    free: dict[str, Any] = {"partition": SMALL, "train": "none", "events": 40, "seeds": 1}
    for name in ("fedfa", "fedraw"):
        fedraw.simulate(strategy=name, out=tmp_path / name, **free)
    with pytest.raises(BadInput, match=r"holds 2 different runs.*fedraw\.compare"):
        fedraw.load(tmp_path)
    with pytest.raises(BadInput, match="trained no model"):
        fedraw.load(tmp_path / "fedfa").state_dict()
    loaded = {name: fedraw.load(tmp_path / name) for name in ("fedfa", "fedraw")}
    compared = fedraw.compare({"A": loaded["fedfa"], "B": loaded["fedraw"]})
    table = compared.table()
    assert (table["name"], table["seeds"]) == (["A", "B"], [1, 1])
    assert table["BufPres"] == [loaded[name].summary["BufPres"][0] for name in loaded]
    assert [line.split()[0] for line in repr(compared).splitlines()[:3]] == ["name", "A", "B"]


def test_a_servers_folder_gives_a_result_too(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.accept(6)
    engine.coordinator._store.log.close()
    live = fedraw.load(tmp_path)
    assert (live.name, live.seeds, live.finished) == ("fedfa", (None,), False)
    assert len(live.arrivals()) == 6
    assert set(live.arrivals()["client"]) <= {"north", "south", "east", "west"}
    assert repr(live).startswith("fedfa: a federation of 6 events, not finished")
