"""The task in Flower: `python in_flower.py TASK.npz OUT.csv`.

Flower runs rounds, or leaves the loop to the ServerApp, which pushes and pulls messages. Its
simulation has no clock: the queue by virtual time, FedBuff and the evaluation are ours.
"""

import csv
import heapq
import sys
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

TASK, OUT = sys.argv[1:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    task = np.load(TASK)
    own = task["owner"] == message.content["config"]["client"]
    data = TensorDataset(torch.from_numpy(task["x"][own]), torch.from_numpy(task["y"][own]))
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    return Message(content=content, reply_to=message)


@torch.no_grad()
def accuracy_by_label(state, task):
    model = Net()
    model.load_state_dict(state)
    right = model(torch.from_numpy(task["x_test"])).argmax(1).numpy() == task["y_test"]
    return [100 * right[task["y_test"] == label].mean() for label in range(10)]


@server_app.main()
def serve(grid, context):
    task = np.load(TASK)
    while len(nodes := list(grid.get_node_ids())) < 30:
        time.sleep(0.1)
    state, version, buffer, rows = Net().state_dict(), 0, [], []
    queue = []  # by virtual time: who arrives, with which message, from which model

    def hand_out(client, now):
        config = ConfigRecord({"client": client})
        content = RecordDict({"arrays": ArrayRecord(state), "config": config})
        message = Message(content, dst_node_id=nodes[client], message_type="train")
        (sent,) = grid.push_messages([message])
        arrival = now + float(task["seconds"][client])
        heapq.heappush(queue, (arrival, client, sent, version, state))

    for client in range(30):
        hand_out(client, 0.0)
    while version < 60:
        now, client, sent, start_version, start = heapq.heappop(queue)
        while not (replies := list(grid.pull_messages([sent]))):
            time.sleep(0.01)
        trained = replies[0].content["arrays"].to_torch_state_dict()
        discount = (1 + version - start_version) ** -0.5
        buffer.append({name: discount * (trained[name] - start[name]) for name in start})
        if len(buffer) == 10:
            state = {
                name: value + sum(update[name] for update in buffer) / len(buffer)
                for name, value in state.items()
            }
            version, buffer = version + 1, []
            if version % 10 == 0:
                rows.append([version, *accuracy_by_label(state, task)])
        hand_out(client, now)
    with Path(OUT).open("w") as file:
        csv.writer(file).writerows(rows)


run_simulation(server_app, client_app, num_supernodes=30)
