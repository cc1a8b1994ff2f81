"""The page of the arena: one HTML file with sortable, filterable tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import fedraw
from fedraw.errors import MissingExtra
from fedraw.pages.html import (
    cell,
    column_head,
    contents,
    csv_text,
    fill,
    note,
    row_head,
    section,
    table,
    text,
)
from fedraw.report.drawing import Drawing, svg_of
from fedraw_studies.arena_design import Arena
from fedraw_studies.arena_figures import arena_drawings
from fedraw_studies.arena_results import ArenaResults, Difference, Score
from fedraw_studies.rules import MeanInterval

CAPTIONS = {
    "pareto": "Each point is a method in one setting. The line connects the methods that no other "
    "method beats in both. Replay and its ablations are orange.",
    "memory": "The mean over the settings with rare labels against the number of models that the "
    "server keeps. The line connects the methods that no other method beats in both.",
    "ranks": "Methods in the grey band do not differ significantly from the best method by "
    "Nemenyi's test at 5 %. The test uses only a few settings of one data set.",
}
HEAD = ("method", "setting", "rate", "rare", "GlobalAcc", "models", "N = 1,000", "copies", "runs")


def arena_page(arena: Arena, results: Sequence[ArenaResults]) -> str:
    """Return the page with all data sets that have finished runs."""
    parts: dict[str, str] = {}
    for own in (own for own in results if own.runs()[0]):
        parts |= {f"{own.title}: {name}": part for name, part in _dataset(own)}
    settings = "".join(f"<li><b>{text(s.name)}</b>: {text(s.text)}</li>" for s in arena.settings)
    return fill(
        "fedraw_studies",
        "arena_page.html",
        title=text(arena.table["title"]),
        lead="<p class=lead>This page compares asynchronous methods. The main rate of each method "
        "is tuned on the same budget, and the test seeds were not used for tuning.</p>",
        settings=f"<ul>{settings}</ul>",
        sections="\n".join([contents(parts), *parts.values()]),
        footer=f"<p>scale {text(arena.scale.name)} · page by fedraw {text(fedraw.__version__)} · "
        f"<code>fedraw reproduce arena --scale {text(arena.scale.name)}</code></p>",
    )


def _dataset(own: ArenaResults) -> Iterator[tuple[str, str]]:
    done, needed = own.runs()
    state = note(f"{done:,} of {needed:,} runs are finished." if done < needed else
                 f"All {needed:,} runs are finished.")  # fmt: skip
    identity = f"{own.dataset}-scores"
    scores = [score for score in (*own.scores, *own.remedied) if score.done]
    yield (
        "results",
        section(identity, own.title, state, _filters(identity, own), _scores(own, scores)),
    )
    try:
        drawings = {name: _figure(own) for name, own in arena_drawings(own).items()}
    except MissingExtra:  # the tables have the same information
        drawings = {}
    if drawings:
        plots = [
            f"<figure>{svg}<figcaption>{text(CAPTIONS[name])}</figcaption></figure>"
            for name, svg in drawings.items()
        ]
        yield "figures", section(f"{own.dataset}-figures", f"{own.title}: figures", *plots)
    found = [(d, "") for d in own.differences() if d.rare is not None]
    found += [(d, own.arena.remedy) for d in own.differences(remedied=True) if d.rare is not None]
    if found:
        differences = _differences(own.dataset, found)
        title = f"{own.title}: paired differences"
        yield "differences", section(f"{own.dataset}-differences", title, differences)


def _filters(identity: str, own: ArenaResults) -> str:
    """Return the filters of settings and methods, which a script enables."""
    settings = [setting.name for setting in own.arena.settings]
    remedied = [f"{name}, {own.arena.remedy}" for name in own.arena.table["remedy"]["settings"]]
    chosen = [name for name in remedied if any(own.remedied) and name.split(",")[0] in settings]
    options = "".join(f"<option>{text(name)}</option>" for name in [*settings, *chosen])
    return (
        f'<p class="filter" data-filters="{identity}-table" hidden><label>setting '
        f'<select><option value="">all</option>{options}</select></label> '
        '<label>method <input type="search" placeholder="such as replay"></label></p>'
    )


def _scores(own: ArenaResults, scores: Sequence[Score]) -> str:
    head = "".join(
        column_head(name, "corner" if n == 0 else "", column=n, by_words=n < 2)
        for n, name in enumerate(HEAD)
    )
    rows, numbers = [], []
    for score in scores:
        method, setting = score.row.method, score.row.setting.name
        if score.row.remedied:
            setting += f", {own.arena.remedy}"
        rate = own.rate(method)
        shown = "no rate" if method.tuned is None else "–" if rate is None else f"{rate:g}"
        cost = [f"{value:g}" for value in method.cost] or ["–"] * 3
        sd = f"± {score.rare.sd:.1f}" if score.rare.sd is not None else ""
        of = f"of {score.needed}" if score.done < score.needed else ""
        cells = [
            row_head(method.name, "ours" if method.ours else ""),
            cell(setting, kind="left"),
            cell(shown),
            cell(_number(score.rare.mean), sd),
            cell(_number(score.accuracy.mean), "collapsed" if score.collapsed else ""),
            *map(cell, cost),
            cell(str(score.done), of),
        ]
        rows.append("".join(cells))
        numbers.append(
            [method.name, setting, rate, score.rare.mean, score.rare.sd, score.accuracy.mean,
             *(method.cost or [None] * 3), score.done, score.needed]
        )  # fmt: skip
    caption = (
        "Each value is the mean of the last five evaluations over the test seeds. Rare is AvgRare, "
        "or the recall of the worst label if no label is rare."
    )
    csv = csv_text(
        ["method", "setting", "rate", "rare", "rare_sd", "GlobalAcc", "models_30", "models_1000",
         "copies", "runs", "of"],
        numbers,
    )  # fmt: skip
    identity = f"{own.dataset}-scores-table"
    return table(identity, caption, f"<tr>{head}</tr>", rows, csv=csv, kind="tall")


def _differences(dataset: str, found: Sequence[tuple[Difference, str]]) -> str:
    names = ("setting", "one − other", "seeds", "rare or worst label", "GlobalAcc")
    head = "".join(column_head(name, column=n, by_words=n < 2) for n, name in enumerate(names))
    rows = [
        row_head(f"{own.setting}{remedy and f', {remedy}'}")
        + cell(f"{own.one} − {own.other}", kind="left")
        + cell(str(own.seeds))
        + _interval(own.rare)
        + _interval(own.accuracy)
        for own, remedy in found
    ]
    caption = (
        "Each value is the mean difference over the seeds, in points, with its 95 % interval. It "
        "is green or orange if the interval excludes zero."
    )
    return table(f"{dataset}-differences-table", caption, f"<tr>{head}</tr>", rows, kind="tall")


def _interval(interval: MeanInterval | None) -> str:
    if interval is None:
        return cell("–")
    kind = "best" if interval.low > 0 else "worse" if interval.high < 0 else ""
    return cell(f"{interval.mean:+.1f}", f"{interval.low:+.1f} to {interval.high:+.1f}", kind=kind)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _figure(drawing: Drawing) -> str:
    # HTML needs no namespaces, and the page should contain no address at all.
    inline = svg_of(drawing).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    inline = inline.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    return f'<div class="box">{inline}</div>'
