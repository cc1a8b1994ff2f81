"""The plan: each spec and seed that artefacts need, once, and the key that names its runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec
from fedraw_studies.arena_design import arena_artefact
from fedraw_studies.artefacts import (
    ARENA,
    BEYOND,
    CHOICES,
    EVERY,
    EVIDENCE,
    LATE,
    NAMES,
    ONE_PASS,
    OPEN,
    SUPPORTING,
    Artefact,
    ArtefactRow,
    Basis,
    Scale,
    load_artefact,
    refuse_unknown,
)
from fedraw_studies.late import late_artefact
from fedraw_studies.one_pass import one_pass_artefact

# The most important artefacts come first, so that an interrupted plan is still useful.
_FIRST = (
    "table2", "table3", "fig1", "table4", "s8", "s1", "s9", "s10", "s5", "s2", "s4", "s3",
)  # fmt: skip
ORDER = (
    *_FIRST,
    *(name for name in NAMES if name not in _FIRST),
    *OPEN,
    *EVIDENCE,
    *BEYOND,
    *CHOICES,
    *ARENA,
    *LATE,
    *ONE_PASS,
)

# The settings that every key contains, whatever their values. The names of the committed cells
# depend on these, so nothing is ever added or removed here; a later setting counts only if it
# differs from its default.
_IN_EVERY_KEY: Mapping[str, Collection[str]] = {
    "data": ("name", "size", "holdout", "normalise"),
    "features": ("weights", "backbone", "stem", "statistics"),
    "partition": (
        "kind", "clients", "rare_labels", "clients_per_rare_label", "clients_per_common_label",
        "local_test",
    ),
    "speeds": ("kind", "arrivals"),
    "misreport": ("label", "client", "share", "form"),
    "label_noise": ("share", "clients"),
    "drift": ("kind", "label", "at", "declared"),
    "summaries": ("mechanism", "unit"),
    "training": ("kind", "model", "epochs", "batch", "lr", "momentum", "weight_decay", "device"),
    "run": ("events", "evaluate_every"),
}  # fmt: skip
_OF_METHOD_IN_EVERY_KEY: Mapping[str, Collection[str]] = {
    "fedavg": ("weighting",),
    "qfedavg": ("q", "p"),
    "fedasync": ("alpha", "staleness", "exponent", "hinge_slope", "hinge_grace", "proximal"),
    "fedbuff": ("buffer", "server_lr", "staleness", "exponent", "unique"),
    "fedfa": ("buffer",),
    "ca2fl": ("buffer", "server_lr", "refresh"),
    "fedraw": ("buffer", "dedup", "weighting", "cap", "cap_at"),
    "fedraw-replay": ("buffer", "threshold", "mass", "floor"),
}
# Sections that every spec has; a key leaves them out if none of their settings counts.
_ALWAYS_WRITTEN = frozenset(Spec().to_dict())
# A cache: reading a spec once per setting takes time, and runs share specs.
_known_settings: dict[str, Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Planned:
    """One run, with the first artefact and row that need it."""

    key: str
    seed: int
    spec: Spec
    artefact: str
    label: str
    dataset: str
    ms_per_event: float | None

    @property
    def name(self) -> str:
        """The name of its cell."""
        return f"{self.key}-{self.seed}"

    @property
    def seconds(self) -> float | None:
        """The estimated time on one core."""
        return None if self.ms_per_event is None else self.spec.run.events * self.ms_per_event / 1e3


@dataclass(frozen=True)
class ArtefactBudget:
    """The runs of an artefact; a run that several artefacts need belongs to the first."""

    artefact: str
    runs: int
    to_run: int
    seconds: float | None  # on one core; None if not measured


def key_of(spec: Spec) -> str:
    """Return the key of an experiment; seeds do not count.

    The key stays the same when specs get new settings or sections, as long as these have their
    defaults.

    >>> key_of(Spec()) == key_of(Spec.from_dict({"run": {"seeds": [7]}}))
    True
    """
    return key_of_settings(settings_of(spec))


def settings_of(spec: Spec) -> Mapping[str, Any]:
    """Return the settings that the key of an experiment is made of, as tables of a spec.

    >>> Spec.from_dict(settings_of(Spec())).to_dict() == Spec().to_dict()
    True
    """
    tables = spec.to_dict()
    del tables["version"], tables["run"]["seeds"]
    text = json.dumps(tables, sort_keys=True)
    if text not in _known_settings:
        _known_settings[text] = _settings(tables)
    return _known_settings[text]


def key_of_settings(settings: Mapping[str, Any]) -> str:
    """Return the key of the settings of an experiment."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _settings(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    content = dict[str, Any](version=1)
    for section, table in tables.items():
        always = _IN_EVERY_KEY.get(section, ())
        if section == "strategy":
            always = ("name", *_OF_METHOD_IN_EVERY_KEY.get(table["name"], ()))
        counted = {
            key: value
            for key, value in table.items()
            if key in always or not _is_default(tables, section, key)
        }
        if counted or section not in _ALWAYS_WRITTEN:
            content[section] = counted
    return content


