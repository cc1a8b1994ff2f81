"""The study of one pass as data: federations of other studies, with one pass beside the others.

`one_pass/one-pass.toml` has the rules. Runs of methods that train belong to the other studies,
whose cells are reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from fedraw.experiment.sections import Ratio
from fedraw.experiment.spec import Spec
from fedraw_studies.arena_design import ArenaSetting, arena_at
from fedraw_studies.artefacts import (
    ONE_PASS,
    Artefact,
    ArtefactRow,
    Scale,
    Setting,
    load_artefact,
    merged,
    study_file,
)
from fedraw_studies.late import late_rows, short_spec

LONG = "ten times"  # marks a method that trains at ten times the arena's length


class OnePassRow(NamedTuple):
    """One method in one setting; `trains` says that its cells belong to another study."""

    dataset: str
    setting: str
    method: str
    spec: Spec
    seeds: tuple[int, ...]
    trains: bool
    has_rare: bool = True

    @property
    def label(self) -> str:
        """The label of the row in documents."""
        return f"{self.dataset}, {self.setting}, {self.method}"


@cache
def one_pass_file() -> dict[str, Any]:
    """Return the design and the rules of the study."""
    return study_file("one-pass")


def one_pass_rows(part: str, scale: Scale) -> list[OnePassRow]:
    """Return the rows of a part: a data set, "small", "full" or "level"; none at other scales."""
    if part == "level":
        return list(_of_level(scale)) if scale.name == "level" else []
    if scale.name == "smoke" and part == "digits":
        return list(_of_arena(part, scale))
    if scale.name != "cpu":
        return []
    if part == "small":
        return list(_of_small(scale))
    if part == "full":
        return list(_of_full())
    return list(_of_arena(part, scale))


def _of_arena(dataset: str, scale: Scale) -> Iterator[OnePassRow]:
    """Yield the arena's settings, and those of "Lost, or late?" at ten times the length."""
    table, arena = one_pass_file(), arena_at(scale)
    like = table["datasets"][dataset]
    own, seeds = arena.of(like), arena.seeds(like)
    long = table["long"] if scale.name == "cpu" else []
    late = {row.label: row for row in late_rows(dataset, scale)} if dataset in long else {}
    methods = {method.name: method for method in own.methods}
    for setting in own.settings:
        has_rare = setting.rare == "usual"
        if dataset != like and not any(row.setting == setting for row in late.values()):
            continue  # only "Lost, or late?" has runs of this data set

        def row(
            name: str,
            spec: Spec,
            trains: bool,
            setting: ArenaSetting = setting,
            has_rare: bool = has_rare,
            seeds: tuple[int, ...] = seeds,
        ) -> OnePassRow:
            return OnePassRow(dataset, setting.name, name, spec, seeds, trains, has_rare)

        first = short_spec(arena, dataset, setting, next(iter(methods.values())))
        features = table["features"]["arena"].get(dataset)
        for name, strategy in table["methods"].items():
            yield row(name, _solved(first, strategy, features), False)
        for name in (name for name in table["trained"] if name in methods):
            if dataset == like:
                yield row(name, short_spec(arena, dataset, setting, methods[name]), True)
            longer = late.get(f"{setting.name}, {name}")
            if longer is not None:
                yield row(f"{name}, {LONG}", longer.spec, True, seeds=longer.seeds)


def _of_small(scale: Scale) -> Iterator[OnePassRow]:
    table, arena = one_pass_file(), arena_at(scale)
    own, seeds = table["small"], tuple(table["small"]["seeds"])
    slow = arena.setting("10x")
    methods = {method.name: method for method in arena.methods}
    for setting, partition in own["partitions"].items():
        for name in table["trained"]:
            spec = short_spec(arena, "ham10000", slow, methods[name]).to_dict()
            del spec["version"]
            if "buffer" in spec["strategy"]:
                spec["strategy"]["buffer"] = own["buffer"]
            changed = Spec.from_dict(merged(spec, {"partition": partition, "run": own["run"]}))
            if name == table["trained"][0]:
                for solved, strategy in table["methods"].items():
                    made = _solved(changed, strategy, None)
                    yield OnePassRow("ham10000", setting, solved, made, seeds, False)
            yield OnePassRow("ham10000", setting, name, changed, seeds, True)


