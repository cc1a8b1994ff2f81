"""A site, which trains and tests the received model."""

from collections import Counter

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

from fedraw.flower import client_app
from quickstart.task import load_data, net, test, train

app = ClientApp()
privacy = LocalDpMod(clipping_norm=2.0, sensitivity=2.0, epsilon=200.0, delta=1e-5)


def data_of(context: Context):
    config = context.node_config
    return load_data(int(config["partition-id"]), int(config["num-partitions"]))


@app.train(mods=[privacy])
def on_train(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = data_of(context)
    lr, epochs = message.content["config"]["lr"], context.run_config["local-epochs"]
    loss = train(model, loader, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, loader = data_of(context)
    loss, accuracy = test(model, loader)
    numbers = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)


app = client_app(app, label_counts=lambda c: Counter(data_of(c)[0].dataset.tensors[1].tolist()))
