"""A Ray cluster of two nodes, one of which is killed in the middle of a run: the same log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.small_runs import same, spec

from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.simulation.executors.ray_cluster import (
    LOCAL_SETTINGS,
    _environment,
    _on_loopback,
    _short_path,
    cluster,
)

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning"),
]


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Two nodes of one CPU each, on loopback; this process is connected to the first."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    with (
        tempfile.TemporaryDirectory(**_short_path()) as folder,
        # By default Ray gives its workers so low a priority that a busy machine starves them.
        _environment({**LOCAL_SETTINGS, "RAY_TMPDIR": folder, "RAY_worker_niceness": "0"}),
        _on_loopback(ray),
    ):
        both: Any = Cluster(True, head_node_args={**node, "include_dashboard": False})
        try:
            both.add_node(**node)
            with cluster(both.address):
                yield both
        finally:
            both.shutdown()


def test_a_killed_node_changes_nothing(nodes: Any, tmp_path: Path) -> None:
    wanted = spec(events=100).with_changes(
        {
            "strategy.buffer": 3,
            "availability.online": 0.5,
            "availability.cycle": 4.0,
            "losses.lost": 0.1,
            "membership.joining": 0.3,
            "membership.leaving": 0.3,
            "membership.within": 10.0,
        }
    )
    assert sorted(node["Resources"]["CPU"] for node in ray.nodes()) == [1.0, 1.0]
    killed = []

    def kill_the_second(event: int) -> None:
        if event == 40:
            assert not ray.available_resources().get("CPU")  # a worker on each node
            killed.append(next(iter(nodes.worker_nodes)))
            nodes.remove_node(killed[0], allow_graceful=False)

    run_seed(wanted, 1, tmp_path / "inline")
    options = Options("ray", 2, progress=kill_the_second)
    run_seed(wanted, 1, tmp_path / "ray", options=options)
    assert len(killed) == 1
    assert not killed[0].any_processes_alive()
    assert same(tmp_path / "inline", tmp_path / "ray")
