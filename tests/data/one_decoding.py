"""Decodes HAM10000 in a process of its own: python one_decoding.py ROOT [pause] [bytes on disk].

Prints what it is told on the way, and at last the fingerprint. With "pause" it waits after
each block of images until a line comes in.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

from fedraw.data.catalog import load
from fedraw.errors import BadInput


def tell(what: str, done: int, total: int) -> None:
    print(what, done, total, flush=True)
    if sys.argv[2] == "pause" and done:
        sys.stdin.readline()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        most = int(sys.argv[3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        rng = np.random.default_rng(0)
        data = load("ham10000", root=Path(sys.argv[1]), size=8, rng=rng, progress=tell)
        print(data.sha256(), flush=True)
    except BadInput as problem:
        print(problem, flush=True)
