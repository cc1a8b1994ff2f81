"""An offline site is a slower one: the audit divides times by the share of the time online."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import fedraw as command

import fedraw
from fedraw.auditing.times import read_shares
from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import poisson
from fedraw.simulation.availability import Renewal
from fedraw.simulation.executors import Inline, no_training
from fedraw.simulation.flights import Flights
from fedraw.simulation.loop import Simulation
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.protocol import Setup

SITES = {site: {"cat": 90} for site in "abcde"} | {"f": {"cat": 50, "owl": 40}}


def test_a_site_that_is_seldom_online_counts_as_slow() -> None:
    online = dict.fromkeys("abcde", 1.0) | {"f": 0.25}
    away = fedraw.audit(SITES, dict.fromkeys(SITES, 1.0), 3, availability=online)
    slow = fedraw.audit(SITES, dict.fromkeys("abcde", 1.0) | {"f": 4.0}, 3)
    assert away.seconds.tolist() == slow.seconds.tolist() == [1, 1, 1, 1, 1, 4]
    assert away.verdicts == slow.verdicts
    # Without times, only the shares matter; with an interval, it moves along.
    assert fedraw.audit(SITES, None, 3, availability=online).seconds.tolist() == [1] * 5 + [4]


def test_the_share_of_arrivals_is_that_of_the_simulation() -> None:
    table = fedraw.LabelTable.from_counts(SITES)
    seconds, shares = np.array([1.0, 2, 1, 3, 1, 2]), np.array([1.0, 0.5, 0.8, 1, 0.6, 0.2])
    streams = Streams(3)
    run = Simulation(
        FedFa(3),
        Setup(np.zeros(0, np.float32), table),
        poisson(seconds, streams),
        Inline(no_training([table.totals()])),
        conditions=Flights(Renewal(shares, 1.0, streams)),
    )
    met = np.bincount([list(table.clients).index(run.step().client) for _ in range(8000)])
    found = fedraw.audit(table, seconds, 3, availability=shares)
    # The influence under FedFa is the share of arrivals.
    assert met / 8000 == pytest.approx(found.influence["fedfa"], abs=0.015)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": 0.5}, "client 'b' has no availability; give the availability of every client"),
        (dict.fromkeys(SITES, 0.5) | {"z": 1}, "the availability names client 'z', which is not"),
        ([0.5, 1, 1, 1, 1, 0], "client 'f': 0 is not a share of the time"),
        ([1.5, 1, 1, 1, 1, 1], r"client 'a': 1\.5 is not a share of the time"),
        ([1, 1], "2 shares for 6 clients; give one per client"),
        (["much"] * 6, "availability must be numbers"),
    ],
)
def test_wrong_shares_are_refused(shares: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fedraw.audit(SITES, None, 3, availability=shares)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,0.5\nb,0", r"line 3, column 'online': '0' is not a share of the time; write a number"),
        ("a,0.5", "client 'b' has no row; add one for every client"),
        ("a,0.5\nc,1\nb,1", "'c' is not in the label counts; remove the row"),
        ("a,0.5\na,1\nb,1", "'a' has a row already; keep one"),
        ("a,often\nb,1", "'often' is not a share"),
    ],
)
def test_a_wrong_table_of_shares_is_refused(rows: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "online.csv"
    path.write_text(f"client,online\n{rows}\n")
    with pytest.raises(BadInput, match=message):
        read_shares(path, ["a", "b"])


def test_the_command_takes_a_table(tmp_path: Path) -> None:
    rows = [f"{site},{label},{n}\n" for site, own in SITES.items() for label, n in own.items()]
    (tmp_path / "labels.csv").write_text("client,label,count\n" + "".join(rows))
    shares = [f"{site},{0.1 if site == 'f' else 1}\n" for site in SITES]
    (tmp_path / "online.csv").write_text("client,online\n" + "".join(shares))
    done = command("audit", "labels.csv", "--availability", "online.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "times are divided by the share" in " ".join(done.stdout.split())
    arrivals = [f"{site},{t}\n" for t, site in enumerate([*SITES] * 3)]
    (tmp_path / "times.csv").write_text("client,timestamp\n" + "".join(arrivals))
    refused = command(
        "audit", "labels.csv", "--times", "times.csv", "--availability", "online.csv", cwd=tmp_path
    )
    assert refused.returncode == 2
    assert "which already include the time offline" in refused.stderr
