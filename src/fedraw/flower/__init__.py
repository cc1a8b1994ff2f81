"""Federations on Flower: fedraw's strategies with real sites.

    from fedraw.flower import Recall, client_app, server_app

`server_app` and `client_app` return the two objects that the components of a Flower app name.
"""

from __future__ import annotations

from importlib.util import find_spec

from fedraw.errors import MissingExtra

if find_spec("flwr") is None:
    raise MissingExtra("flwr", "flower")

from fedraw.flower.client import TrainConfig, client_app, site_name
from fedraw.flower.messages import recall_records
from fedraw.flower.server import server_app
from fedraw.flower.sums import sums_app
from fedraw.server.results import Recall

__all__ = [
    "Recall",
    "TrainConfig",
    "client_app",
    "recall_records",
    "server_app",
    "site_name",
    "sums_app",
]
