"""The paper's tables as data: every row and value, read as printed, and the specs behind them."""

from __future__ import annotations

import pytest

from fedraw.errors import BadInput
from fedraw.eventlog.records import JoinedRecord
from fedraw.eventlog.state import RunState
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import (
    BEYOND,
    EVERY,
    NAMES,
    WHY_NOT_PRINTED,
    Artefact,
    ArtefactRow,
    PaperValue,
    Scale,
    load_dynamics,
    scale_names,
)
from fedraw_studies.outcomes import buffer_weights
from fedraw_studies.plan import load_artefacts

PAPER = {a.name: a for a in load_artefacts(NAMES, Scale.named("paper"))}

# Counted by hand: rows, figures that are printed, single numbers in them (means, seeds, ends).
COUNTS = {
    "fig1": (3, 6, 9),  # three ranges, two AvgRare, one recall
    "fig2": (2, 2, 2),
    "table2": (24, 186, 186),  # 24 x 8 less six dashes
    "fig3": (24, 0, 0),
    "table3": (8, 32, 32),
    "table4": (6, 36, 36),
    "s1": (4, 8, 8),
    "s2": (4, 12, 12),
    "s3": (6, 24, 24),
    "s4": (12, 48, 48),
    "s5": (6, 36, 36),
    "s6": (3, 6, 18),
    "s7": (4, 40, 40),
    # 4 GlobalAcc, 4 AvgRare, 9 weights, 4 + 3 largest weights, 4 aggregations, 2 lost, 4 recovered
    "s8": (10, 34, 34),
    "s9": (12, 48, 48),
    "s10": (6, 30, 30),
    "s11": (6, 18, 54),
    "server-rate": (7, 0, 0),
    "local-rate": (8, 0, 0),
}


def row(artefact: str, label: str) -> ArtefactRow:
    return next(row for row in PAPER[artefact].rows if row.label == label)


def printed(artefact: Artefact) -> list[PaperValue]:
    return [f for row in artefact.rows for f in row.paper.values() if f is not None]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_values_are_as_many_as_the_paper_has(name: str) -> None:
    figures = printed(PAPER[name])
    values = sum(len(figure.values) for figure in figures)
    assert (len(PAPER[name].rows), len(figures), values) == COUNTS[name]


@pytest.mark.parametrize(
    ("artefact", "label", "metric", "text"),
    [
        ("table2", "EMNIST, FedAvg", "GlobalAcc", "81.8 ± 0.1"),
        ("table2", "EMNIST, FedRAW", "LocalCommon", "80.0 ± 1.5"),
        ("table2", "CIFAR-10, FedRAW", "AvgRare", "33.8 ± 19.0"),
        ("table2", "HAM10000, CA2FL", "RareF2", "46.8 ± 13.8"),
        ("table2", "ISIC-2019, q-FedAvg", "RareF2", "1.5 ± 0.9"),
        ("table2", "ISIC-2019, FedRAW", "MacroF1", "55.2 ± 1.3"),
        ("table3", "EMNIST, WeightOnly", "AvgRare", "35.2 ± 5.1"),
        ("table3", "HAM10000, DedupOnly", "BufPres", "57.7 ± 2.1"),
        ("table4", "20x, FedRAW", "RareMaxStale", "2185"),
        ("s1", "FedRAW", "AvgRare", "18.61 ± 5.49"),
        ("s2", "FedFa", "Worst10", "57.62"),
        ("s3", "q-FedAvg, q = 0.1", "RareF1", "45.1"),
        ("s4", "alpha = 5.0, FedRAW", "Jain", "0.9998"),
        ("s5", "FedRAW", "LocalCommon", "61.1 ± 4.8"),
        ("s6", "CA2FL", "BufPres", "47.4 / 41.4 / 45.6"),
        ("s7", "FedRAW, dog", "as 3", "356"),
        ("s8", "attack, naive cap 0.3", "AttackerWeightMax", "0.388"),
        ("s8", "attack, water-filling cap 0.3", "AvgRareRecovered", "42.0"),
        ("s9", "K = 20, FedRAW", "AvgRare", "42.17"),
        ("s10", "7 a label", "RareF1", "59.28"),
        ("s11", "FedBuff", "AvgRare", "1.85 / 1.85 / 34.90"),
        ("fig1", "Exp 2", "AvgRare", "16.9"),
    ],
)
def test_values_stand_where_they_belong(artefact: str, label: str, metric: str, text: str) -> None:
    assert row(artefact, label).paper[metric] == PaperValue.of(text)


