"""The norm bound refuses no honest update: the example's task, in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from tests.eventlog.logs import read_objects
from tests.flower.memory_grid import MemoryGrid, identity
from tests.flower.quiet import ROOT

from fedraw.flower import TrainConfig, client_app, server_app
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.qfedavg import QFedAvg
from fedraw.strategies.replay import Replay

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("identity")
assert identity

sys.path.insert(0, str(ROOT / "examples" / "flower-app"))
from rarelabels import task  # noqa: E402

ARRIVALS = 16


def test_the_example_trains_the_same_bits_whatever_the_number_of_threads() -> None:
    found = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = task.network()
        task.train(model, "north", seed=1, epochs=5, rate=0.3)
        found.add(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    assert len(found) == 1


def from_zero() -> Any:
    """A linear model whose initial norm is unrelated to the norm of its updates."""
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


@pytest.mark.parametrize("network", [task.network, from_zero], ids=["example", "zero"])
@pytest.mark.parametrize(("epochs", "rate"), [(1, 0.3), (5, 1.0)], ids=["usual", "large-steps"])
@pytest.mark.parametrize(
    "strategy",
    [
        FedRAW(buffer=4),
        FedBuff(buffer=2),
        CA2FL(buffer=2),
        Replay(buffer=2),
        QFedAvg(lr=0.3),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_no_honest_update_is_refused(
    network: Any, epochs: int, rate: float, strategy: Any, tmp_path: Path
) -> None:
    def train(arrays: ArrayRecord, config: TrainConfig, context: Context) -> Any:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        site = str(context.node_config["site"])
        images, labels = task.local_data(site)
        with torch.inference_mode():
            loss = float(torch.nn.functional.cross_entropy(model(images), labels))
        examples = task.train(model, site, config.version, epochs, rate)
        return model.state_dict(), examples, loss

    def label_counts(context: Context) -> dict[str, int]:
        return task.label_counts(str(context.node_config["site"]))

    app = client_app(train=train, label_counts=label_counts)
    sites = enumerate(task.LABELS, start=11)
    contexts = {node: Context(1, node, {"site": site}, RecordDict(), {}) for node, site in sites}
    settings = {"folder": tmp_path, "min_clients": 4, "arrivals": ARRIVALS, "poll": 0.001}
    server = server_app(
        initial_model=lambda: network().state_dict(), strategy=strategy, settings=settings
    )
    server(MemoryGrid(app, contexts), Context(1, 1, {}, RecordDict(), {}))
    records = list(read_objects(tmp_path / "events.jsonl"))
    assert [r["kind"] for r in records].count("arrival") == ARRIVALS
    assert [r for r in records if r["kind"] in ("rejected", "left", "note")] == []
