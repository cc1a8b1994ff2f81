"""The task in FLGo: `python in_flgo.py TASK.npz OUT.csv`, in an empty folder.

FLGo has FedBuff, a virtual clock and a latency for each client. The optimiser, the partition by
owner and the accuracy of each label are ours.
"""

import csv
import importlib
import os
import sys
from pathlib import Path

import flgo
import numpy as np
import torch
from flgo.algorithm import fedbuff
from flgo.benchmark.partition import BasicPartitioner
from flgo.experiment.logger import BasicLogger
from flgo.simulator.base import BasicSimulator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

os.environ["TASK"] = sys.argv[1]
task = np.load(sys.argv[1])


class ByOwner(BasicPartitioner):
    def __call__(self, data):
        return [np.flatnonzero(task["owner"] == client).tolist() for client in range(30)]


class Delays(BasicSimulator):
    def initialize(self):
        self.set_variable(list(self.clients), "latency", task["seconds"].tolist())


class Client(fedbuff.Client):
    def train(self, model):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        for _ in range(2):
            for x, y in DataLoader(self.train_data, batch_size=16, shuffle=True):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()


class FedBuff:
    Server = fedbuff.Server
    Client = Client


class LabelLogger(BasicLogger):
    @torch.no_grad()
    def log_once(self):
        model = self.coordinator.model.eval()
        found = model(torch.from_numpy(task["x_test"])).argmax(1).numpy()
        right = found == task["y_test"]
        accuracy = [100 * right[task["y_test"] == label].mean() for label in range(10)]
        self.output["accuracy"].append([self.coordinator.current_round, *accuracy])


config = str(Path(__file__).with_name("flgo_data.py"))
name = flgo.gen_benchmark_from_file("digits", config)
benchmark = importlib.import_module(name)
flgo.gen_task_by_(benchmark, ByOwner(), "task")
option = {
    "num_rounds": 60,
    "proportion": 1.0,
    "sample": "uniform",
    "algo_para": [10 / 30, 1.0],
    "eval_interval": 10,
    "train_holdout": 0.0,
    "no_log_console": True,
}
runner = flgo.init("task", FedBuff, option, Logger=LabelLogger, Simulator=Delays)
runner.run()
with Path(sys.argv[2]).open("w") as file:
    csv.writer(file).writerows(runner.gv.logger.output["accuracy"][1:])  # without the first model
