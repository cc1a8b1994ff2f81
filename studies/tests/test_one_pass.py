"""The study of one pass: which runs it reuses, and its document from made-up cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedraw_studies.artefacts import ONE_PASS, Scale
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.one_pass import OnePassRow, one_pass_rows
from fedraw_studies.one_pass_render import write_one_pass
from fedraw_studies.outcomes import outcomes
from fedraw_studies.plan import key_of, load_artefacts, settings_of

CPU, LEVEL = Scale.named("cpu"), Scale.named("level")


@pytest.mark.parametrize("part", ["digits", "ham10000", "isic2019", "emnist"])
def test_methods_that_train_are_runs_of_other_studies(part: str) -> None:
    names = ["arena-digits", "arena-ham10000", "arena-emnist", "late-ham10000", "late-isic2019",
             "late-digits", "late-emnist"]  # fmt: skip
    known = {key_of(row.spec) for own in load_artefacts(names, CPU) for row in own.rows}
    trained = [row for row in one_pass_rows(part, CPU) if row.trains]
    assert trained
    assert [row.label for row in trained if key_of(row.spec) not in known] == []


def test_so_they_are_at_the_level_of_the_paper() -> None:
    known = {key_of(row.spec) for row in load_artefacts(["table2"], LEVEL)[0].rows}
    rows = [row for row in one_pass_rows("level", LEVEL) if row.trains]
    trained = [row for row in rows if row.setting == "the paper's"]
    assert (len(trained), len(rows)) == (4 * 5, 4 * 5 + 2 * 2 * 5)
    assert [row.label for row in trained if key_of(row.spec) not in known] == []


@pytest.mark.parametrize(("part", "scale"), [("digits", CPU), ("small", CPU), ("level", LEVEL)])
def test_all_methods_of_a_setting_meet_the_same_clients(part: str, scale: Scale) -> None:
    by_setting: dict[tuple[str, str], set[str]] = {}
    for row in one_pass_rows(part, scale):
        spec = row.spec.to_dict()
        federation = str([spec[key] for key in ("partition", "speeds")])
        by_setting.setdefault((row.dataset, row.setting), set()).add(federation)
    assert {len(found) for found in by_setting.values()} == {1}


def test_labels_of_rows_are_distinct_and_scales_have_their_own_parts() -> None:
    for scale in (CPU, LEVEL, Scale.named("smoke")):
        for artefact in load_artefacts(ONE_PASS, scale):
            labels = [row.label for row in artefact.rows]
            assert len(set(labels)) == len(labels)
    assert one_pass_rows("full", LEVEL) == one_pass_rows("level", CPU) == []


def cell(row: OnePassRow, seed: int, rare: float, final: str | None = None) -> CellRecord:
    content: dict[str, Any] = {
        "recall": {str(n): 50.0 for n in range(10)}, "influence": {},
        "data": {}, "fedraw": "0", "seconds": 1.0, "date": "", "cores": 2,
        "machine": "",
    }  # fmt: skip
    metrics = {"GlobalAcc": 90.0, "AvgRare": rare}
    count = 3 if final else 20
    return CellRecord(
        key=key_of(row.spec), seed=seed, spec=settings_of(row.spec),
        metrics=metrics, tail=metrics, final=final,
        curve=[(n + 1, 90.0, rare if n else 0.0) for n in range(count)],
        times=[float(n) for n in range(count)], **content,
    )  # fmt: skip


def test_the_document_pairs_seeds_and_says_what_was_not_run(tmp_path: Path) -> None:
    rows = {row.label: row for row in one_pass_rows("digits", CPU)}
    one, other = rows["digits, 2x, One pass"], rows["digits, 2x, FedAvg, ten times"]
    files = CellFiles(tmp_path)
    for seed, (solved, trained) in {9101: (90, 60), 9102: (92, 70), 9103: (94, 80)}.items():
        files.write(cell(one, seed, solved, "every member was heard"), "paper")
        files.write(cell(other, seed, trained), "paper")
    text = write_one_pass(outcomes(CellFiles(tmp_path), CPU, ONE_PASS), CPU, tmp_path)
    line = {part[3].strip(): [own.strip() for own in part[4:-1]]
            for part in (own.split("|") for own in text.splitlines())
            if len(part) > 5 and part[2].strip() == "2x"}  # fmt: skip
    assert line["One pass"][:3] == ["3", "92.0 ± 2.0 (90.0)", "–"]
    # The final evaluation stands for five: the mean of 0, 90, 90, 90, 90 is above 50.
    assert line["One pass"][3] == "1, 0 s"
    # Differences 30, 22 and 14: mean 22, standard error 8/√3, Student's t 4.303.
    assert line["FedAvg, ten times"][2] == "**+22.0 (+2.1 to +41.9)**"
    assert line["Ridge"][:2] == ["0", "not run"]


def test_features_with_pooled_statistics_are_marked(tmp_path: Path) -> None:
    rows = [row for row in one_pass_rows("full", CPU) if row.dataset == "ham10000"]
    labels = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    solved = cell(rows[0], 9201, 70, "every member was heard")
    cells = CellFiles(tmp_path)
    cells.write(replace(solved, recall=dict.fromkeys(labels, 50.0)), "one-pass")
    text = write_one_pass(outcomes(cells, CPU, ONE_PASS), CPU, tmp_path)
    found = [own.split("|")[1:4] for own in text.splitlines() if own.startswith("| ham10000")]
    marked = {method.strip(): dataset.strip() for dataset, _, method in found}
    assert marked == {row.method: "ham10000 *" for row in rows[:-1]} | {
        "One pass, stored statistics": "ham10000"
    }
