"""A model of four numbers; `fault` in the node config is the fault of a site.

slow:SECONDS     training takes this long
hang             training never returns
lies             after honest trainings, each training sends another invalid reply
"""

import time
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedraw.flower import TrainConfig, client_app, server_app
from fedraw.flower.messages import COUNTS, FIELDS
from fedraw.flower.tensors import record_of

SIZE = 4
HONEST = 2


def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
    fault = str(context.node_config.get("fault", ""))
    if fault == "hang":
        time.sleep(10_000)
    if fault.startswith("slow:"):
        time.sleep(float(fault.removeprefix("slow:")))
    weights = arrays["w"].numpy() + np.float32(0.1)
    return {"w": weights}, 10


def label_counts(context: Context) -> dict[str, int]:
    return {"owl": 5} if context.node_config["site"] == "north" else {"cat": 5}


def lie(message: Message, context: Context, call_next: Any) -> Message:
    """Corrupt the honest reply, each time in another way."""
    reply: Message = call_next(message, context)
    if context.node_config.get("fault") != "lies" or message.metadata.message_type != "train":
        return reply
    told = context.state.config_records.setdefault("lies", ConfigRecord({"told": 0}))
    number = int(told["told"]) - HONEST
    told["told"] = number + HONEST + 1
    content = reply.content
    match number:
        case 0:
            content["arrays"] = record_of({"w": np.full(SIZE, np.nan, np.float32)})
        case 1:
            content["arrays"] = record_of({"w": np.zeros((2, 2, 2), np.float32)})
        case 2:
            content[FIELDS]["site"] = "north"
        case 3:
            content[COUNTS] = ConfigRecord({"cat": -5})
        case 4:
            content["arrays"] = record_of({"w": np.full(SIZE, 1e9, np.float32)})
    return reply


honest = client_app(train=train, label_counts=label_counts)
client = ClientApp(mods=[lie])  # around the whole app: it changes a reply last
client.query("fedraw")(honest)
client.train()(honest)
server = server_app(initial_model=lambda: {"w": np.zeros(SIZE, np.float32)})
