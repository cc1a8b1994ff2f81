"""Artefacts: the tables and figures of a study as data, read from its TOML files at a scale.

An artefact is a list of rows. A row is a spec, or something to compute, and the values that the
paper prints for it. `paper/` has the artefacts of the paper, `beyond/` and `evidence/` have ours. A
scale determines how much of the paper's protocol is run; `paper/scales.toml` has all scales.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from fedraw.errors import BadInput, nearest
from fedraw.experiment.sections import Names
from fedraw.experiment.spec import Spec

# The artefacts of the paper that have their own file, in the paper's order.
NAMES = (
    "fig1", "fig2", "table2", "fig3", "table3", "table4",
    *(f"s{number}" for number in range(1, 12)),
    "server-rate", "local-rate",
)  # fmt: skip
# Our own artefacts, in the order of the documentation.
BEYOND = (
    "beyond-headline", "beyond-slow", "beyond-cat-dog", "beyond-weak", "beyond-scheduling",
    "beyond-buffer", "beyond-holders", "beyond-dirichlet", "beyond-rates", "beyond-cnn",
)  # fmt: skip
EVIDENCE = ("evidence-modes", "evidence-attacks", "evidence-drift", "evidence-privacy")
# Questions that the paper leaves open, on the cheapest data set.
OPEN = ("open-rates",)
# How the settings of a scale were chosen, on seeds that no table uses, and what limits them.
CHOICES = ("tuning", "centralised")
# The arena: for each data set its tuning, the comparison, and the same with a remedy.
ARENA_DATASETS = ("digits", "ham10000", "emnist", "cifar10")
ARENA = tuple(
    f"arena-{dataset}{part}" for dataset in ARENA_DATASETS for part in ("-tuning", "", "-remedy")
)
# Is a label lost, or late? The arena's settings at ten times the length; late.py has the artefacts.
LATE_DATASETS = ("digits", "ham10000", "isic2019", "emnist")
LATE = ("late-demo", *(f"late-{dataset}" for dataset in LATE_DATASETS))
# One pass against methods that train; one_pass.py has the artefacts.
ONE_PASS = tuple(f"one-pass-{part}" for part in (*LATE_DATASETS, "small", "level", "full"))
# The name of a group selects all of its artefacts.
GROUPS = {
    "beyond": BEYOND,
    "evidence": EVIDENCE,
    "open": OPEN,
    "arena": ARENA,
    "late": LATE,
    "one-pass": ONE_PASS,
}
# Each study has a file of finished runs and a document. Artefacts without a group belong to the
# first study.
STUDIES = ("paper", *GROUPS)
EVERY = (*NAMES, *BEYOND, *EVIDENCE, *OPEN, *CHOICES)
# Claims refer to these; they have no table.
SUPPORTING = ("server-state", "benchmark")
# The training-free tables of the paper, which share one file.
DYNAMICS = "dynamics"

NOT_PRINTED = "--"
WHY_NOT_PRINTED = "the paper prints no value"

_OF_SCALE = ("seeds", "headline_seeds", "sweep_seeds", "dynamics_seeds", "strict", "artefacts")
_PAPERS_ONE_SEED = (42,)
DYNAMICS_SEEDS = 30


def study_of(artefact: str) -> str:
    """Return the study of an artefact or a comparison, by the beginning of its name.

    >>> study_of("table2"), study_of("arena-digits-tuning"), study_of("beyond-goals")
    ('paper', 'arena', 'beyond')
    """
    return next((group for group in GROUPS if artefact.startswith(f"{group}-")), STUDIES[0])


@dataclass(frozen=True)
class Setting:
    """One data set at one scale."""

    title: str
    reduction: str  # the differences from the paper, for captions
    spec: Mapping[str, Any]  # the tables that every row starts from
    rare: Names
    other: Names = ()  # the paper's second set of rare labels
    ms_per_event: float | None = None  # None: not measured
    headline_seeds: tuple[int, ...] = ()  # in place of the scale's


@dataclass(frozen=True)
class Scale:
    """The settings of its data sets, and the seeds that replace the paper's."""

    name: str
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...] | None = None  # None: the paper's
    headline_seeds: tuple[int, ...] | None = None
    sweep_seeds: tuple[int, ...] = ()  # where the paper has seed 42 alone
    dynamics_seeds: int = DYNAMICS_SEEDS
    strict: bool = False  # how claims are judged, see claims.judge
    artefacts: tuple[str, ...] = ()  # empty: all

    @classmethod
    def named(cls, name: str) -> Scale:
        """Load the scale of this name."""
        known = study_file("scales")
        titles = known.pop("titles")
        if name not in known:
            raise BadInput(f"unknown scale {name!r}; {nearest(name, known)}")
        table = known[name]
        common = {k: v for k, v in table.items() if k not in (*_OF_SCALE, *titles)}
        settings = {
            key: _setting(title, {**common, **table[key]})
            for key, title in titles.items()
            if key in table
        }
        seeds, headline = table.get("seeds"), table.get("headline_seeds")
        return cls(
            name,
            settings,
            None if seeds is None else tuple(seeds),
            None if headline is None else tuple(headline),
            tuple(table.get("sweep_seeds", ())),
            table.get("dynamics_seeds", DYNAMICS_SEEDS),
            table.get("strict", False),
            tuple(table.get("artefacts", ())),
        )

    def has(self, artefact: str) -> bool:
        """Return whether an artefact can be run at this scale.

        >>> Scale.named("ham10000").has("table4"), Scale.named("ham10000").has("table2")
        (True, False)
        """
        return not self.artefacts or artefact in self.artefacts

    def seeds_of(
        self, seeds: tuple[int, ...], headline: bool, dataset: str | None = None
    ) -> tuple[int, ...]:
        """Return the seeds of an artefact, or of its rows of a data set.

        `seeds` are the paper's.

        >>> Scale.named("smoke").seeds_of((42, 123, 456), headline=True)
        (42,)
        >>> Scale.named("level").seeds_of((42,), headline=False)
        (42, 123, 456)
        """
        if self.seeds is not None:
            return self.seeds
        if headline:
            own = self.settings[dataset].headline_seeds if dataset is not None else ()
            return own or self.headline_seeds or seeds
        return self.sweep_seeds or seeds if seeds == _PAPERS_ONE_SEED else seeds


