"""Compares the audit's prediction with simulations in which clients are offline at times.

Each random federation has 10 to 100 clients, a buffer of 2 to 20, mean times over one order of
magnitude, and a rare label on one to four clients. Each client is online for a share of the time,
from 0.1 to 1 and lower for the holders of the rare label. The audit of a federation uses times
divided by these shares and, for comparison, the times alone. The simulations run FedFa and FedRAW
without training, with exponential online and offline phases. The mean length of a cycle is 0.1, 1,
10 or 100 times the mean time between two updates of a client.

Two errors are reported for the holders of the rare label together: that of the share of
aggregations with one of them in the buffer, in percentage points, and that of their influence,
relative to the simulated influence. Runs last 100 cycles, limited to 10,000 to 60,000 arrivals, so
the simulated values have some noise.

    python -m benchmarks.availability --federations 200 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import headline

from fedraw import LabelTable, audit
from fedraw.core.randomness import Streams
from fedraw.simulation.arrivals import poisson
from fedraw.simulation.availability import Renewal
from fedraw.simulation.executors import Inline, no_training
from fedraw.simulation.flights import Flights
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Setup

CYCLES = (0.1, 1.0, 10.0, 100.0)
FEWEST, MOST = 10_000, 60_000
RESULTS = Path("runs/availability.jsonl")


def federation(index: int, scale: float = 1.0) -> dict[str, Any]:
    """Predict and simulate one random federation; `scale` shortens the runs."""
    rng = np.random.default_rng([23, index])
    clients = round(10 ** rng.uniform(1, 2))
    size = int(rng.integers(2, min(20, clients - 1) + 1))
    rare = rng.choice(clients, int(rng.integers(1, min(4, clients // 3) + 1)), replace=False)
    seconds, shares = 10 ** rng.uniform(0, 1, clients), 10 ** rng.uniform(-0.5, 0, clients)
    shares[rare] = 10 ** rng.uniform(-1, 0, rare.size)
    table = _table(clients, rare.tolist(), rng)
    between = float(np.mean(seconds / shares))
    cycle = CYCLES[index % len(CYCLES)] * between
    wanted = 100 * cycle * float((shares / seconds).sum())
    events = round(scale * min(max(FEWEST, wanted), MOST))
    with_shares = audit(table, seconds, size, rare=["rare"], availability=shares)
    without = audit(table, seconds, size, rare=["rare"])
    found: dict[str, Any] = {"index": index, "cycle": CYCLES[index % len(CYCLES)]}
    for method, strategy in (("fedfa", FedFa(size)), ("fedraw", FedRAW(size))):
        streams = Streams(index)
        simulation = Simulation(
            strategy,
            Setup(np.zeros(0, np.float32), table),
            poisson(seconds, streams),
            Inline(no_training([table.totals()])),
            conditions=Flights(Renewal(shares, cycle, streams)),
        )
        holders, present, weight, aggregations = set(rare.tolist()), 0, 0.0, 0
        for event in range(events):
            step = simulation.step()
            if step.aggregated and event > events // 10:
                pairs = zip(step.contents.clients, step.contents.weights, strict=True)
                rare_weights = [w for client, w in pairs if client in holders]
                present += bool(rare_weights)
                weight += sum(rare_weights)
                aggregations += 1
        simulated = {"presence": 100 * present / aggregations, "influence": weight / aggregations}
        for name, prediction in (("availability", with_shares), ("times alone", without)):
            share = float(prediction.influence[method][rare].sum())
            found[f"{method}, {name}"] = {
                "presence": abs((prediction.rare_presence[method] or 0.0) - simulated["presence"]),
                "influence": abs(share / simulated["influence"] - 1) if weight else math.nan,
            }
    return found


def _table(clients: int, rare: list[int], rng: np.random.Generator) -> LabelTable:
    """Return counts of one label on all clients, four on half of them, and one on rare clients."""
    counts: dict[int, dict[str, int]] = {i: {"common": 100} for i in range(clients)}
    for label in range(4):
        for i in np.flatnonzero(rng.random(clients) < 0.5).tolist():
            counts[i][f"common {label}"] = int(rng.integers(20, 200))
    for i in rare:
        counts[i]["rare"] = int(rng.integers(50, 300))
    return LabelTable.from_counts(counts)


def report(results: list[dict[str, Any]]) -> str:
    """Return the table of errors: median and 90th percentile over the federations by cycle."""
    lines = ["cycle  method  prediction     federations  presence (points)  influence (%)"]
    for cycle in CYCLES:
        same_cycle = [result for result in results if result["cycle"] == cycle]
        for key in [key for key in (same_cycle[0] if same_cycle else ()) if ", " in key]:
            errors = [
                np.array([result[key][quantity] for result in same_cycle])
                for quantity in ("presence", "influence")
            ]
            cells = [
                f"{np.nanmedian(e * f):6.1f} {np.nanpercentile(e * f, 90):6.1f}"
                for e, f in zip(errors, (1, 100), strict=True)
            ]
            method, name = key.split(", ")
            lines.append(
                f"{cycle:5g}  {method:6}  {name:13} {len(same_cycle):12}      "
                f"{cells[0]}   {cells[1]}"
            )
    footer = "errors: median, 90th percentile; cycles are relative to the time between updates"
    return "\n".join([*lines, footer])


def main() -> None:
    """Run the federations without a stored result, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="shorten the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = options.results.read_text().splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in done]
    left = sorted(set(range(options.federations)) - {result["index"] for result in results})
    run = partial(federation, scale=options.scale)
    with ProcessPoolExecutor(options.jobs) as pool, options.results.open("a") as file:
        for result in pool.map(run, left):
            results.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
    print(headline())
    print(report(results))


if __name__ == "__main__":
    main()
