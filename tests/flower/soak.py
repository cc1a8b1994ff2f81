"""500 arrivals in Flower's simulation, while sites die and return: python -m tests.flower.soak
FOLDER.

In a simulation no node ever dies. So a site's training raises for some seconds, now and then, and a
wrapper of Flower's grid does not list some nodes for a while, as if their machines were away.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from fedraw.flower import TrainConfig, client_app, server_app
from fedraw.strategies.fedraw import FedRAW

SITES, BUFFER, ARRIVALS = 8, 5, 500
MODEL = {"layer.weight": np.zeros((999, 100), np.float32), "layer.bias": np.zeros(100, np.float32)}
SETTINGS = {
    "min_clients": SITES,
    "arrivals": ARRIVALS,
    "evaluate_every": 0,
    "poll": 0.1,
    "absence": 2.0,
    "back_off": 0.3,
    "patience": 3,
    "quarantine": 5.0,
    "snapshot_every": 5.0,
}

# A node goes out of sight with every so many messages that are sent.
SPELL = 20
# A site is ill in one of so many spells of so many seconds.
ILL, SECONDS = 8, 3

# Every process that this one starts has it, too.
MARK = "FEDRAW_SOAK"


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    site, now = int(context.node_config["partition-id"]), time.time()
    if random.Random(f"{site} {now // SECONDS}").randrange(ILL) == 0:
        raise RuntimeError("this site is ill")
    noise = np.random.default_rng([site, config.version])
    model = {name: array.numpy() for name, array in arrays.items()}
    return {n: a + noise.normal(0, 0.01, a.shape).astype(a.dtype) for n, a in model.items()}, 5


def label_counts(context: Context) -> dict[str, int]:
    site = int(context.node_config["partition-id"])
    return {"owl": 5} if site == 0 else {"cat": 5, f"label {site % 3}": 2}


class Restless(Grid):  # type: ignore[misc]
    """Flower's grid, which hides some nodes for a while and counts the messages."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self._grid = grid
        self._folder = folder
        self._random = random.Random(1)
        self._hidden: dict[int, float] = {}  # until when
        self._sent = 0
        self.under_way: set[str] = set()
        self.spells = 0
        self.samples: list[dict[str, float]] = []
        self.most_processes = 0

    def get_node_ids(self) -> Iterable[int]:
        now, nodes = time.time(), sorted(self._grid.get_node_ids())
        self._hidden = {node: until for node, until in self._hidden.items() if until > now}
        if self._sent // SPELL > self.spells:
            self.spells += 1
            # Some are back before anyone takes them for gone.
            self._hidden[self._random.choice(nodes)] = now + self._random.uniform(1, 7)
            self.most_processes = max(self.most_processes, len(marked(os.environ[MARK])))
        files = len(os.listdir(self._folder / "updates"))  # noqa: PTH208
        self.samples.append({"time": now, "files": files, **memory()})
        return [node for node in nodes if node not in self._hidden]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[Any]:
        message_ids = list(self._grid.push_messages(messages))
        self._sent += len(message_ids)
        self.under_way.update(message_ids)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        self.under_way -= {reply.metadata.reply_to_message_id for reply in replies}
        return replies

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **more: Any) -> Message:
        return self._grid.create_message(*args, **more)

    def send_and_receive(self, *args: Any, **more: Any) -> Iterable[Message]:
        replies: Iterable[Message] = self._grid.send_and_receive(*args, **more)
        return replies


def memory() -> dict[str, float]:
    """The resident memory of this process in MB, and the part that no other process shares."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "rss": int(status["VmRSS"].split()[0]) / 1024,
        "own": int(status["RssAnon"].split()[0]) / 1024,
    }


def marked(mark: str) -> list[int]:
    """The processes that a soak test with this mark has started."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:  # gone, or not ours
            continue
    return found


def main(folder: Path) -> None:
    from flwr.simulation import run_simulation  # needs Ray

    leader = server_app(
        initial_model=lambda: MODEL,
        strategy=FedRAW(buffer=BUFFER),
        settings={**SETTINGS, "folder": folder},
    )

    def lead(grid: Grid, context: Context) -> None:
        restless = Restless(grid, folder)
        leader(restless, context)
        facts = {
            "under_way": sorted(restless.under_way),
            "spells": restless.spells,
            "processes": restless.most_processes,
            "samples": restless.samples,
        }
        (folder / "soak.json").write_text(json.dumps(facts), encoding="utf-8")

    app = ServerApp()
    app.main()(lead)
    start_ray()
    run_simulation(
        app,
        client_app(train=train, label_counts=label_counts),
        num_supernodes=SITES,
        backend_config={"client_resources": {"num_cpus": 1}},
    )


def start_ray() -> None:
    """A cluster of its own, whatever else runs on this machine; Flower then uses it.

    Ray's node gives up if its agents are not up after 15 s (ray-project/ray issue 65983), so that
    it often does not start on a busy machine: here without those helpers that can be left out.
    What is shared with the clients through its store is resident in this process as well, so the
    store is small.
    """
    import ray
    from ray._private import parameter

    private: Any = parameter
    private.RayParams = partial(private.RayParams, no_monitor=True, include_log_monitor=False)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
