"""Commands that other packages contribute through the entry-point group `fedraw.commands`.

A contributed command is a function that typer can turn into a command. `fedraw --help` lists it
from the package's metadata, and its module is imported only when the command is called.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import click
import typer
from typer.core import TyperGroup

from fedraw.errors import BadInput

GROUP = "fedraw.commands"


class OptionalCommand(NamedTuple):
    """A command that the documentation names, although its package may be absent."""

    help: str
    remedy: str


OPTIONAL = {
    "reproduce": OptionalCommand(
        "Reproduce the paper and our own studies.",
        "it belongs to the studies: run 'pip install ./studies' in a clone of the repository",
    ),
}


class CommandGroup(TyperGroup):
    """The commands of fedraw, followed by those that other packages contribute."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands; a contributed one cannot replace ours."""
        own = super().list_commands(ctx)
        return list(dict.fromkeys([*own, *OPTIONAL, *sorted(entry_points(group=GROUP).names)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return our own command of this name, or else a contributed or an optional one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if found is None and cmd_name not in OPTIONAL:
            return None
        return _LazyCommand(cmd_name, found)


class _LazyCommand(click.Command):
    """Stands for a contributed command until it is called."""

    def __init__(self, name: str, entry: EntryPoint | None) -> None:
        super().__init__(name, short_help=_short_help(name, entry))
        self._entry = entry

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Import the real command and let it parse its arguments."""
        return self._real().make_context(info_name, args, parent, **extra)

    def _real(self) -> click.Command:
        if self._entry is None:
            raise BadInput(f"'{self.name}' is not installed; {OPTIONAL[self.name or ''].remedy}")
        try:
            function = self._entry.load()
        except (ImportError, AttributeError) as problem:
            raise BadInput(
                f"cannot load '{self.name}' from {self._entry.value}: {problem}; "
                f"install {_distribution(self._entry)} again"
            ) from None
        single = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        single.command(self.name)(function)
        return typer.main.get_command(single)


def _short_help(name: str, entry: EntryPoint | None) -> str:
    if name in OPTIONAL:
        return OPTIONAL[name].help + (" Not installed." if entry is None else "")
    return f"Contributed by {_distribution(entry)}."


def _distribution(entry: EntryPoint | None) -> str:
    return "another package" if entry is None or entry.dist is None else entry.dist.name
