"""FLGo: its FedBuff with a buffer of 10, at most 30 clients in flight, in virtual time.

FLGo trains the clients of a dispatch one after the other; with two cores, two threads train two of
them at the same time, its options `num_parallels` and `parallel_type`. The timed part is the
server's `run`, without evaluation, progress bars and logging below warnings. A client trains with
FLGo's own loop, `BasicClient.train`, on mini-batches of a DataLoader. For each update, FLGo copies
the model twice and builds a new network for the difference; an aggregation builds four more. A
client whose update is in the buffer waits for the aggregation. Arrivals of the same unit of time
enter the buffer together, which may then hold more than ten. Clients train when they are
dispatched, so the training of clients in flight at the end is unused: their steps count, and their
updates do not. Variant `channels-last` has images and network in that memory format. The script
runs in .peers/flgo.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers import job as jobs
from benchmarks.peers.result import print_result
from benchmarks.peers.shims import allow_plain_subsets
from benchmarks.peers.spent import Clock

CONFIGURATION = Path(__file__).with_name("flgo_job.py")


def server_of(job: jobs.Job, updates: int, cores: int) -> Any:
    """Return FLGo's server with its clients, which count updates and SGD steps."""
    import flgo  # type: ignore[import-not-found]
    from flgo.algorithm import fedbuff  # type: ignore[import-not-found]
    from flgo.benchmark.partition import BasicPartitioner  # type: ignore[import-not-found]
    from flgo.simulator.base import BasicSimulator  # type: ignore[import-not-found]

    class CountingServer(fedbuff.Server):  # type: ignore[misc]
        updates = 0

        def package_handler(self, received_packages: dict[str, Any]) -> Any:
            self.updates += len(received_packages["__cid"])
            return super().package_handler(received_packages)

    class CountingClient(fedbuff.Client):  # type: ignore[misc]
        steps = 0

        def get_batch_data(self) -> Any:
            self.steps += 1  # FLGo's loop takes one mini-batch per step
            return super().get_batch_data()

    class InOrder(BasicPartitioner):  # type: ignore[misc]
        def __call__(self, data: Any) -> list[list[int]]:
            return [part.tolist() for part in np.array_split(np.arange(len(data)), jobs.CLIENTS)]

    class Delays(BasicSimulator):  # type: ignore[misc]
        def initialize(self) -> None:
            self.set_variable(list(self.clients), "latency", [10 + i for i in range(jobs.CLIENTS)])

    class FedBuff:
        Server = CountingServer
        Client = CountingClient

    benchmark = import_module(flgo.gen_benchmark_from_file("peers_job", str(CONFIGURATION)))
    flgo.gen_task_by_(benchmark, InOrder(), "task")
    option = {
        **{"num_rounds": updates // jobs.BUFFER, "algo_para": [jobs.BUFFER / jobs.CLIENTS, 1.0]},
        **{"num_epochs": job.epochs, "batch_size": job.batch, "learning_rate": job.lr},
        **{"sample": "full", "proportion": 1.0, "train_holdout": 0.0, "eval_interval": 0},
        **{"no_log_console": True, "no_tqdm": True, "log_level": "WARNING"},
        **{"num_parallels": cores, "parallel_type": "t", "torch_num_threads": 1},
    }
    return flgo.init("task", FedBuff, option, Simulator=Delays)


def main() -> None:
    given = jobs.arguments(__doc__, "", "channels-last")
    allow_plain_subsets()
    os.environ |= {"JOB": given.job, "VARIANT": given.variant}
    job = jobs.load(given.job, channels_last=given.variant == "channels-last")
    jobs.warm_up(job)
    os.chdir(tempfile.mkdtemp())  # FLGo writes its task to the current folder
    sys.path.insert(0, "")  # and imports it from there
    server = server_of(job, given.updates, given.cores)
    clock = Clock()
    server.run()
    spent = clock.spent()
    steps = sum(client.steps for client in server.clients)
    unused = steps // job.steps(0) - server.updates
    print_result(
        *("flgo", given),
        updates=server.updates,
        steps=steps,
        spent=spent,
        packages=("flgo",),
        note=f"{unused} more updates trained and not used",
    )


if __name__ == "__main__":
    main()
