"""The status of runs in the format of Prometheus.

Metrics with a site or a label have as many series as there are sites and labels, so they are left
out for runs with very many of them; the numbers of sites by state are always there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedraw.core.text import printable
from fedraw.dashboard.watcher import RunView
from fedraw.eventlog.status import RunState

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Runs with more sites or labels have no series of their own for each.
MOST_SITES, MOST_LABELS = 500, 500
STATES: tuple[RunState, ...] = ("starting", "running", "stopped", "finished")
RUN = ["run", "seed", "folder"]


class StatusCollector:
    """Gives Prometheus' client the metrics of all runs, whenever it is asked."""

    def __init__(self, views: Callable[[], Sequence[RunView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, each with a sample for every run."""
        views = self._views()
        yield from _of_runs(views)
        yield from _of_labels(views)
        yield from _of_sites(views)


def _gauge(name: str, words: str, labels: list[str], samples: Iterable[_Sample]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"fedraw_{name}", words, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric([printable(text) for text in values], value)
    return family


def _counter(name: str, words: str, labels: list[str], samples: Iterable[_Sample]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"fedraw_{name}", words, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric([printable(text) for text in values], value)
    return family


_Sample = tuple[list[str], float | None]


def _run(view: RunView) -> list[str]:
    status = view.status
    seed = "" if status.seed is None else str(status.seed)
    return [view.method, seed, str(status.folder)]


def _of_runs(views: Sequence[RunView]) -> Iterator[Metric]:
    yield _gauge(
        "run_state",
        "1 for the state that the run is in.",
        [*RUN, "state"],
        (([*_run(v), s], float(v.status.state == s)) for v in views for s in STATES),
    )
    yield _gauge(
        "run_readable",
        "1 if the event log can be followed, 0 if it is damaged, gone or of another version.",
        RUN,
        ((_run(v), float(v.problem is None)) for v in views),
    )
    yield _counter(
        "arrivals",
        "Updates that have reached the server, refused ones included.",
        RUN,
        ((_run(v), float(v.status.event)) for v in views),
    )
    yield _counter(
        "rejected_updates",
        "Updates that were refused.",
        RUN,
        ((_run(v), float(sum(v.detail.rejected.values()))) for v in views),
    )
    yield _counter(
        "restarts",
        "Restarts of the server.",
        RUN,
        ((_run(v), float(v.detail.history.restarts)) for v in views),
    )
    yield _gauge(
        "model_version",
        "How often the global model has changed.",
        RUN,
        ((_run(v), float(v.detail.version)) for v in views),
    )
    yield _gauge(
        "wanted_arrivals",
        "Updates after which the run ends, if it has such a limit.",
        RUN,
        ((_run(v), v.status.events) for v in views),
    )
    yield _gauge(
        "log_written_timestamp_seconds",
        "When the event log last grew, in unix seconds.",
        RUN,
        ((_run(v), v.status.written) for v in views),
    )
    yield _gauge(
        "log_unread_bytes",
        "Bytes of the event log that the dashboard has not read yet.",
        RUN,
        ((_run(v), float(v.status.unread)) for v in views),
    )
    yield _gauge(
        "metric_percent",
        "Metrics of the last evaluation, in percent.",
        [*RUN, "metric"],
        (([*_run(v), k], value) for v in views for k, value in v.status.metrics.items()),
    )
    yield _gauge(
        "serving_metric_percent",
        "Metrics of the average that is served, in percent.",
        [*RUN, "metric"],
        (([*_run(v), k], value) for v in views for k, value in v.detail.serving.items()),
    )
    yield _gauge(
        "labels_at_risk",
        "Labels that are being lost or may be lost.",
        [*RUN, "rare"],
        (
            ([*_run(v), str(rare).lower()], float(sum(r.rare == rare for r in v.detail.at_risk)))
            for v in views
            for rare in (True, False)
        ),
    )


def _of_labels(views: Sequence[RunView]) -> Iterator[Metric]:
    few = [v for v in views if len(v.detail.labels) <= MOST_LABELS]
    held = [v for v in views if len(v.detail.holders) <= MOST_LABELS]
    yield _gauge(
        "label_recall_percent",
        "Recall of the label at the last evaluation.",
        [*RUN, "label"],
        (([*_run(v), t.label], t.recall) for v in few for t in v.detail.labels),
    )
    yield _gauge(
        "label_holders",
        "Members that hold the label now.",
        [*RUN, "label"],
        (([*_run(v), k], float(n)) for v in held for k, n in v.detail.holders.items()),
    )
    yield _gauge(
        "label_at_risk",
        "1 for every reason why the label may be lost.",
        [*RUN, "label", "reason"],
        (
            ([*_run(v), r.label, reason], 1.0)
            for v in views
            for r in v.detail.at_risk[:MOST_LABELS]
            for reason in r.reasons
        ),
    )


def _of_sites(views: Sequence[RunView]) -> Iterator[Metric]:
    yield _gauge(
        "sites",
        "Sites in each state.",
        [*RUN, "state"],
        (([*_run(v), s], float(n)) for v in views for s, n in v.site_counts.items()),
    )
    few = [v for v in views if len(v.sites) <= MOST_SITES]
    yield _counter(
        "site_arrivals",
        "Updates of the site that were accepted.",
        [*RUN, "site"],
        (([*_run(v), str(s.client)], float(s.arrivals)) for v in few for s in v.sites),
    )
    yield _gauge(
        "site_silent_seconds",
        "Seconds of the log's time since the site was last heard.",
        [*RUN, "site"],
        (([*_run(v), str(s.client)], s.silent) for v in few for s in v.sites),
    )


def exposition(views: Callable[[], Sequence[RunView]]) -> Callable[[], bytes]:
    """Return a function that renders the metrics of all runs."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(views))
    return lambda: generate_latest(registry)
