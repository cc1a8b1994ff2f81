"""Kill every part of a POC in turn: no accepted update is lost, and the supervisor continues.

Each step prints a line for the table in docs/how-to/flare.md.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.utils.constants import FrameworkType
from tests.flare.poc import ADMIN, SITE_JOB, Poc
from tests.flare.replay import records

from fedraw.flare import FederationRecipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),  # FLARE's
]

FILES = Path(__file__).parent / "fault_job"
SITES = ("north", "south", "east")
PATIENCE = 900.0


def export(folder: Path) -> Path:
    recipe = FederationRecipe(
        name="faults",
        model="model:initial_model",
        train_script=str(FILES / "trainer.py"),
        train_args="0.5",
        files=[str(FILES / "model.py")],
        strategy={"name": "fedraw", "buffer": 2},
        settings={
            "min_clients": 3,
            "arrivals": 100_000,
            "deadline": 60.0,
            "absence": 5.0,
            "back_off": 1.0,
            "snapshot_every": 5.0,
            "poll": 0.2,
        },
        task_interval=0.2,
        framework=FrameworkType.NUMPY,
    )
    recipe.export(str(folder))
    return folder / "faults"


class Federation:
    """A POC with a supervised federation, and its log."""

    def __init__(self, poc: Poc, job: Path) -> None:
        self.poc = poc
        self.folder = poc.workspace / "federation"
        command = [sys.executable, "-m", "fedraw.flare.supervise", str(job), str(poc.kits / ADMIN)]
        self.log = poc.folder / "logs" / "supervisor.log"
        with self.log.open("wb") as log:
            self.supervisor = subprocess.Popen(
                [*command, "--rejoin", "0"],
                env=poc.environment("supervisor"),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.accepted: list[dict[str, Any]] = []

    def arrivals(self, site: str | None = None) -> int:
        return sum(site in (None, r["client"]) for r in records(self.folder, "arrival"))

    def until_more(self, sites: tuple[str, ...], more: int = 2) -> float:
        """Wait until each of the sites has sent more updates; return the elapsed seconds."""
        begun, before = time.monotonic(), {site: self.arrivals(site) for site in sites}
        self.poc.until(
            lambda: all(self.arrivals(site) >= n + more for site, n in before.items()), PATIENCE
        )
        return time.monotonic() - begun

    def check(self) -> None:
        """Check that every update accepted before is still in the log, each event once."""
        arrivals = records(self.folder, "arrival")
        assert arrivals[: len(self.accepted)] == self.accepted
        events = [record["event"] for record in records(self.folder, "arrival", "rejected")]
        assert events == list(range(1, len(events) + 1))
        self.accepted = arrivals

    @property
    def restarts(self) -> int:
        return len(records(self.folder, "restarted"))


def test_killed_processes_recover_without_loss_of_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(*cells: object) -> None:
        with capsys.disabled():
            print("\n| " + " | ".join(map(str, cells)) + " |")

    with Poc(tmp_path, SITES) as poc:
        federation = Federation(poc, export(tmp_path / "job"))
        federation.until_more(SITES)
        federation.check()

        poc.kill("east")
        others = federation.until_more(("north", "south"), more=5)
        poc.until(lambda: bool(records(federation.folder, "left")), PATIENCE)
        left = records(federation.folder, "left")[-1]["reason"]
        federation.check()
        assert federation.restarts == 0, "the supervisor leaves a job alone that goes on"
        tell("a site killed", f"the others go on ({others:.0f} s for 5 more each)", left)

        poc.start("east")
        took = federation.until_more(("east",))
        federation.check()
        tell("… and started again", f"takes part again after {took:.0f} s", restarts(federation))

        poc.kill("south", only=SITE_JOB)
        took = federation.until_more(SITES)
        federation.check()
        tell("a site's job process killed", f"all go on after {took:.0f} s", restarts(federation))

        poc.kill("server")
        count = len(records(federation.folder, "arrival"))
        federation.check()
        poc.start("server")
        took = federation.until_more(SITES)
        federation.check()
        assert len(federation.accepted) > count
        tell("the server killed and started again", f"{took:.0f} s", restarts(federation))

        federation.supervisor.send_signal(signal.SIGTERM)
        assert federation.supervisor.wait(300) == 0, federation.log.read_text()
        federation.check()
        tell("asked to stop", f"{len(federation.accepted)} accepted", "supervisor ends with code 0")
        time.sleep(5)
        assert federation.arrivals() == len(federation.accepted), "nothing trains any more"


def restarts(federation: Federation) -> str:
    last = records(federation.folder, "restarted")[-1]
    return f"{federation.restarts} restarts, the last with a gap of {last['gap']:.0f} s"
