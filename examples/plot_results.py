"""Results as a pandas DataFrame, and a figure of them with pandas and matplotlib.

The script writes `rare_labels.png`, the recall of the rare labels over the events (the mean of two
seeds), and prints the last row of what it plots: a column for each method.
"""

import matplotlib
import pandas as pd

import fedraw

matplotlib.use("Agg")  # for machines without a screen; a notebook needs no such line

clients = fedraw.Coverage(clients=30, rare_labels=[8, 9])
results = {
    name: fedraw.simulate(
        strategy=name, partition=clients, events=600, evaluate_every=50, seeds=[1, 2]
    )
    for name in ("fedfa", "fedraw", "fedraw-replay")
}

frames = {name: result.curves.to_frame() for name, result in results.items()}
curves = pd.concat(frames, names=["method"]).groupby(["event", "method"])["AvgRare"].mean()
table = curves.unstack("method")
axes = table.plot(ylabel="recall of the rare labels (%)", ylim=(-2, 100))
axes.figure.savefig("rare_labels.png", dpi=150)

print(table.tail(1).round(1).to_string())
