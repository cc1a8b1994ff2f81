"""fedraw data: the public data sets, where they come from and whether they are whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from fedraw.cli import console
from fedraw.data.progress import Progress
from fedraw.data.releases import BY_NAME, Here, Release, damage, find, here, size_text
from fedraw.data.root import data_root
from fedraw.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from fedraw.data.check import Checked

data = typer.Typer(
    name="data",
    help="Public data sets: list, fetch, check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

KNOWN = ", ".join(BY_NAME)
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help=f"Of these: {KNOWN}.")]
Root = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="FEDRAW_DATA", help="The data root."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@data.command("list")
def list_(root: Root = None, json_: Json = False) -> None:
    """List the data sets that can be fetched, with size, licence and origin."""
    if root is not None and not root.is_dir():
        console.say(f"the data root {root} is not a folder yet; 'fedraw data fetch' makes it")
    if json_:
        releases = [
            release.as_json() | {"here": _here(release, root)} for release in BY_NAME.values()
        ]
        console.print_json({"data": None if root is None else str(root), "releases": releases})
        return
    console.out.print(_list_table(root))
    for release in BY_NAME.values():
        if release.verified_by != "checksum":
            print(f"{release.name} is verified by {release.verified_by}.")
    print("Each licence is its owners'; their terms are at the homepage that --json names.")
    if root is None:
        print("No data root is known: --data DIR or FEDRAW_DATA.")


@data.command()
def fetch(
    names: Names,
    root: Root = None,
    force: Annotated[bool, typer.Option("--force", help="Download and unpack again.")] = False,
    remove_archive: Annotated[
        bool, typer.Option("--remove-archive", help="Delete the archives once unpacked.")
    ] = False,
) -> None:
    """Download data sets from their owners, verify and unpack them; goes on where it broke off."""
    from fedraw.data.fetch import How  # needs the extra 'data', which list does not
    from fedraw.data.fetch import fetch as fetch_release

    releases = [find(name) for name in names]
    if root is None:
        raise BadInput("no data root is known; give --data DIR or set FEDRAW_DATA")
    how = How(force=force, remove_archive=remove_archive, say=console.say)
    try:
        with console.task_progress() as progress:
            for release in releases:
                _announce(release)
                new = fetch_release(release, root, progress, how)
                console.say(f"{release.name}: {'fetched to' if new else 'already in'} {root}")
    except KeyboardInterrupt:
        console.say("fedraw: interrupted; the same command goes on from here")
        raise typer.Exit(130) from None


@data.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME…]", help=f"Of these: {KNOWN}; by default all that are there."
        ),
    ] = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """Read every file of data sets: how many images each label has, and what is damaged."""
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


def _announce(release: Release) -> None:
    size = size_text(release.download)
    console.say(f"{release.name}: {release.title}; {size} from {release.origin}; {release.licence}")
    if release.verified_by != "checksum":
        console.say(f"{release.name} is verified by {release.verified_by}")


def _check_all(root: Path, progress: Progress) -> list[Checked]:
    found = [_check_if_there(release, root, progress) for release in BY_NAME.values()]
    checked = [one for one in found if one is not None]
    if not checked:
        raise BadInput(f"{root} holds none of {KNOWN}; 'fedraw data fetch NAME' brings them")
    return checked


def _check_if_there(release: Release, root: Path, progress: Progress) -> Checked | None:
    try:
        return _check(release, root, progress)
    except MissingExtra:
        raise
    except BadInput:
        # Readers know more layouts than the one that fetch makes, so they are asked as well.
        if here(release, root) == Here.absent:
            return None
        raise


def _check(release: Release, root: Path, progress: Progress) -> Checked:
    from fedraw.data import check  # needs the extra 'data'

    if release.labels:
        return check.check(release.name, root, progress)
    return _check_weights(release, root)


def _here(release: Release, root: Path | None) -> str | None:
    return None if root is None else str(here(release, root))


def _list_table(root: Path | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("name", no_wrap=True)
    for numbers in ("images", "labels", "download"):
        table.add_column(numbers, justify="right", no_wrap=True)
    for words in ("licence", "from", "here"):
        table.add_column(words, overflow="fold")
    for release in BY_NAME.values():
        table.add_row(
            release.name,
            f"{release.images:,}" if release.images else "–",
            str(release.labels) if release.labels else "–",
            size_text(release.download),
            release.licence,
            release.origin,
            _here(release, root) or "–",
        )
    return table


def _check_weights(release: Release, root: Path) -> Checked:
    from fedraw.data.check import Checked

    (source,) = release.sources
    folder = root / source.folder
    path = folder / source.file
    others = sorted(file.name for file in folder.glob("*.pth") if file != path)
    notes = [f"{name} is not {source.file} of torchvision, so not verified" for name in others]
    if not path.exists():
        if not others:
            raise BadInput(f"{path} does not exist; 'fedraw data fetch {release.name}' brings it")
        return Checked(release.name, {}, tuple(notes), ())
    wrong = damage(source, path)
    if wrong is None:
        notes.insert(0, f"{source.file} has the published {source.checksum}")
    return Checked(release.name, {}, tuple(notes), (f"{path} {wrong}",) if wrong else ())


def _print(checked: Checked) -> None:
    state = f"{len(checked.damaged):,} damaged or missing" if checked.damaged else "nothing damaged"
    print(f"{checked.name}: {state}")
    if checked.counts:
        console.out.print(_counts_table(checked))
    for note in checked.notes:
        console.write(f"  {note}\n")
    for file in checked.damaged:
        console.write(f"  ! {file}\n")


def _counts_table(checked: Checked) -> Table:
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


def _as_json(root: Path, checked: list[Checked]) -> dict[str, Any]:
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
