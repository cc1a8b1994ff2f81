"""A site: it reads its own images and their labels, and sends the sums of their features."""

import numpy as np
from flwr.app import Context

from fedraw.flower import sums_app
from onepass import task


def samples(context: Context) -> tuple[np.ndarray, np.ndarray]:
    return task.local_data(task.my_site(context))


app = sums_app(samples, task.features)