def test_means_of_values_by_seed_are_those_of_the_other_tables() -> None:
    """Table S11 and S6 have the seeds of which Tables II, III and S5 print the mean."""
    for by_seed, whole, prefix in (("s11", "table2", "HAM10000, "), ("s6", "s5", "")):
        for own in PAPER[by_seed].rows:
            for metric, figure in own.paper.items():
                other = row(whole, prefix + own.label).paper.get(metric)
                if figure is not None and other is not None:
                    mean = sum(figure.values) / len(figure.values)
                    assert mean == pytest.approx(
                        other.values[0], abs=0.1
                    )  # one mean is cut off, not rounded


def test_table_three_repeats_table_two() -> None:
    for label in ("EMNIST, FedFa", "EMNIST, FedRAW", "HAM10000, FedFa", "HAM10000, FedRAW"):
        for metric in ("GlobalAcc", "AvgRare", "RareF1"):
            assert row("table3", label).paper[metric] == row("table2", label).paper[metric]
            assert row("table3", label).spec == row("table2", label).spec


def test_what_the_training_free_tables_print_is_the_same() -> None:
    dynamics = {(a.name, r.label): r.paper for a in load_dynamics() for r in a.rows}
    assert dynamics["Table IV", "10x, FedRAW"].items() <= row("table4", "10x, FedRAW").paper.items()
    assert dynamics["Table S10", "5"].items() <= row("s10", "5 a label").paper.items()
    for label in ("attack, no defence", "attack, naive cap 0.3"):
        assert dynamics["Table S8", label].items() <= row("s8", label).paper.items()


def test_impossible_cells_say_why_they_are_not_compared() -> None:
    for own in PAPER["table2"].rows:
        doubtful = own.dataset in ("cifar10", "isic2019")
        assert ("Worst10" in own.not_comparable) == doubtful
    assert "impossible" in row("table2", "CIFAR-10, FedAvg").not_comparable["Worst10"]
    dashes = row("table2", "ISIC-2019, q-FedAvg")
    assert dashes.not_comparable["RareF1"] == WHY_NOT_PRINTED
    assert dashes.paper["RareF1"] is None
    assert "0.1" in row("table2", "EMNIST, q-FedAvg").not_comparable["AvgRare"]
    assert all(len(own.not_comparable) == 10 for own in PAPER["s7"].rows)
    assert row("s9", "K = 10, FedRAW").not_comparable.keys() == {"GlobalAcc", "AvgRare"}
    assert not row("s9", "K = 11, FedRAW").not_comparable


def test_the_protocol_of_the_paper_to_the_letter() -> None:
    for own in PAPER["table2"].rows:
        spec = own.spec
        assert (spec.partition.clients, spec.partition.clients_per_common_label) == (30, 20)
        assert spec.partition.clients_per_rare_label == 2
        assert (spec.training.epochs, spec.training.batch, spec.training.lr) == (2, 256, 0.01)
        assert spec.run.events == (5000 if own.dataset == "emnist" else 10_000)
        assert spec.data.name == own.dataset
        assert spec.speeds.kind == "correlated"
        assert spec.strategy.settings.get("buffer", 10) == 10
    assert row("table2", "EMNIST, FedFa").spec.training.model == "cnn"
    assert row("table2", "ISIC-2019, FedFa").spec.training.weights == "imagenet"
    assert row("table2", "HAM10000, FedFa").spec.data.size == 224
    assert PAPER["table2"].seeds == (42, 123, 456)
    assert PAPER["s9"].seeds == (42,)


def test_specs_of_the_other_artefacts() -> None:
    assert row("s1", "FedFa").spec.partition.clients == 50
    assert row("s2", "FedFa").spec.partition.rare_labels == (20, 30, 40)
    assert row("s5", "FedFa").spec.partition.rare_labels == ("cat", "dog")
    assert row("s3", "q-FedAvg, q = 0.1").spec.strategy.settings["q"] == 0.1
    assert row("s10", "10 a label").spec.partition.clients_per_rare_label == 10
    dirichlet = row("s4", "alpha = 0.1, FedAvg").spec
    assert (dirichlet.partition.alpha, dirichlet.partition.rare_labels) == (0.1, ())
    assert dirichlet.speeds.kind == "uniform"
    control, second = row("fig1", "Exp 1").spec, row("fig1", "Exp 2").spec
    assert (control.partition.rare_labels, control.metrics.rare_labels) == ((), (44, 45, 46))
    assert second.partition.rare_labels == (44, 45, 46)
    assert control.speeds.kind == second.speeds.kind == "equal"
    claim = row("s8", "recounted, naive cap 0.3").spec
    assert claim.misreport is not None
    assert (claim.misreport.label, claim.misreport.form) == (44, "recounted")
    assert (claim.misreport.client, claim.misreport.share) == ("fastest", 0.9)
    assert claim.strategy.settings == {"cap": "naive", "cap_at": 0.3}