def scale_names() -> list[str]:
    """List the names of all scales.

    >>> scale_names()
    ['paper', 'level', 'ham10000', 'cpu', 'smoke']
    """
    return [name for name in study_file("scales") if name != "titles"]


def study_file(name: str) -> dict[str, Any]:
    """Read `paper/<name>.toml`, or the file of another study, whose name begins with the folder's.

    >>> study_file("table4")["seeds"]
    [42]
    """
    folder = name.partition("-")[0] if name.startswith(("beyond-", "evidence-")) else "paper"
    if name.startswith("arena"):
        folder, name = "arena", name.removeprefix("arena-")
    if name == "late":
        folder = "late"
    if name == "one-pass":
        folder = "one_pass"
    file = files("fedraw_studies").joinpath(f"{folder}/{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _setting(title: str, table: Mapping[str, Any]) -> Setting:
    return Setting(
        title,
        table["reduction"],
        table["spec"],
        tuple(table["rare"]),
        tuple(table.get("other", ())),
        table.get("ms_per_event"),
        tuple(table.get("headline_seeds", ())),
    )


class Basis(StrEnum):
    """The source of an artefact's values."""

    RUNS = "runs"
    WEIGHTS = "weights"  # computed for each seed, see outcomes.buffer_weights
    COUNT = "count"  # computed once and exact, see outcomes.model_copies
    MEASUREMENT = "measurement"  # recorded elsewhere and copied into the file


@dataclass(frozen=True)
class PaperValue:
    """A value of the paper: as printed, its numbers, and their number of decimals.

    >>> PaperValue.of("45.2 / 45.0 / 45.5")
    PaperValue(printed='45.2 / 45.0 / 45.5', values=(45.2, 45.0, 45.5), decimals=1)
    >>> PaperValue.of("60.2 ± 6.5").values
    (60.2,)
    >>> PaperValue.of("75–77").values
    (75.0, 77.0)
    """

    printed: str
    values: tuple[float, ...]
    decimals: int

    @classmethod
    def of(cls, printed: str) -> PaperValue:
        """Read a mean with its spread, values seed by seed ("a / b"), or a range ("a–b")."""
        means = printed.split("±", maxsplit=1)[0].replace("–", "/")
        numbers = [number.strip() for number in means.split("/")]
        _, _, after_point = numbers[0].partition(".")
        return cls(printed, tuple(map(float, numbers)), len(after_point))

    @property
    def sd(self) -> float | None:
        """The printed spread, or None.

        >>> PaperValue.of("60.2 ± 6.5").sd
        6.5
        """
        _, found, spread = self.printed.partition("±")
        return float(spread) if found else None

    @property
    def is_by_seed(self) -> bool:
        """Whether the paper prints one value for each seed."""
        return "/" in self.printed

    @property
    def rounding(self) -> float:
        """Half a unit of the last decimal, plus a margin for binary fractions."""
        return 0.5 * 10.0**-self.decimals * (1 + 1e-9)


@dataclass(frozen=True)
class ArtefactRow:
    """One row of an artefact: what to run or to compute, and the paper's values."""

    label: str
    spec: Spec
    paper: Mapping[str, PaperValue | None]  # by metric; None: the paper prints no value
    dataset: str = ""  # the paper's, even if the scale replaces it
    method: str = ""
    seeds: tuple[int, ...] = ()
    not_comparable: Mapping[str, str] = field(default_factory=dict)  # the reason, by metric
    confusion: int | None = None  # metrics are this rare label's row of the confusion matrix
    honest: str | None = None  # label of the row that "Lost" metrics are measured against
    attacked: str | None = None  # label of the row that "Recovered" metrics start from
    minus: Spec | None = None  # metrics are differences to this spec's, seed by seed
    count: Mapping[str, Any] = field(default_factory=dict)  # arguments of a Basis.COUNT
    values: tuple[float, ...] = ()  # of a Basis.MEASUREMENT


@dataclass(frozen=True)
class Artefact:
    """A table or figure: its rows, its metrics, and how to draw it."""

    name: str
    title: str
    caption: str
    rows: tuple[ArtefactRow, ...]
    seeds: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)  # by data set
    basis: Basis = Basis.RUNS
    figure: Mapping[str, Any] | None = None  # how to draw it, see figures.py
    waits_for: str = ""  # why it cannot run yet; its budget is known nevertheless

    @property
    def reductions(self) -> dict[str, str]:
        """How the scale reduces the paper's protocol, by the title of the data set."""
        return {setting.title: setting.reduction for setting in self.settings.values()}


