"""The site and the pages of the repository: links lead somewhere, nothing public is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import fedraw
from fedraw.strategies.catalog import CATALOG

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"_build", "repository", "api", "methods"}
PAGES = [
    *ROOT.glob("*.md"),
    *[page for page in DOCS.rglob("*.md") if not GENERATED & set(page.parts)],
    *[ROOT / name / "README.md" for name in ("benchmarks", "studies", "stress")],
]
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def targets(page: Path, text: str) -> dict[str, Path]:
    links = [link for link in LINK.findall(text) if "://" not in link]
    return {link: (page.parent / link).resolve() for link in links}


def is_dead(path: Path) -> bool:
    """Whether the path is missing in a clone, where `make docs` has not been run."""
    generated = path.parent in (DOCS / "reference" / "api", DOCS / "reference" / "methods")
    return not path.exists() or (generated and path.name != "index.md")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("sphinx", reason="the site is built with the extra 'docs'")
    spec = importlib.util.spec_from_file_location("reference", DOCS / "_ext" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    found = targets(page, page.read_text(encoding="utf-8"))
    assert {link for link, path in found.items() if is_dead(path)} == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_tutorial_lead_somewhere(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = targets(path, text)
    assert found
    assert {link for link, to in found.items() if is_dead(to)} == set()


def test_every_public_name_has_exactly_one_topic(reference: ModuleType) -> None:
    listed = [name for names in reference.topic_names().values() for name in names]
    assert sorted(listed) == sorted(fedraw.__all__)


def test_every_method_has_a_page_with_rule_memory_settings_and_citation(
    reference: ModuleType,
) -> None:
    pages = dict(reference.method_pages())
    for method in CATALOG.values():
        page = pages[f"methods/{method.base.name}.md"]
        assert f"`{method.name}`" in page
        assert [
            part
            for part in (
                "## Rule",
                "## What it needs",
                "Server memory",
                f"The rule is from {method.base.source}",
                "## Settings",
                "## Reference",
            )
            if part not in page
        ] == []


def test_the_pages_of_commands_and_specs_are_whole(reference: ModuleType) -> None:
    from fedraw.cli.commands import OPTIONAL, OWN

    page = reference.command_page()
    assert [name for name in [*OWN, *OPTIONAL] if f"## `fedraw {name}`" not in page] == []
    assert "--resume" in page
    spec = reference.spec_page()
    assert [key for key in ("rare_labels", "buffer", "evaluate_every") if key not in spec] == []


def test_tutorials_were_executed_without_an_error() -> None:
    assert len(NOTEBOOKS) >= 5
    for path in NOTEBOOKS:
        cells = [own for own in nbformat.read(path, as_version=4).cells if own.cell_type == "code"]
        counts = [cell.execution_count for cell in cells]
        assert counts == list(range(1, len(cells) + 1)), f"{path.name}: run 'make notebooks'"
        outputs = [output for cell in cells for output in cell.outputs]
        assert outputs
        assert not [output for output in outputs if output.output_type == "error"]
        assert path.stat().st_size < 100_000


def test_research_notes_have_the_tables_of_the_results() -> None:
    render = pytest.importorskip("fedraw_studies.render", reason="the studies are not installed")
    pages = [
        page for page in (DOCS / "research").glob("*.md") if "<!-- include" in page.read_text()
    ]
    assert {"dynamics.md", "reproduction.md"} <= {page.name for page in pages}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for scale in ("cpu", "level", "ham10000"):
            assert render.fill_includes(text, scale, ROOT / "studies" / "results" / scale) == text


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [fedraw.__version__]
