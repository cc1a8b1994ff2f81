"""Measures an engine's overhead: seconds from a hand-out to its arrival, without training time.

The measurement uses one site, a model of a few numbers, and real processes with TLS: on Flower
(SuperLink, SuperNode), and on FLARE (POC mode), where the site's script runs in the job's process
or in a separate one. The log has both times of each arrival. Flower starts a process for each
message.

Run: python -m benchmarks.engines [--arrivals N]      after `make flare`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.machine import headline

ROOT = Path(__file__).parents[1]
FLARE = ROOT / ".flare" / "bin" / "python"
SETTINGS = {"min_clients": 1, "poll": 0.1, "evaluate_every": 0}


def seconds(folder: Path) -> list[float]:
    """Return the seconds of each arrival after the first, which includes imports."""
    records = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    arrivals = [record for record in records if record["kind"] == "arrival"]
    return [record["time"] - record["start_time"] for record in arrivals[1:]]


def on_flower(folder: Path, arrivals: int) -> list[float]:
    """Return the seconds of each arrival on Flower."""
    from tests.flower.deployment import Deployment

    config = {f"fedraw.{key}": value for key, value in SETTINGS.items()}
    strategy = {"fedraw.strategy.name": "fedasync", "fedraw.strategy.buffer": ""}
    with Deployment(folder, {"north": {}}) as deployment:
        run = deployment.run_app(
            ROOT / "tests" / "flower" / "fault_app",
            {
                **config,
                **strategy,
                "fedraw.folder": str(folder / "run"),
                "fedraw.arrivals": arrivals,
            },
        )
        assert run.wait(1800) == "finished:completed", run.log()
    return seconds(folder / "run")


def on_flare(folder: Path, arrivals: int) -> dict[str, list[float]]:
    """Return the seconds of each arrival on FLARE, for a script in the job's or its own process."""
    from nvflare.fuel.utils.constants import FrameworkType
    from tests.flare.poc import Poc

    from fedraw.flare import FederationRecipe

    files = ROOT / "tests" / "flare" / "fault_job"
    found = {}
    with Poc(folder, ["north"]) as poc:
        for name, own_process in (("in the job's process", False), ("in its own process", True)):
            recipe = FederationRecipe(
                name="engines",
                model="model:initial_model",
                train_script=str(files / "trainer.py"),
                train_args="0",
                files=[str(files / "model.py")],
                strategy={"name": "fedasync"},
                settings={**SETTINGS, "arrivals": arrivals, "folder": str(folder / name)},
                task_interval=0.05,
                framework=FrameworkType.NUMPY,
                launch_external_process=own_process,
            )
            recipe.export(str(folder / "jobs" / name))
            status = poc.wait(poc.submit(folder / "jobs" / name / "engines"), 1800)
            assert status == "FINISHED:COMPLETED", poc.logs()
            found[name] = seconds(folder / name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrivals", type=int, default=15)
    parser.add_argument("--flare", type=Path, help=argparse.SUPPRESS)  # in FLARE's environment
    options = parser.parse_args()
    if options.flare is not None:
        (options.flare / "found.json").write_text(
            json.dumps(on_flare(options.flare, options.arrivals))
        )
        return
    print(headline())
    with tempfile.TemporaryDirectory() as folder:
        flower, flare = Path(folder) / "flower", Path(folder) / "flare"
        for path in (flower, flare):
            path.mkdir()
        words = ["-m", "benchmarks.engines", "--arrivals", str(options.arrivals), "--flare"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        command = [str(FLARE), *words, str(flare)]
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment, cwd=ROOT)
        rows = {"Flower": on_flower(flower, options.arrivals)}
        found = json.loads((flare / "found.json").read_text())
        rows |= {f"FLARE, script {name}": times for name, times in found.items()}
    base = median(rows["Flower"])
    print("| engine | arrivals | median s | range | Flower's / this |\n|---|--:|--:|---|--:|")
    for name, times in rows.items():
        least, most = min(times), max(times)
        row = f"{len(times)} | {median(times):.2f} | {least:.2f} to {most:.2f}"
        print(f"| {name} | {row} | {base / median(times):.1f} |")


if __name__ == "__main__":
    main()
