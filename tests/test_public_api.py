from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import fedraw

ROOT = Path(__file__).parent.parent


def test_what_is_exported_is_what_is_visible() -> None:
    assert fedraw.__all__ == sorted(fedraw.__all__, key=lambda name: (not name.isupper(), name))
    modules = {path.stem for path in Path(fedraw.__file__).parent.iterdir()}
    ours = {"import_module", "TYPE_CHECKING", "Any"}
    visible = {name for name in dir(fedraw) if not name.startswith("_")} - modules - ours
    assert visible == set(fedraw.__all__)


def test_every_name_leads_to_what_it_says() -> None:
    for name in fedraw.__all__:
        assert getattr(fedraw, name).__name__ == name
    assert not hasattr(fedraw, "nothing")


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, fedraw; print('numpy' in sys.modules, fedraw.LabelTable.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False LabelTable\n"


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == Path(fedraw.__file__)


def test_messages_of_the_library_name_keywords_and_not_options() -> None:
    """The command translates keywords; Python would not know what to make of an option."""
    folders = ("core", "data", "experiment", "export", "learning", "privacy", "simulation")
    files = [p for name in folders for p in (ROOT / "src/fedraw" / name).rglob("*.py")]
    named = []
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for raised in (node for node in ast.walk(tree) if isinstance(node, ast.Raise)):
            texts = [n.value for n in ast.walk(raised) if isinstance(n, ast.Constant)]
            named += [(file.name, t) for t in texts if re.search(r"\s--[a-z]", str(t))]
    assert named == []
