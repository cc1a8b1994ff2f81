"""A site: a FLARE client script with two lines of fedraw."""

import argparse
import time

import nvflare.client as flare
import task

import fedraw.flare  # added

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--rate", type=float, default=0.3)
parser.add_argument("--slowdown", type=float, default=3.0, help="factor for the time of `west`")
options = parser.parse_args()

flare.init()
site = flare.get_site_name()
fedraw.flare.join(label_counts=task.label_counts(site))  # added
start = None
while flare.is_running():
    received = flare.receive()
    model = task.network()
    model.load_state_dict(received.params)
    task.train(model, site, received.current_round, options.epochs, options.rate)
    if site == "west" and start:  # simulate a slow machine after the first training
        time.sleep((options.slowdown - 1) * (time.monotonic() - start))
    start = time.monotonic()
    flare.send(flare.FLModel(params=model.state_dict()))
