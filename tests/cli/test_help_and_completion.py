"""Help at any width, short options everywhere, and completion in a real shell."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from fedraw.cli.app import app
from fedraw.cli.commands import OWN
from fedraw.cli.main import __file__ as main_file

SOURCES = Path(main_file).parents[2]


def all_commands() -> Iterator[tuple[list[str], click.Context]]:
    """Every command and subcommand that can be loaded here, with a context that has its options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    root = group.make_context("fedraw", [], resilient_parsing=True)
    yield [], root
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        assert command is not None
        context = command.make_context(name, [], root, resilient_parsing=True)
        yield [name], context
        for inner, own in getattr(context.command, "commands", {}).items():
            yield [name, inner], own.make_context(inner, [], context, resilient_parsing=True)


COMMANDS = list(all_commands())


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=" ".join)
@pytest.mark.parametrize("columns", [40, 100])
def test_help_is_whole_and_plain(words: list[str], columns: int) -> None:
    for option in ("-h", "--help"):
        done = CliRunner().invoke(app, [*words, option], env={"COLUMNS": str(columns)})
        assert done.exit_code == 0, done.output
        assert "\\" not in done.output
        # Click marks what it has cut, and what may be repeated, in the same way.
        cut = [line for line in done.output.splitlines() if "..." in line and "ARGS" not in line]
        assert not cut


def test_out_and_jobs_have_a_short_form_wherever_they_exist() -> None:
    found = []
    for words, context in COMMANDS:
        for option in context.command.params:
            for long, short in (("--out", "-o"), ("--jobs", "-j")):
                if long in option.opts:
                    found.append((*words, short))
                    assert short in option.opts, words
    assert {("run", "-o"), ("run", "-j"), ("demo", "-o"), ("audit", "-o")} <= set(found)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose shell finds `fedraw`."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/fedraw"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedraw "$@"\n')
    script.chmod(0o755)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    own = {"HOME": str(home), "PATH": path, "PYTHONPATH": paths, "TERM": "dumb", "PS1": "$ "}
    return {**os.environ, **own}


def typed_into_bash(home: Path, lines: dict[str, str]) -> str:
    """Type each text into an interactive bash until it shows what is wanted."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe("bash", ["bash", "--noprofile", "-i"], environment(home))
    shown, give_up = "", time.monotonic() + 60
    try:
        for typed, wanted in lines.items():
            os.write(terminal, typed.encode())
            while wanted not in shown and time.monotonic() < give_up:
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 4096).decode(errors="replace")
            os.write(terminal, b"\x15")  # Ctrl-U clears the line
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
    return shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_is_installed_and_works_in_bash(home: Path) -> None:
    # A second command keeps bash alive, so that it is found as the shell that runs fedraw.
    done = subprocess.run(
        ["bash", "-c", "fedraw --install-completion; exit $?"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bash completion installed" in done.stdout
    assert "fedraw.sh" in (home / ".bashrc").read_text()
    lines = {
        "fedraw com\t": "fedraw compare ",
        "fedraw data fetch ham\t": "fetch ham10000 ",
        "fedraw run --executor pro\t": "--executor processes ",
    }
    shown = typed_into_bash(home, lines)
    assert [wanted for wanted in lines.values() if wanted not in shown] == []


def test_the_script_can_be_shown_instead(home: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", "fedraw --show-completion; exit $?"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "complete -o default -F _fedraw_completion fedraw" in done.stdout
    assert not (home / ".bashrc").exists()


def test_all_own_commands_are_offered(home: Path) -> None:
    words = {"COMP_WORDS": "fedraw ", "COMP_CWORD": "1", "_FEDRAW_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [home / "bin/fedraw"],
        env={**environment(home), **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(OWN) <= set(done.stdout.split())
    assert done.stderr == ""
