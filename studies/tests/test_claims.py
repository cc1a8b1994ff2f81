"""The claims as data, and what they come to on hand-made cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import DYNAMICS, NAMES, SUPPORTING, PaperValue, Scale, load_dynamics
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.claims import (
    RULES,
    Claim,
    ClaimVerdict,
    Part,
    PartVerdict,
    as_json,
    decided_by_chance,
    judge,
    load_claims,
)
from fedraw_studies.dynamics import DynamicsResults
from fedraw_studies.federations import load_federations
from fedraw_studies.outcomes import Finding, model_copies, outcomes, supporting_outcomes
from fedraw_studies.plan import key_of, load_artefacts, settings_of
from fedraw_studies.rules import Verdict

CLAIMS = load_claims()
PARTS = [pytest.param(part, id=f"{c.name}: {part.name}") for c in CLAIMS for part in c.parts]
ARTEFACTS = {
    artefact.name: artefact
    for artefact in [
        *load_artefacts([*NAMES, *SUPPORTING], Scale.named("cpu")),
        load_federations(),
    ]
}
OF_RARE_RECALL = ("BetterRare", "WorseRare")  # metrics of every run, and no column of a table
FIVE = replace(Scale.named("smoke"), seeds=(42, 123, 456, 789, 1011))

Values = Mapping[str, Mapping[str, Sequence[float | None]]]  # by row, by metric, seed by seed


def cell(spec: Spec, seed: int, metrics: Mapping[str, float | None], **parts: Any) -> CellRecord:
    content: dict[str, Any] = {
        "tail": {}, "recall": {str(i): 10.0 * i for i in range(10)},
        "confusion": {"3": [0] * 10, "5": [0] * 10}, "influence": {},
        "curve": [(30, 50.0, 10.0), (60, 60.0, 20.0)],
        "data": {}, "fedraw": "0", "seconds": 36.0, "date": "",
        "cores": 2, "machine": "",
    }  # fmt: skip
    return CellRecord(
        key=key_of(spec), seed=seed, spec=settings_of(spec), metrics=metrics, **content | parts
    )


def write_cells(out: Path, artefact: str, values: Values, scale: Scale = FIVE) -> None:
    (own,) = load_artefacts([artefact], scale)
    cells = CellFiles(out)
    for row in own.rows:
        metrics = values.get(row.label, {})
        for n, seed in enumerate(own.seeds):
            known = {metric: given[n] for metric, given in metrics.items() if n < len(given)}
            if known:
                cells.write(cell(row.spec, seed, known), "paper")


def judged(out: Path, name: str, scale: Scale = FIVE, **options: Any) -> ClaimVerdict:
    every = judge(outcomes(CellFiles(out), scale), options.get("dynamics"))
    return next(own for own in every if own.claim.name == name)


def part(own: ClaimVerdict, name: str) -> PartVerdict:
    return next(part for part in own.parts if part.part.name == name)


def test_names_are_distinct_and_every_claim_has_parts() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.parts
        assert len({part.name for part in claim.parts}) == len(claim.parts), claim.name
        assert not all(part.condition for part in claim.parts), claim.name


@pytest.mark.parametrize("own", PARTS)
def test_parts_are_about_rows_and_metrics_that_exist(own: Part) -> None:
    assert own.rule in RULES
    assert "{" not in "".join((own.name, own.metric, *own.a, *own.b))
    if own.rule == "none":
        assert own.why
    if own.artefact == DYNAMICS:
        assert set(own.tables) <= {table.name for table in load_dynamics()}
    elif own.artefact:
        assert own.paper or own.artefact not in SUPPORTING
        artefact = ARTEFACTS[own.artefact]
        assert {*own.a, *own.b} <= {row.label for row in artefact.rows}
        for metric in filter(None, (own.metric, own.less)):
            assert metric in (*artefact.columns, *OF_RARE_RECALL)


@pytest.mark.parametrize("own", PARTS)
def test_parts_have_what_their_rule_needs(own: Part) -> None:
    needs_other = {"greater", "comparable", "wider", "every", "ratio"}
    if own.rule != "none" and own.artefact != DYNAMICS:
        fits = bool(own.b) == (own.rule in needs_other)
        assert fits or own.rule == "within" or (own.rule == "greater" and own.less)
    if own.rule == "ratio":
        assert (len(own.a), len(own.b)) == (2, 2)
    if own.rule in ("comparable", "below"):
        assert own.limit > 0
    if own.rule == "ordered":
        assert len(own.a) > 2


def gaps(own: Part) -> list[float]:
    """A − B by the paper's own figures, seed by seed where it prints seeds; empty if it is mute."""
    rows = {row.label: row for row in ARTEFACTS[own.artefact].rows}
    sides = []
    for label in (*own.a, *own.b):
        figures = [rows[label].paper.get(metric) for metric in (own.metric, own.less) if metric]
        if None in figures:
            return []
        first, *others = (figure.values for figure in figures if figure is not None)
        sides.append([x - sum(other[n] for other in others) for n, x in enumerate(first)])
    one, *rest = sides
    return [x - max((other[n] for other in rest), default=0.0) for n, x in enumerate(one)]


