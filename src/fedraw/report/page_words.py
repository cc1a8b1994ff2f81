"""What the page says in words: its lead, the facts that all runs share, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedraw.core.text import one_line
from fedraw.eventlog.compare import Group, Run
from fedraw.report.cells import seeds_of, stat_of
from fedraw.report.material import Material, interruption
from fedraw.report.page_tables import rare_labels
from fedraw.report.words import duration

# Percent of AvgRare below which the rare labels count as lost.
LOST = 50.0
# Sites that a sentence names.
_NAMED = 8
_VERBS = {
    "joined": "joined later",
    "left": "left",
    "returned": "came back",
    "declared": "declared new label counts",
}


def lead_of(groups: Sequence[Group]) -> str:
    """Who keeps the rare labels, and who loses them unnoticed; empty if nothing tells.

    A group with a collapsed model is never the best: a model that always answers one rare label
    recognises all of it.
    """
    known = {}
    for group in groups:
        pair = [stat_of(group.row.metrics, metric).mean for metric in ("GlobalAcc", "AvgRare")]
        if pair[0] is not None and pair[1] is not None:
            known[group.name] = pair[0], pair[1]
    if not known:
        return ""
    sound = [group.name for group in groups if group.name in known and not group.row.collapsed]
    if not sound:
        return "Every method has collapsed: no model is better than one that guesses."
    best = max(sound, key=lambda name: known[name][1])
    overall, rare = known[best]
    if len(known) == 1:
        return f"{best} reaches {overall:.1f} % on all labels and {rare:.1f} % on the rare ones."
    words = (
        f"Of {len(known)} methods, {best} recognises most of the rare labels: {rare:.1f} %,"
        f" at {overall:.1f} % on all labels."
    )
    lost = [pair for pair in known.values() if pair[1] < LOST]
    if not lost:
        return words
    reach = _span([overall for overall, _ in lost])
    return (
        f"{words} {len(lost)} {'recognises' if len(lost) == 1 else 'recognise'} less than half of"
        f" them, while reaching {reach} % on all labels."
    )


def facts_of(groups: Sequence[Group]) -> str:
    """What all runs have in common, as far as they do."""
    specs = [group.spec for group in groups]
    runs = [run for group in groups for run in group.runs]
    rare = rare_labels(groups)
    methods = "1 method" if len(groups) == 1 else f"{len(groups)} methods"
    parts = [
        *_shared([spec.get("data", {}).get("name") for spec in specs], "{}"),
        *_shared([_clients(run) for run in runs], "{} clients"),
        *_shared([_events(run) for run in runs], "{} events"),
        methods,
        seeds_of([group.row for group in groups]),
        f"rare: {', '.join(rare)}" if rare else "no rare labels",
    ]
    return " · ".join(parts)


def cautions_of(material: Material) -> list[str]:
    """What a reader must know before comparing."""
    cautions = [
        f"{_named(name, run)}: {where}. Its numbers are those of its last evaluation, not of a"
        " finished run."
        for name, run in material.runs
        if (where := interruption(run))
    ]
    if len({_rare(run) for _, run in material.runs}) > 1:
        cautions.append(
            "The runs do not all call the same labels rare, so AvgRare and its like differ in"
            " meaning: see the specs."
        )
    return cautions + [
        f"{_named(name, run)}: the updates of {_doubts(run.content['doubted'])} contradict what"
        " these clients claim."
        for name, run in material.runs
        if run.content.get("doubted")
    ]


def _doubts(doubted: Mapping[str, Sequence[str]]) -> str:
    """Who is doubted, and about what.

    >>> _doubts({"29": ["9"], "3": ["1", "2"]})
    'client 29 (label 9) and client 3 (labels 1, 2)'
    """
    named = [
        f"client {one_line(client)} (label{'s' * (len(labels) > 1)} "
        f"{', '.join(map(one_line, labels))})"
        for client, labels in doubted.items()
    ]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def inferred_of(material: Material) -> list[str]:
    """Of each run without label counts: what its updates told."""
    return [
        f"{_named(name, run)}, read off the updates: {_holders(run.content['inferred'])}."
        for name, run in material.runs
        if run.content.get("inferred")
    ]


def _holders(inferred: Mapping[str, Any]) -> str:
    """Who holds what, where few do.

    >>> _holders({"coverage": {"0": 19.6, "1": 21, "9": 2}, "holders": {"9": [16, 23]}})
    'label 9 is held by clients 16, 23; each of the other 2 by 20 to 21 clients'
    """
    few = inferred["holders"]
    said = [
        f"label {one_line(label)} is held by client{'s' * (len(clients) > 1)} "
        + ", ".join(one_line(str(client)) for client in clients)
        for label, clients in few.items()
    ]
    rest = [own for label, own in inferred["coverage"].items() if label not in few]
    if rest:
        low, high = round(min(rest)), round(max(rest))
        span = str(low) if low == high else f"{low} to {high}"
        said.append(f"each of the other {len(rest)} by {span} clients")
    return "; ".join(said)


def changes_of(material: Material) -> list[str]:
    """Of each federation in which sites came and went, or the server did."""
    return [
        f"{_named(name, run)}: {'; '.join(_changes(run.content['changes']))}."
        for name, run in material.runs
        if run.content.get("changes")
    ]


def _changes(changes: Mapping[str, Any]) -> Iterator[str]:
    """What happened, and to whom.

    >>> changes = {"joined": {"north": 1}, "left": {"east": 2, "west": 1}}
    >>> print("; ".join(_changes({**changes, "restarts": 1, "down": 5.0})))
    north joined later; east (2 times) and west left; the server was restarted once, after 5 s
    """
    for key, verb in _VERBS.items():
        if changes.get(key):
            yield f"{_sites(changes[key])} {verb}"
    restarts, down = changes["restarts"], duration(changes["down"])
    if restarts == 1:
        yield f"the server was restarted once, after {down}"
    elif restarts:
        yield f"the server was restarted {restarts} times, and was down for {down} in all"


def _sites(times: Mapping[str, int]) -> str:
    names = [one_line(site) + (f" ({n} times)" if n > 1 else "") for site, n in times.items()]
    if len(names) > _NAMED:
        names = [*names[:_NAMED], f"{len(names) - _NAMED} more"]
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _named(name: str, run: Run) -> str:
    seed = run.start.seed
    return name if seed is None else f"{name}, seed {seed}"


def _clients(run: Run) -> int | None:
    """As the spec has it; of a real federation, everyone who ever took part."""
    told: int | None = run.content["spec"].get("partition", {}).get("clients")
    return len(run.content["influence"]) if run.start.is_server else told


def _events(run: Run) -> int | None:
    told: int | None = run.content["spec"].get("run", {}).get("events")
    happened: int = run.content["events"]
    return happened if run.start.is_server else told


def _rare(run: Run) -> tuple[str, ...]:
    return tuple(sorted(run.start.rare_labels))


def _span(values: Sequence[float]) -> str:
    few, many = f"{min(values):.1f}", f"{max(values):.1f}"
    return few if few == many else f"{few} to {many}"


def _shared(values: Sequence[Any], form: str) -> list[str]:
    same = values[0] is not None and all(value == values[0] for value in values)
    return [form.format(values[0])] if same else []
