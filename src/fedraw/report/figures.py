"""Learning curves as SVG text: sharp at every size, and drawn without a display."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.errors import MissingExtra
from fedraw.experiments.event_log import Record
from fedraw.report.looks import INK, SETTINGS, Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"GlobalAcc": "All labels (GlobalAcc, %)", "AvgRare": "Rare labels (AvgRare, %)"}
TITLE = "Accuracy on all labels and on the rare labels, over the events of the run"

LONGEST_NAME = 36


class Curve(NamedTuple):
    """The mean over the seeds, and the lowest and highest of them."""

    event: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def learning_curves(groups: Mapping[str, Sequence[Sequence[Record]]]) -> str:
    """An SVG of two panels, one line per group; empty where nothing was evaluated.

    `groups` gives, for each name, the "evaluation" records of each of its seeds.
    """
    curves = {
        metric: {name: curve for name in groups if (curve := curve_of(groups[name], metric)).event}
        for metric in PANELS
    }
    panels = {metric: named for metric, named in curves.items() if named}
    if not panels:
        return ""
    try:
        import matplotlib.style
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None
    styles = dict(zip(groups, looks(list(groups)), strict=True))
    # "default" first: what a user set for other figures must not change this one.
    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        # The reader's font draws the text; that ours lacks a glyph is of no matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return _accessible(_svg(_drawn(panels, styles)))


def curve_of(seeds: Sequence[Sequence[Record]], metric: str) -> Curve:
    """The evaluations that all seeds have, one after the other.

    >>> def at(event, value): return {"event": event, "metrics": {"AvgRare": value}}
    >>> curve_of([[at(10, 0.0), at(20, 50.0)], [at(10, 20.0), at(22, 70.0)]], "AvgRare")
    Curve(event=[10.0, 21.0], mean=[10.0, 60.0], low=[0.0, 50.0], high=[20.0, 70.0])
    """
    curve = Curve([], [], [], [])
    for together in zip(*seeds, strict=False):
        values = [evaluation["metrics"].get(metric) for evaluation in together]
        if None in values:
            continue
        # Synchronous methods end a round that is under way, so that the last events may differ.
        curve.event.append(fmean(evaluation["event"] for evaluation in together))
        curve.mean.append(fmean(values))
        curve.low.append(min(values))
        curve.high.append(max(values))
    return curve


def _drawn(panels: Mapping[str, Mapping[str, Curve]], styles: Mapping[str, Look]) -> Figure:
    from matplotlib.figure import Figure

    across = 5 if max(map(len, styles)) <= 20 else 2
    figure = Figure(figsize=(9.6, 3.6 + 0.22 * -(-len(styles) // across)), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (metric, curves) in zip(axes, panels.items(), strict=True):
        ax.set_title(PANELS[metric])
        for name, curve in curves.items():
            _draw(ax, curve, styles[name])
        _tidy(ax, last=max(curve.event[-1] for curve in curves.values()))
    _legend(figure, styles, across)
    return figure


def _legend(figure: Figure, styles: Mapping[str, Look], across: int) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **_stroke(look)) for look in styles.values()]
    plain = ["-"] * len(lines)  # a label that starts with "_" would be left out
    look = {"ncols": across, "handlelength": 3.6, "frameon": False}
    legend = figure.legend(lines, plain, loc="outside lower center", **look)
    for text, name in zip(legend.get_texts(), styles, strict=True):
        text.set_parse_math(False)
        text.set_text(_short(name))
        text.set_fontweight("bold" if styles[name].strong else "normal")


def _draw(ax: Axes, curve: Curve, look: Look) -> None:
    # Unclipped: a marker at 100 stays whole, and the SVG needs no reference to a clipping path.
    every = max(1, len(curve.event) // 7)
    ax.plot(curve.event, curve.mean, **_stroke(look), markevery=every, clip_on=False)
    band = ax.fill_between(curve.event, curve.low, curve.high, color=look.colour, linewidth=0)
    band.set(alpha=0.2 if look.strong else 0.07, clip_on=False, zorder=1)


def _stroke(look: Look) -> dict[str, Any]:
    weight = (2.6, 5, 4) if look.strong else (1.3, 4, 3)
    style = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    return style | dict(zip(("linewidth", "markersize", "zorder"), weight, strict=True))


def _tidy(ax: Axes, last: float) -> None:
    ax.set(xlabel="events", xlim=(0, max(last, 1)), ylim=(0, 100), yticks=range(0, 101, 20))
    ax.locator_params(axis="x", integer=True)
    ax.grid(axis="y", clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, labelleft=True)


def _short(name: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in name)
    return printable if len(printable) <= LONGEST_NAME else printable[: LONGEST_NAME - 1] + "…"


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing, bbox_inches="tight", pad_inches=0.05)
    return text.getvalue()


def _accessible(svg: str) -> str:
    """Sized by what surrounds it, drawn in its text colour, with a title for who cannot see it."""
    size = re.search(r'viewBox="[^"]+"', svg)
    body = svg[svg.index("</defs>") + len("</defs>") :]
    root = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{size[0] if size else ""} role="img" aria-label="{escape(TITLE)}" '
        f'style="stroke-linejoin: round; stroke-linecap: butt">\n <title>{escape(TITLE)}</title>'
    )
    return root + body.replace(INK, "currentColor").replace("'DejaVu Sans', ", "")
