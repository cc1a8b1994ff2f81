"""The plan: every run once, headline first, under keys that stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedraw.experiment.spec import Spec
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.fedfa import FedFa
from fedraw_studies.artefacts import NAMES, Scale, merged
from fedraw_studies.cells import CellFiles
from fedraw_studies.plan import Planned, budget, key_of, load_artefacts, make_plan, total_seconds

RESULTS = Path(__file__).parents[1] / "results" / "cpu"


def plan(*names: str, scale: str = "paper") -> list[Planned]:
    return make_plan(load_artefacts(names or NAMES, Scale.named(scale)))


def test_a_run_that_several_artefacts_need_is_planned_once() -> None:
    every = plan()
    assert len({planned.name for planned in every}) == len(every)
    by_artefact: dict[str, int] = {}
    for planned in every:
        by_artefact[planned.artefact] = by_artefact.get(planned.artefact, 0) + 1
    # By hand: Table II 24 x 3; III 4 new x 3; fig1 Exp 1 and 2 x 3; IV 10x and 20x; S8 nine
    # attacks; S1 4 x 3; S9 ten other K; S10 five others; S5 6 x 3; S2 4; S4 12; S3 two other q;
    # rates 5 and 4. fig2 runs nothing; fig3, S6, S7 and S11 look at runs of others.
    assert by_artefact == {
        "table2": 72, "table3": 12, "fig1": 6, "table4": 4, "s8": 9, "s1": 12, "s9": 10, "s10": 5,
        "s5": 18, "s2": 4, "s4": 12, "s3": 2, "server-rate": 5, "local-rate": 4,
    }  # fmt: skip
    assert len(every) == 175


def test_what_says_most_comes_first_and_seed_after_seed() -> None:
    every = plan()
    assert list(dict.fromkeys(planned.artefact for planned in every)) == [
        "table2", "table3", "fig1", "table4", "s8", "s1", "s9", "s10", "s5", "s2", "s4", "s3",
        "server-rate", "local-rate",
    ]  # fmt: skip
    assert [planned.seed for planned in every[:72]] == [42] * 24 + [123] * 24 + [456] * 24


def test_artefacts_that_only_look_at_runs_of_others_bring_them_when_alone() -> None:
    assert len(plan("s11")) == 18
    assert len(plan("s7")) == 6
    assert len(plan("fig3")) == 24
    assert plan("fig2") == []
    assert {p.name for p in plan("s11")} <= {p.name for p in plan("table2")}


def test_a_key_knows_neither_seeds_nor_artefact_but_every_other_setting() -> None:
    one = Spec.from_dict({"strategy": {"name": "fedfa"}, "run": {"seeds": [1, 2]}})
    assert key_of(one) == key_of(Spec.from_dict({"strategy": {"name": "fedfa"}}))
    assert key_of(one) == key_of(Spec.from_dict({"strategy": {"name": "fedfa", "buffer": 10}}))
    assert key_of(one) != key_of(Spec.from_dict({"strategy": {"name": "fedfa", "buffer": 9}}))
    assert key_of(one) != key_of(Spec.from_dict({"strategy": {"name": "fedraw"}}))


def test_every_committed_run_is_found_under_the_key_of_its_spec() -> None:
    cells = CellFiles(RESULTS)
    assert len(cells.names()) > 1000
    for name in cells.names():
        record = cells.read(name)
        assert record is not None
        assert key_of(Spec.from_dict(record.spec)) == record.key


def test_a_setting_that_is_younger_than_version_1_counts_when_it_is_no_default() -> None:
    assert key_of(Spec.from_dict({"partition": {"rare_labels": [8, 9]}})) == "249c1800883f"
    attack = {"misreport": {"label": 9}}
    for younger, other in (
        ({"strategy": {"labels": "declared"}}, {"strategy": {"labels": "checked"}}),
        ({"run": {"receivers": "uniform"}}, {"run": {"receivers": "rare-first"}}),
        ({"misreport": {"label": 9, "liars": 1}}, {"misreport": {"label": 9, "liars": 2}}),
    ):
        plain = {**attack, "run": {"concurrency": 5}}
        key = key_of(Spec.from_dict(plain))
        assert key_of(Spec.from_dict(merged(plain, younger))) == key
        assert key_of(Spec.from_dict(merged(plain, other))) != key


@dataclass(frozen=True)
class YoungerFedFa(FedFa):
    """FedFa with a setting that it does not have yet."""

    decay: float = 0.5


def test_a_method_may_get_new_settings_without_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(**setting: float) -> list[str]:
        fedfa, fedraw = {"name": "fedfa", **setting}, {"name": "fedraw"}
        return [key_of(Spec.from_dict({"strategy": strategy})) for strategy in (fedfa, fedraw)]

    before = keys()
    younger = replace(CATALOG["fedfa"], factory=YoungerFedFa)
    monkeypatch.setitem(CATALOG, "fedfa", younger)
    assert keys() == keys(decay=0.5) == before
    assert keys(decay=0.25)[0] != before[0]


def test_the_budget_counts_a_shared_run_once() -> None:
    every = plan("s9", "table4", scale="smoke")
    assert [(p.artefact, p.label) for p in every][:2] == [
        ("table4", "2x, FedFa"),
        ("table4", "2x, FedRAW"),
    ]
    shares = {share.artefact: share for share in budget(every, every[1:])}
    assert (shares["table4"].runs, shares["table4"].to_run) == (6, 5)
    assert (shares["s9"].runs, shares["s9"].to_run) == (10, 10)
    # 150 events of 2 ms each.
    assert shares["s9"].seconds == pytest.approx(10 * 0.3)
    assert total_seconds(every) == pytest.approx(16 * 0.3)
    assert total_seconds(plan("s9")) is None  # nobody has measured the paper's protocol
