"""Measures an arrival at a server on Flower, from a reply to the next task, in copies of the model.

One copy is `vector.copy()`. The measurement includes fedraw's work between Flower's pull and its
push, with the tensors of a ResNet-18: reading the reply's ArrayRecord, checks, norm, journal,
strategy, log, and the ArrayRecord of the new model. It excludes Flower's work (serialising,
hashing, sending). Times are processor times, which other work on the machine affects less; only the
journal has wall-clock time, because it waits for the disk.

read       ArrayRecord to vector
decide     checks, norm, strategy, log
write      vector to ArrayRecord
journal    the update on disk, with its checksum and fsync, not part of the total

Run: make bench, or python -m benchmarks.server_arrival [--buffer K]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.machine import headline
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.flower.messages import ARRAYS, COUNTS, FIELDS, METRICS, FlowerCodec
from fedraw.flower.tensors import TensorTemplate, record_of
from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.journal import Journal
from fedraw.server.settings import ServerSettings
from fedraw.server.tasks import Task
from fedraw.strategies.fedraw import FedRAW

SITES = 30
ARRIVALS = 60
STAGES = (64, 128, 256, 512)


def resnet18(classes: int = 1000) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of a ResNet-18: 11.7 million numbers."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (width,)

    norm("bn1", 64)
    before = 64
    for stage, width in enumerate(STAGES, start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, before if block == 0 else width, 3, 3)
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if block == 0 and before != width:
                shapes[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{name}.downsample.1", width)
        before = width
    shapes["fc.weight"], shapes["fc.bias"] = (classes, 512), (classes,)
    return shapes


class TimedJournal(Journal):
    """The journal, which measures the wall-clock and processor time of its last write."""

    seconds = processor_seconds = 0.0

    def write(self, *args: Any) -> Update:
        """Write an update, and measure the time."""
        start, cpu_start = time.perf_counter(), time.process_time()
        written = super().write(*args)
        self.seconds = time.perf_counter() - start
        self.processor_seconds = time.process_time() - cpu_start
        return written


def open_server(
    folder: Path, template: TensorTemplate, buffer: int
) -> tuple[Coordinator, FlowerCodec, TimedJournal]:
    """Return a new server, its codec and its timed journal."""
    settings = ServerSettings(folder, min_clients=SITES, arrivals=10**9, evaluate_every=0)
    strategy = FedRAW(buffer=buffer)
    size = template.layout.size
    server = open_federation(
        strategy, lambda: np.zeros(size, np.float32), settings, template.layout
    )
    journal = TimedJournal(folder / "updates")
    server._store.journal = journal  # the same folder, with measured writes
    server._store.snapshots._journal = journal
    return server, FlowerCodec(template, strategy.needs), journal


def reply_message(task: Task, codec: FlowerCodec, arrays: ArrayRecord | None) -> Message:
    """Return a site's reply to a task."""
    facts = {"site": f"site {task.node}", "task": task.number, "version": task.version}
    content = RecordDict({FIELDS: ConfigRecord(facts)})
    if arrays is None:
        content[COUNTS] = ConfigRecord({"common": 100, f"own {task.node % 7}": 10})
    else:
        content[ARRAYS] = arrays
        content[METRICS] = MetricRecord({"num-examples": 10})
    return Message(content, reply_to=codec.message(task))


def measure(folder: Path, buffer: int) -> dict[str, float]:
    """Return the median seconds of each part of an arrival."""
    rng = np.random.default_rng(0)
    shapes = resnet18()
    template = TensorTemplate.of(record_of({n: np.zeros(s, np.float32) for n, s in shapes.items()}))
    server, codec, journal = open_server(folder, template, buffer)
    sent = [
        template.write(rng.normal(scale=0.01, size=template.layout.size).astype(np.float32))
        for _ in range(3)
    ]
    waiting: list[Task] = []
    times: dict[str, list[float]] = {n: [] for n in ("copy", "read", "decide", "write", "journal")}
    model: Vector = np.zeros(template.layout.size, np.float32)
    while server.accepted < ARRIVALS:
        now = time.monotonic()
        server.online(range(1, SITES + 1), now)
        for task in server.tasks(now):
            server.sent(task, f"message_id {task.number}")
            waiting.append(task)
        task = waiting.pop(0)
        message = reply_message(
            task, codec, None if task.kind == "summary" else sent[task.number % 3]
        )
        start = time.process_time()
        model.copy()
        copied = time.process_time()
        reply = codec.read_reply(message)
        read = time.process_time()
        server.receive(f"message_id {task.number}", reply, now)
        following = server.tasks(now)
        decided = time.process_time()
        for made in following:
            codec.message(made)
        written = time.process_time()
        for made in following:
            server.sent(made, f"message_id {made.number}")
        waiting += following
        if task.kind == "train" and server.accepted > 2 * buffer:
            times["copy"].append(copied - start)
            times["read"].append(read - copied)
            times["decide"].append(decided - read - journal.processor_seconds)
            times["journal"].append(journal.seconds)
            times["write"].append(written - decided)
    server.close(time.monotonic())
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--buffer", type=int, default=10)
    options = parser.parse_args()
    # Flower's process sets these.
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    size = sum(math.prod(shape) for shape in resnet18().values())
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), options.buffer)
    copy = seconds["copy"]
    print(headline())
    tensors = f"{size:,} numbers in {len(resnet18())} tensors"
    print(f"FedRAW, K = {options.buffer}, {SITES} sites, {tensors}")
    print(f"{'':10} {'copies':>8} {'ms':>8}")
    for name in ("read", "decide", "write"):
        print(f"{name:10} {seconds[name] / copy:8.1f} {seconds[name] * 1e3:8.1f}")
    total = seconds["read"] + seconds["decide"] + seconds["write"]
    print(f"{'in all':10} {total / copy:8.1f} {total * 1e3:8.1f}")
    print(f"{'journal':10} {seconds['journal'] / copy:8.1f} {seconds['journal'] * 1e3:8.1f}")


if __name__ == "__main__":
    main()
