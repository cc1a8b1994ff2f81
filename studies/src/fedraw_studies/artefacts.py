"""Tables and figures as experiments: the paper's in `paper/`, ours in `beyond/`, at a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedraw.errors import BadInput, nearest
from fedraw.experiment.spec import Spec
from fedraw_studies.figure import Figure
from fedraw_studies.scales import Scale, Setting, study_file

# In the order of the paper; the training-free figures are `dynamics`, which is not among them.
NAMES = (
    "fig1", "fig2", "table2", "fig3", "table3", "table4",
    *(f"s{number}" for number in range(1, 12)),
    "server-rate", "local-rate",
)  # fmt: skip

# Not the paper's, in the order in which they are told of.
BEYOND = (
    "beyond-headline", "beyond-slow", "beyond-cat-dog", "beyond-weak", "beyond-scheduling",
    "beyond-buffer", "beyond-holders", "beyond-dirichlet", "beyond-rates", "beyond-cnn",
)  # fmt: skip
EVIDENCE = ("evidence-modes", "evidence-attacks", "evidence-drift", "evidence-privacy")
EVERY = (*NAMES, *BEYOND, *EVIDENCE)

NOT_PRINTED = "--"
WHY_NOT_PRINTED = "the paper prints no value"


@dataclass(frozen=True)
class Row:
    """One spec and what the paper says of it."""

    label: str
    dataset: str  # the paper's, whatever takes its place at this scale
    method: str
    spec: Spec
    figures: Mapping[str, Figure | None]  # by metric; None: the paper has none
    not_comparable: Mapping[str, str]  # metrics that cannot be compared, and why
    seeds: tuple[int, ...]
    confusion: int | None = None  # metrics are this rare label's row of the confusion matrix
    honest: str | None = None  # the row against which something was lost
    attacked: str | None = None  # the row from which something is recovered


@dataclass(frozen=True)
class Artefact:
    name: str
    title: str
    caption: str
    seeds: tuple[int, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    settings: Mapping[str, Setting]  # of the data sets in it
    arithmetic: bool = False  # nothing is run for it

    @property
    def reductions(self) -> dict[str, str]:
        """What has to be said with every number, by the title of the data set."""
        return {setting.title: setting.reduction for setting in self.settings.values()}


def load_artefacts(names: Sequence[str], scale: Scale) -> list[Artefact]:
    """These artefacts, each once, in the order of the paper, then ours."""
    for name in names:
        refuse_unknown(name, EVERY)
    return [_artefact(name, scale) for name in EVERY if name in names]


def refuse_unknown(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise BadInput(f"unknown artefact {name!r}; {nearest(name, known)}")


def merged(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of sections; what comes later changes single keys.

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


def _artefact(name: str, scale: Scale) -> Artefact:
    table = study_file(name)
    other = table.get("rows_of")
    rows = table["rows"] if other is None else study_file(other)["rows"]
    if other is not None:  # the same runs, of which this one has no figures
        rows = [{key: value for key, value in row.items() if key != "paper"} for row in rows]
    rows = [single for row in rows for single in _singles(row)]
    titled = len({row["dataset"] for row in rows}) > 1
    made = tuple(_row(row, table, scale, titled) for row in rows)
    return Artefact(
        name,
        table["title"],
        table["caption"],
        scale.seeds_of(tuple(table["seeds"]), table.get("headline", False)),
        tuple(table["columns"]),
        made,
        {row.dataset: scale.settings[row.dataset] for row in made},
        table.get("arithmetic", False),
    )


def _singles(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each of its data sets and methods, if it has lists of them.

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
    """What a row says of itself; data set and method where that does not tell them."""
    own, of_several = row.get("label"), row.get("of_several", False)
    if own is not None and not of_several:
        return str(own)
    words = [title if titled else None, own, row["method"]]
    return ", ".join(word for word in words if word is not None)


def _row(row: Mapping[str, Any], table: Mapping[str, Any], scale: Scale, titled: bool) -> Row:
    setting, method = scale.settings[row["dataset"]], row["method"]
    label = _label(row, setting.title, titled)
    seeds = scale.seeds_of(tuple(row.get("seeds", table["seeds"])), _is_headline(row, table))
    columns = table["columns"]
    printed = dict(zip(columns, row.get("paper") or [""] * len(columns), strict=True))
    return Row(
        label,
        row["dataset"],
        method,
        _spec(row, table, setting),
        {m: Figure.of(p) if p not in ("", NOT_PRINTED) else None for m, p in printed.items()},
        _not_comparable({**row, "label": label}, printed, table.get("not_comparable", ())),
        seeds,
        row.get("confusion"),
        row.get("honest"),
        row.get("attacked"),
    )


def _is_headline(row: Mapping[str, Any], table: Mapping[str, Any]) -> bool:
    """A row with seeds of its own keeps to them."""
    return "seeds" not in row and table.get("headline", False)


def _spec(row: Mapping[str, Any], table: Mapping[str, Any], setting: Setting) -> Spec:
    which = row.get("rare", table.get("rare", "usual"))
    rare = list(setting.other if which == "other" else setting.rare)
    labels: dict[str, Any] = {
        "usual": {"partition": {"rare_labels": rare}},
        "other": {"partition": {"rare_labels": rare}},
        "measured": {"metrics": {"rare_labels": rare}},  # looked at, but as common as the rest
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
    return Spec.read(merged(setting.spec, labels, method, *changes))


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
