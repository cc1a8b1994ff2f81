"""The methods by name: the only place that lists them."""

from __future__ import annotations

from typing import Any

from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedasync import FedAsync
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay

BY_NAME: dict[str, Any] = {
    "fedavg": FedAvg,
    "qfedavg": QFedAvg,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "fedfa": FedFa,
    "ca2fl": CA2FL,
    "fedraw": FedRAW,
    "fedraw-replay": Replay,
}
