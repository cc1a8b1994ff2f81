"""Compares one pass with pooled training on text, without a federation.

    python -m benchmarks.text_features [SEEDS]

The texts are the docstrings of Python's standard library, so they are on every machine, and the
label is the package. A text is a vector of the signed counts of its words, hashed into as many
buckets as there are features; a count enters as its root. This map is fixed and knows no data. One
pass solves its classifier from all training texts. Training has one client with all of them: an MLP
with 64 hidden units on the same features, whose first layer is an embedding of the words that it
learns. Values are percentages on a fifth of the texts, of the last model. "Worst" is the recall of
the worst label.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import headline, mean_and_spread

import fedraw

PACKAGES = ("asyncio", "email", "idlelib", "importlib", "logging", "multiprocessing", "tkinter",
            "unittest", "xml")  # fmt: skip
WIDTHS = (256, 512, 1024, 4096)
FIRST_SEED = 9301


def texts() -> tuple[list[str], list[int]]:
    """Return the docstrings of more than 40 characters, each once, and their labels."""
    found: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        for path in sorted((Path(sysconfig.get_paths()["stdlib"]) / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    docstring = ast.get_docstring(node) or ""
                    if len(docstring) > 40:
                        found.setdefault(docstring, label)
    return list(found), list(found.values())


def hashed(words: list[str], width: int) -> Any:
    """Return one text as the signed roots of the counts of its words in `width` buckets."""
    row = np.zeros(width, np.float32)
    for word in words:
        code = zlib.crc32(word.encode())
        row[(code >> 1) % width] += 1 if code & 1 else -1
    return np.sign(row) * np.sqrt(np.abs(row))


def measure(inputs: Any, labels: Any, seed: int, *, train: bool) -> tuple[float, float]:
    """Return GlobalAcc and the recall of the worst label."""
    order = np.random.default_rng(seed).permutation(len(labels))
    test, own = order[: len(order) // 5], order[len(order) // 5 :]
    how: dict[str, Any] = {"strategy": "one-pass", "features": lambda batch: batch}
    if train:
        sgd = fedraw.SGD(epochs=1, batch=32, lr=0.05, momentum=0.9)
        how = {"strategy": "fedavg", "model": "mlp", "train": sgd, "events": 20}
    result = fedraw.simulate(
        data=(inputs[own], labels[own]), test=(inputs[test], labels[test]), seeds=[seed],
        partition=fedraw.IID(clients=1, local_test=0.0), progress=False, **how,
    )  # fmt: skip
    summary = result.summaries[0]
    recalls = [value for value in summary["recall"].values() if value is not None]
    return summary["metrics"]["GlobalAcc"], min(recalls)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    documents, labels = texts()
    words = [re.findall(r"[a-z]+", document.lower()) for document in documents]
    sizes = np.bincount(labels).tolist()
    print(f"{headline()}; {len(documents):,} texts, {min(sizes)} to {max(sizes)} of a label\n")
    print("| method | features | GlobalAcc | worst label |\n|---|--:|--:|--:|")
    for width, train in product(WIDTHS, (False, True)):
        inputs = np.array([hashed(own, width) for own in words])
        seeds = range(FIRST_SEED, FIRST_SEED + count)
        found = [measure(inputs, np.array(labels), seed, train=train) for seed in seeds]
        values = " | ".join(mean_and_spread(own) for own in zip(*found, strict=True))
        print(f"| {'MLP, pooled' if train else 'One pass'} | {width:,} | {values} |", flush=True)


if __name__ == "__main__":
    main()