def _of_full() -> Iterator[OnePassRow]:
    table, own = one_pass_file(), one_pass_file()["full"]
    paper, level = Scale.named("paper"), Scale.named("level")
    for dataset in table["level"]["datasets"]:
        features = table["features"]["full"].get(dataset)
        setting = (level if features is None else paper).settings[dataset]
        rare = {"partition": {"rare_labels": list(setting.rare)}}
        base = merged(setting.spec, rare, {"run": {"events": own["events"]}})
        for name, strategy in table["methods"].items():
            spec = _solved(Spec.from_dict(base), strategy, features)
            yield OnePassRow(dataset, "all images", name, spec, tuple(own["seeds"]), False)
        if features is None:
            stored = merged(base, {"features": {"statistics": "stored"}})
            first = next(iter(table["methods"].values()))
            spec = _solved(Spec.from_dict(stored), first, None)
            name = "One pass, stored statistics"
            yield OnePassRow(dataset, "all images", name, spec, tuple(own["seeds"]), False)


def _of_level(scale: Scale) -> Iterator[OnePassRow]:
    table = one_pass_file()
    own, seeds = table["level"], tuple(table["level"]["seeds"])
    rows = load_artefact("table2", scale).rows
    for dataset in own["datasets"]:
        trained = {row.method: row.spec for row in rows if row.dataset == dataset}
        features = table["features"]["level"].get(dataset)
        for name, strategy in table["methods"].items():
            spec = _solved(next(iter(trained.values())), strategy, features)
            yield OnePassRow(dataset, "the paper's", name, spec, seeds, False)
        for name in own["trained"]:
            yield OnePassRow(dataset, "the paper's", name, trained[name], seeds, True)
        yield from _of_level_speeds(dataset, trained, features)


def _of_level_speeds(
    dataset: str, trained: Mapping[str, Spec], features: Mapping[str, Any] | None
) -> Iterator[OnePassRow]:
    """Yield the settings in which the holders of rare labels are slower by a factor."""
    table, own = one_pass_file(), one_pass_file()["level"]["slower"]
    seeds = tuple(own["seeds"])
    for setting, ratio in own["ratios"].items() if dataset in own["datasets"] else ():
        slow = {
            name: replace(spec, speeds=Ratio(ratio, arrivals=spec.speeds.arrivals))
            for name, spec in trained.items()
        }
        for name, strategy in table["methods"].items():
            spec = _solved(next(iter(slow.values())), strategy, features)
            yield OnePassRow(dataset, setting, name, spec, seeds, False)
        for name in table["level"]["trained"]:
            yield OnePassRow(dataset, setting, name, slow[name], seeds, True)


def _solved(spec: Spec, strategy: Mapping[str, Any], features: Mapping[str, Any] | None) -> Spec:
    """Return the same federation with a method whose clients send sums."""
    tables = spec.to_dict() | {"strategy": dict(strategy)}
    if features is not None:  # they read pixels from 0 to 1
        tables |= {"features": dict(features), "data": tables["data"] | {"normalise": "none"}}
    return Spec.from_dict(tables)


def one_pass_artefact(name: str, scale: Scale) -> Artefact:
    """Return one artefact of the study; at a scale without its data sets it has no rows."""
    table, part = one_pass_file(), name.removeprefix("one-pass-")
    nothing = dict.fromkeys(table["columns"])
    rows = tuple(
        ArtefactRow(row.label, row.spec, nothing, row.dataset, row.method, row.seeds)
        for row in one_pass_rows(part, scale)
    )
    settings: dict[str, Setting] = {}
    for dataset in dict.fromkeys(row.dataset for row in rows):
        settings[dataset] = replace(scale.settings[dataset], ms_per_event=1.0)
    return Artefact(
        name,
        f"{table['title']}: {part}",
        "Runs of methods that train belong to other studies and are reused.",
        rows,
        rows[0].seeds if rows else (),
        tuple(table["columns"]),
        settings,
    )


PARTS = tuple(name.removeprefix("one-pass-") for name in ONE_PASS)
