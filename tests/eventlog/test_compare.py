from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedraw.errors import BadInput
from fedraw.eventlog.compare import (
    Comparison,
    ComparisonRow,
    Stat,
    budget_notes,
    compare,
    identity,
    paired,
)
from fedraw.eventlog.metrics import has_collapsed
from fedraw.experiment.result import Result, SeedResult
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec


def dynamics(seeds: list[int], **strategy: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": "fedraw", "buffer": 4, **strategy},
            "training": {"kind": "none"},
            "run": {"events": 60, "seeds": seeds},
        }
    )


def test_spread_is_the_sample_sd_or_undefined() -> None:
    assert Stat.of([1.0, 3.0, 5.0]) == Stat(3.0, 2.0, (1.0, 3.0, 5.0))
    assert Stat.of([3.0]) == Stat(3.0, None, (3.0,)), "one value has no spread"
    assert Stat.of([1.0, None]) == Stat(None, None, (1.0, None))
    assert Stat.of([None]) == Stat(None, None, (None,))


def test_seeds_of_one_spec_are_one_row(tmp_path: Path) -> None:
    simulate(dynamics([3, 1, 20]), out=tmp_path / "x")
    simulate(dynamics([1], dedup=False), out=tmp_path / "y")
    rows = compare([tmp_path / "x", tmp_path / "y"])
    assert [(row.name, row.seeds) for row in rows] == [
        ("fedraw", (1, 3, 20)),
        ("fedraw-weight-only", (1,)),
    ]
    document = rows.as_json()
    presence = document["rows"][0]["metrics"]["BufPres"]
    assert presence["mean"] == pytest.approx(sum(presence["values"]) / 3)
    assert document["rows"][0]["metrics"]["AvgRare"]["mean"] is None
    json.dumps(document)


def test_folders_and_results_give_the_same_table(tmp_path: Path) -> None:
    results = simulate(dynamics([1, 2]), out=tmp_path)
    assert compare(results) == compare([tmp_path])
    assert compare([tmp_path / "seed-1", tmp_path / "seed-2"]) == compare([tmp_path])


def test_rows_of_the_same_name_show_the_settings_that_differ() -> None:
    results: list[SeedResult] = []
    for buffer in (2, 5):
        results += simulate(dynamics([1], buffer=buffer, cap="naive", cap_at=0.9))
    names = [row.name for row in compare(results)]
    assert names == ["fedraw buffer=2", "fedraw buffer=5"]


@pytest.mark.parametrize(("size", "same"), [(1 << 26, True), (5000, False)])
def test_a_removed_setting_with_its_default_does_not_make_another_row(
    size: int, same: bool
) -> None:
    old = {"strategy": {"buffer": 5}, "server": {"log_segment": size}}
    new = {"strategy": {"buffer": 5}, "server": {}}
    assert (identity("fedraw", old) == identity("fedraw", new)) == same


def test_runs_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing does not exist"):
        compare([tmp_path / "nothing"])
    with pytest.raises(BadInput, match=r"holds no run: there is no events.jsonl"):
        compare([tmp_path])
    simulate(dynamics([1]), out=tmp_path)
    with pytest.raises(BadInput, match="seed 1 is given twice"):
        compare([tmp_path, tmp_path])
    log = tmp_path / "seed-1" / "events.jsonl"
    whole = log.read_text()
    log.write_text(whole[: whole.rindex('{"kind":"end"')])
    (log.parent / "summary.json").unlink()
    with pytest.raises(BadInput, match="is not finished"):
        compare([tmp_path])
    log.write_text(whole[:-30])
    with pytest.raises(BadInput, match="is not finished"):
        compare([tmp_path])
    log.write_text(whole.replace('"format":3', '"format":9'))
    with pytest.raises(BadInput, match="has format 9, and this fedraw reads format 3"):
        compare([tmp_path])


def trained(lr: float) -> Result:
    return simulate(
        Spec.from_dict(
            {
                "partition": {"clients": 8, "rare_labels": [8, 9], "clients_per_common_label": 5},
                "strategy": {"name": "fedavg"},
                "training": {"lr": lr, "epochs": 4},
                "run": {"events": 80, "evaluate_every": 80, "seeds": [1]},
            }
        )
    )