def fits(own: Part) -> bool:
    """Whether the paper's own figures say what the part claims; true where it prints none."""
    if own.rule == "wider":
        rows = {row.label: row.paper[own.metric] for row in ARTEFACTS[own.artefact].rows}
        one, other = (figure.sd or 0 for x in (*own.a, *own.b) if (figure := rows[x]) is not None)
        return one > other
    gap = gaps(own) if own.rule == "every" else gaps(own)[:1]
    if own.rule == "comparable":
        return all(abs(x) < own.limit for x in gap)
    return all(x > 0 for x in gap)


def test_claims_say_what_the_papers_own_tables_say() -> None:
    """What is claimed has the sign of the paper's figures; one note tells the exception."""
    rules = ("greater", "comparable", "wider", "every")
    odd = [
        (claim.name, own.name)
        for claim in CLAIMS
        for own in claim.parts
        if own.rule in rules and own.artefact in ARTEFACTS and not fits(own)
    ]
    assert odd == [("dedup-steadies", "HAM10000, AvgRare")]


def test_the_headline_claims_have_five_seeds_where_time_allows() -> None:
    for claim in CLAIMS:
        if claim.headline and claim.name != "hidden-loss":  # three, as most figures have
            for own in claim.parts:
                if own.artefact:
                    assert len(ARTEFACTS[own.artefact].seeds) >= 5, own.name


def test_what_a_server_keeps_is_counted() -> None:
    # K slots, the model, and a sum in double precision; CA2FL a cached update for each client.
    assert model_copies("fedraw", clients=30) == 10 + 1 + 2
    assert model_copies("fedraw", clients=300, buffer=20) == 20 + 1 + 2
    assert model_copies("ca2fl", clients=300) - model_copies("ca2fl", clients=30) == 270
    state, benchmark = supporting_outcomes()
    assert state.row("FedBuff, N = 30").metrics["Models"].values == {0: 3.0}
    assert len(benchmark.row("FedRAW.step").metrics["Copies"].values) == 3


def test_nothing_is_run_and_nothing_is_judged(tmp_path: Path) -> None:
    every = judge(outcomes(CellFiles(tmp_path), FIVE), None)
    free = {"memory", "time", "concept", "client-sizes", "few-rare-images", "eleven-updates"}
    free |= {"four-times"}  # need no runs
    for own in every:
        if own.claim.name in free:
            assert own.verdict is Verdict.HOLDS, own.claim.name
        else:
            assert own.verdict in (Verdict.NOT_RUN, Verdict.NOT_COMPARABLE)
    (fedfa,) = (own for own in every if own.claim.name == "over-fedfa")
    assert fedfa.runs == (0, 4 * 2 * 5)  # AvgRare and GlobalAcc are of the same runs
    assert [own.so_far for own in fedfa.parts] == [None] * 8


