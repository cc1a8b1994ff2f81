"""The status of runs in the format of Prometheus.

A metric of sites or labels has one time series for each of them, so it is left out for runs with
very many. The number of sites in each state is always exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

from fedraw.core.text import printable
from fedraw.dashboard.watcher import RunView
from fedraw.eventlog.live import Phase

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Runs with more sites or labels have no time series for each of them.
MOST_SITES, MOST_LABELS = 500, 500
# The labels of every series.
RUN = ("run", "seed", "folder")

T = TypeVar("T")
# The values of a metric's labels, and its value; None exports no sample.
Sample = tuple[Sequence[str], float | None]


class Family(NamedTuple):
    """A metric, and the function that returns its samples for one run."""

    name: str
    description: str
    labels: Sequence[str]
    samples: Callable[[RunView], Iterable[Sample]]
    is_counter: bool = False


def _single(value: Callable[[RunView], float | None]) -> Callable[[RunView], Iterable[Sample]]:
    """Return a function that gives one sample per run, without further labels."""
    return lambda view: [((), value(view))]


FAMILIES = (
    Family("run_state", "1 for the current state of the run.", ["state"],
           lambda v: (((s,), v.status.state == s) for s in get_args(Phase))),
    Family("run_readable",
           "1 if the event log can be read, 0 if it is damaged, missing or of another version.",
           [], _single(lambda v: v.problem is None)),
    Family("arrivals", "Updates that have reached the server, including refused ones.", [],
           _single(lambda v: v.status.event), is_counter=True),
    Family("rejected_updates", "Updates that were refused.", [],
           _single(lambda v: sum(v.detail.rejected.values())), is_counter=True),
    Family("restarts", "Restarts of the server.", [],
           _single(lambda v: v.detail.history.restarts), is_counter=True),
    Family("model_version", "How often the global model has changed.", [],
           _single(lambda v: v.detail.version)),
    Family("wanted_arrivals", "Number of updates after which the run ends, if it is limited.", [],
           _single(lambda v: v.status.events)),
    Family("log_written_timestamp_seconds", "Unix time of the last write to the event log.", [],
           _single(lambda v: v.status.written)),
    Family("log_unread_bytes", "Bytes of the event log that are not read yet.", [],
           _single(lambda v: v.status.unread)),
    Family("metric_percent", "Metrics of the last evaluation, in percent.", ["metric"],
           lambda v: (((k,), value) for k, value in v.status.metrics.items())),
    Family("own_metric", "The user's own metrics, of the last evaluation or of training.",
           ["metric", "source"],
           lambda v: (((own.metric, own.source), own.value) for own in v.detail.own)),
    Family("labels_at_risk", "Labels that are being lost or may be lost.", ["rare"],
           lambda v: (((str(rare).lower(),), sum(risk.rare == rare for risk in v.detail.at_risk))
                      for rare in (True, False))),
    Family("label_recall_percent", "Recall of the label at the last evaluation.", ["label"],
           lambda v: (((t.label,), t.recall) for t in _limited(v.detail.labels, MOST_LABELS))),
    Family("label_holders", "Members that hold the label now.", ["label"],
           lambda v: (((k,), n) for k, n in _limited(list(v.detail.holders.items()), MOST_LABELS))),
    Family("label_at_risk", "1 for each reason why the label may be lost.", ["label", "reason"],
           lambda v: (((risk.label, reason), 1) for risk in v.detail.at_risk[:MOST_LABELS]
                      for reason in risk.reasons)),
    Family("sites", "Sites in each state.", ["state"],
           lambda v: (((state,), n) for state, n in v.site_counts.items())),
    Family("site_arrivals", "Updates of the site that were accepted.", ["site"],
           lambda v: (((str(s.client),), s.arrivals) for s in _limited(v.sites, MOST_SITES)),
           is_counter=True),
    Family("site_silent_seconds", "Seconds of the log's time since the site's last message.",
           ["site"],
           lambda v: (((str(s.client),), s.silent) for s in _limited(v.sites, MOST_SITES))),
)  # fmt: skip


def _limited(items: Sequence[T], most: int) -> Sequence[T]:
    """Return all items, or none of them if there are more than `most`."""
    return items if len(items) <= most else ()


class StatusCollector:
    """Provides the metrics of all runs to Prometheus' client library at each scrape."""

    def __init__(self, views: Callable[[], Sequence[RunView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its samples of all runs."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        views = self._views()
        for family in FAMILIES:
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(
                f"fedraw_{family.name}", family.description, labels=[*RUN, *family.labels]
            )
            for view in views:
                seed = "" if view.status.seed is None else str(view.status.seed)
                run = (view.method, seed, str(view.status.folder))
                for labels, value in family.samples(view):
                    if value is not None:
                        texts = [printable(text) for text in (*run, *labels)]
                        metric.add_metric(texts, float(value))
            yield metric


def exposition(views: Callable[[], Sequence[RunView]]) -> Callable[[], bytes]:
    """Return a function that renders the metrics of all runs."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(views))
    return lambda: generate_latest(registry)
