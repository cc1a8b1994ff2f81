"""Runs or exports the job: python job.py sim, python job.py poc, or python job.py export FOLDER."""

import argparse
from pathlib import Path

from nvflare.recipe import PocEnv, SimEnv

from fedraw.flare import FederationRecipe

HERE = Path(__file__).parent
TASK = HERE.parent / "flower-app" / "rarelabels" / "task.py"  # the same data and training
SITES = ["north", "south", "east", "west"]


def recipe(strategy: str, folder: str, arrivals: int, slowdown: float) -> FederationRecipe:
    return FederationRecipe(
        name="rarelabels",
        model="server:initial_model",
        evaluate="server:evaluate",
        train_script=str(HERE / "client.py"),
        train_args=f"--slowdown {slowdown}",
        files=[str(HERE / "server.py"), str(TASK)],
        strategy={"name": strategy, "buffer": 4},
        settings={
            "folder": folder,
            "min_clients": len(SITES),
            "arrivals": arrivals,
            "rare_labels": ["8", "9"],
            "deadline": 120.0,
            "back_off": 5.0,
            "evaluate_every": 4,
            "snapshot_every": 20.0,
            "poll": 0.2,
        },
        task_interval=0.1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", choices=["sim", "poc", "export"])
    parser.add_argument("target", nargs="?", default="job", help="folder for the exported job")
    parser.add_argument("--strategy", default="fedraw")
    parser.add_argument("--folder", default="federation", help="federation folder on the server")
    parser.add_argument("--workspace", default="/tmp/nvflare/simulation", help="simulator folder")
    parser.add_argument("--arrivals", type=int, default=40)
    parser.add_argument("--slowdown", type=float, default=3.0)
    options = parser.parse_args()
    job = recipe(options.strategy, options.folder, options.arrivals, options.slowdown)
    if options.where == "export":
        job.export(options.target)
    elif options.where == "sim":
        job.execute(SimEnv(clients=SITES, workspace_root=options.workspace))
    else:
        job.execute(PocEnv(clients=SITES)).get_result()


if __name__ == "__main__":
    main()
