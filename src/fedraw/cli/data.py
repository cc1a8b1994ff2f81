"""`fedraw data`: list, fetch and check the public datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from fedraw.cli import console
from fedraw.cli.options import Json
from fedraw.data.releases import (
    RELEASES,
    CheckReport,
    LocalCopy,
    Progress,
    Release,
    damage,
    data_root,
    find,
    local_copy,
    size_text,
)
from fedraw.errors import BadInput, MissingExtra

data = typer.Typer(
    name="data",
    help="List, fetch and check the public datasets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

KNOWN = ", ".join(RELEASES)
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME…", help=f"One or more of {KNOWN}.", autocompletion=lambda: list(RELEASES)
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="FEDRAW_DATA",
        help="The data root: the folder with the public datasets.",
    ),
]


@data.command("list")
def list_(root: Root = None, json_: Json = False) -> None:
    """List the datasets that can be fetched.

    The list has their size, licence and origin.
    """
    if root is not None and not root.is_dir():
        console.say(f"the data root {root} does not exist; 'fedraw data fetch' creates it")
    if json_:
        releases = [
            release.as_json() | {"here": _presence(release, root)} for release in RELEASES.values()
        ]
        console.print_json({"data": None if root is None else str(root), "releases": releases})
        return
    console.out.print(_list_table(root))
    for release in RELEASES.values():
        if release.verified_by != "checksum":
            print(f"{release.name} is verified by {release.verified_by}.")
    print("The owners' terms are at each dataset's homepage, which --json lists.")
    if root is None:
        print("No data root is set; give --data DIR or set FEDRAW_DATA.")


@data.command()
def fetch(
    names: Names,
    root: Root = None,
    force: Annotated[bool, typer.Option("--force", help="Download and unpack again.")] = False,
    remove_archive: Annotated[
        bool, typer.Option("--remove-archive", help="Delete the archives after unpacking.")
    ] = False,
) -> None:
    """Download, verify and unpack datasets.

    They come from their owners. After an interruption, repeat the command.
    """
    from fedraw.data.fetch import FetchOptions  # needs the extra 'data', unlike `list`
    from fedraw.data.fetch import fetch as fetch_release

    releases = [find(name) for name in names]
    if root is None:
        raise BadInput("no data root is set; give --data DIR or set FEDRAW_DATA")
    options = FetchOptions(force=force, remove_archive=remove_archive, notify=console.say)
    try:
        with console.task_progress() as progress:
            for release in releases:
                _announce(release)
                new = fetch_release(release, root, _named(release, progress), options)
                console.say(f"{release.name}: {'fetched to' if new else 'already in'} {root}")
    except KeyboardInterrupt:
        console.say("fedraw: interrupted; repeat the command")
        raise SystemExit(130) from None  # typer.Exit(130) would print a second message


@data.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME…]",
            help=f"One or more of {KNOWN}; default: all in the data root.",
            autocompletion=lambda: list(RELEASES),
        ),
    ] = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """Check every file of datasets.

    It counts the images of each label, and reports damaged and missing files.
    """
    wanted = [find(name) for name in names or ()]
    folder = data_root(root)
    with console.task_progress() as progress:
        if wanted:
            checked = [_check(release, folder, progress) for release in wanted]
        else:
            checked = _check_all(folder, progress)
    if json_:
        console.print_json(_as_json(folder, checked))
    else:
        for one in checked:
            _print(one)
    if any(one.damaged for one in checked):
        raise typer.Exit(1)


def _named(release: Release, progress: Progress) -> Progress:
    """Add the dataset's name to each line of progress; a file may be called just gzip.zip."""
    return lambda what, done, total: progress(f"{release.name}: {what}", done, total)


def _announce(release: Release) -> None:
    size = size_text(release.download)
    console.say(f"{release.name}: {release.title}; {size} from {release.origin}; {release.licence}")
    if release.verified_by != "checksum":
        console.say(f"{release.name} is verified by {release.verified_by}")


def _check_all(root: Path, progress: Progress) -> list[CheckReport]:
    found = [_check_if_there(release, root, progress) for release in RELEASES.values()]
    checked = [one for one in found if one is not None]
    if not checked:
        raise BadInput(f"{root} has none of {KNOWN}; get one with 'fedraw data fetch NAME'")
    return checked


def _check_if_there(release: Release, root: Path, progress: Progress) -> CheckReport | None:
    try:
        return _check(release, root, progress)
    except MissingExtra:
        raise
    except BadInput:
        # Readers accept more layouts than the one that fetch creates, so they are tried first.
        if local_copy(release, root) == LocalCopy.absent:
            return None
        raise


def _check(release: Release, root: Path, progress: Progress) -> CheckReport:
    from fedraw.data import catalog  # needs NumPy

    if release.labels:
        return catalog.check(release.name, root, progress)
    return _check_weights(release, root)


def _presence(release: Release, root: Path | None) -> str | None:
    return None if root is None else str(local_copy(release, root))


def _list_table(root: Path | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("name", no_wrap=True)
    for numbers in ("images", "labels", "download"):
        table.add_column(numbers, justify="right", no_wrap=True)
    for words in ("licence", "from", "here"):
        table.add_column(words, overflow="fold")
    for release in RELEASES.values():
        table.add_row(
            release.name,
            f"{release.images:,}" if release.images else "–",
            str(release.labels) if release.labels else "–",
            size_text(release.download),
            release.licence,
            release.origin,
            _presence(release, root) or "–",
        )
    return table


def _check_weights(release: Release, root: Path) -> CheckReport:
    (source,) = release.sources
    folder = root / source.folder
    path = folder / source.file
    others = sorted(file.name for file in folder.glob("*.pth") if file != path)
    notes = [f"{name} is not {source.file} of torchvision and was not verified" for name in others]
    if not path.exists():
        if not others:
            raise BadInput(f"{path} does not exist; get it with 'fedraw data fetch {release.name}'")
        return CheckReport(release.name, {}, tuple(notes), ())
    wrong = damage(source, path)
    if wrong is None:
        notes.insert(0, f"{source.file} has the published {source.checksum}")
    return CheckReport(release.name, {}, tuple(notes), (f"{path} {wrong}",) if wrong else ())


def _print(checked: CheckReport) -> None:
    state = f"{len(checked.damaged):,} damaged or missing" if checked.damaged else "nothing damaged"
    print(f"{checked.name}: {state}")
    if checked.counts:
        console.out.print(_counts_table(checked))
    for note in checked.notes:
        console.write(f"  {note}\n")
    for file in checked.damaged:
        console.write(f"  ! {file}\n")


def _counts_table(checked: CheckReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1), show_edge=False)
    table.add_column("part")
    for numbers in ("images", "labels", "least per label", "most per label"):
        table.add_column(numbers, justify="right")
    for part, counts in checked.counts.items():
        per_label = [n for n in counts.values() if n] or [0]
        table.add_row(
            part,
            f"{sum(per_label):,}",
            str(sum(n > 0 for n in counts.values())),
            f"{min(per_label):,}",
            f"{max(per_label):,}",
        )
    return table


def _as_json(root: Path, checked: list[CheckReport]) -> dict[str, Any]:
    return {
        "data": str(root),
        "whole": not any(one.damaged for one in checked),
        "releases": [
            {
                "name": one.name,
                "whole": not one.damaged,
                "counts": {part: dict(counts) for part, counts in one.counts.items()},
                "notes": list(one.notes),
                "damaged": list(one.damaged),
            }
            for one in checked
        ],
    }
