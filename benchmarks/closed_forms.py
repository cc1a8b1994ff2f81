"""Compares the closed forms with the simulator on random federations and every kind of buffer.

Each federation has 10 to 1,000 clients, a buffer of 2 to 100, mean times over three orders of
magnitude, rarity from random label counts, and three groups of clients: the holders of rare labels,
the slowest third and the fastest third. Every method runs in the simulation loop without training,
with its own seed.

Standard errors: an update stays in the buffer for T = K / P(miss) arrivals on average, and arrivals
have no memory, so events a few T apart are almost independent. The first 10 T are dropped, and the
rest is divided into 32 batches of at least 12.5 T each. The standard error is that of the mean over
the batches (Student's t with 31 degrees of freedom: |t| < 2 in 94.6 %, |t| > 3 in 0.5 % of all
cases). The three groups and the three quantities of a run are not independent of each other. A
client or group that enters or leaves the buffer fewer than 50 times in a run is counted as too
seldom. Federations whose buffers turn over too slowly for `--events` are drawn again.

Residual replay (`--methods fedraw-replay`, a separate run) is measured after every client that it
replays has arrived once; a federation in which that takes too long is counted as not heard.

    python -m benchmarks.closed_forms --out runs/closed_forms.md
    python -m benchmarks.closed_forms --methods fedraw-replay --results runs/replay_forms.jsonl

Finished federations are stored in runs/closed_forms.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.machine import headline

from fedraw.auditing.influence import capped_influence, influence
from fedraw.auditing.methods import RULES, Buffer, Rule
from fedraw.auditing.presence import (
    Groups,
    arrival_shares,
    group_presence,
    mean_field_presence,
    presence,
)
from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarest, rarity_scores, weights_of_rarest
from fedraw.core.types import Floats, Ints
from fedraw.simulation.arrivals import poisson
from fedraw.simulation.executors import Inline, no_training
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Setup, Strategy
from fedraw.strategies.replay import Replay

RESULTS = Path("runs/closed_forms.jsonl")
BATCHES = 32
BATCH_TURNS = 12.5  # length of a batch, in T
WARM_TURNS = 10  # length of the dropped part, in T
FEWEST_EVENTS = 20_000
FEWEST_VISITS = 50
FARTHEST = 10  # the number of failures that are listed
CAPPED_SEEDS = 4  # the number of seeds that give the error of a sampled influence
EXACT = 1e-9  # the smallest standard error, for a mean that is the same in every batch

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Case:
    """One random federation."""

    table: LabelTable
    seconds: Floats
    size: int
    cap_at: float
    members: dict[str, Mask]
    turn: float  # T, in arrivals
    redrawn: int


class Method(NamedTuple):
    """A strategy and its closed form."""

    strategy: Strategy[Any]
    rule: Rule


class Means(NamedTuple):
    """The means of one run, with one row per batch."""

    present: Floats  # clients
    anyone: Floats  # groups
    weight: Floats  # groups


class Comparison(NamedTuple):
    """A simulated value and its closed form."""

    quantity: str
    group: str
    found: float  # the simulated value
    closed: float  # the closed form
    error: float  # standard error of the difference


def methods(size: int, cap_at: float) -> dict[str, Method]:
    """Return every method with a closed form, for this buffer size and cap."""
    capped = Rule("dedup", "rarity", "water-filling", cap_at)
    return {
        "fedfa": Method(FedFa(size), RULES["fedfa"]),
        "fedbuff": Method(FedBuff(size), RULES["fedbuff"]),
        "fedraw-weight-only": Method(FedRAW(size, dedup=False), RULES["fedraw-weight-only"]),
        "fedraw-dedup-only": Method(FedRAW(size, weighting="uniform"), RULES["fedraw-dedup-only"]),
        "fedraw": Method(FedRAW(size), RULES["fedraw"]),
        "fedraw water-filling": Method(FedRAW(size, cap="water-filling", cap_at=cap_at), capped),
        "fedraw-replay": Method(Replay(size), RULES["fedraw-replay"]),
    }


def draw(index: int, most_events: int) -> Case:
    """Draw the random federation with this index."""
    rng = np.random.default_rng([2026, index])
    redrawn = 0
    while True:
        clients = round(10 ** rng.uniform(1, 3))
        size = round(math.exp(rng.uniform(math.log(2), math.log(min(100, clients - 1)))))
        seconds = 10 ** rng.uniform(0, 3, clients)
        many = round(math.exp(rng.uniform(0, math.log(clients / 4))))
        rare = np.zeros(clients, np.bool_)
        rare[rng.choice(clients, many, replace=False)] = True
        table = _label_counts(rare, rng) if index % 2 else _own_labels(clients, rng)
        cap_at = min(1.0, math.exp(rng.uniform(math.log(1.05), math.log(5))) / size)
        shares = arrival_shares(seconds)
        missed = float((shares * (1 - presence(shares, size, "dedup"))).sum())
        if BATCHES * BATCH_TURNS * size / missed <= most_events:
            break
        redrawn += 1
    order = np.argsort(seconds)
    third = max(1, clients // 3)
    members = {"rare": rare, "slowest third": ~rare, "quickest third": ~rare}
    for name, part in (("slowest third", order[-third:]), ("quickest third", order[:third])):
        members[name] = np.isin(np.arange(clients), part)
    return Case(table, seconds, size, cap_at, members, size / missed, redrawn)


def _label_counts(rare: Mask, rng: np.random.Generator) -> LabelTable:
    """Return ten labels, each on a random part of the clients, and up to three on rare clients."""
    counts: dict[int, dict[str, int]] = {i: {} for i in range(rare.size)}
    for label in range(10):
        share = rng.uniform(0.2, 1)
        for i in np.flatnonzero(rng.random(rare.size) < share):
            counts[int(i)][f"common {label}"] = int(rng.integers(1, 200))
    kinds = int(rng.integers(1, 4))
    for turn, i in enumerate(np.flatnonzero(rare)):
        counts[int(i)][f"rare {turn % kinds}"] = int(rng.integers(1, 500))
    for client_counts in counts.values():
        if not client_counts:
            client_counts["common 0"] = 1
    return LabelTable.from_counts(counts)


def _own_labels(clients: int, rng: np.random.Generator) -> LabelTable:
    """Return one label on all clients and one on each client alone, for scores from 1/N to 1."""
    score = clients ** -rng.random(clients)
    counts = {}
    for i in range(clients):
        own = round(1e6 * (score[i] - 1 / clients) / (1 - 1 / clients))
        counts[i] = {"of all": max(1_000_000 - own, 1), f"of {i}": max(own, 1)}
    return LabelTable.from_counts(counts)


def replayed(case: Case, method: Method) -> Ints | None:
    """Return the clients that residual replay keeps in memory; None for other methods."""
    if method.rule.weighting != "replay":
        return None
    return rarest(rarity_scores(case.table), case.size)


def run(case: Case, method: Method, seed: int, events: int) -> Means | None:
    """Simulate the method with an empty model, and return the means of the batches.

    The result is None if a client to be replayed does not arrive within `events` arrivals.
    """
    law = poisson(case.seconds, Streams(seed))
    executor = Inline(no_training([case.table.totals()]))
    simulation = Simulation(
        method.strategy, Setup(np.zeros(0, np.float32), case.table), law, executor
    )
    while not simulation.step().aggregated:
        pass
    kept = replayed(case, method)
    unheard = set() if kept is None else set(kept.tolist())
    for _ in range(math.ceil(WARM_TURNS * case.turn)):
        unheard.discard(simulation.step().client)
    for _ in range(events):
        if not unheard:
            break
        unheard.discard(simulation.step().client)
    if unheard:
        return None
    rows = [_batch(case, *_contents(simulation, events // BATCHES)) for _ in range(BATCHES)]
    present, anyone, weight = (np.array(column) for column in zip(*rows, strict=True))
    return Means(present, anyone, weight)


def _contents(simulation: Simulation, events: int) -> tuple[Ints, Ints, Floats]:
    """Return the aggregation, the client and the weight of every slot, slot by slot."""
    clients: list[Sequence[Any]] = []
    weights: list[Sequence[float]] = []
    for _ in range(events):
        step = simulation.step()
        if step.aggregated:
            clients.append(step.contents.clients)
            weights.append(step.contents.weights)
    row = np.repeat(np.arange(len(clients)), [len(held) for held in clients])
    return row, np.concatenate(clients).astype(np.int64), np.concatenate(weights)


def _batch(case: Case, row: Ints, clients: Ints, weights: Floats) -> tuple[Floats, Floats, Floats]:
    rows, client_count = int(row[-1]) + 1, case.seconds.size
    total = np.bincount(clients, weights, client_count) / rows
    distinct = np.unique(row * client_count + clients)
    present = np.bincount(distinct % client_count, minlength=client_count) / rows
    masks = list(case.members.values())
    anyone = np.array([np.unique(row[mask[clients]]).size / rows for mask in masks])
    return present, anyone, np.array([total[mask].sum() for mask in masks])


def compare(case: Case, name: str, method: Method, seed: int, events: int) -> dict[str, Any]:
    """Simulate one method, and return its comparisons with the closed forms."""
    start = time.perf_counter()
    means = run(case, method, seed, events)
    seconds = time.perf_counter() - start
    if means is None:
        return {"method": name, "not heard": True}
    shares, buffer = arrival_shares(case.seconds), method.rule.buffer
    closed = presence(shares, case.size, buffer, kept=replayed(case, method))
    often = visits(shares, closed, buffer, case.size, events)
    clear = often >= FEWEST_VISITS
    gap = means.present.mean(0) - closed
    z = gap[clear] / _error(means.present)[clear]
    by_group = _by_group(case, method, means, shares, closed, events)
    groups = [comparison for comparison in by_group if comparison is not None]
    return {
        "method": name,
        "arrivals a second": round(events / seconds),
        "clients": int(clear.sum()),
        "gap": np.abs(gap[clear]).round(9).tolist(),
        "z": z.round(3).tolist(),
        "groups": [comparison._asdict() for comparison in groups],
        "seldom": 3 * len(case.members) - len(groups),
        "seldom clients": int((~clear).sum()),
    }


def visits(shares: Floats, chance: Any, buffer: Buffer, size: int, events: int) -> Any:
    """Return how often a client enters the buffer in a run: the rate of arrivals times 1 − P.

    For a buffer that is cleared after each aggregation, it is how often the client is in the
    buffer, or is not, whichever is less.
    """
    if buffer == "blocks":
        return np.minimum(chance, 1 - chance) * events / size
    return shares * (1 - chance) * events


def _by_group(
    case: Case, method: Method, means: Means, shares: Floats, chance: Floats, events: int
) -> Iterator[Comparison | None]:
    """Yield all comparisons of groups; None if the group enters the buffer too seldom."""
    buffer, size = method.rule.buffer, case.size
    weight, doubt = _group_influence(case, method, events)
    kept = replayed(case, method)
    for column, (name, mask) in enumerate(case.members.items()):
        often = float(np.sum(visits(shares[mask], chance[mask], buffer, size, events)))
        slots = means.present[:, mask].mean(1)
        anyone = group_presence(shares, mask, size, buffer, kept=kept)
        heard = often if kept is None or not mask[kept].any() else math.inf
        several = float(visits(shares[mask].sum(), anyone, buffer, size, events))
        for quantity, batches, closed, extra, seen in (
            ("presence, mean of a group", slots, float(chance[mask].mean()), 0.0, often),
            ("presence of anyone", means.anyone[:, column], anyone, 0.0, several),
            ("influence", means.weight[:, column], weight[column], doubt[column], heard),
        ):
            if seen < FEWEST_VISITS:
                yield None
                continue
            error = max(math.hypot(float(_error(batches)), extra), EXACT)
            yield Comparison(quantity, name, float(batches.mean()), closed, error)


def _group_influence(case: Case, method: Method, events: int) -> tuple[list[float], list[float]]:
    """Return the influence of every group, and standard errors that the batches do not show.

    For a sampled closed form, this is the sampling error. For replay, it is the error from rounds
    with rare arrivals only, which few runs have.
    """
    rate, masks = 1 / case.seconds, list(case.members.values())
    groups = Groups.of(rate, rarity_scores(case.table), np.zeros(rate.size, np.bool_))
    own = influence(groups, case.size, method.rule)
    found = [float(own[mask].sum()) for mask in masks]
    kept = replayed(case, method)
    if kept is not None and kept.size:
        scores = rarity_scores(case.table)
        weight = weights_of_rarest(scores[kept], float(scores.sum()))
        alone = float(arrival_shares(case.seconds)[kept].sum()) ** case.size
        swing = math.sqrt(alone * (1 - alone) * case.size / events) * (1 / weight.sum() - 1)
        return found, [float(weight[mask[kept]].sum() * swing) for mask in masks]
    if method.rule.cap == "none":
        return found, [0.0] * len(masks)
    rule, samples = method.rule, []
    for seed in range(CAPPED_SEEDS):
        mean = capped_influence(groups, case.size, rule.buffer, rule.cap, rule.cap_at, seed)
        samples.append([float(mean[mask].sum() / mean.sum()) for mask in masks])
    return found, np.std(samples, axis=0, ddof=1).tolist()


def _error(batches: Floats) -> Any:
    """Return the standard error of the mean over the batches."""
    return batches.std(axis=0, ddof=1) / math.sqrt(len(batches))


def federation(index: int, most_events: int, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the comparisons of all wanted methods on one random federation."""
    case = draw(index, most_events)
    events = max(math.ceil(BATCHES * BATCH_TURNS * case.turn), min(FEWEST_EVENTS, most_events))
    shares = arrival_shares(case.seconds)
    exact = presence(shares, case.size, "dedup")
    field = mean_field_presence(np.log(shares), case.size)
    return {
        "federation": index,
        "most events": most_events,
        "clients": int(shares.size),
        "buffer": case.size,
        "turn": case.turn,
        "events": events,
        "redrawn": case.redrawn,
        "mean field": float(np.abs(field - exact).max()),
        "methods": [
            compare(case, name, method, 1000 * index + turn, events)
            for turn, (name, method) in enumerate(methods(case.size, case.cap_at).items())
            if name in wanted
        ],
    }