def titles(method: str, **metrics: Sequence[float | None]) -> dict[str, Any]:
    sets = ("EMNIST", "CIFAR-10", "HAM10000", "ISIC-2019")
    return {f"{title}, {method}": metrics for title in sets}


FIVE_HIGH, FIVE_LOW = [30.0, 31, 32, 33, 34], [6.0, 7, 6, 7, 6]
ALIKE = [70.0, 71, 70, 71, 70]


def test_the_headline_claim_holds_where_every_seed_says_so(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=FIVE_HIGH, GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=ALIKE[::-1])
    write_cells(tmp_path, "table2", values)
    own = judged(tmp_path, "over-fedfa")
    assert own.verdict is Verdict.HOLDS
    first = own.parts[0]
    assert first.paper == "30.2 ± 4.2 against 6.0 ± 4.0"
    # Differences 24, 24, 26, 26, 28: mean 25.6, sd 1.673, 25.6 ± 2.776 · 0.748.
    assert first.ours == "32.0 ± 1.4 against 6.4 ± 0.5: +25.6 (+23.5 to +27.7), 5 seeds"
    assert first.difference == pytest.approx((25.6, 23.522, 27.678), abs=1e-3)


def test_a_condition_that_fails_makes_it_partly_and_rescues_nothing(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=FIVE_HIGH, GlobalAcc=[60.0] * 5)
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=[70.0] * 5)
    write_cells(tmp_path / "lost", "table2", values)
    own = judged(tmp_path / "lost", "over-fedfa")
    assert own.verdict is Verdict.PARTLY
    assert [p.verdict for p in own.parts] == [Verdict.HOLDS] * 4 + [Verdict.FAILS] * 4
    values = titles("FedRAW", AvgRare=FIVE_LOW, GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=FIVE_HIGH, GlobalAcc=ALIKE)
    write_cells(tmp_path / "worse", "table2", values)
    assert judged(tmp_path / "worse", "over-fedfa").verdict is Verdict.FAILS


def test_some_data_sets_of_four(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=FIVE_HIGH, GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=ALIKE)
    values["CIFAR-10, FedRAW"] = {"AvgRare": [5.0] * 5, "GlobalAcc": ALIKE}
    write_cells(tmp_path, "table2", values)
    own = judged(tmp_path, "over-fedfa")
    assert own.verdict is Verdict.PARTLY
    assert part(own, "CIFAR-10, AvgRare").verdict is Verdict.FAILS


def test_missing_seeds_wait_and_say_how_it_stands(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=FIVE_HIGH[:3], GlobalAcc=ALIKE[:3])
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=ALIKE)
    write_cells(tmp_path, "table2", values)
    own = judged(tmp_path, "over-fedfa")
    assert (own.verdict, own.runs) == (Verdict.NOT_RUN, (32, 40))
    first = own.parts[0]
    assert (first.verdict, first.so_far) == (Verdict.NOT_RUN, Verdict.HOLDS)
    assert (len(first.done), len(first.missing), first.seeds) == (8, 2, 3)
    assert "3 seeds" in first.ours


def test_one_seed_is_a_direction(tmp_path: Path) -> None:
    scale = Scale.named("smoke")
    metrics = {"AvgRare": [20.0], "GlobalAcc": [70.0], "BufPres": [50.0]}
    low = {"AvgRare": [1.0], "GlobalAcc": [72.0], "BufPres": [40.0]}
    rows = {f"{x}x, FedRAW": metrics for x in (2, 10, 20)} | {
        f"{x}x, FedFa": low for x in (2, 10, 20)
    }
    write_cells(tmp_path, "table4", rows, scale)
    own = judged(tmp_path, "collapse", scale, dynamics=DynamicsResults(30, "", ()))
    assert part(own, "10x: FedRAW above FedFa").why == "one seed"
    assert part(own, "20x, FedFa, AvgRare").verdict is Verdict.PARTLY
    assert part(own, "20x, FedRAW, AvgRare").verdict is Verdict.FAILS
    assert part(own, "20x, FedRAW, AvgRare").ours == "20.0, one seed"
    assert own.verdict is Verdict.PARTLY


