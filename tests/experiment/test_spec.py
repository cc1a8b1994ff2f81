from __future__ import annotations

import math
from dataclasses import fields, replace
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.eventlog.logs import as_bytes, record
from tests.experiment.spec_mutations import mutations
from torch import nn

import fedraw
from fedraw.cli.run import run as run_command
from fedraw.errors import BadInput
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.sections import Speeds
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec, parse_change, to_toml
from fedraw.strategies.catalog import CATALOG, Method
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


def test_the_template_of_fedraw_new_states_the_defaults() -> None:
    text = files("fedraw.experiment").joinpath("template.toml").read_text()
    tables = Spec.from_dict(_toml(text)).to_dict()
    assert tables.pop("partition") == {
        **Spec().to_dict()["partition"],
        "rare_labels": [8, 9],
    }
    rest = Spec().to_dict()
    rest.pop("partition")
    rest["speeds"]["kind"] = "correlated"  # what "auto" means where rare labels are named
    assert tables == rest


@pytest.mark.parametrize("name", CATALOG)
def test_a_resolved_spec_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    spec = Spec.from_dict({"strategy": {"name": name}, "misreport": {"label": "9"}})
    path = write(tmp_path, to_toml(spec.to_dict()))
    assert Spec.from_file(path).to_dict() == spec.to_dict()


@pytest.mark.parametrize("method", CATALOG.values(), ids=CATALOG)
def test_a_written_spec_has_every_setting_of_its_method(method: Method) -> None:
    written = Spec.from_dict({"strategy": {"name": method.name}}).to_dict()["strategy"]
    known = (field for field in fields(method.factory) if field.name not in ("classes", "lr"))
    settings = {field.name: field.default for field in known if field.default is not None}
    assert written == {"name": method.base.name, **settings, **method.preset, **method.defaults}


def test_an_ablation_may_be_named_or_described() -> None:
    named = Spec.from_dict({"strategy": {"name": "fedraw-dedup-only", "buffer": 5}})
    described = {"name": "fedraw", "weighting": "uniform", "buffer": 5}
    assert named == Spec.from_dict({"strategy": described})
    with pytest.raises(BadInput, match=r"contradicts strategy\.name = 'fedraw-dedup-only'"):
        Spec.from_dict({"strategy": {"name": "fedraw-dedup-only", "weighting": "rarity"}})


def test_a_written_spec_has_the_defaults_of_every_section() -> None:
    tables = Spec.from_dict(
        {
            "misreport": {"label": 9, "client": 3},
            "speeds": {"arrivals": "jitter"},
            "training": {"model": "resnet18"},
        }
    ).to_dict()
    assert tables["misreport"]["liars"] == 1
    assert tables["speeds"]["jitter"] == 0.2
    assert tables["training"]["stem"] == "imagenet"
    assert tables["run"]["receivers"] == "uniform"
    assert Spec.from_dict(tables).to_dict() == tables
    assert {"stem", "jitter"}.isdisjoint({**Spec().to_dict()["training"], **tables["run"]})


