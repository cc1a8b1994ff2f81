"""Two rare labels: FedFa loses both, FedRAW and replay keep them."""

import fedraw

clients = fedraw.Coverage(clients=30, rare_labels=[8, 9], clients_per_rare_label=2)
results = {}
for name in ("fedfa", "fedraw", "fedraw-replay"):
    results[name] = fedraw.simulate(strategy=name, partition=clients, events=3000, seeds=[42])
print(fedraw.compare(results))
