"""Two servers, the same slow clients: which one keeps the rare digits?"""

import fedraw

federation = {
    "partition": {"clients": 30, "rare_labels": [8, 9], "clients_per_rare_label": 2},
    "speeds": {"kind": "correlated"},
    "run": {"events": 3000, "seeds": [42]},
}
results = []
for name in ("fedfa", "fedraw"):
    spec = fedraw.Spec.read({**federation, "strategy": {"name": name, "buffer": 10}})
    results += fedraw.run(spec)

for row in fedraw.compare(results):
    print(row.name, {key: row.metrics[key].mean for key in ("GlobalAcc", "AvgRare", "BufPres")})