def finished(path: Path, most_events: int, wanted: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Read the stored federations with the same settings, by their index."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return {
        r["federation"]: r
        for r in records
        if r["most events"] == most_events and {m["method"] for m in r["methods"]} >= set(wanted)
    }


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the tables in Markdown, with a row for each method and quantity."""
    head = ("method", "quantity", "comparisons", "median gap", "largest gap")
    tests = ("z below 2", "z above 3", "mean z", "failures (by chance)", "too seldom")
    lines = [_row((*head, *tests)), "|---|---|" + "--:|" * 8]
    for name in methods(2, 1.0):
        of_method = [m for record in records for m in record["methods"] if m["method"] == name]
        runs = [m for m in of_method if "not heard" not in m]
        if not runs:
            continue
        gap = np.concatenate([m["gap"] for m in runs])
        z = np.concatenate([m["z"] for m in runs])
        seldom = sum(m["seldom clients"] for m in runs)
        lines.append(_row((name, "presence of a client", *_figures(gap, z), "", f"{seldom:,}")))
        groups = [Comparison(**comparison) for m in runs for comparison in m["groups"]]
        for quantity in ("presence, mean of a group", "presence of anyone", "influence"):
            selected = [c for c in groups if c.quantity == quantity]
            gap = np.array([abs(c.found - c.closed) for c in selected])
            z = np.array([(c.found - c.closed) / max(c.error, 1e-15) for c in selected])
            failed = f"{sum(map(_fails, selected))} ({sum(map(_fails_by_chance, selected)):.1f})"
            seldom = 3 * len(runs) - len(selected)
            lines.append(_row((name, quantity, *_figures(gap, z), failed, f"{seldom:,}")))
    return "\n".join([*lines, "", *_failures(records), *_mean_field(records)])


def _fails(c: Comparison) -> bool:
    """Return whether the difference is above both 5 % and two standard errors."""
    gap = abs(c.found - c.closed)
    return gap > 0.05 * c.closed and gap > 2 * c.error


def _fails_by_chance(c: Comparison) -> float:
    """Return the probability that an exact formula fails because of the error of the run."""
    t = max(2.0, 0.05 * c.closed / max(c.error, 1e-15))
    # A normal approximation of Student's t (Cornish and Fisher's first term) for 31 degrees.
    df = BATCHES - 1
    return math.erfc(t * (1 - 1 / (4 * df)) / math.sqrt(1 + t * t / (2 * df)) / math.sqrt(2))


def _figures(gap: Floats, z: Floats) -> tuple[str, ...]:
    size = np.abs(z)
    return (
        f"{gap.size:,}",
        f"{100 * np.median(gap):.3f}",
        f"{100 * gap.max():.2f}",
        f"{100 * np.mean(size < 2):.1f} %",
        f"{100 * np.mean(size > 3):.2f} %",
        f"{z.mean():+.2f} ± {1 / math.sqrt(z.size):.2f}",
    )


def _failures(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield f"The {FARTHEST} largest failures, in standard errors:"
    yield ""
    failed = [
        (abs(c.found - c.closed) / max(c.error, 1e-15), record, m["method"], c)
        for record in records
        for m in record["methods"]
        for c in (Comparison(**comparison) for comparison in m.get("groups", ()))
        if _fails(c)
    ]
    failed.sort(key=lambda failure: -failure[0])
    for z, record, name, c in failed[:FARTHEST]:
        yield (
            f"- {z:.1f}: {name}, {record['clients']} clients, K = {record['buffer']}, "
            f"{c.quantity}, {c.group}: {100 * c.found:.2f} ± {100 * c.error:.2f} simulated, "
            f"{100 * c.closed:.2f} in closed form"
        )
    yield ""


def _mean_field(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the largest error of the mean field over all clients, by federation and buffer size."""
    bounds = [(2, 4), (5, 9), (10, 29), (30, 100)]
    yield "Mean field against exact presence, largest error in points (federations):"
    yield ""
    yield _row(("clients", *(f"K = {low} to {high}" for low, high in bounds)))
    yield "|---|" + "--:|" * len(bounds)
    for low, high in ((10, 29), (30, 99), (100, 299), (300, 1000)):
        cells = []
        for least, most in bounds:
            errors = [
                record["mean field"]
                for record in records
                if low <= record["clients"] <= high and least <= record["buffer"] <= most
            ]
            cells.append(f"{100 * max(errors):.2f} ({len(errors)})" if errors else "")
        yield _row((f"{low} to {high}", *cells))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def run_all(
    remaining: Sequence[int],
    most_events: int,
    wanted: Sequence[str],
    jobs: int,
    store: Callable[[dict[str, Any]], None],
) -> None:
    """Run the remaining federations, and store each record."""
    if jobs == 1:
        for index in remaining:
            store(federation(index, most_events, wanted))
        return
    with ProcessPoolExecutor(jobs) as pool:
        common = [most_events] * len(remaining), [wanted] * len(remaining)
        for record in pool.map(federation, remaining, *common):
            store(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--events", type=int, default=120_000, help="largest number in a run")
    parser.add_argument("--methods", nargs="+", choices=list(methods(2, 1.0)), help="only these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    first_line = headline()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    wanted = options.methods or list(methods(2, 1.0))
    done = finished(options.results, options.events, wanted)
    start_time = time.perf_counter()
    remaining = [index for index in range(options.federations) if index not in done]
    with options.results.open("a") as file:

        def store(record: dict[str, Any]) -> None:
            done[record["federation"]] = record
            file.write(json.dumps(record) + "\n")
            file.flush()

        run_all(remaining, options.events, wanted, options.jobs, store)
    records = [done[index] for index in range(options.federations)]
    arrivals = sum(len(wanted) * record["events"] for record in records)
    unheard = sum("not heard" in m for record in records for m in record["methods"])
    text = "\n".join(
        (
            first_line,
            f"{len(records)} federations x {len(wanted)} methods, {arrivals / 1e6:.0f} million "
            f"arrivals, {sum(r['redrawn'] for r in records)} too slow federations drawn again, "
            f"{unheard} with rare clients that did not arrive in time; "
            f"{time.perf_counter() - start_time:.0f} s for {len(remaining)} federations",
            "",
            table(records),
        )
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
