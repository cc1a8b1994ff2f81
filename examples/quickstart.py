"""Two servers, the same slow clients: which one keeps the rare digits?"""

import fedraw

clients = fedraw.Coverage(clients=30, rare_labels=[8, 9], clients_per_rare_label=2)
results = {
    name: fedraw.simulate(strategy=name, partition=clients, events=3000, seeds=[42])
    for name in ("fedfa", "fedraw")
}
for row in fedraw.compare(results):
    print(row.name, {key: row.metrics[key].mean for key in ("GlobalAcc", "AvgRare", "BufPres")})
