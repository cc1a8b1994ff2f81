"""Scales: how much of the paper's protocol is run, read from `paper/scales.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fedraw.errors import BadInput, nearest
from fedraw.experiment.sections import Names

_OF_SCALE = ("seeds", "headline_seeds", "dynamics_seeds")
DYNAMICS_SEEDS = 30


@dataclass(frozen=True)
class Setting:
    """One data set at one scale."""

    title: str
    reduction: str  # how it differs from the paper, for captions
    spec: Mapping[str, Any]  # the tables from which every row starts
    rare: Names
    other: Names = ()  # the paper's second set of rare labels
    ms_per_event: float | None = None  # None: not measured


@dataclass(frozen=True)
class Scale:
    """The settings of all data sets, and the seeds that replace the paper's."""

    name: str
    settings: Mapping[str, Setting]
    seeds: tuple[int, ...] | None = None  # None: the paper's
    headline_seeds: tuple[int, ...] | None = None
    dynamics_seeds: int = DYNAMICS_SEEDS

    @classmethod
    def named(cls, name: str) -> Scale:
        """Load the scale of this name."""
        known = study_file("scales")
        titles = known.pop("titles")
        if name not in known:
            raise BadInput(f"unknown scale {name!r}; {nearest(name, known)}")
        table = known[name]
        common = {k: v for k, v in table.items() if k not in _OF_SCALE and k not in titles}
        settings = {key: _setting(title, {**common, **table[key]}) for key, title in titles.items()}
        seeds, headline = table.get("seeds"), table.get("headline_seeds")
        return cls(
            name,
            settings,
            None if seeds is None else tuple(seeds),
            None if headline is None else tuple(headline),
            table.get("dynamics_seeds", DYNAMICS_SEEDS),
        )

    def seeds_of(self, seeds: tuple[int, ...], headline: bool) -> tuple[int, ...]:
        """Return the seeds of an artefact for which the paper has `seeds`.

        >>> Scale.named("smoke").seeds_of((42, 123, 456), headline=True)
        (42,)
        """
        return self.seeds or (self.headline_seeds if headline else None) or seeds


def scale_names() -> list[str]:
    """List the names of all scales.

    >>> scale_names()
    ['paper', 'cpu', 'smoke']
    """
    return [name for name in study_file("scales") if name != "titles"]


def study_file(name: str) -> dict[str, Any]:
    """Read `paper/<name>.toml`, or the file of another study, whose name begins with the folder's.

    >>> study_file("table4")["seeds"]
    [42]
    """
    folder = name.partition("-")[0] if name.startswith(("beyond-", "evidence-")) else "paper"
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
    )
