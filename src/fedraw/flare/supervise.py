"""Supervises a federation's job on FLARE: submits it again whenever it fails.

    python -m fedraw.flare.supervise JOB KIT [--rejoin SECONDS]

JOB is the folder of an exported job, and KIT the start-up kit of a user who may submit jobs. FLARE
fails a job if the job process of one site dies, forgets a job if its server restarts, and does not
let a returning site take part in a running job. The federation's folder has its whole state, so a
new job continues where the last job stopped. Start this command from a service manager such as
systemd.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from math import inf
from pathlib import Path

from fedraw.errors import MissingExtra
from fedraw.server.supervise import LOGGER, EngineFailed, EngineRefused, supervise_until_stopped

try:
    from nvflare.fuel.flare_api.api_spec import (
        AuthenticationError,
        AuthorizationError,
        InvalidJobDefinition,
        JobNotFound,
    )
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
except ModuleNotFoundError:
    missing = MissingExtra("nvflare", "flare")
    if __name__ != "__main__":
        raise missing from None
    print(f"error: {missing}", file=sys.stderr)
    sys.exit(2)

# FLARE's status of a connected site that takes part in no job.
IDLE = "no_jobs"
# Errors that a second attempt would repeat.
REFUSALS = (AuthenticationError, AuthorizationError, InvalidJobDefinition, ValueError)
# Seconds to wait for a connection, and for a stopped job to end.
CONNECTION, ENDING = 30.0, 120.0


@dataclass
class Flare:
    """Runs a job on a FLARE system.

    Args:
        job: The folder of an exported job.
        kit: The start-up kit of a user; the folder's name is the user's name.
        rejoin: Seconds between two restarts of the job for connected sites that do not take part
            in it.
        clock: Returns the time in seconds.

    """

    job: Path
    kit: Path
    rejoin: float = 600.0
    clock: Callable[[], float] = time.monotonic
    _restarted: float = field(default=-inf, init=False)
    _missed: int = field(default=0, init=False)

    def start(self) -> str:
        """Submit the job, and return its id."""
        self._missed = 0
        with self._session() as session:
            return str(session.submit_job(str(self.job.absolute())))

    def status(self, run: str) -> str:
        """Return the status of a job, such as `finished:completed`."""
        with self._session() as session:
            try:
                status = str(session.get_job_status(run)).lower()
            except JobNotFound:
                return "finished:forgotten"
            if status == "running" and self._is_lost(session, run):
                return "finished:lost"
            if status == "running" and (sites := self._left_out(session, run)):
                LOGGER.info("starting the job again for %s", ", ".join(sites))
                self._restarted = self.clock()
                self._end(session, run)
                return "finished:restarted"
            return "finished:stopped" if status == "finished:aborted" else status

    def reason_of(self, run: str) -> str:
        """Return nothing, because FLARE does not tell why a job has failed."""
        return ""

    def stop(self, run: str) -> None:
        """Abort the job; its federation's folder is up to date."""
        with self._session() as session:
            self._end(session, run)

    def log_of(self, run: str) -> str:
        """Return the place of a job's log."""
        return f"log.txt in the server's folder {run}"

    def _is_lost(self, session: Session, run: str) -> bool:
        """Return whether the job was missing on the server in two checks in a row.

        A restarted server lists its earlier jobs as running, but does not run them.
        """
        is_running = any(job.job_id == run for job in session.get_system_info().job_info)
        self._missed = 0 if is_running else self._missed + 1
        return self._missed >= 2

    def _left_out(self, session: Session, run: str) -> list[str]:
        """Return the connected sites that do not take part in the job, if a restart is due."""
        if self.clock() - self._restarted < self.rejoin:
            return []
        reports = session.get_client_job_status() or []
        if not any(report.get("job_id") == run for report in reports):
            return []  # the job is still starting
        # FLARE lists a dead site for ten minutes, with another status.
        idle = (report["client_name"] for report in reports if report.get("status") == IDLE)
        return sorted(idle)

    def _end(self, session: Session, run: str) -> None:
        session.abort_job(run)
        until = self.clock() + ENDING
        while not str(session.get_job_status(run)).startswith("FINISHED"):
            if self.clock() > until:
                raise EngineFailed(f"job {run} has not ended {ENDING:.0f} s after it was aborted")
            time.sleep(1.0)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Connect for one request, because a session ends when the server restarts."""
        session = None
        try:
            with redirect_stdout(StringIO()):  # FLARE prints a line for each connection
                session = new_secure_session(self.kit.name, str(self.kit), timeout=CONNECTION)
            yield session
        except EngineFailed:
            raise
        except REFUSALS as problem:
            raise EngineRefused(f"FLARE: {problem}") from None
        except Exception as problem:  # FLARE raises many errors for an unreachable server
            raise EngineFailed(f"FLARE: {type(problem).__name__} {problem}") from None
        finally:
            if session is not None:
                session.close()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m fedraw.flare.supervise", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("job", type=Path, help="the folder of an exported job")
    parser.add_argument("kit", type=Path, help="the start-up kit of a user")
    parser.add_argument(
        "--rejoin",
        type=float,
        default=Flare.rejoin,
        metavar="SECONDS",
        help="the shortest time between two restarts for sites that have returned",
    )
    options = parser.parse_args()
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # supervise logs these errors itself
    sys.exit(supervise_until_stopped(Flare(options.job, options.kit.absolute(), options.rejoin)))


if __name__ == "__main__":
    main()
