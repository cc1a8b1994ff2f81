"""What has to be run: every spec and seed once, however many artefacts need it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import BEYOND, EVIDENCE, NAMES, Artefact, Row

# What says most comes first, so that a plan that is cut short was worth its time.
_FIRST = (
    "table2", "table3", "fig1", "table4", "s8", "s1", "s9", "s10", "s5", "s2", "s4", "s3",
)  # fmt: skip
ORDER = (*_FIRST, *(name for name in NAMES if name not in _FIRST), *EVIDENCE, *BEYOND)

# The settings that every key contains, whatever their values. The committed cells were named by
# these, so nothing is ever added or removed here; a later setting counts only where it has another
# value than its default.
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
# Sections that every spec has, so that one without a setting that counts says nothing.
_ALWAYS_WRITTEN = frozenset(Spec().tables())


@dataclass(frozen=True)
class Planned:
    """One run: the first artefact that needs it, and what it is there."""

    key: str
    seed: int
    spec: Spec
    artefact: str
    label: str
    dataset: str
    ms_per_event: float | None

    @property
    def name(self) -> str:
        return f"{self.key}-{self.seed}"

    @property
    def seconds(self) -> float | None:
        """What it should take on one core."""
        return None if self.ms_per_event is None else self.spec.run.events * self.ms_per_event / 1e3


@dataclass(frozen=True)
class Share:
    """An artefact's part of the budget; a run that several need is the first one's."""

    artefact: str
    runs: int
    to_run: int
    seconds: float | None  # of one core


def key_of(spec: Spec) -> str:
    """The same for the same experiment, whatever its seeds and whoever asks for it.

    It does not change when a spec gets new settings or sections, as long as they have their
    defaults.

    >>> key_of(Spec()) == key_of(Spec.read({"run": {"seeds": [7]}}))
    True
    """
    tables, content = spec.tables(), dict[str, Any](version=1)
    del tables["version"], tables["run"]["seeds"]
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
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_default(tables: Mapping[str, Any], section: str, key: str) -> bool:
    """Whether a spec without this setting is the same experiment."""
    rest = {name: value for name, value in tables[section].items() if name != key}
    try:
        without = Spec.read({**tables, section: rest}).tables()
    except BadInput:  # the other settings need it
        return False
    return bool(without.get(section, {}).get(key) == tables[section][key])


def make_plan(artefacts: Sequence[Artefact]) -> list[Planned]:
    """All runs of the artefacts, those that say most first, seed after seed."""
    plan: dict[str, Planned] = {}
    for artefact in sorted(artefacts, key=lambda a: ORDER.index(a.name)):
        if artefact.arithmetic:
            continue
        seeds = dict.fromkeys(seed for row in artefact.rows for seed in row.seeds)
        for seed in seeds:
            for row in (row for row in artefact.rows if seed in row.seeds):
                planned = _planned(artefact, row, seed)
                plan.setdefault(planned.name, planned)
    return list(plan.values())


def budget(plan: Sequence[Planned], to_run: Sequence[Planned]) -> list[Share]:
    """What each artefact of the plan still costs."""
    names = dict.fromkeys(planned.artefact for planned in plan)
    return [
        Share(
            name,
            sum(planned.artefact == name for planned in plan),
            sum(planned.artefact == name for planned in to_run),
            in_all([planned for planned in to_run if planned.artefact == name]),
        )
        for name in names
    ]


def in_all(plan: Sequence[Planned]) -> float | None:
    """Seconds of one core; None where some are not known."""
    seconds = [planned.seconds for planned in plan]
    known = [s for s in seconds if s is not None]
    return sum(known) if len(known) == len(seconds) else None


def _planned(artefact: Artefact, row: Row, seed: int) -> Planned:
    own = (row.label, row.dataset, artefact.settings[row.dataset].ms_per_event)
    return Planned(key_of(row.spec), seed, row.spec, artefact.name, *own)
