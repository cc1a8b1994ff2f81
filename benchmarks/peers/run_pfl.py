"""pfl: synchronous federated averaging of all 30 clients per round, in its SimulatedBackend.

With two cores, torchrun starts two workers, as pfl documents. The timed part is the rounds after
the first one, without evaluation and without printing metrics. The dataset's cache makes the
mini-batches once. Variant `channels-last` has images and network in that memory format. The script
runs in .peers/pfl.
"""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np
import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.result import print_result
from benchmarks.peers.spent import Clock, Spent
from torch import distributed, nn
from torch.nn import functional


class Module(nn.Module):
    """A torch module in the form that pfl requires, with loss and metrics of a mini-batch."""

    def __init__(self, job: jobs.Job) -> None:
        super().__init__()
        self.layers = job.model()
        self.steps = 0

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return functional.cross_entropy(self.layers(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
        return {}


def simulate(job: jobs.Job, rounds: int) -> tuple[Spent, int]:
    """Return time and steps of this worker."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    asyncio.set_event_loop(asyncio.new_event_loop())
    np.random.seed(1)  # noqa: NPY002, pfl draws from it, and all workers have to agree
    torch.manual_seed(1)
    users = [PyTorchTensorDataset(samples, user_id=str(i)) for i, samples in enumerate(job.clients)]
    sampler = get_user_sampler("minimize_reuse", list(range(jobs.CLIENTS)))
    data = FederatedDataset(users.__getitem__, sampler)
    module = Module(job).train()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    algorithm, backend = FederatedAveraging(), SimulatedBackend(data, data)
    training = NNTrainHyperParams(
        local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.lr
    )

    def run(until: int) -> None:
        params = NNAlgorithmParams(
            central_num_iterations=until,
            evaluation_frequency=1_000_000,  # evaluate only in the round that is not timed
            train_cohort_size=jobs.CLIENTS,
            val_cohort_size=0,
        )
        algorithm.run(params, backend, model, training, send_metrics_to_platform=False)

    run(until=1)
    module.steps = 0
    clock = Clock()
    run(until=1 + rounds)
    return clock.spent(), module.steps


def under_torchrun(cores: int) -> bool:
    """Return whether all needed workers are running."""
    return cores == 1 or "TORCHELASTIC_RUN_ID" in os.environ


def summed(*numbers: float) -> list[float]:
    """Return the sums of the numbers over all workers."""
    totals = torch.tensor(numbers, dtype=torch.float64)
    if distributed.is_initialized():
        distributed.all_reduce(totals)
    return list(totals.tolist())


def main() -> None:
    given = jobs.arguments(__doc__, "", "channels-last")
    if not under_torchrun(given.cores):
        workers = ("--standalone", f"--nproc-per-node={given.cores}", "-m")
        start = [sys.executable, "-m", "torch.distributed.run", *workers]
        os.execv(sys.executable, [*start, "benchmarks.peers.run_pfl", *sys.argv[1:]])
    job = jobs.load(given.job, channels_last=given.variant == "channels-last")
    jobs.warm_up(job)
    rounds = round(given.updates / jobs.CLIENTS)
    spent, own = simulate(job, rounds)
    steps, cpu, peak = summed(own, spent.cpu, spent.peak_mb)
    if int(os.environ.get("RANK", "0")) == 0:
        print_result(
            *("pfl", given),
            updates=rounds * jobs.CLIENTS,
            steps=round(steps),
            spent=Spent(spent.seconds, cpu, round(peak)),
            packages=("pfl",),
        )


if __name__ == "__main__":
    main()
