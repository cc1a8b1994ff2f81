"""The server: the initial model, and its evaluation on images that no site has."""

from flwr.app import ArrayRecord

from fedraw.flower import Recall, server_app
from rarelabels import task


def evaluate(arrays: ArrayRecord) -> Recall:
    model = task.network()
    model.load_state_dict(arrays.to_torch_state_dict())
    return Recall.of(*task.predictions(model))


# Everything else comes from [tool.flwr.app.config.fedraw] in pyproject.toml.
app = server_app(initial_model=lambda: task.network().state_dict(), evaluate=evaluate)