def _is_default(tables: Mapping[str, Any], section: str, key: str) -> bool:
    """Return whether a spec without this setting is the same experiment."""
    rest = {name: value for name, value in tables[section].items() if name != key}
    try:
        without = Spec.from_dict({**tables, section: rest}).to_dict()
    except BadInput:  # the other settings need it
        return False
    return bool(without.get(section, {}).get(key) == tables[section][key])


def load_artefacts(names: Sequence[str], scale: Scale) -> list[Artefact]:
    """Load these artefacts, each once: the paper's in its order, then ours.

    Artefacts that the scale does not have are left out.
    """
    for name in names:
        refuse_unknown(name, (*EVERY, *ARENA, *LATE, *ONE_PASS, *SUPPORTING))
    own = {name for name in names if name in SUPPORTING or scale.has(name)}
    loaded = [load_artefact(name, scale) for name in (*EVERY, *SUPPORTING) if name in own]
    loaded += [arena_artefact(name, scale) for name in ARENA if name in own]
    loaded += [late_artefact(name, scale) for name in LATE if name in own]
    return loaded + [one_pass_artefact(name, scale) for name in ONE_PASS if name in own]


def make_plan(artefacts: Sequence[Artefact]) -> list[Planned]:
    """Return all runs of the artefacts, the most important first, seed by seed."""
    plan: dict[str, Planned] = {}
    for artefact in sorted(artefacts, key=lambda a: ORDER.index(a.name)):
        if artefact.basis is not Basis.RUNS:
            continue
        seeds = dict.fromkeys(seed for row in artefact.rows for seed in row.seeds)
        for seed in seeds:
            for row in (row for row in artefact.rows if seed in row.seeds):
                planned = _planned(artefact, row, seed)
                plan.setdefault(planned.name, planned)
    return list(plan.values())


def budget(plan: Sequence[Planned], to_run: Sequence[Planned]) -> list[ArtefactBudget]:
    """Return the remaining cost of each artefact of the plan."""
    shares = []
    for name in dict.fromkeys(planned.artefact for planned in plan):
        own = [planned for planned in to_run if planned.artefact == name]
        runs = sum(planned.artefact == name for planned in plan)
        shares.append(ArtefactBudget(name, runs, len(own), total_seconds(own)))
    return shares


def total_seconds(plan: Sequence[Planned]) -> float | None:
    """Return the total estimated seconds on one core; None if some are not known."""
    known = [planned.seconds for planned in plan if planned.seconds is not None]
    return sum(known) if len(known) == len(plan) else None


def budget_document(plan: Sequence[Planned], to_run: Sequence[Planned]) -> dict[str, Any]:
    """Return the budget in core hours, ready for JSON."""

    def costs(runs: int, left: int, seconds: float | None) -> dict[str, Any]:
        hours = None if seconds is None else round(seconds / 3600, 3)
        return {"runs": runs, "to_run": left, "core_hours": hours}

    artefacts = [
        {"name": own.artefact, **costs(own.runs, own.to_run, own.seconds)}
        for own in budget(plan, to_run)
    ]
    return {**costs(len(plan), len(to_run), total_seconds(to_run)), "artefacts": artefacts}


def _planned(artefact: Artefact, row: ArtefactRow, seed: int) -> Planned:
    own = (row.label, row.dataset, artefact.settings[row.dataset].ms_per_event)
    return Planned(key_of(row.spec), seed, row.spec, artefact.name, *own)
