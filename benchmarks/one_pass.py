"""Measures the message and the solved head of one pass: seconds, bytes and peak memory by width.

One client sends the sums of 10,000 images of 28x28 pixels and 10 labels, and the server solves the
head from them, on one thread. Each width runs in a process of its own, whose peak memory is read
after each part; the features are random numbers there, in place of those of the map, because their
values do not matter for the time. `features` is the time in which the default map computes the same
number of features of 10,000 images, measured on fewer of them.

    python -m benchmarks.one_pass
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from benchmarks.machine import headline
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.core.linear_head import LinearHead
from fedraw.core.sums import SumsShape
from fedraw.learning.feature_maps import convolutions

WIDTHS = (512, 2048, 8192)
IMAGES, MEASURED, LABELS = 10_000, 512, 10


def peak() -> float:
    """Return the peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def features_seconds(width: int) -> float:
    """Return the seconds in which the map computes the features of all images."""
    made = convolutions((1, 28, 28), width)
    images = np.random.default_rng(0).random((MEASURED, 1, 28, 28), np.float32)
    made.features(images[:32])
    started = time.perf_counter()
    made.features(images)
    return (time.perf_counter() - started) * IMAGES / MEASURED


def measure(width: int) -> None:
    """Print a row of the table for this width."""
    rng = np.random.default_rng(0)
    labels = np.arange(IMAGES) % LABELS
    features = rng.standard_normal((IMAGES, width), np.float32)
    features += rng.standard_normal((LABELS, width), np.float32)[labels] / 4
    shape, before = SumsShape(LABELS, width), peak()
    started = time.perf_counter()
    message = shape.of_samples(features, labels)
    summing, after_message = time.perf_counter() - started, peak()
    size = features.nbytes / 1e6
    del features
    started = time.perf_counter()
    LinearHead().solve(shape, message)
    solving, after_head = time.perf_counter() - started, peak()
    computing = features_seconds(width)
    print(
        f"| {width:,} | {message.nbytes / 1e6:,.0f} MB | {computing:.1f} s | {summing:.1f} s "
        f"| {solving:.1f} s | {solving / computing:.2f} | {after_message - before:,.0f} MB "
        f"| {max(after_head, after_message) - before + size:,.0f} MB |",
        flush=True,
    )


def main() -> None:
    """Measure each width in a process of its own, or the given one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int)
    width = parser.parse_args().width
    if width is not None:
        torch.set_num_threads(1)
        with threadpool_limits(1):
            measure(width)
        return
    print(headline())
    print("| d | message | features | sums | head | head / features | memory of sums | of all |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for own in WIDTHS:
        command = [sys.executable, "-m", "benchmarks.one_pass", "--width", str(own)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
