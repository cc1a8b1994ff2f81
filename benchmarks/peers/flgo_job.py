"""Data and network of a job for FLGo: a configuration file, which FLGo copies and imports.

The environment variables JOB and VARIANT select the job, because FLGo passes no arguments.
"""

from __future__ import annotations

import os

import torch
from benchmarks.peers import job as jobs
from torch import nn
from torch.utils.data import TensorDataset

job = jobs.load(os.environ["JOB"], channels_last=os.environ["VARIANT"] == "channels-last")
images, labels = zip(*job.clients, strict=True)
train_data = TensorDataset(torch.cat(images), torch.cat(labels))


def get_model() -> nn.Module:
    """Return the network of the job."""
    return job.model()
