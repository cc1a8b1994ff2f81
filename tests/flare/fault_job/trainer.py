"""A site of the fault tests: NumPy only, so that it starts quickly."""

import sys
import time

import nvflare.client as flare

import fedraw.flare

flare.init()
name = flare.get_site_name()
fedraw.flare.join(label_counts={"all": 5, name: 5})
while flare.is_running():
    received = flare.receive()
    time.sleep(float(sys.argv[1]))
    params = {key: array + 0.01 for key, array in received.params.items()}
    flare.send(flare.FLModel(params=params))
