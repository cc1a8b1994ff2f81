"""The supervisor of jobs, with a scripted session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import AuthenticationError, JobNotFound, NoConnection

from fedraw.flare import supervise as module
from fedraw.flare.supervise import Flare
from fedraw.server.supervise import EngineFailed, EngineRefused, supervise

pytestmark = pytest.mark.slow

ALL = ("north", "south")


class System:
    """FLARE's server: each job has a list of statuses, and each site takes part or is idle."""

    def __init__(self, *statuses: list[str]) -> None:
        self.statuses = list(statuses)
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.inside: tuple[str, ...] = ALL
        self.outside = "no_jobs"
        self.has_job = True
        self.error: Exception | None = None

    def connect(self, username: str, kit: str, timeout: float) -> System:
        assert username == "lead@example.org"
        if self.error is not None:
            raise self.error
        return self

    def close(self) -> None:
        pass

    def submit_job(self, folder: str) -> str:
        assert Path(folder).is_absolute()
        self.submitted.append(f"job-{len(self.submitted)}")
        return self.submitted[-1]

    def get_job_status(self, job: str) -> str:
        if job in self.aborted:
            return "FINISHED:ABORTED"
        left = self.statuses[int(job.removeprefix("job-"))]
        if left == ["gone"]:
            raise JobNotFound
        return left.pop(0) if len(left) > 1 else left[0]

    def get_client_job_status(self) -> list[dict[str, Any]]:
        jobs = [{"client_name": name, "job_id": self.submitted[-1]} for name in self.inside]
        out = [name for name in ALL if name not in self.inside]
        return jobs + [{"client_name": name, "status": self.outside} for name in out]

    def get_system_info(self) -> SimpleNamespace:
        jobs = self.submitted[-1:] if self.has_job else []
        return SimpleNamespace(job_info=[SimpleNamespace(job_id=job) for job in jobs])

    def abort_job(self, job: str) -> None:
        self.aborted.append(job)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def flare(
    system: System, monkeypatch: pytest.MonkeyPatch, clock: Time, rejoin: float = 600
) -> Flare:
    monkeypatch.setattr(module, "new_secure_session", system.connect)
    return Flare(Path("job"), Path("kits/lead@example.org"), rejoin, clock.clock)


@pytest.mark.parametrize(
    "failed", ["FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL", "FINISHED:ABANDONED", "gone"]
)
def test_a_failed_job_is_submitted_again_until_one_completes(
    failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, time = System([failed], ["RUNNING", "FINISHED:COMPLETED"]), Time()
    assert supervise(flare(system, monkeypatch, time), time.sleep, time.clock) == 0
    assert len(system.submitted) == 2


def test_a_job_that_someone_aborted_stays_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    system, time = System(["RUNNING", "FINISHED:ABORTED"]), Time()
    assert supervise(flare(system, monkeypatch, time), time.sleep, time.clock) == 0
    assert len(system.submitted) == 1


def test_the_job_restarts_for_an_idle_site_but_not_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, time = System(["RUNNING"], ["RUNNING"]), Time()
    engine = flare(system, monkeypatch, time)
    run = engine.start()
    assert engine.status(run) == "running"
    system.inside = ("north",)
    assert engine.status(run) == "finished:restarted"
    assert system.aborted == [run]
    run = engine.start()
    assert engine.status(run) == "running", "it was restarted just now"
    time.sleep(601)
    assert engine.status(run) == "finished:restarted"


def test_the_job_does_not_restart_for_a_dead_site(monkeypatch: pytest.MonkeyPatch) -> None:
    system, time = System(["RUNNING"]), Time()
    engine = flare(system, monkeypatch, time)
    system.inside, system.outside = ("north",), "no_reply"
    assert engine.status(engine.start()) == "running"


def test_a_job_missing_in_two_checks_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, time = System(["RUNNING"]), Time()
    engine = flare(system, monkeypatch, time)
    run = engine.start()
    system.has_job, system.inside = False, ()
    assert engine.status(run) == "running"
    assert engine.status(run) == "finished:lost"


def test_a_starting_job_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    system, time = System(["RUNNING"]), Time()
    engine = flare(system, monkeypatch, time)
    system.inside = ()
    assert engine.status(engine.start()) == "running"


def test_an_absent_server_is_awaited_and_a_refusal_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, time = System(["RUNNING"]), Time()
    engine = flare(system, monkeypatch, time)
    system.error = NoConnection("cannot connect to server")
    with pytest.raises(EngineFailed, match="NoConnection cannot connect") as away:
        engine.start()
    assert not isinstance(away.value, EngineRefused)
    system.error = AuthenticationError("incorrect user name")
    with pytest.raises(EngineRefused, match="incorrect user name"):
        engine.start()
    assert supervise(engine, time.sleep, time.clock) == 2