def load_dynamics() -> list[Artefact]:
    """Load the training-free tables of the paper, which no scale reduces."""
    file = study_file(DYNAMICS)
    return [
        Artefact(
            table["name"],
            table["title"],
            table["note"],
            tuple(_dynamics_row(row, file["settings"][row["setting"]]) for row in table["rows"]),
        )
        for table in file["artefacts"]
    ]


def refuse_unknown(name: str, known: Sequence[str]) -> None:
    """Raise BadInput with the nearest known name unless `name` is known."""
    if name not in known:
        raise BadInput(f"unknown artefact {name!r}; {nearest(name, known)}")


def merged(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables of sections; later ones replace single keys of earlier ones.

    >>> merged({"run": {"events": 5, "seeds": [1]}}, {"run": {"events": 9}})
    {'run': {'events': 9, 'seeds': [1]}}
    """
    result: dict[str, Any] = {}
    for tables in several:
        for section, table in tables.items():
            result[section] = {**result.get(section, {}), **table}
    return result


@cache
def _methods() -> dict[str, Any]:
    return study_file("methods")


def load_artefact(name: str, scale: Scale) -> Artefact:
    """Load one artefact of the paper or of ours at a scale."""
    if name in BEYOND:  # `sweep_seeds` is about the paper's sweeps
        scale = replace(scale, sweep_seeds=())
    table = study_file(name)
    other = table.get("rows_of")
    rows = table["rows"] if other is None else study_file(other)["rows"]
    if other is not None:  # the same runs, for which this artefact prints no values
        rows = [{key: value for key, value in row.items() if key != "paper"} for row in rows]
    basis = Basis(table.get("basis", "runs"))
    if basis in (Basis.COUNT, Basis.MEASUREMENT):
        made = tuple(_fixed_row(row, table["columns"]) for row in rows)
    else:
        rows = [single for row in rows for single in _singles(row)]
        titled = len({row["dataset"] for row in rows}) > 1
        made = tuple(_row(row, table, scale, titled) for row in rows)
    return Artefact(
        name,
        table["title"],
        table["caption"],
        made,
        scale.seeds_of(tuple(table.get("seeds", ())), table.get("headline", False)),
        tuple(table["columns"]),
        {row.dataset: scale.settings[row.dataset] for row in made if row.dataset},
        basis,
        table.get("figure"),
    )


def _fixed_row(row: Mapping[str, Any], columns: Sequence[str]) -> ArtefactRow:
    values, count = tuple(row.get("values", ())), row.get("count", {})
    return ArtefactRow(row["label"], Spec(), dict.fromkeys(columns), count=count, values=values)


def _dynamics_row(row: Mapping[str, Any], setting: Mapping[str, Any]) -> ArtefactRow:
    printed = {metric: PaperValue.of(text) for metric, text in row.get("paper", {}).items()}
    metrics = {**dict.fromkeys(row.get("metrics", ())), **printed}
    start = {"training": {"kind": "none"}}
    spec = Spec.from_dict(merged(start, setting, row.get("spec", {})))
    minus = Spec.from_dict(merged(start, setting, row["minus"])) if "minus" in row else None
    return ArtefactRow(row["label"], spec, metrics, minus=minus)


def _singles(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Expand a row with lists of data sets or methods into one row for each.

    >>> [(r["dataset"], r["method"]) for r in _singles({"dataset": ["a", "b"], "method": "c"})]
    [('a', 'c'), ('b', 'c')]
    """
    datasets, methods = (
        row[key] if isinstance(row[key], list) else [row[key]] for key in ("dataset", "method")
    )
    several = isinstance(row["method"], list)
    return [
        {**row, "dataset": dataset, "method": method, "of_several": several}
        for dataset in datasets
        for method in methods
    ]


def _label(row: Mapping[str, Any], title: str, titled: bool) -> str:
    """Return the row's label, with the data set and method if the row has several of them."""
    own, of_several = row.get("label"), row.get("of_several", False)
    if own is not None and not of_several:
        return str(own)
    words = [title if titled else None, own, row["method"]]
    return ", ".join(word for word in words if word is not None)


def _row(
    row: Mapping[str, Any], table: Mapping[str, Any], scale: Scale, titled: bool
) -> ArtefactRow:
    setting, method = scale.settings[row["dataset"]], row["method"]
    label = _label(row, setting.title, titled)
    columns = table["columns"]
    printed = dict(zip(columns, row.get("paper") or [""] * len(columns), strict=True))
    return ArtefactRow(
        label,
        _spec(row, table, setting),
        {m: PaperValue.of(p) if p not in ("", NOT_PRINTED) else None for m, p in printed.items()},
        row["dataset"],
        method,
        scale.seeds_of(
            tuple(row.get("seeds", table["seeds"])), _is_headline(row, table), row["dataset"]
        ),
        _not_comparable({**row, "label": label}, printed, table.get("not_comparable", ())),
        row.get("confusion"),
        row.get("honest"),
        row.get("attacked"),
    )


def _is_headline(row: Mapping[str, Any], table: Mapping[str, Any]) -> bool:
    """Return whether the scale's headline seeds apply; a row with its own seeds keeps them."""
    return "seeds" not in row and table.get("headline", False)


def _spec(row: Mapping[str, Any], table: Mapping[str, Any], setting: Setting) -> Spec:
    which = row.get("rare", table.get("rare", "usual"))
    rare = list(setting.other if which == "other" else setting.rare)
    labels: dict[str, Any] = {
        "usual": {"partition": {"rare_labels": rare}},
        "other": {"partition": {"rare_labels": rare}},
        "measured": {"metrics": {"rare_labels": rare}},  # measured, but as common as the others
        "none": {},
    }[which]
    if "claim" in row:
        claim = row["claim"]
        form = claim if isinstance(claim, dict) else {"form": claim}
        labels["misreport"] = {"label": rare[0], **form}
    if "drift" in row:
        labels["drift"] = {"label": rare[-1], **row["drift"]}
    method = {"strategy": _methods()[row["method"]]}
    changes = (table.get("spec", {}), row.get("spec", {}))
    return Spec.from_dict(merged(setting.spec, labels, method, *changes))


def _not_comparable(
    row: Mapping[str, Any], printed: Mapping[str, str], rules: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    why = {metric: WHY_NOT_PRINTED for metric, p in printed.items() if p == NOT_PRINTED}
    for rule in rules:
        scope = {"datasets": row["dataset"], "methods": row["method"], "rows": row["label"]}
        if all(value in rule.get(key, [value]) for key, value in scope.items()):
            own = [metric for metric in rule.get("metrics", printed) if printed[metric]]
            why |= dict.fromkeys(own, rule["why"])
    return why
