"""The server: five rounds of FedAvg."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds, lr = context.run_config["num-server-rounds"], context.run_config["lr"]
    arrays, config = ArrayRecord(net().state_dict()), ConfigRecord({"lr": lr})
    FedAvg(min_available_nodes=4).start(grid, arrays, rounds, train_config=config)
