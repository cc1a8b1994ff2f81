"""The arena as data: its methods, settings, data sets, seeds and rates.

`arena/arena.toml` is the design and `arena/rates.toml` has the rates that the tuning chose. Each
data set has three artefacts: its tuning, the comparison, and the comparison with a remedy against
label skew. All of them are lists of rows like those of the other studies, so they are planned, run
and kept in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from fedraw.experiment.spec import Spec
from fedraw.experiment.tuning import Grid
from fedraw_studies.artefacts import (
    ARENA_DATASETS,
    Artefact,
    ArtefactRow,
    Scale,
    Setting,
    merged,
    study_file,
)


def artefact_names(dataset: str) -> tuple[str, str, str]:
    """Return the names of a data set's artefacts: tuning, comparison, comparison with remedy.

    >>> artefact_names("digits")
    ('arena-digits-tuning', 'arena-digits', 'arena-digits-remedy')
    """
    return f"arena-{dataset}-tuning", f"arena-{dataset}", f"arena-{dataset}-remedy"


@dataclass(frozen=True)
class ArenaMethod:
    """A method, and its tuned setting."""

    name: str
    strategy: Mapping[str, Any]
    tuned: str | None = None  # None: the method has no rate
    values: tuple[float, ...] = ()  # the grid of that setting
    cost: tuple[float, ...] = ()  # models at 30 and at 1,000 clients, copies per arrival
    short: bool = False  # on the short list
    ours: bool = False

    @property
    def key(self) -> str:
        """The tuned key of a spec."""
        return f"strategy.{self.tuned}"


class ArenaSetting(NamedTuple):
    """A setting: which clients hold which labels, and how fast clients are."""

    name: str
    text: str
    rare: str  # "usual", or "all" if every label is measured
    spec: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """The metric of the rare labels; without rare labels, that of the worst label."""
        return "TailAvgRare" if self.rare == "usual" else "TailWorseRare"


class ArenaRow(NamedTuple):
    """A method in a setting of a data set."""

    dataset: str
    setting: ArenaSetting
    method: ArenaMethod
    label: str
    remedied: bool


@dataclass(frozen=True)
class Arena:
    """The design at one scale."""

    scale: Scale
    table: Mapping[str, Any]
    rates: Mapping[str, Mapping[str, float]]  # by data set and method
    methods: tuple[ArenaMethod, ...]
    settings: tuple[ArenaSetting, ...]
    datasets: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The name of the remedy against label skew."""
        return str(self.table["remedy"]["name"])

    def setting(self, name: str) -> ArenaSetting:
        """Return the setting of this name."""
        return next(own for own in self.settings if own.name == name)

    def setting_of(self, dataset: str) -> Setting:
        """Return how a data set is reduced: by this scale, or by one that the design names."""
        other = self.table["datasets"][dataset].get("scale") if self.scale.name == "cpu" else None
        scale = self.scale if other is None else Scale.named(other)
        return scale.settings[dataset]

    def of(self, dataset: str) -> Arena:
        """Return the design of one data set, which may have fewer methods and settings."""
        own = self.table["datasets"][dataset]
        short, settings = own.get("short_list", False), own.get("settings")
        return replace(
            self,
            methods=tuple(method for method in self.methods if method.short or not short),
            settings=tuple(s for s in self.settings if settings is None or s.name in settings),
        )

    def untuned(self, dataset: str) -> list[str]:
        """Return the names of the methods whose rate on a data set is not yet chosen."""
        known = self.rates.get(dataset, {})
        return [own.name for own in self.methods if own.tuned and own.name not in known]

    def rows(self, dataset: str, remedied: bool = False) -> Iterator[ArenaRow]:
        """List every method in every setting, or those that are compared with the remedy."""
        remedy = self.table["remedy"]
        for setting in self.settings:
            if remedied and setting.name not in remedy["settings"]:
                continue
            for method in self.methods:
                if not remedied or method.name in remedy["methods"]:
                    label = f"{setting.name}, {method.name}"
                    yield ArenaRow(dataset, setting, method, label, remedied)

    def grid(self, dataset: str, method: ArenaMethod) -> Grid:
        """Return the grid of a method's tuning on a data set, as `fedraw tune` takes it."""
        own = self.table["tuning"]
        setting = self.setting(own["setting"])
        tables = self._tables(dataset, setting, method.strategy)
        spec = Spec.from_dict(merged(tables, {"run": {"seeds": list(self.seeds(dataset))}}))
        shorter = {
            "events": spec.run.events // own["share"],
            "evaluate_every": max(1, spec.run.evaluate_every // own["share"]),
        } | self.table["datasets"][dataset].get("tuning", {})
        spec = spec.with_changes({"run.evaluate_every": shorter["evaluate_every"]})
        grid = {method.key: list(method.values)}
        return Grid(spec, grid, self.tuning_seeds, events=shorter["events"])

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which rates are chosen."""
        seeds = tuple(self.table["tuning"]["seeds"])
        return seeds[:1] if self.scale.seeds is not None else seeds

    def seeds(self, dataset: str) -> tuple[int, ...]:
        """Return the test seeds of a data set."""
        seeds = tuple(self.table["datasets"][dataset]["seeds"])
        return seeds[:1] if self.scale.seeds is not None else seeds

    def spec(self, row: ArenaRow) -> Spec:
        """Return the experiment of a row; a rate that is not yet chosen has its default."""
        method, strategy = row.method, dict(row.method.strategy)
        rate = self.rates.get(row.dataset, {}).get(method.name)
        if method.tuned is not None and rate is not None:
            strategy[method.tuned] = rate
        remedy = self.table["remedy"]["spec"] if row.remedied else {}
        return Spec.from_dict(merged(self._tables(row.dataset, row.setting, strategy), remedy))

    def _tables(
        self, dataset: str, setting: ArenaSetting, strategy: Mapping[str, Any]
    ) -> dict[str, Any]:
        own, scale = self.table["datasets"][dataset], self.setting_of(dataset)
        every, rare = list(range(own["labels"])), list(scale.rare)
        labels: dict[str, Any] = {"partition": {"rare_labels": rare}}
        if setting.rare == "all":
            labels = {"metrics": {"rare_labels": every}}
        changes = self.table.get(self.scale.name, own).get("spec", {})
        return merged(scale.spec, labels, changes, setting.spec, {"strategy": strategy})


@cache
def _files() -> tuple[dict[str, Any], dict[str, Any]]:
    return study_file("arena"), study_file("arena-rates")


def arena_at(scale: Scale) -> Arena:
    """Return the design at a scale; a scale may have fewer data sets, methods and settings."""
    table, rates = _files()
    less = table.get(scale.name, {})
    factors = less.get("factors", table["tuning"]["factors"])
    methods = [
        _method(name, own, factors)
        for name, own in table["methods"].items()
        if name in less.get("methods", table["methods"])
    ]
    settings = [
        ArenaSetting(name, own["text"], own["rare"], own.get("spec", {}))
        for name, own in table["settings"].items()
        if name in less.get("settings", table["settings"])
    ]
    datasets = tuple(
        name for name in ARENA_DATASETS if name in less.get("datasets", ARENA_DATASETS)
    )
    return Arena(scale, table, rates, tuple(methods), tuple(settings), datasets)


def _method(name: str, own: Mapping[str, Any], factors: Sequence[float]) -> ArenaMethod:
    reference = own.get("reference", 1.0)
    values = own.get("values", [round(factor * reference, 10) for factor in factors])
    return ArenaMethod(
        name,
        own["strategy"],
        own.get("tuned"),
        tuple(values[: len(factors)]) if "tuned" in own else (),
        tuple(own.get("cost", ())),
        own.get("short", False),
        own.get("ours", False),
    )


def arena_artefact(name: str, scale: Scale) -> Artefact:
    """Return one artefact of the arena; at a scale without this data set it has no rows."""
    dataset = next(own for own in ARENA_DATASETS if name in artefact_names(own))
    arena = arena_at(scale).of(dataset)
    kind = artefact_names(dataset).index(name)
    rows: tuple[ArtefactRow, ...] = ()
    waits_for = ""
    if dataset in arena.datasets:
        rows = tuple(_tuning_rows(arena, dataset) if kind == 0 else _rows(arena, dataset, kind))
        if kind and (untuned := arena.untuned(dataset)):
            waits_for = (
                f"{name}: arena/rates.toml has no rate for {', '.join(untuned)} on {dataset}; "
                f"run 'fedraw reproduce {artefact_names(dataset)[0]}' and write its choice there"
            )
    setting = arena.setting_of(dataset)
    words = ("tuning", "every method at its rate", f"with {arena.remedy} in local training")[kind]
    return Artefact(
        name,
        f"{arena.table['title']}: {setting.title}, {words}",
        _caption(arena, kind),
        rows,
        arena.tuning_seeds if kind == 0 else arena.seeds(dataset),
        tuple(arena.table["columns"]),
        {dataset: setting} if rows else {},
        waits_for=waits_for,
    )


def tuning_label(method: ArenaMethod, value: float) -> str:
    """Return the label of the row of one value in the tuning.

    >>> tuning_label(ArenaMethod("CA2FL", {}, "server_lr"), 0.5)
    'CA2FL, server_lr = 0.5'
    """
    return f"{method.name}, {method.tuned} = {value:g}"


def _tuning_rows(arena: Arena, dataset: str) -> Iterator[ArtefactRow]:
    for method in (own for own in arena.methods if own.tuned is not None):
        specs = arena.grid(dataset, method).specs()
        for value, spec in zip(method.values, specs, strict=True):
            label = tuning_label(method, value)
            yield _row(arena, label, spec, dataset, method, arena.tuning_seeds)


def _rows(arena: Arena, dataset: str, kind: int) -> Iterator[ArtefactRow]:
    for row in arena.rows(dataset, remedied=kind == 2):
        yield _row(arena, row.label, arena.spec(row), dataset, row.method, arena.seeds(dataset))


def _row(
    arena: Arena,
    label: str,
    spec: Spec,
    dataset: str,
    method: ArenaMethod,
    seeds: tuple[int, ...],
) -> ArtefactRow:
    nothing = dict.fromkeys(arena.table["columns"])
    return ArtefactRow(label, spec, nothing, dataset, method.name, seeds)


def _caption(arena: Arena, kind: int) -> str:
    own = arena.table["tuning"]
    if kind == 0:
        return (
            f"Setting {own['setting']}, runs of 1/{own['share']} of the length, on tuning seeds. "
            "Every method has as many values of its main rate."
        )
    settings = "; ".join(f"{setting.name}: {setting.text}" for setting in arena.settings)
    return f"{settings}. If every label is measured, WorseRare is the recall of the worst one."