def test_the_best_of_the_others_counts_seed_by_seed(tmp_path: Path) -> None:
    rows = {"FedRAW": {"BufPres": [50.0] * 5}, "FedFa": {"BufPres": [49.0, 40, 40, 49, 49]}}
    rows["CA2FL"] = {"BufPres": [40.0, 49, 49, 40, 40]}
    write_cells(tmp_path, "s6", rows)
    own = part(judged(tmp_path, "cat-dog"), "highest buffer presence")
    assert (own.verdict, own.difference) == (Verdict.HOLDS, (1, 1, 1))


def test_a_metric_that_is_not_defined_is_not_judged(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=[None] * 5, GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=ALIKE)
    write_cells(tmp_path, "table2", values)
    own = judged(tmp_path, "over-fedfa").parts[0]
    assert (own.verdict, own.ours) == (Verdict.NOT_COMPARABLE, "undefined")
    assert own.why == "AvgRare is undefined in some runs"


def test_training_free_figures_come_from_their_own_document(tmp_path: Path) -> None:
    def found(table: str, metric: str, paper: str | None, *values: float) -> Finding:
        printed = None if paper is None else PaperValue.of(paper)
        return Finding.of(table, "row", metric, printed, dict(enumerate(values)))

    rows = (
        found("Table IV", "BufPres", "2.0", 1, 3),
        found("Table IV", "RarePart", "2.0", 1, 3.5),
        found("Table S10", "BufPres", "2.0", 1, 3),  # repeats the first
        found("Table S8", "BufPres", "9.0", 1, 3),
        found("Table S8", "RarePart", None, 1, 3),  # the paper has none
        found("Contrast", "BufPres", "9.0", 1, 3),  # another table
    )
    own = judged(tmp_path, "training-free", dynamics=DynamicsResults(2, "", rows))
    (only,) = own.parts
    assert (own.verdict, only.paper) == (Verdict.PARTLY, "4 figures")
    assert only.ours == "3 of 4 figures inside (2 of 3 distinct ones), 2 seeds"


def test_what_the_paper_leaves_open_is_shown_and_not_judged(tmp_path: Path) -> None:
    scale = Scale.named("smoke")
    (artefact,) = load_artefacts(["server-rate"], scale)
    rows = {row.label: {"AvgRare": [float(n)]} for n, row in enumerate(artefact.rows)}
    write_cells(tmp_path, "server-rate", rows, scale)
    own = judged(tmp_path, "server-rates", scale)
    assert own.verdict is Verdict.NOT_COMPARABLE
    assert own.parts[0].ours == "0.0, 1.0, 2.0, 3.0, one seed"
    assert own.parts[0].paper == "–"


def test_every_seed_has_to_agree(tmp_path: Path) -> None:
    scale = replace(FIVE, seeds=(42, 123, 456))
    rows = {"FedRAW": {"AvgRare": [20.0, 45, 63]}, "FedFa": {"AvgRare": [3.0, 2, 33]}}
    rows["FedBuff"] = {"AvgRare": [2.0, 50, 35]}
    write_cells(tmp_path, "s11", rows, scale)
    own = judged(tmp_path, "ham-every-seed", scale)
    above_fedfa, above_fedbuff = own.parts
    assert (above_fedfa.verdict, above_fedfa.why) == (Verdict.HOLDS, "3 of 3 seeds")
    assert above_fedfa.ours == "20.0 / 45.0 / 63.0 against 3.0 / 2.0 / 33.0"
    assert above_fedfa.paper == "20.37 / 45.73 / 63.54 against 3.70 / 1.92 / 32.81"
    assert (above_fedbuff.verdict, own.verdict) == (Verdict.PARTLY, Verdict.PARTLY)