def test_a_model_of_ones_own_takes_the_place_of_the_specs_with_its_stem() -> None:
    def flat(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

    tables = {
        "speeds": {"kind": "equal"},
        "strategy": {"buffer": 1},
        "training": {"model": "resnet18"},
        "run": {"events": 1, "seeds": [1]},
    }
    (result,) = simulate(Spec.from_dict(tables), model=flat)
    training = result.summary["spec"]["training"]
    assert training["model"] == "flat"
    assert "stem" not in training


def test_the_strategy_gets_its_own_keys_and_the_local_rate() -> None:
    spec = Spec.from_dict({"strategy": {"name": "qfedavg", "q": 1}, "training": {"lr": 0.02}})
    assert spec.make_strategy() == QFedAvg(q=1.0)
    uniform = replace(spec, speeds=Speeds(kind="uniform"))
    assert Scenario.of(uniform, 1).setup.local_lr == 0.02
    settings = {"name": "fedraw", "cap": "naive", "cap_at": 0.3}
    assert Spec.from_dict({"strategy": settings}).make_strategy() == FedRAW(cap="naive", cap_at=0.3)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"version": 2}, "version = 2: this fedraw reads version 1"),
        ({"stratgy": {}}, r"unknown section \[stratgy\]; did you mean 'strategy'\?"),
        ({"strategy": {"bufer": 3}}, r"\[strategy\] .* 'bufer'; did you mean 'buffer'\?"),
        ({"strategy": {"nam": "fedfa"}}, r"\[strategy\] .* 'nam'; did you mean 'name'\?"),
        ({"strategy": {"name": "fedrew"}}, "'fedrew' is unknown; did you mean 'fedraw'"),
        ({"strategy": {"name": "fedfa", "q": 1}}, "unknown key 'q'; known: buffer"),
        ({"strategy": {"layout": 1}}, "unknown key 'layout'"),
        ({"strategy": {"buffer": "ten"}}, "strategy.buffer = 'ten' must be a whole number"),
        ({"strategy": {"buffer": 2.5}}, "strategy.buffer = 2.5 must be a whole number"),
        ({"strategy": {"buffer": True}}, "strategy.buffer = True must be a whole number"),
        ({"strategy": {"buffer": 0}}, "strategy.buffer = 0 must be at least 1"),
        ({"strategy": {"dedup": 1}}, "strategy.dedup = 1 must be true or false"),
        ({"strategy": {"cap": "hard"}}, "strategy.cap = 'hard' must be 'none' or 'naive'"),
        (
            {"strategy": {"cap": "naive", "cap_at": 0.05}},
            "cap_at = 0.05 is below 1/10: .* raise it to 0.1 or more",
        ),
        ({"strategy": 3}, r"\[strategy\] must be a table"),
        ({"run": []}, r"\[run\] must be a table"),
        ({"run": {"seeds": [1, 1]}}, "run.seeds has 1 twice"),
        ({"run": {"seeds": [-1]}}, "run.seeds has -1"),
        ({"run": {"seeds": []}}, "run.seeds is empty"),
        ({"run": {"seeds": ["a"]}}, "run.seeds = .* must be a list, each a whole number"),
        ({"run": {"events": 0}}, "run.events = 0 must be from 1 to 1,000,000,000"),
        ({"partition": {"kind": "dirichlet"}}, "partition.alpha is missing"),
        ({"partition": {"alpha": 0.5}}, "partition.alpha = .* goes with kind = 'dirichlet'"),
        ({"partition": {"kind": "dirichlet", "alpha": 0}}, "partition.alpha = 0 must be a pos"),
        ({"strategy": {"name": [1]}}, r"strategy.name = \[1\] is unknown"),
        ({"strategy": {"name": "fedbuff", "staleness": "hinge"}}, "must be 'none' or 'polynomial'"),
        ({"partition": {"local_test": 1.0}}, "partition.local_test = 1.0"),
        ({"partition": {"clients": 0}}, "partition.clients = 0"),
        ({"speeds": {"kind": "ratio"}}, "speeds.ratio is missing"),
        ({"speeds": {"kind": "ratio", "ratio": -1}}, "speeds.ratio = -1 must be a positive"),
        ({"speeds": {"arrivals": "recorded"}}, "speeds.trace is missing"),
        ({"speeds": {"jitter": 0.1}}, "speeds.jitter = 0.1 goes with"),
        ({"label_noise": {"share": 1.5}}, "label_noise.share = 1.5 must be from 0 to 1"),
        ({"misreport": {"label": 9, "liars": 0}}, "misreport.liars = 0 must be at least 1"),
        (
            {"misreport": {"label": 9, "form": "hidden", "support": 0.1}},
            "misreport.support = 0.1 goes with form = 'paper' or",
        ),
        ({"summaries": {"mechanism": "whisper"}}, "summaries.mechanism = 'whisper' must be"),
        (
            {
                "summaries": {"mechanism": "randomised-response", "epsilon": 2.0},
                "strategy": {"name": "fedraw", "labels": "checked"},
            },
            "the server sees no claims; use 'declared' or 'inferred'",
        ),
        ({"strategy": {"name": "fedraw", "labels": "guessed"}}, "strategy.labels = 'guessed'"),
        ({"misreport": {}}, r"\[misreport\] lacks the key 'label'"),
        ({"training": {"lr": "fast"}}, "training.lr = 'fast' must be a finite number"),
        ({"training": {"lr": 0}}, "training.lr = 0 must be a positive number"),
        ({"training": {"nesterov": True}}, "training.nesterov = true needs momentum"),
        ({"training": {"schedule": "linear"}}, "training.schedule = 'linear' must be"),
        ({"training": {"lr_decay": 0.5}}, "training.lr_decay = 0.5 goes with schedule = 'step'"),
        ({"run": {"lr": 0.1}}, r"\[run\] has the unknown key 'lr', which is a key of \[training\]"),
        ({"run": {"clients": 9}}, r"'clients', which is a key of \[partition\] or \[label_noise\]"),
        ({"strategy": {"epochs": 3}}, r"\[strategy\] has .* key of \[training\] or \[calibr"),
        ({"training": {"buffer": 5}}, r"'buffer', which is a key of \[strategy\]"),
        ({"buffer": 5}, r"unknown section \[buffer\]; it is a key of \[strategy\]"),
        ({"strategy": {"name": "FedRAW"}}, "'FedRAW' is unknown; did you mean 'fedraw'"),
    ],
)
def test_bad_settings_are_named(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Spec.from_dict(tables)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = ", "spec.toml is not valid TOML"),
        ("[run]\nevents = " + "9" * 5000, "spec.toml is not valid TOML"),
        ("x = " + "[" * 50_000, "spec.toml is not valid TOML"),
        ("[run]\nevents = 'x'", r"spec.toml: run.events = 'x' must be a whole number"),
    ],
)
def test_errors_name_the_file(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        Spec.from_file(write(tmp_path, text))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(b"\xef\xbb\xbf[run]\nevents = 7")
    assert Spec.from_file(path).run.events == 7


def test_a_folder_and_a_file_in_latin_1_have_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is a folder; name the SPEC.toml in it"):
        Spec.from_file(tmp_path)
    (tmp_path / "latin.toml").write_bytes("# Größe".encode("latin-1"))
    with pytest.raises(BadInput, match=r"latin.toml is not UTF-8.*; save it as UTF-8"):
        Spec.from_file(tmp_path / "latin.toml")


@pytest.mark.parametrize("batch", [16, 32])
def test_a_dry_run_refuses_a_normalisation_for_other_channels(batch: int, tmp_path: Path) -> None:
    """Whatever the batch: with 16, some clients of this federation have one sample left over."""
    text = f'[data]\nname = "digits"\nnormalise = "imagenet"\n[training]\nbatch = {batch}'
    told = dry_run(write(tmp_path, text))
    assert "images of shape (1, 8, 8) cannot be normalised with 3 means" in told
    assert "batch" not in told


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere.toml does not exist; 'fedraw new"):
        Spec.from_file(tmp_path / "nowhere.toml")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    spec = Spec.from_file(write(tmp_path, '[data]\nname = "npz"\npath = "mine.npz"'))
    assert spec.data.path == str(tmp_path / "mine.npz")


def test_paths_on_the_command_line_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    path = write(tmp_path, '[data]\nname = "npz"\npath = "mine.npz"')
    spec = Spec.from_file(path, {"data.path": "other.npz"})
    assert spec.data.path == str(Path.cwd() / "other.npz")


def test_a_spec_with_a_relative_path_can_be_run_from_its_resolved_form(tmp_path: Path) -> None:
    spec = Spec.from_file(write(tmp_path, '[data]\nname = "npz"\npath = "mine.npz"'))
    resolved = tmp_path / "runs" / "spec.toml"
    resolved.parent.mkdir()
    resolved.write_text(to_toml(spec.to_dict()))
    assert Spec.from_file(resolved).data == spec.data


def test_another_strategy_keeps_the_keys_it_has_too(tmp_path: Path) -> None:
    path = write(tmp_path, '[strategy]\nname = "fedraw"\nbuffer = 3\ndedup = false')
    fedfa = Spec.from_file(path, {"strategy.name": "fedfa"})
    assert fedfa.strategy.settings == {"buffer": 3}
    assert Spec.from_file(path, {"strategy.name": "fedavg"}).strategy.settings == {}
    with pytest.raises(BadInput, match="unknown key 'dedup'"):
        Spec.from_file(path, {"strategy.name": "fedfa", "strategy.dedup": True})


@pytest.mark.parametrize(
    ("before", "after", "settings"),
    [
        ({"name": "mifa"}, "ace", {"server_lr": 0.1}),  # not the default of MIFA, which is 1
        ({"name": "mifa", "server_lr": 0.5}, "ace", {"server_lr": 0.5}),
        ({"name": "fedbuff", "buffer": 5}, "ca2fl", {"buffer": 5, "server_lr": 1.0}),
    ],
)
def test_another_strategy_has_its_own_defaults(
    before: dict[str, Any], after: str, settings: dict[str, Any]
) -> None:
    spec = Spec.from_dict({"strategy": before}).with_changes({"strategy.name": after})
    assert spec.to_dict()["strategy"].items() >= {"name": after, **settings}.items()


def test_changes_are_made_before_the_file_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path, '[strategy]\nname = "fedfa"\nbuffer = 3')
    assert Spec.from_file(path, {"strategy.buffer": 7}).strategy.settings == {"buffer": 7}
    with pytest.raises(BadInput, match="unknown section"):
        Spec.from_file(path, {"nothing.here": 1})