def test_every_scale_has_its_artefacts_whole_and_says_its_reduction() -> None:
    for name in scale_names():
        scale = Scale.named(name)
        loaded = load_artefacts(NAMES, scale)
        assert [a.name for a in loaded] == [own for own in NAMES if scale.has(own)]
        for artefact in loaded:
            reference = PAPER[artefact.name]
            assert [r.label for r in artefact.rows] == [r.label for r in reference.rows]
            assert all(artefact.reductions.values())
            for own, theirs in zip(artefact.rows, reference.rows, strict=True):
                # Reduced are images, training and events: who takes part and how is the paper's.
                assert own.spec.speeds == theirs.spec.speeds
                assert own.spec.strategy == theirs.spec.strategy
                for key in ("kind", "clients", "clients_per_rare_label", "alpha"):
                    assert getattr(own.spec.partition, key) == getattr(theirs.spec.partition, key)
                assert len(own.spec.partition.rare_labels) == len(theirs.spec.partition.rare_labels)


def test_on_a_cpu_headline_tables_have_five_seeds_and_the_paper_s_sweeps_three() -> None:
    cpu = {a.name: a.seeds for a in load_artefacts((*NAMES, *BEYOND), Scale.named("cpu"))}
    assert cpu["table2"] == cpu["table3"] == (42, 123, 456, 789, 1011)
    assert cpu["s1"] == cpu["s9"] == cpu["fig3"] == (42, 123, 456)
    assert cpu["beyond-buffer"] == (42,), "sweeps that are not the paper's keep their seeds"
    smoke = load_artefacts(NAMES, Scale.named("smoke"))
    assert {artefact.seeds for artefact in smoke} == {(42,)}
    assert {row.spec.data.name for artefact in smoke for row in artefact.rows} == {"digits"}


def test_the_level_scale_has_seeds_by_data_set_and_three_for_every_sweep() -> None:
    level = {a.name: a for a in load_artefacts([*NAMES, "tuning"], Scale.named("level"))}
    counts = {row.dataset: len(row.seeds) for row in level["table2"].rows}
    assert counts == {"emnist": 5, "cifar10": 3, "ham10000": 20, "isic2019": 20}
    assert {row.seeds for row in level["s9"].rows} == {(42, 123, 456)}
    # What was tuned on is in no table.
    tuned = {seed for row in level.pop("tuning").rows for seed in row.seeds}
    assert tuned.isdisjoint(seed for a in level.values() for row in a.rows for seed in row.seeds)
    assert {row.method for row in load_artefacts(["tuning"], Scale.named("level"))[0].rows} == {
        "FedAvg",
        "FedFa",
    }


def test_the_scale_ham10000_has_the_sweeps_with_three_rare_labels_of_ham10000() -> None:
    scale = Scale.named("ham10000")
    for artefact in load_artefacts(NAMES, scale):
        for row in artefact.rows:
            assert row.spec.data.name == "ham10000"
            assert len(row.seeds) == 6
            assert len(row.spec.partition.rare_labels) in (0, 3)
    assert not scale.has("table2")
    assert load_artefacts(["table2", "beyond-headline", "arena-digits"], scale) == []


def test_a_summary_has_every_metric_that_is_not_derived() -> None:
    derived = {"RareRecall", "RareWeight", "CommonWeight"}
    derived |= {m + end for m in ("GlobalAcc", "AvgRare") for end in ("Lost", "Recovered")}
    derived |= {f"as {number}" for number in range(10)}
    asked = {metric for artefact in PAPER.values() for metric in artefact.columns}
    joined = JoinedRecord(event=0, time=0.0, client=0, counts={"a": 1})
    empty = RunState.of([joined]).summary()
    assert asked - derived <= set(empty["metrics"])


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(BadInput, match="unknown artefact 'tabel2'; did you mean 'table2'"):
        load_artefacts(["tabel2"], Scale.named("smoke"))
    with pytest.raises(BadInput, match="unknown scale 'smok'; did you mean 'smoke'"):
        Scale.named("smok")


def test_the_concept_buffer_has_the_weights_of_emnist_clients() -> None:
    # By the mean sizes: S_rare = 960/3776/2 + 2816/3776/20, S_common = 1/20, one of five.
    rare, common = 960 / 3776 / 2 + 2816 / 3776 / 20, 1 / 20
    weights = buffer_weights(42, "FedRAW")
    assert weights["RareWeight"] == pytest.approx(rare / (rare + 4 * common), abs=0.02)
    assert weights["RareWeight"] + 4 * weights["CommonWeight"] == pytest.approx(1)


@pytest.mark.parametrize("scale", scale_names())
def test_no_experiment_of_ours_contradicts_itself(scale: str) -> None:
    for artefact in load_artefacts(EVERY, Scale.named(scale)):
        for row in artefact.rows:
            Spec.from_dict(row.spec.to_dict())
