"""A site: it reads its own images and their labels, and sends the sums of their features."""

import time

import numpy as np
from flwr.app import Context

from fedraw.flower import sums_app
from onepass import task


def samples(context: Context) -> tuple[np.ndarray, np.ndarray]:
    time.sleep(float(context.node_config.get("delay", 0.0)))  # simulates a slow machine
    return task.local_data(task.my_site(context))


app = sums_app(samples, task.features)
