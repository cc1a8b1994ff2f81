"""Reports the calibration runs: predictors of recall, fitted thresholds, and their accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.machine import headline
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from fedraw.auditing.methods import THRESHOLDS, verdict
from fedraw.core.types import Floats

FAMILIES = {
    "averaging models": ("fedfa", "fedraw", "fedraw-dedup-only", "fedraw-weight-only"),
    "adding updates": ("fedbuff", "ca2fl"),
}
PREDICTORS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "standing": lambda r: r["standing"],
    "label influence, beside the median label's": lambda r: r["beside"],
    "label influence": lambda r: r["share"] * r["fair"],
    "influence of all holders": lambda r: r["holders_influence"],
    "label influence, multiple of fair": lambda r: r["share"],
    "chance that a holder is in the buffer": lambda r: r["presence"],
    "mean presence of a holder": lambda r: r["holders_presence"],
    "share of arrivals from holders": lambda r: r["arrival_share"],
    "coverage": lambda r: r["coverage"],
}
EDGES = (0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, np.inf)


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the report in Markdown."""
    rows = [row for record in records for row in scarce_labels(record)]
    parts = [
        f"`{headline()}`: {len(records)} runs, {len(rows)} rare or small labels.\n",
        _predictors(rows),
        _bins(rows),
        _fits(rows),
        _verdicts(rows),
    ]
    return "\n".join(parts)


def scarce_labels(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the labels on few clients or with few samples; other labels are rarely at risk."""
    before = record["beforehand"]
    median_share = np.median(before["fair"])
    rare = {str(label) for label in record["spec"]["partition"]["rare_labels"]}
    columns = (
        "holders_influence",
        "presence",
        "holders_presence",
        "arrival_share",
        "coverage",
        "fair",
    )
    return [
        {
            "number": record["number"],
            "method": record["method"],
            "buffer": before["buffer"],
            "recall": record["recall"][label] / 100,
            "share": before["label_influence"][i] / before["fair"][i],
            "standing": before["standing"][i],
            "beside": before["label_influence"][i] / np.median(before["label_influence"]),
            **{name: before[name][i] for name in columns},
        }
        for i, label in enumerate(before["labels"])
        if label in rare or before["fair"][i] < 0.7 * median_share
    ]


def _of_methods(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str]
) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["method"] in methods]


def _predictors(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| known beforehand | averaging models | adding updates |", "|---|---:|---:|"]
    for name, predictor in PREDICTORS.items():
        cells = []
        for methods in FAMILIES.values():
            part = _of_methods(rows, methods)
            x, y = np.array([predictor(r) for r in part]), np.array([r["recall"] for r in part])
            _, residual = fit(x, y)
            cells.append(f"{spearmanr(x, y)[0]:.2f}, {1 - residual**2 / y.var():.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "Rank correlation with recall, and share of its variance explained:\n\n" + _text(lines)


def _bins(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| standing | averaging: labels, recall | adding: labels, recall |"]
    lines.append("|---|---:|---:|")
    for low, high in itertools.pairwise(EDGES):
        cells = []
        for methods in FAMILIES.values():
            found = [
                100 * r["recall"] for r in _of_methods(rows, methods) if low <= r["standing"] < high
            ]
            if len(found) < 5:
                cells.append(f"{len(found)}")
                continue
            tenth, half, nine = np.percentile(found, [10, 50, 90])
            cells.append(f"{len(found)}, {half:.0f} ({tenth:.0f} to {nine:.0f})")
        name = f"{low:g} to {high:g}" if high < np.inf else f"{low:g} and more"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "Recall in percent: the median (and the 10th to the 90th percentile):\n\n" + _text(lines)


def _fits(rows: Sequence[Mapping[str, Any]]) -> str:
    """Fit recall = 1 / (1 + (half / standing)^slope); report where it is 25, 50 and 75 %."""
    lines = [
        "| family | slope | 25 % at | 50 % at | 75 % at | spread |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for family, methods in FAMILIES.items():
        part = _of_methods(rows, methods)
        x, y = np.array([r["standing"] for r in part]), np.array([r["recall"] for r in part])
        numbers = np.array([r["number"] for r in part])
        (a, b), residual = fit(x, y)
        resamples = [thresholds(*fit(x[i], y[i])[0]) for i in resampled(numbers)]
        low, high = np.percentile(resamples, [2.5, 97.5], axis=0)
        at = [
            f"{value:.2f} ({least:.2f} to {most:.2f})"
            for value, least, most in zip(thresholds(a, b), low, high, strict=True)
        ]
        lines.append(f"| {family} | {b:.2f} | {' | '.join(at)} | {100 * residual:.0f} points |")
    words = "The standing at which the fitted recall is 25, 50 and 75 %"
    return f"{words}, with 95 % intervals over resampled federations:\n\n" + _text(lines)


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| method | lost | at risk | kept |",
        "|---|---:|---:|---:|",
    ]
    for method in THRESHOLDS:
        part = _of_methods(rows, [method])
        cells = []
        for word in ("lost", "at risk", "kept"):
            found = np.array([r["recall"] for r in part if verdict(method, r["standing"]) == word])
            if not found.size:
                cells.append("0")
                continue
            right = found < 0.5 if word == "lost" else found >= 0.5
            cells.append(f"{found.size}, {100 * np.median(found):.0f}, {100 * right.mean():.0f} %")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    words = "labels, their median recall, and the share below 50 % (lost) or not below it (others)"
    return f"The verdicts against the recall after training: {words}:\n\n" + _text(lines)


def fit(x: Floats, y: Floats) -> tuple[Floats, float]:
    """Fit a logistic function of log x; return (intercept, slope) and the RMS residual."""
    logs = np.log(np.maximum(x, 1e-6))

    def residual(t: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(t[0] + t[1] * logs, -50, 50))) - y, np.float64)

    found = least_squares(residual, np.array([1.0, 1.0]))
    return found.x, float(np.sqrt(np.mean(found.fun**2)))


def thresholds(a: float, b: float) -> Floats:
    """Return the values of x at which the fitted function is 25, 50 and 75 %."""
    return np.exp((np.array([-np.log(3), 0.0, np.log(3)]) - a) / b)


def resampled(numbers: Floats, times: int = 200) -> list[Floats]:
    """Return positions of labels for bootstrap samples of federations.

    Whole federations are drawn with replacement, because labels of one run are not independent.
    """
    rng = np.random.default_rng(0)
    by_number = {n: np.flatnonzero(numbers == n) for n in np.unique(numbers)}
    keys = list(by_number)
    return [
        np.concatenate([by_number[keys[i]] for i in rng.integers(0, len(keys), len(keys))])
        for _ in range(times)
    ]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
