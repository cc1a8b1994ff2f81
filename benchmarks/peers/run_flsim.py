"""FLSim: its asynchronous trainer with FedBuff, a buffer of 10, about 30 clients in flight.

FLSim trains one client after the other in one process; with two cores, torch has two threads. The
timed part is `AsyncTrainer.train`, without evaluation, training metrics and progress bars. The data
provider makes the mini-batches once. Variant `channels-last` has images and network in that memory
format. The script runs in .peers/flsim.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from benchmarks.peers import job as jobs
from benchmarks.peers.result import print_result
from benchmarks.peers.shims import allow_dataclass_defaults, declare_nms
from benchmarks.peers.spent import Clock, Spent
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]


def simulate(job: jobs.Job, epochs: int) -> tuple[Spent, int]:
    """Return time and SGD steps; an epoch of FLSim has one update per client on average."""
    from flsim.interfaces.model import IFLModel
    from flsim.utils.simple_batch_metrics import FLBatchMetrics

    steps = 0

    class Model(IFLModel):  # type: ignore[misc]
        def __init__(self) -> None:
            self.module = job.model()

        def fl_forward(self, batch: Batch) -> Any:
            nonlocal steps
            steps += 1
            images, labels = batch
            scores = self.module(images)
            return FLBatchMetrics(
                loss=functional.cross_entropy(scores, labels),
                num_examples=len(labels),
                predictions=scores,
                targets=labels,
                model_inputs=images,
            )

        def fl_create_training_batch(self, **batch: Any) -> Any:
            return batch

        def fl_get_module(self) -> torch.nn.Module:
            return self.module

        def fl_cuda(self) -> None:
            raise NotImplementedError

        def get_eval_metrics(self, batch: Batch) -> Any:
            return self.fl_forward(batch)

        def get_num_examples(self, batch: Batch) -> int:
            return len(batch[1])

    trainer = trainer_of(job, epochs, Model())
    clock = Clock()
    trainer.train(Clients(job), None, jobs.CLIENTS)
    return clock.spent(), steps


class Client:
    """One user's data in the form that FLSim requires."""

    def __init__(self, samples: Batch, size: int) -> None:
        images, labels = samples
        self.samples = len(labels)
        self.batches = list(zip(torch.split(images, size), torch.split(labels, size), strict=True))

    def num_train_examples(self) -> int:
        return self.samples

    def num_train_batches(self) -> int:
        return len(self.batches)

    def train_data(self) -> Iterator[Batch]:
        return iter(self.batches)


class Clients:
    """All users in the form that FLSim requires."""

    def __init__(self, job: jobs.Job) -> None:
        self.users = [Client(samples, job.batch) for samples in job.clients]

    def train_user_ids(self) -> list[int]:
        return list(range(len(self.users)))

    def num_train_users(self) -> int:
        return len(self.users)

    def get_train_user(self, user_index: int) -> Client:
        return self.users[user_index]


def trainer_of(job: jobs.Job, epochs: int, model: Any) -> Any:
    """Return FLSim's asynchronous trainer."""
    from flsim.clients.base_client import ClientConfig
    from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig
    from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
    from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig
    from flsim.utils.async_trainer.training_event_generator import (
        AsyncTrainingEventGeneratorConfig,
        PoissonAsyncTrainingStartTimeDistrConfig,
    )
    from flsim.utils.timing.training_duration_distribution import (
        PerUserExponentialDurationDistributionConfig,
    )
    from omegaconf import OmegaConf

    events = AsyncTrainingEventGeneratorConfig(
        training_start_time_distribution=PoissonAsyncTrainingStartTimeDistrConfig(
            training_rate=float(jobs.CLIENTS)
        ),
        duration_distribution_generator=PerUserExponentialDurationDistributionConfig(
            training_duration_mean=1.0
        ),
    )
    config = AsyncTrainerConfig(
        epochs=float(epochs),
        do_eval=False,
        report_train_metrics=False,
        client=ClientConfig(epochs=job.epochs, optimizer=LocalOptimizerSGDConfig(lr=job.lr)),
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(buffer_size=jobs.BUFFER, lr=1 / jobs.BUFFER),
        training_event_generator=events,
    )
    return AsyncTrainer(model=model, cuda_enabled=False, **OmegaConf.structured(config))


def disable_progress_bars() -> None:
    """Disable `tqdm` before FLSim imports it."""
    import tqdm

    tqdm.tqdm = partial(tqdm.tqdm, disable=True)


def main() -> None:
    given = jobs.arguments(__doc__, "", "channels-last")
    disable_progress_bars()
    torch.set_num_threads(given.cores)
    allow_dataclass_defaults()
    declare_nms()
    job = jobs.load(given.job, channels_last=given.variant == "channels-last")
    jobs.warm_up(job)
    epochs = round(given.updates / jobs.CLIENTS)
    spent, steps = simulate(job, epochs)
    print_result(
        *("flsim", given),
        updates=epochs * jobs.CLIENTS,
        steps=steps,
        spent=spent,
        packages=("flsim",),
    )


if __name__ == "__main__":
    main()
