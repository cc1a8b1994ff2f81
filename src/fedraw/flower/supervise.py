"""Supervises a Flower app: starts a new run whenever one fails, until a run completes.

    python -m fedraw.flower.supervise APP SUPERLINK [--run-config TEXT]…

Flower gives up a run when its server process dies or its SuperLink is unreachable for more than
half a minute, and does not start it again. The federation's folder has its whole state, so a new
run with the same settings continues where the last run stopped. Start this command from a service
manager such as systemd.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedraw.core.text import one_line
from fedraw.server.supervise import (
    REFUSED,
    REFUSED_RUN,
    EngineFailed,
    EngineRefused,
    supervise_until_stopped,
)

# Flower's message about a SuperLink that it cannot reach.
AWAY = "Connection to the SuperLink is unavailable"
# Flower's details of a run without details.
NO_DETAILS = "N/A"


@dataclass
class Flower:
    """Runs an app on a SuperLink through the `flwr` command."""

    superlink: str
    app: str
    run_config: Sequence[str] = ()
    program: str = "flwr"
    _reason: str = field(default="", init=False)

    def start(self) -> int:
        """Submit a run, and return its id."""
        arguments = ["run", self.app, self.superlink]
        for text in self.run_config:
            arguments += ["--run-config", text]
        reply = self._call(arguments)
        try:
            return int(reply["run-id"])
        except (KeyError, TypeError, ValueError):
            # Refused, because a second run would compete with one that cannot be followed.
            raise EngineRefused(
                f"{self.program} run: Flower reported success without a run id, so the run cannot "
                f"be supervised; find the run with 'flwr list {self.superlink}', stop it with "
                "'flwr stop', and install the version of flwr that fedraw[flower] needs"
            ) from None

    def status(self, run: int) -> str:
        """Return the status of a run, such as `finished:completed`."""
        reply = self._call(["list", self.superlink, "--run-id", str(run)])
        self._reason = ""
        try:
            if not reply["runs"]:
                return "finished:forgotten"
            found = reply["runs"][0]
            details = one_line(str(found.get("status-details", NO_DETAILS)))
            self._reason = "" if details == NO_DETAILS else details
            return REFUSED if REFUSED_RUN in details else str(found["status"])
        except (KeyError, TypeError, AttributeError):
            raise EngineFailed(
                f"{self.program} list: Flower reported no status of run {run}, but {reply!r:.200}"
            ) from None

    def reason_of(self, run: int) -> str:
        """Return the details that Flower has told with the status of a run."""
        return self._reason

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._call(["stop", str(run), self.superlink])

    def log_of(self, run: int) -> str:
        """Return the command that shows a run's log."""
        return f"flwr log {run} {self.superlink}"

    def _call(self, arguments: Sequence[str]) -> Any:
        command = [self.program, *arguments, "--format", "json"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                start_new_session=True,  # a terminal sends Ctrl-C to this process only
            )
            reply = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            raise EngineFailed(f"{' '.join(command[:2])}: {problem}") from None
        if done.returncode or not reply.get("success", True):
            text = reply.get("error-message") or done.stderr.strip() or done.stdout.strip()
            kind = EngineFailed if AWAY in text else EngineRefused
            raise kind(f"{' '.join(command[:2])}: {text.strip()[-500:]}")
        return reply


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m fedraw.flower.supervise", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("app", help="the folder of the app")
    parser.add_argument("superlink", help="the name of the connection in Flower's config.toml")
    parser.add_argument(
        "--run-config",
        action="append",
        default=[],
        metavar="TEXT",
        help="passed on to `flwr run`; may be given several times",
    )
    options = parser.parse_args()
    engine = Flower(options.superlink, options.app, options.run_config)
    sys.exit(supervise_until_stopped(engine))


if __name__ == "__main__":
    main()
