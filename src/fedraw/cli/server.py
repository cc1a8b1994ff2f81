"""`fedraw server`: maintain the folder of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedraw.cli import console
from fedraw.cli.options import Json
from fedraw.core.text import counted, several
from fedraw.server.forgetting import forget as forget_site
from fedraw.server.joining import join as join_files
from fedraw.server.revocation import revoke as revoke_site
from fedraw.server.rollback import backup as back_up
from fedraw.server.rollback import restore_points
from fedraw.server.rollback import rollback as roll_back
from fedraw.server.verification import verify_folder

# Maximum number of printed problems per check.
MOST_PROBLEMS = 20

server = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Maintain the folder of a server: verify, back up, roll back, revoke or forget a site.",
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a server.")]


@server.command("verify")
def verify(
    folder: Folder,
    as_json: Json = False,
) -> None:
    """Verify every checksum of a folder whose server is not running, and replay its log."""
    checks = verify_folder(folder)
    if as_json:
        console.print_json({"folder": str(folder), "checks": [vars(check) for check in checks]})
    for check in () if as_json else checks:
        found = f"{len(check.problems)} wrong" if check.problems else "good"
        remark = f" ({check.remark})" if check.remark else ""
        console.write(f"{check.name:20} {check.count:>9,}  {found}{remark}\n")
        for problem in check.problems[:MOST_PROBLEMS]:
            console.write(f"  {problem}\n")
    if any(check.problems for check in checks):
        raise typer.Exit(1)


@server.command("backup")
def backup(
    folder: Folder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to create.")],
) -> None:
    """Copy a federation in its current state; its server may be running."""
    console.say(f"{out} has {back_up(folder, out)}")


@server.command("rollback")
def rollback(
    folder: Folder,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="VERSION|TIME",
            help="A version of the model, or a time such as 2026-11-17T08:30 (UTC).",
        ),
    ] = None,
) -> None:
    """Roll a federation back to an earlier state; without --to, list the available states.

    The server must not be running. A copy of the previous folder stays next to it.
    """
    if to is None:
        for point in restore_points(folder):
            console.write(f"{point}\n")
        return
    point, copy = roll_back(folder, to)
    console.say(f"{folder} is at {point}; the previous folder is {copy}")


@server.command("revoke")
def revoke(
    site: Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")],
    folder: Folder,
    undo: Annotated[bool, typer.Option("--undo", help="Admit the site again.")] = False,
) -> None:
    """Exclude a site from a federation from now on; its server may be running."""
    revoked = revoke_site(folder, site, undo=undo)
    console.say(f"revoked in {folder}: {several(revoked.sites) if revoked.sites else 'no site'}")


@server.command("forget")
def forget(
    site: Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")],
    folder: Folder,
) -> None:
    """Remove everything that a site has sent from a federation of sums, such as one pass.

    The server must not be running. The model is then, byte for byte, that of a federation that
    never heard the site. To keep the site from sending again, revoke it first.
    """
    done = forget_site(folder, site)
    console.say(f"forgotten in {folder}: {site}; the model has version {done.version}")
    for line in done.remains:
        console.say(f"remains: {line}")


@server.command("join")
def join(folder: Folder) -> None:
    """Join a log that fedraw 0.2 wrote in several files; the server must not be running."""
    console.say(
        f"{folder}: {counted(join_files(folder), 'file')} of the log joined in events.jsonl"
    )