def test_a_gap_is_one_metric_less_another(tmp_path: Path) -> None:
    rows = {
        "HAM10000, FedFa": {"LocalCommon": [70.0] * 5, "LocalRare": [62.0, 63, 62, 63, 62]},
        "HAM10000, FedRAW": {"LocalCommon": [70.0] * 5, "LocalRare": [66.0, 65, 66, 65, 66]},
    }
    write_cells(tmp_path, "table2", rows)
    (only,) = judged(tmp_path, "local-gap").parts
    # Gaps 8, 7, 8, 7, 8 against 4, 5, 4, 5, 4.
    assert (only.verdict, only.paper) == (Verdict.HOLDS, "7.6 against 5.7")
    assert only.difference is not None
    assert only.difference.mean == pytest.approx(3.2)


def slow_rows(fedfa: Sequence[float]) -> Values:
    rows = {f"{x}x, {m}": {"AvgRare": [20.0] * 5} for x in (2, 20) for m in ("FedRAW", "FedFa")}
    rows |= {"2x, FedFa": {"AvgRare": [10.0] * 5}, "10x, FedRAW": {"AvgRare": [4.0] * 5}}
    return rows | {"10x, FedFa": {"AvgRare": fedfa}}


@pytest.mark.parametrize(
    ("fedfa", "verdict", "words"),
    [
        ([0.0] * 5, Verdict.HOLDS, "4.0 over 0.0 against 20.0 over 10.0 (2.0 times), 5 seeds"),
        ([1.0] * 5, Verdict.HOLDS, "4.0 over 1.0 (4.0 times) against 20.0 over 10.0 (2.0 times)"),
        ([2.0] * 5, Verdict.FAILS, "4.0 over 2.0 (2.0 times)"),  # as at 2x: not above it
    ],
)
def test_ratios_are_compared_crosswise(
    tmp_path: Path, fedfa: list[float], verdict: Verdict, words: str
) -> None:
    write_cells(tmp_path, "table4", slow_rows(fedfa))
    own = part(judged(tmp_path, "relative-advantage"), "the ratio at 10x is above that at 2x")
    assert own.verdict is verdict
    assert words in own.ours
    assert own.difference is None


def test_which_label_wins_is_read_off_the_recalls(tmp_path: Path) -> None:
    (artefact,) = load_artefacts(["s6"], FIVE)
    cells = CellFiles(tmp_path)
    for row in artefact.rows:
        spread = 50.0 if row.label == "FedRAW" else 5.0
        for n, seed in enumerate(artefact.seeds):
            recall = {str(i): spread * (i == 3) + n for i in range(10)}
            cells.write(
                cell(row.spec, seed, {"AvgRare": 1.0, "BufPres": 1.0}, recall=recall), "paper"
            )
    name = "the better recall of the two minus the worse, FedRAW above FedFa"
    own = part(judged(tmp_path, "dogs-as-cats"), name)
    assert own.verdict is Verdict.HOLDS
    assert own.ours == "50.0 ± 0.0 against 5.0 ± 0.0: +45.0 (+45.0 to +45.0), 5 seeds"


def strictly(out: Path, name: str) -> ClaimVerdict:
    every = judge(outcomes(CellFiles(out), FIVE), None, strict=True)
    return next(own for own in every if own.claim.name == name)


def test_a_strict_scale_corrects_for_the_number_of_claims(tmp_path: Path) -> None:
    # Differences 1, 2, 3, 4, 5: t = 3 / 0.7071 = 4.24, above 2.78 (95 %) and below 6.8 (99.76 %).
    values = titles("FedRAW", AvgRare=[11.0, 12, 13, 14, 15], GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=[10.0] * 5, GlobalAcc=ALIKE)
    write_cells(tmp_path, "table2", values)
    assert judged(tmp_path, "over-fedfa").parts[0].verdict is Verdict.HOLDS
    first = strictly(tmp_path, "over-fedfa").parts[0]
    assert (first.verdict, first.why) == (Verdict.PARTLY, "within chance")
    assert first.difference is not None
    assert first.difference.low < 0 < first.difference.mean


