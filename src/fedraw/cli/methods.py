"""`fedraw methods`: list the methods with what they need and where they come from, or show one."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fedraw.cli import console
from fedraw.cli.options import Json
from fedraw.strategies.catalog import CATALOG, SENT, Method, find_method


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Show the settings and the publication of this method.",
            autocompletion=lambda: list(CATALOG),
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """List the methods and what they need, or show the settings of one.

    Server memory counts models, with K buffer slots and N clients. Clients send models, differences
    to the model that they started from, or sums of features. The rule of a method was taken from
    its paper, from code that its authors or others published, or is ours.
    """
    if name is not None:
        method = find_method(name, "NAME")
        if json_:
            console.print_json(_facts(method))
        else:
            _print_method(method)
    elif json_:
        console.print_json({"methods": [_facts(method) for method in CATALOG.values()]})
    else:
        console.out.print(_list())
        console.say("fedraw methods NAME shows the settings of a method")


def _list() -> Table:
    table = Table("name", "what it does and needs", box=box.SIMPLE_HEAD, pad_edge=False)
    for method in CATALOG.values():
        facts = f"{_needs(method)}\n{_origin(method)}"
        table.add_row(method.name, Text(f"{method.summary}\n").append(facts, "dim"))
    return table


def _needs(method: Method) -> str:
    needs = method.make().needs
    sent = SENT[needs.sends] + (" and their training loss" if needs.loss else "")
    uses = needs.label_evidence is not None or needs.payload is not None
    labels = "it uses labels" if uses else "it uses no labels"
    return f"server: {method.memory_text}; clients send {sent}; {labels}"


def _origin(method: Method) -> str:
    """Say where the rule comes from, and which other method it is related to."""
    relation = f"; {method.relation}" if method.relation else ""
    return f"rule from {method.source}{relation}"


def _print_method(method: Method) -> None:
    console.out.print(Text(f"{method.title}: {method.name}", "bold"))
    console.out.print(Text(f"This method {method.summary}."))
    for facts in (_needs(method), _origin(method)):
        console.out.print(Text(f"{facts[0].upper()}{facts[1:]}."))
    table = Table("setting", "default", "values and meaning", box=box.SIMPLE_HEAD, pad_edge=False)
    types, meanings = method.setting_types, method.setting_meanings
    for key, default in method.shown_settings.items():
        fixed = " (fixed)" if key in method.preset else ""
        values = Text(f"{types[key]}\n").append(meanings[key], "dim")
        table.add_row(f"strategy.{key}", Text(default + fixed), values)
    if types:
        console.out.print(table)
    else:
        console.out.print("It has no settings.")
    console.out.print(Text(f"Reference: {method.reference}"))


def _facts(method: Method) -> dict[str, Any]:
    needs = method.make().needs
    settings = method.spec_settings
    return {
        "name": method.name,
        "title": method.title,
        "summary": method.summary,
        "reference": method.reference,
        "source": method.source,
        "relation": method.relation,
        "server_models": None
        if method.memory is None
        else dict(zip(("always", "per_slot", "per_client"), method.memory, strict=True)),
        "clients_send": needs.sends,
        "training_loss": needs.loss,
        "labels": needs.label_evidence is not None or needs.payload is not None,
        "merit": method.merit,
        "settings": {k: None if v is MISSING else v for k, v in settings.items()},
        "types": method.setting_types,
        "meanings": method.setting_meanings,
        "fixed": list(method.preset),
    }
