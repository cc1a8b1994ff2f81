"""The task in fedraw: `python in_fedraw.py TASK.npz OUT.csv`. `fedraw.simulate` has everything."""

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedraw


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def train(model, data, context):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(2):
        for x, y in data:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


task = np.load(sys.argv[1])
result = fedraw.simulate(
    strategy=fedraw.FedBuff(buffer=10, staleness="polynomial"),
    data=(task["x"], task["y"]),
    test=(task["x_test"], task["y_test"]),
    partition=[np.flatnonzero(task["owner"] == client) for client in range(30)],
    local_test=0.0,
    speeds=task["seconds"],
    arrivals="fixed",
    model=Net,
    train=train,
    batch=16,
    events=600,
    evaluate_every=100,
    seeds=1,
)
with Path(sys.argv[2]).open("w") as file:
    writer = csv.writer(file)
    for row in result.recalls.rows():
        writer.writerow([row["event"] // 10, *(row[str(label)] for label in range(10))])
