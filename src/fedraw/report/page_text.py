"""The sentences of the page: its lead, common facts, cautions, and the meaning of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedraw.core.text import counted, duration, one_line
from fedraw.eventlog.compare import Group, SeedRun
from fedraw.report.formatting import span
from fedraw.report.report_data import ReportData, interruption, rare_labels
from fedraw.report.tables import seeds_of, stat_of

# The rare labels count as lost if AvgRare is below this, in percent.
LOST = 50.0
# The largest number of sites that a sentence names.
MOST_NAMED = 8
MEANING = {
    "GlobalAcc": "Accuracy of the global model on the whole test set.",
    "AvgRare": "Recall of the rare labels, averaged over them.",
    "MacroF1": "F1 score averaged over all labels, each counting the same.",
    "RareF1": "F1 score averaged over the rare labels.",
    "RareF2": "F2 score averaged over the rare labels: recall counts more than precision.",
    "Worst10": "Mean accuracy of the worst-served tenth of the clients, each on its own test data.",
    "LocalRare": "Mean accuracy of the clients that hold a rare label.",
    "LocalCommon": "Mean accuracy of the clients that hold none.",
    "MeanClient": "Mean accuracy over all clients.",
    "Jain": "Jain's fairness index of the clients' accuracies: 1 if all are equal.",
    "BufPres": "Buffer presence: share of aggregations with a rare client in the buffer.",
    "RarePart": "Share of all arrivals that come from rare clients.",
    "RareMeanStale": "Mean staleness of a rare client's update, in events.",
    "RareMaxStale": "Largest staleness of a rare client's update, in events.",
}
_VERBS = {
    "joined": "joined later",
    "left": "left",
    "returned": "came back",
    "declared": "declared new label counts",
}


def lead_of(groups: Sequence[Group]) -> str:
    """Return which method keeps the rare labels, and how many lose them; empty without evaluations.

    A group with a collapsed model is never the best, because a model that always predicts one rare
    label recognises all samples of that label.
    """
    known = {}
    for group in groups:
        overall, rare = (stat_of(group.row.metrics, m).mean for m in ("GlobalAcc", "AvgRare"))
        if overall is not None and rare is not None:
            known[group.name] = overall, rare
    if not known:
        return ""
    sound = [group.name for group in groups if group.name in known and not group.row.collapsed]
    if not sound:
        return "Every method has collapsed: no model is better than one that guesses."
    best = max(sound, key=lambda name: known[name][1])
    overall, rare = known[best]
    arrivals = [n for group in groups if group.name in known for n in group.row.events]
    after = f" after {span(arrivals, '{:,}')} arrivals" if arrivals else ""
    if len(known) == 1:
        return (
            f"{best} reaches {overall:.1f} % on all labels and {rare:.1f} % on the rare ones"
            f"{after}."
        )
    words = (
        f"Of {len(known)} methods, {best} recognises the rare labels best: {rare:.1f} %,"
        f" at {overall:.1f} % on all labels{after}."
    )
    lost = [overall for overall, rare in known.values() if rare < LOST]
    if not lost:
        return words
    return (
        f"{words} {len(lost)} {'recognises' if len(lost) == 1 else 'recognise'} less than half of"
        f" them, while reaching {span(lost, '{:.1f}')} % on all labels."
    )


def gap_caption(groups: Sequence[Group]) -> str:
    """Explain the figure of both accuracies, and name methods that are better on rare labels."""
    better = [
        group.name
        for group in groups
        if (overall := stat_of(group.row.metrics, "GlobalAcc").mean) is not None
        and (rare := stat_of(group.row.metrics, "AvgRare").mean) is not None
        and rare > overall
    ]
    words = (
        "A diamond far to the left of its circle is a silent failure: accuracy on all labels looks"
        " fine while the rare labels are lost."
    )
    if better:
        words += (
            f" {_and(better)} {'recognises' if len(better) == 1 else 'recognise'} the rare labels"
            " better than all labels together: the diamond is then on the right, and a long line"
            " is not a failure."
        )
    return f"{words} Marks: mean over the seeds. Shades: from the lowest seed to the highest."


def facts_of(groups: Sequence[Group]) -> str:
    """List the facts that all runs have in common."""
    runs = [run for group in groups for run in group.runs]
    rare = rare_labels(groups)
    methods = counted(len(groups), "method")
    parts = [
        *_shared([group.spec.get("data", {}).get("name") for group in groups], "{}"),
        *_shared([_clients(run) for run in runs], "{} clients"),
        *_shared([_events(run) for run in runs], "{} events"),
        methods,
        seeds_of([group.row for group in groups]),
        f"rare: {', '.join(rare)}" if rare else "no rare labels",
    ]
    return " · ".join(parts)


def cautions_of(data: ReportData) -> list[str]:
    """List the facts that a reader must know before comparing the runs."""
    cautions = [
        f"{_name(name, run)}: {where}. Its numbers are from its last evaluation, not from a"
        " finished run."
        for name, run in data.runs
        if (where := interruption(run))
    ]
    if len({tuple(sorted(run.start.rare_labels)) for _, run in data.runs}) > 1:
        cautions.append(
            "The runs have different rare labels, so AvgRare and similar metrics differ in meaning:"
            " see the specs."
        )
    return cautions + [
        f"{_name(name, run)}: the updates of {_doubts(run.summary['doubted'])} contradict the"
        " label counts that these clients declare."
        for name, run in data.runs
        if run.summary.get("doubted")
    ]


def inferred_of(data: ReportData) -> list[str]:
    """Return, for each run without label counts, the labels that were inferred from updates."""
    return [
        f"{_name(name, run)}, inferred from the updates: {_holders(run.summary['inferred'])}."
        for name, run in data.runs
        if run.summary.get("inferred")
    ]


def changes_of(data: ReportData) -> list[str]:
    """Return, for each real federation, the sites that joined or left, and server restarts."""
    return [
        f"{_name(name, run)}: {'; '.join(_changes(run.summary['changes']))}."
        for name, run in data.runs
        if run.summary.get("changes")
    ]


def _doubts(doubted: Mapping[str, Sequence[str]]) -> str:
    """Name the clients whose claims are doubted, and the labels in question.

    >>> _doubts({"29": ["9"], "3": ["1", "2"]})
    'client 29 (label 9) and client 3 (labels 1, 2)'
    """
    return _and(
        [
            f"client {one_line(client)} (label{'s' * (len(labels) > 1)} "
            f"{', '.join(map(one_line, labels))})"
            for client, labels in doubted.items()
        ]
    )


def _holders(inferred: Mapping[str, Any]) -> str:
    """Name the holders of the labels that few clients hold.

    >>> _holders({"coverage": {"0": 19.6, "1": 21, "9": 2}, "holders": {"9": [16, 23]}})
    'label 9 is held by clients 16, 23; each of the other 2 by 20 to 21 clients'
    """
    few = inferred["holders"]
    said = [
        f"label {one_line(label)} is held by client{'s' * (len(clients) > 1)} "
        + ", ".join(one_line(str(client)) for client in clients)
        for label, clients in few.items()
    ]
    rest = [round(own) for label, own in inferred["coverage"].items() if label not in few]
    if rest:
        said.append(f"each of the other {len(rest)} by {span(rest)} clients")
    return "; ".join(said)


def _changes(changes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes of the membership with their sites, and the restarts of the server.

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
        yield f"the server was restarted {restarts} times, and was down for {down} in total"


def _sites(times: Mapping[str, int]) -> str:
    names = [one_line(site) + (f" ({n} times)" if n > 1 else "") for site, n in times.items()]
    if len(names) > MOST_NAMED:
        names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
    return _and(names)


def _and(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _name(name: str, run: SeedRun) -> str:
    seed = run.start.seed
    return name if seed is None else f"{name}, seed {seed}"


def _clients(run: SeedRun) -> int | None:
    """Return the number of clients in the spec; for a real federation, of all that took part."""
    wanted: int | None = run.summary["spec"].get("partition", {}).get("clients")
    return len(run.summary["influence"]) if run.start.is_server else wanted


def _events(run: SeedRun) -> int | None:
    """Return the number of events in the spec; for a real federation, those that happened."""
    wanted: int | None = run.summary["spec"].get("run", {}).get("events")
    happened: int = run.summary["events"]
    return happened if run.start.is_server else wanted


def _shared(values: Sequence[Any], form: str) -> list[str]:
    same = values[0] is not None and all(value == values[0] for value in values)
    return [form.format(values[0])] if same else []
