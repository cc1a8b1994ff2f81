"""The commands of fedraw by name; a command's module is imported when the command is called.

Other packages contribute commands through the entry-point group `fedraw.commands`. A command is a
function that typer can turn into a command, or a typer app with subcommands.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
import typer
import typer.core

from fedraw.cli.main import exit_on_ctrl_c
from fedraw.errors import BadInput

GROUP = "fedraw.commands"

# Help is plain text. With rich installed, typer would print "\\[required]" in it.
typer.core.HAS_RICH = False

# The built-in commands, each defined in the module fedraw.cli.<name>, with their help lines.
OWN = {
    "demo": "Show silent rarity failure and its cure on embedded data.",
    "run": "Run an experiment: one folder per seed, then one table.",
    "new": "Write a commented spec to start from.",
    "schema": "Print the JSON Schema of a spec, by which editors check it.",
    "methods": "List the methods and what they need, or show the settings of one.",
    "tune": "Choose settings on tuning seeds: run a grid, write the best point as a new spec.",
    "compare": "Compare runs in one table, with mean ± sd over seeds.",
    "watch": "Watch runs in the terminal while they write their logs.",
    "dashboard": "Follow runs and servers in a browser, with metrics and alerts.",
    "report": "Show runs on one page: a self-contained HTML file that opens offline.",
    "export": "Export runs to CSV, Parquet or TensorBoard.",
    "model": "Export the model of a run or a server, even while it is running.",
    "server": "Maintain the folder of a server: verify, back up, roll back, revoke a site.",
    "audit": "Predict from label counts and speeds which labels a federation will lose.",
    "data": "List, fetch and check the public datasets.",
}
# Documented commands whose package may not be installed: the line in the help, and the remedy.
OPTIONAL = {
    "reproduce": (
        "Reproduce the paper and our own studies.",
        "it is part of the studies: run 'pip install ./studies' in a clone of the repository",
    ),
}


class CommandGroup(typer.core.TyperGroup):
    """The commands of fedraw, followed by those that other packages contribute."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands; a contributed one cannot replace a built-in one."""
        contributed = sorted(entry_points(group=GROUP).names)
        return list(dict.fromkeys([*OWN, *OPTIONAL, *contributed]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the built-in command of this name, or else a contributed or an optional one."""
        if cmd_name in OWN:
            return _LazyCommand(cmd_name, OWN[cmd_name])
        entry = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if cmd_name in OPTIONAL:
            absent = " Not installed." if entry is None else ""
            return _LazyCommand(cmd_name, OPTIONAL[cmd_name][0] + absent, entry)
        if entry is None:
            return None
        return _LazyCommand(cmd_name, f"Contributed by {_distribution(entry)}.", entry)


class _LazyCommand(click.Command):
    """A placeholder for a command, which imports it when it is called."""

    def __init__(self, name: str, short_help: str, entry: EntryPoint | None = None) -> None:
        super().__init__(name, short_help=short_help)
        self._entry = entry

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Import the real command and let it parse its arguments."""
        try:
            with exit_on_ctrl_c():
                defined = self._load(self.name or "")
        except BadInput:
            if extra.get("resilient_parsing"):  # the shell needs completions, not messages
                return super().make_context(info_name, args, parent, **extra)
            raise
        command = _as_command(self.name or "", defined)
        return command.make_context(info_name, args, parent, **extra)

    def _load(self, name: str) -> Any:
        if name in OWN:
            return getattr(import_module(f"fedraw.cli.{name}"), name)
        if self._entry is None:
            raise BadInput(f"'{name}' is not installed; {OPTIONAL[name][1]}")
        try:
            return self._entry.load()
        except (ImportError, AttributeError) as problem:
            raise BadInput(
                f"cannot load '{name}' from {self._entry.value}: {problem}; "
                f"install {_distribution(self._entry)} again"
            ) from None


def _as_command(name: str, defined: Any) -> click.Command:
    if isinstance(defined, typer.Typer):
        command = typer.main.get_command(defined)
        for own in command.commands.values() if isinstance(command, click.Group) else ():
            # Otherwise click would cut the line of a subcommand to the width of the terminal.
            own.short_help = " ".join((own.help or "").split("\n\n")[0].split())
        return command
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    single.command(name)(defined)
    return typer.main.get_command(single)


def _distribution(entry: EntryPoint) -> str:
    return "another package" if entry.dist is None else entry.dist.name