def test_claims_that_no_chance_decides_are_not_counted(tmp_path: Path) -> None:
    by_name = {
        own.name: own for own in [*outcomes(CellFiles(tmp_path), FIVE), *supporting_outcomes()]
    }
    free = [claim for claim in CLAIMS if claim.name in ("memory", "time", "concept")]
    fedfa = [claim for claim in CLAIMS if claim.name == "over-fedfa"]
    assert decided_by_chance(free, by_name) == 0
    assert decided_by_chance([*free, *fedfa], by_name) == 1  # whether or not anything has run


def test_a_strict_scale_judges_by_the_last_five_as_well(tmp_path: Path) -> None:
    high, low = [30.0, 31, 32, 33, 34], [6.0, 7, 6, 7, 6]
    (own,) = load_artefacts(["table2"], FIVE)
    for row in own.rows:
        if row.method in ("FedRAW", "FedFa"):
            ahead = row.method == "FedRAW"
            for n, seed in enumerate(own.seeds):
                last = {"AvgRare": (high if ahead else low)[n], "GlobalAcc": 70.0}
                tail = {"AvgRare": (low if ahead else high)[n], "GlobalAcc": 70.0}
                CellFiles(tmp_path).write(cell(row.spec, seed, last, tail=tail), "paper")
    claim = strictly(tmp_path, "over-fedfa")
    assert (claim.verdict, claim.second) == (Verdict.HOLDS, Verdict.FAILS)
    second = claim.parts[0].second
    assert second is not None
    assert second.ours.startswith("6.4 ± 0.5 against 32.0 ± 1.4: -25.6")
    document = as_json([claim])[0]
    assert (document["verdict"], document["last_five"]) == ("holds", "does not hold")
    assert document["parts"][0]["last_five"]["verdict"] == "does not hold"
    # Buffer presence is of the whole run, so it is the same by both.
    presence = strictly(tmp_path, "dedup-presence").parts[0]
    assert presence.second is not None
    assert presence.second.verdict is presence.verdict


def test_json_has_every_part(tmp_path: Path) -> None:
    values = titles("FedRAW", AvgRare=FIVE_HIGH, GlobalAcc=ALIKE)
    values |= titles("FedFa", AvgRare=FIVE_LOW, GlobalAcc=ALIKE)
    write_cells(tmp_path, "table2", values)
    document = as_json([judged(tmp_path, "over-fedfa")])[0]
    assert (document["verdict"], len(document["parts"])) == ("holds", 8)
    first = document["parts"][0]
    assert (first["rule"], first["runs"], first["runs_needed"]) == ("greater", 10, 10)
    assert first["difference"][0] == pytest.approx(25.6)
    assert document["parts"][4]["condition"]


def test_a_claim_without_conditions_is_its_parts() -> None:
    one = Part("one", "none", why="because")
    own = ClaimVerdict(Claim("x", "x", "x", (one,)), (PartVerdict(one, Verdict.FAILS),))
    assert own.verdict is Verdict.FAILS
    assert own.runs == (0, 0)


def test_a_scale_judges_the_claims_whose_artefacts_it_has(tmp_path: Path) -> None:
    judged = judge(outcomes(CellFiles(tmp_path), "ham10000"), None, strict=True)
    names = [own.claim.name for own in judged]
    assert {"hidden-loss", "buffer-size", "density", "collapse", "misreporting"} <= set(names)
    # Table II is not there, and what needs no runs stands at other scales.
    assert not {"over-fedfa", "fedavg-first", "qfedavg", "memory", "client-sizes"} & set(names)