@pytest.mark.filterwarnings("ignore:.*updates were refused")
@pytest.mark.filterwarnings("ignore:train.lr = 1e.06 is far above useful")
def test_a_collapsed_model_is_marked_and_never_the_best() -> None:
    """At a learning rate of 1e6 the model predicts one label for every sample."""
    rows = compare([*trained(0.1), *trained(1e6)])
    sound, collapsed = rows
    assert (sound.collapsed, collapsed.collapsed) == (0, 1)
    assert collapsed.metrics["GlobalAcc"].mean < 15  # type: ignore[operator]
    assert any("always gives the same answer" in note for note in collapsed.notes)
    assert [row["collapsed"] for row in rows.as_json()["rows"]] == [0, 1]


def row(name: str, seeds: tuple[int, ...], *values: float, **more: Any) -> ComparisonRow:
    return ComparisonRow(name, seeds, {"AvgRare": Stat.of(values)}, **more)


def test_a_paired_difference_has_students_interval() -> None:
    """Differences 1, 2, 3: mean 2, sample sd 1, and t(2) = 4.303, so 2 ± 4.303/√3."""
    found = paired(
        row("b", (1, 2, 3), 11, 22, 33), row("a", (3, 2, 1, 9), 30, 20, 10, 99), "AvgRare"
    )
    assert (found.seeds, found.differences, found.mean) == ((1, 2, 3), (1.0, 2.0, 3.0), 2.0)
    assert found.low == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-5)
    assert not found.is_clear
    assert paired(row("b", (1, 2), 11, 21.1), row("a", (1, 2), 1, 11), "AvgRare").is_clear
    single = paired(row("b", (1,), 11), row("a", (1,), 10), "AvgRare")
    assert (single.mean, single.low, single.high, single.is_clear) == (1.0, None, None, False)


@given(st.lists(st.tuples(*[st.floats(0, 100)] * 2), min_size=2, max_size=12))
def test_a_paired_difference_changes_sign_with_the_order(pairs: list[tuple[float, float]]) -> None:
    seeds = tuple(range(len(pairs)))
    one, other = (
        row(name, seeds, *v) for name, v in zip("ab", zip(*pairs, strict=True), strict=True)
    )
    forth, back = paired(one, other, "AvgRare"), paired(other, one, "AvgRare")
    assert forth.mean == pytest.approx(-back.mean)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))  # type: ignore[operator]
    assert min(forth.differences) - 1e-9 <= forth.mean <= max(forth.differences) + 1e-9


def test_runs_without_common_seeds_or_data_are_not_paired() -> None:
    with pytest.raises(BadInput, match="have no common seed"):
        paired(row("a", (1,), 5), row("b", (2,), 5), "AvgRare")
    with pytest.raises(BadInput, match="different data under seed 1"):
        paired(row("a", (1,), 5, data=("x",)), row("b", (1,), 5, data=("y",)), "AvgRare")
    with pytest.raises(BadInput, match="no run has the metric 'AvgRar'; did you mean 'AvgRare'"):
        paired(row("a", (1,), 5), row("b", (1,), 5), "AvgRar")


def test_rows_are_found_sorted_and_named() -> None:
    rows = Comparison((row("a", (1,), 5), row("c", (1,), 9, collapsed=1), row("b", (1,), 7)))
    assert [own.name for own in rows.sorted("AvgRare")] == ["b", "a", "c"], "collapsed comes last"
    assert [own.name for own in rows.sorted("name")] == ["a", "b", "c"]
    assert rows["b"] is rows[2]
    assert rows.paired("b", "a").mean == 2.0
    with pytest.raises(BadInput, match="the comparison has no row 'd'"):
        rows["d"]


def test_a_mapping_names_the_rows(tmp_path: Path) -> None:
    results = simulate(dynamics([1, 2]), out=tmp_path)
    rows = compare({"mine": results, "again": tmp_path, "one": tmp_path / "seed-1"})
    assert [own.name for own in rows] == ["mine", "again", "one"]
    assert replace(rows["mine"], name="again") == rows["again"]
    assert rows.notes == ("different seeds: 1, 2 in mine, again; 1 in one",)
    simulate(dynamics([1], buffer=5), out=tmp_path / "other")
    with pytest.raises(BadInput, match="'mine' has 2 different specs"):
        compare({"mine": tmp_path})


def test_different_budgets_are_noted() -> None:
    assert budget_notes([row("a", (1,), 5, events=(9,), data=("x",))] * 2) == []
    found = budget_notes(
        [
            row("a", (1, 2), 5, 5, events=(300, 300), data=("x" * 64, "y" * 64)),
            row("b", (1, 2), 5, 5, events=(300, 300), data=("x" * 64, "z" * 64)),
            row("c", (1,), 5, events=(600,), data=("x" * 64,)),
        ]
    )
    assert found == [
        "different events: 300 in a, b; 600 in c",
        "different seeds: 1, 2 in a, b; 1 in c",
        f"different data under seed 2: {'y' * 12} in a; {'z' * 12} in b",
    ]


