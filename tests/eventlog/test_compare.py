from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedraw.errors import BadInput
from fedraw.eventlog.compare import Stat, as_json, compare
from fedraw.experiment.runner import Result, run
from fedraw.experiment.spec import Spec


def dynamics(seeds: list[int], **strategy: Any) -> Spec:
    return Spec.read(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": "fedraw", "buffer": 4, **strategy},
            "training": {"kind": "none"},
            "run": {"events": 60, "seeds": seeds},
        }
    )


def test_spread_is_the_population_sd_and_undefined_stays_undefined() -> None:
    assert Stat.of([1.0, 3.0]) == Stat(2.0, 1.0, (1.0, 3.0))
    assert Stat.of([1.0, None]) == Stat(None, None, (1.0, None))
    assert Stat.of([None]) == Stat(None, None, (None,))


def test_seeds_of_one_spec_are_one_row(tmp_path: Path) -> None:
    run(dynamics([3, 1, 20]), out=tmp_path / "x")
    run(dynamics([1], dedup=False), out=tmp_path / "y")
    rows = compare([tmp_path / "x", tmp_path / "y"])
    assert [(row.name, row.seeds) for row in rows] == [
        ("fedraw", (1, 3, 20)),
        ("fedraw-weight-only", (1,)),
    ]
    document = as_json(rows)
    presence = document["rows"][0]["metrics"]["BufPres"]
    assert presence["mean"] == pytest.approx(sum(presence["values"]) / 3)
    assert document["rows"][0]["metrics"]["AvgRare"]["mean"] is None
    json.dumps(document)


def test_folders_and_results_give_the_same_table(tmp_path: Path) -> None:
    results = run(dynamics([1, 2]), out=tmp_path)
    assert compare(results) == compare([tmp_path])
    assert compare([tmp_path / "seed-1", tmp_path / "seed-2"]) == compare([tmp_path])


def test_rows_with_one_name_show_what_differs() -> None:
    results: list[Result] = []
    for buffer in (2, 5):
        results += run(dynamics([1], buffer=buffer, cap="naive", cap_at=0.9))
    names = [row.name for row in compare(results)]
    assert names == ["fedraw buffer=2", "fedraw buffer=5"]


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing does not exist"):
        compare([tmp_path / "nothing"])
    with pytest.raises(BadInput, match=r"holds no run: there is no events.jsonl"):
        compare([tmp_path])
    run(dynamics([1]), out=tmp_path)
    with pytest.raises(BadInput, match="seed 1 is given twice"):
        compare([tmp_path, tmp_path])
    log = tmp_path / "seed-1" / "events.jsonl"
    whole = log.read_text()
    log.write_text(whole[: whole.rindex('{"kind":"end"')])
    (log.parent / "summary.json").unlink()
    with pytest.raises(BadInput, match="is not finished"):
        compare([tmp_path])
    log.write_text(whole[:-30])
    with pytest.raises(BadInput, match=r"line \d+ is no record of an event log"):
        compare([tmp_path])
    log.write_text(whole.replace('"format":3', '"format":9'))
    with pytest.raises(BadInput, match="has format 9, and this fedraw reads format 3"):
        compare([tmp_path])


def trained(lr: float) -> list[Result]:
    return run(
        Spec.read(
            {
                "partition": {"clients": 8, "rare_labels": [8, 9], "clients_per_common_label": 5},
                "strategy": {"name": "fedavg"},
                "training": {"lr": lr, "epochs": 4},
                "run": {"events": 80, "evaluate_every": 80, "seeds": [1]},
            }
        )
    )


def test_a_collapsed_model_is_marked_and_never_the_best() -> None:
    """At a rate of 1e6 the model answers one label for everything."""
    sound, collapsed = compare([*trained(0.1), *trained(1e6)])
    assert (sound.collapsed, collapsed.collapsed) == (0, 1)
    assert collapsed.metrics["GlobalAcc"].mean < 15  # type: ignore[operator]
    assert any("always gives the same answer" in note for note in collapsed.notes)
    assert [row["collapsed"] for row in as_json([sound, collapsed])["rows"]] == [0, 1]
