"""The study "Lost, or late?" as data: the arena's settings at ten times the arena's length.

`late/late.toml` has the rules. Each data set is an artefact, and `late-demo` is the federation of
the demo, whose curves are the figure of the README.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from fedraw.experiment.demo import demo_specs
from fedraw.experiment.log_records import row_name
from fedraw.experiment.sections import StrategySpec
from fedraw.experiment.spec import Spec
from fedraw_studies.arena_design import Arena, ArenaMethod, ArenaSetting, arena_at
from fedraw_studies.artefacts import Artefact, ArtefactRow, Scale, merged, study_file

DEMO = "late-demo"


class LateRow(NamedTuple):
    """A method in a setting of a data set."""

    dataset: str
    setting: ArenaSetting
    method: ArenaMethod
    spec: Spec
    early: int  # the arena's length
    seeds: tuple[int, ...]

    @property
    def label(self) -> str:
        """The label of the row in documents."""
        return f"{self.setting.name}, {self.method.name}"


@cache
def late_file() -> dict[str, Any]:
    """Return the design and the rules of the study."""
    return study_file("late")


def late_rows(dataset: str, scale: Scale) -> Iterator[LateRow]:
    """List every method in every setting of a data set."""
    table, arena = late_file(), arena_at(scale)
    own = table["datasets"][dataset]
    seeds = arena.seeds(own["like"])[: own["seeds"]]
    methods = {method.name: method for method in arena.methods}
    for setting in (s for s in arena.settings if s.name in table["settings"]):
        for method in (methods[name] for name in table["methods"] if name in methods):
            short = short_spec(arena, dataset, setting, method)
            run = replace(short.run, events=short.run.events * table["factor"])
            yield LateRow(
                dataset, setting, method, replace(short, run=run), short.run.events, seeds
            )


def short_spec(arena: Arena, dataset: str, setting: ArenaSetting, method: ArenaMethod) -> Spec:
    """Return the arena's experiment, or that of a data set that is like one of the arena."""
    like = late_file()["datasets"][dataset]["like"]
    row = next(
        own
        for own in arena.rows(like)
        if (own.setting.name, own.method.name) == (setting.name, method.name)
    )
    spec = arena.spec(row)
    if dataset == like:
        return spec
    scale = arena.scale if arena.scale.name != "cpu" else Scale.named("level")
    other = scale.settings[dataset]
    rare = {"partition": {"rare_labels": list(other.rare)}}
    run = {"events": spec.run.events, "evaluate_every": spec.run.evaluate_every}
    strategy = spec.to_dict()["strategy"]
    return Spec.from_dict(
        merged(other.spec, rare, setting.spec, {"run": run, "strategy": strategy})
    )


def late_artefact(name: str, scale: Scale) -> Artefact:
    """Return one artefact of the study; at a scale without this data set it has no rows."""
    if name == DEMO:
        return _demo(scale)
    table, dataset = late_file(), name.removeprefix("late-")
    rows: tuple[ArtefactRow, ...] = ()
    if scale.name == "cpu" or dataset == "digits":
        nothing = dict.fromkeys(table["columns"])
        rows = tuple(
            ArtefactRow(own.label, own.spec, nothing, dataset, own.method.name, own.seeds)
            for own in late_rows(dataset, scale)
        )
    setting = (Scale.named("level") if dataset in ("ham10000", "isic2019") else scale).settings[
        dataset
    ]
    return Artefact(
        name,
        f"{table['title']} {setting.title}",
        f"The arena's federations at {table['factor']} times the arena's length.",
        rows,
        rows[0].seeds if rows else (),
        tuple(table["columns"]),
        {dataset: setting} if rows else {},
    )


def _demo(scale: Scale) -> Artefact:
    """Return the federation of the demo, longer than in the demo."""
    table, setting = late_file(), scale.settings["digits"]
    own = table["demo"]
    names = {
        row_name(StrategySpec.read(method.strategy)): method.name
        for method in arena_at(Scale.named("cpu")).methods
        if method.name in table["methods"]
    }
    few = scale.seeds is not None
    rows = []
    for spec in demo_specs():
        method = names.get(row_name(spec.strategy))
        if method is not None:
            longer = {"run.events": own["events"], "run.evaluate_every": own["evaluate_every"]}
            rows.append(
                ArtefactRow(
                    method,
                    spec if few else spec.with_changes(longer),
                    dict.fromkeys(table["columns"]),
                    "digits",
                    method,
                    tuple(own["seeds"][:1] if few else own["seeds"]),
                )
            )
    return Artefact(
        DEMO,
        f"{table['title']} The demo",
        f"The federation of the demo at the default rates, {own['events']:,} arrivals.",
        tuple(rows),
        rows[0].seeds,
        tuple(table["columns"]),
        {"digits": setting},
    )