def test_different_rare_labels_are_noted() -> None:
    one, other = (("9",),), (("8", "9"),)
    assert budget_notes([row("a", (1,), 5, rare_labels=one)] * 2) == []
    found = budget_notes(
        [
            row("a", (1,), 5, rare_labels=one),
            row("b", (1,), 5, rare_labels=other),
            row("c", (1,), 5, rare_labels=((),)),
            row("old", (1,), 5, rare_labels=(None,)),
        ]
    )
    assert found == [
        "different rare labels, so metrics such as AvgRare are not comparable: "
        "9 in a; 8, 9 in b; none in c"
    ]


def test_rare_labels_that_depend_on_the_seed_are_compared_seed_by_seed() -> None:
    """The same two seeds average over the same labels in both rows, so the rows are comparable."""
    changing = (("8",), ("9",))
    assert budget_notes([row(n, (1, 2), 5, 5, rare_labels=changing) for n in ("a", "b")]) == []
    found = budget_notes(
        [
            row("a", (1, 2), 5, 5, rare_labels=changing),
            row("b", (1, 2), 5, 5, rare_labels=(("8",), ("8",))),
        ]
    )
    assert found == [
        "different rare labels under seed 2, so metrics such as AvgRare are not comparable: "
        "9 in a; 8 in b"
    ]


def test_rare_labels_of_folders_and_results_are_compared(tmp_path: Path) -> None:
    nine, eight = dynamics([1]), dynamics([1])
    eight = replace(eight, partition=replace(eight.partition, rare_labels=(8,)))
    results = {name: simulate(s, out=tmp_path / name) for name, s in [("n", nine), ("e", eight)]}
    note = "different rare labels, so metrics such as AvgRare are not comparable: 9 in n; 8 in e"
    assert note in compare(results).notes
    assert note in compare({name: tmp_path / name for name in results}).notes


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=20), st.data())
def test_a_model_that_ignores_its_input_has_collapsed(
    shares: list[float], data: st.DataObject
) -> None:
    """The expected scores of any mixture of predictions on any test set, by the formulas."""
    answers = data.draw(st.lists(st.floats(0, 1), min_size=len(shares), max_size=len(shares)))
    assume(sum(answers) > 0)
    truth = np.array(shares) / sum(shares)
    given_ = np.array(answers) / sum(answers)
    f1 = 100 * float(np.mean(2 * truth * given_ / (truth + given_)))
    assert f1 <= 100 / len(shares) + 1e-9
    assert has_collapsed((100 * given_).tolist())
    assert has_collapsed([99.0] * len(shares), {"MacroF1": f1})
    assert not has_collapsed([99.0] * len(shares), {"MacroF1": 99.0, "GlobalAcc": 99.0})


def test_a_model_that_is_no_better_than_the_commonest_label_is_noted() -> None:
    summary = {
        "name": "m", "seed": 1, "events": 5, "finished": True, "spec": {},
        "metrics": {"GlobalAcc": 70.0}, "recall": {"cat": 70.0, "owl": 70.0},
        "confusion": {"cat": {"cat": 63, "owl": 27}, "owl": {"owl": 7, "cat": 3}}, "tail": {},
    }  # fmt: skip
    (own,) = compare([SimpleNamespace(summary=summary)])
    assert own.collapsed == 0
    assert own.notes == (
        "m: its GlobalAcc of 70.0 is no higher than the 90.0 of a model that always answers the "
        "commonest label",
    )


def test_one_folder_need_not_be_in_a_list(tmp_path: Path) -> None:
    simulate(dynamics([1]), out=tmp_path)
    assert compare(str(tmp_path)) == compare([tmp_path])
    with pytest.raises(BadInput, match="nowhere does not exist"):
        compare("nowhere")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), r"None is not a run; give results or folders, such as compare\(\[one, other\]\)"),
        (({"a": 3},), "3 is not a run"),
        (([3],), "3 is not a run"),
        (([], [3]), r"until = \[3\] must be goals such as 'AvgRare>=50'; to compare several runs"),
        (([], 3), "until = 3 must be goals"),
    ],
)
def test_what_is_neither_a_run_nor_a_goal_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        compare(*arguments)