def test_changes_from_the_command_line() -> None:
    assert parse_change("run.seeds=[1, 2]") == ("run.seeds", [1, 2])
    assert parse_change("speeds.trace=a=b.csv") == ("speeds.trace", "a=b.csv")
    with pytest.raises(BadInput, match=r"not of the form section\.key=value"):
        parse_change("buffer=5")


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def dry_run(path: Path) -> str:
    """What `fedraw run --dry-run` says against a spec; empty if it has nothing against it."""
    try:
        run_command(path, dry_run=True, json_=True)
    except BadInput as problem:
        return str(problem)
    return ""


def test_every_refusal_of_a_mutated_spec_names_the_file(tmp_path: Path) -> None:
    refused = 0
    for text in islice(mutations(seed=18), 150):
        told = dry_run(write(tmp_path, text))
        assert "spec.toml" in told or not told, (text, told)
        assert len(told) < 2000, (text, told)
        refused += bool(told)
    assert refused > 75


HUGE = "9" * 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[strategy]\ncap_at = nan", "strategy.cap_at = nan must be a finite number"),
        (f"[training]\nlr = {HUGE}", "training.lr = 999"),
        (f"[strategy]\nbuffer = {HUGE}", "strategy.buffer = 999"),
        (f"[run]\nseeds = [{HUGE}]", "run.seeds = [999"),
        ("[partition]\nclients = 2147483648", "partition.clients = 2147483648 must be from 1 to"),
        ("[partition]\nclients = 9223372036854775808", "at most 64 bits"),
        ("[partition]\nclients = -9223372036854775809", "at most 64 bits"),
        ('[data]\nname = "npz"\npath = "a\\u0000b"', "data.path = '"),
        ('[speeds]\narrivals = "recorded"\ntrace = "a\\u0000b"', "NUL"),
        (
            '[speeds]\nkind = "correlated"',
            "speeds.kind = 'correlated' slows clients with rare labels, and there are none",
        ),
    ],
)
def test_what_no_run_can_use_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    told = dry_run(write(tmp_path, text))
    assert told.startswith(f"{tmp_path / 'spec.toml'}: ")
    assert message in told
    assert len(told) < 400


