"""Commands are imported when they are called; those of other packages too, if installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import fedraw

ROOT = Path(fedraw.__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "studies/pyproject.toml").read_text(encoding="utf-8"))["project"]
TWO_LINES = 2


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is installed here but the studies, as links in one folder."""
    folder = tmp_path_factory.mktemp("site-packages")
    for site in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for path in site.iterdir():
            if "fedraw_studies" not in path.name:
                (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """What pip writes for the studies: the metadata with their entry points."""
    folder = tmp_path / f"fedraw_studies-{DECLARED['version']}.dist-info"
    folder.mkdir()
    names = f"Name: {DECLARED['name']}\nVersion: {DECLARED['version']}\n"
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\n{names}")
    commands = DECLARED["entry-points"]["fedraw.commands"].items()
    lines = [f"{name} = {target}\n" for name, target in commands]
    (folder / "entry_points.txt").write_text("[fedraw.commands]\n" + "".join(lines))
    return tmp_path


def run(code: str, *paths: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing on its path but the standard library and these."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT / "src")))}
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=cwd
    )


def fedraw_with(
    *paths: Path, cwd: Path, words: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.argv = {['fedraw', *words]!r}; import fedraw.cli.main as m; m.main()"
    return run(code, *paths, cwd=cwd)


def test_a_command_that_is_not_installed_says_how_to_get_it(
    installed: Path, tmp_path: Path
) -> None:
    for words in (("reproduce",), ("reproduce", "fig2", "--scale", "smoke")):
        done = fedraw_with(installed, cwd=tmp_path, words=words)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "not installed" in done.stderr
        assert "pip install ./studies" in done.stderr
        assert len(done.stderr.splitlines()) <= TWO_LINES
    listed = fedraw_with(installed, cwd=tmp_path, words=("--help",))
    assert "reproduce  Reproduce the paper and our own studies. Not installed." in listed.stdout


def test_an_installed_command_runs(installed: Path, studies: Path) -> None:
    paths = (studies, ROOT / "studies/src", installed)
    done = fedraw_with(*paths, cwd=studies, words=("reproduce", "fig2", "--scale", "smoke"))
    assert done.returncode == 0, done.stderr
    assert "a buffer of five with one rare client" in done.stdout
    assert (studies / "results/smoke/paper.md").exists()


def test_a_command_is_listed_without_being_imported(installed: Path, studies: Path) -> None:
    code = """
import sys
from typer.testing import CliRunner
from fedraw.cli.app import app
print(CliRunner().invoke(app, ["--help"]).output)
print("imported:", "fedraw_studies" in sys.modules)
"""
    done = run(code, studies, ROOT / "studies/src", installed, cwd=studies)
    assert "reproduce  Reproduce the paper and our own studies.\n" in done.stdout
    assert "imported: False" in done.stdout


def test_a_command_that_cannot_be_loaded_is_named(installed: Path, studies: Path) -> None:
    """As after an update that left the metadata behind."""
    done = fedraw_with(studies, installed, cwd=studies, words=("reproduce",))
    assert done.returncode == 2
    assert "cannot load 'reproduce'" in done.stderr
    assert "install fedraw-studies again" in done.stderr


HEAVY = ("torch", "ray", "flwr", "matplotlib", "sklearn")


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (("--help",), (*HEAVY, "numpy")),
        (("run", "-h"), HEAVY),
        (("audit", "labels.csv"), HEAVY),
    ],
)
def test_heavy_libraries_are_imported_only_when_they_are_needed(
    words: tuple[str, ...], unwanted: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "labels.csv").write_text("client,label,count\na,x,3\nb,x,2\nb,y,1\nc,x,4\n")
    code = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", sorted(set(sys.modules) & set({unwanted!r}))))
sys.argv = {["fedraw", *words]!r}
import fedraw.cli.main as m
m.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded: []\n")


def test_every_command_can_be_loaded() -> None:
    import typer

    from fedraw.cli.app import app
    from fedraw.cli.commands import OWN

    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in OWN:
        command = group.get_command(context, name)
        assert command is not None
        with pytest.raises(click.exceptions.Exit):
            command.make_context(name, ["--help"], context)
