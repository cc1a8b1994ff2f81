"""The task in pfl: `python in_pfl.py TASK.npz OUT.csv`.

pfl is synchronous. Here an iteration is one buffer of FedBuff: its cohort is the next ten arrivals,
which a sampler of ours takes from a queue by time. FedBuff, staleness and delays are ours; the
optimiser, gradient clipping and the metrics are pfl's.
"""

import csv
import heapq
import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))

    def loss(self, x, y):
        self.train()
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        self.eval()
        right = self(x).argmax(1) == y
        labels = {label: y == label for label in range(10)}
        return {
            f"label {label}": Weighted(int(right[own].sum()), int(own.sum()))
            for label, own in labels.items()
        }


class Arrivals:
    """Which client arrives next, by the seconds that each takes."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.queue = [(second, client) for client, second in enumerate(seconds)]
        heapq.heapify(self.queue)

    def __call__(self):
        time, client = self.queue[0]
        heapq.heapreplace(self.queue, (time + self.seconds[client], client))
        return client


class FedBuff(FederatedAveraging):
    """Clients train from the model they were handed; late differences weigh less."""

    def __init__(self):
        super().__init__()
        self.models = []  # by version
        self.start_versions = [0] * 30  # of the model that each client has
        self.arrivals = 0

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        client, version = int(user_dataset.user_id), central_context.current_central_iteration
        if version == len(self.models):
            self.models.append(model.get_parameters())
        start_version = self.start_versions[client]
        start = self.models[start_version]
        model.set_parameters(start)
        difference, metrics = super().train_one_user(start, model, user_dataset, central_context)
        discount = (1 + version - start_version) ** -0.5
        self.arrivals += 1
        self.start_versions[client] = self.arrivals // 10
        return difference.apply_elementwise(lambda tensor: discount * tensor), metrics


class AccuracyByLabel(TrainingProcessCallback):
    def __init__(self, dataset, every):
        self.dataset, self.every, self.rows = dataset, every, []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        done = central_iteration + 1
        if done % self.every == 0:
            found = model.evaluate(self.dataset)
            names = [StringMetricName(f"label {label}") for label in range(10)]
            self.rows.append([done, *(100 * found[name].overall_value for name in names)])
        return False, Metrics()


task = np.load(sys.argv[1])
x, y = torch.from_numpy(task["x"]), torch.from_numpy(task["y"])
owner = torch.from_numpy(task["owner"])


def client_data(client):
    order = torch.randperm(int((owner == client).sum()))
    own = (x[owner == client][order], y[owner == client][order])
    return PyTorchTensorDataset(own, user_id=str(client))


data = FederatedDataset(client_data, Arrivals(task["seconds"].tolist()))
net = Net()
model = PyTorchModel(
    net,
    local_optimizer_create=torch.optim.AdamW,
    central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
)
test = Dataset((torch.from_numpy(task["x_test"]), torch.from_numpy(task["y_test"])))
accuracy = AccuracyByLabel(test, every=10)
FedBuff().run(
    NNAlgorithmParams(
        central_num_iterations=60, evaluation_frequency=61, train_cohort_size=10, val_cohort_size=0
    ),
    SimulatedBackend(data, data),
    model,
    NNTrainHyperParams(
        local_num_epochs=2, local_learning_rate=0.003, local_batch_size=16, local_max_grad_norm=1.0
    ),
    callbacks=[accuracy],
    send_metrics_to_platform=False,
)
with Path(sys.argv[2]).open("w") as file:
    csv.writer(file).writerows(accuracy.rows)