def test_a_time_of_400_digits_in_a_trace_is_refused(tmp_path: Path) -> None:
    records = [record("start"), record("arrival", client=0, time=int(HUGE))]
    (tmp_path / "trace.jsonl").write_bytes(as_bytes(records))
    text = '[speeds]\nkind = "uniform"\narrivals = "recorded"\ntrace = "trace.jsonl"\n'
    told = dry_run(write(tmp_path, text))
    assert told.startswith(f"{tmp_path / 'spec.toml'}: ")
    assert "trace.jsonl, line 2" in told


def test_a_path_with_a_del_is_written_and_read_back(tmp_path: Path) -> None:
    spec = Spec.from_dict({"data": {"name": "npz", "path": "a\x7fb\x1b.npz"}})
    path = write(tmp_path, to_toml(spec.to_dict()))
    assert Spec.from_file(path).data.path == str(tmp_path / "a\x7fb\x1b.npz")


def test_a_path_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data.path = 'caf\\udce9.npz' is not UTF-8"):
        Spec.from_dict({"data": {"name": "npz", "path": "caf\udce9.npz"}})


def test_later_settings_are_written_only_where_they_differ_from_their_default() -> None:
    later = {"nesterov", "schedule", "lr_decay", "clip_norm", "label_smoothing"}
    assert later.isdisjoint(Spec().to_dict()["training"])
    wanted = {"momentum": 0.9, "nesterov": True, "schedule": "cosine", "label_smoothing": 0.1}
    tables = Spec.from_dict({"training": wanted}).to_dict()
    assert wanted.items() <= tables["training"].items()
    assert Spec.from_dict(tables).to_dict() == tables


def test_the_classes_of_simulate_are_sections_of_a_spec_too() -> None:
    own = Spec(speeds=fedraw.Equal(), partition=fedraw.IID(clients=5))
    tables = {"speeds": {"kind": "equal"}, "partition": {"kind": "iid", "clients": 5}}
    assert own == Spec.from_dict(tables)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "fedfa"}, "strategy = 'fedfa' is not a StrategySpec"),
        ({"training": fedraw.SGD()}, r"training = SGD\(.* is not a Training"),
        ({"data": "digits"}, "data = 'digits' is not a DataSpec"),
        ({"run": {"events": 5}}, r"run = {'events': 5} is not a Run; .*Spec\.from_dict"),
        ({"run": None}, "run = None is not a Run"),
        ({"speeds": fedraw.IID()}, r"speeds = Partition\(.* is not a Speeds"),
        ({"drift": "move"}, r"drift = 'move' is not a Drift; .*fedraw\.simulate"),
    ],
)
def test_a_field_of_a_spec_that_is_no_section_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Spec(**wrong)


def test_tables_and_changes_of_another_form_are_refused() -> None:
    with pytest.raises(BadInput, match="a spec is a table of sections, got None"):
        Spec.from_dict(None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"'buffer' is not of the form section\.key, such as"):
        Spec().with_changes({"buffer": 5})
