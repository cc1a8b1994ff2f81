"""The studies build on the library: they train and draw through it, and ask nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_layers import ONLY_IN, imports

import fedraw_studies

FILES = sorted(Path(fedraw_studies.__file__).parent.rglob("*.py"))
# Packages that the library confines to one layer, and the modules here that may import them.
ALLOWED = {
    "typer": {"cli"},
    "rich": {"progress"},
    "matplotlib": {"figures", "arena_figures", "late_render"},
}
TERMINAL = {"cli", "progress"}
# A module imports only from those before it.
ORDER = (
    "staleness", "aggregations", "bound", "dense", "measured_bound",
    "artefacts", "arena_design", "late", "one_pass", "plan", "cells", "execute", "outcomes",
    "dynamics", "federations", "rules", "markdown",
    "claims", "comparisons", "render", "overview", "arena_results", "arena_figures", "arena_page",
    "arena_render", "positioning", "bound_report", "figures",
    "late_standings", "late_results", "late_render", "one_pass_render", "progress", "cli",
)  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_these_modules_reach_around_the_library(file: Path) -> None:
    for module in imports(file):
        top = module.split(".")[0]
        if top in ONLY_IN:
            assert file.stem in ALLOWED.get(top, ()), f"{file.stem} imports {module}"
        if module.startswith("fedraw.cli"):
            assert file.stem in TERMINAL, f"{file.stem} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_modules_import_only_what_comes_before_them(file: Path) -> None:
    assert file.stem in (*ORDER, "__init__")
    own = ORDER.index(file.stem) if file.stem in ORDER else 0
    for module in imports(file):
        top, _, name = module.partition(".")
        if top == "fedraw_studies" and name:
            assert ORDER.index(name.split(".")[-1]) < own, f"{file.stem} imports {module}"
