"""A cluster: the same bytes, whoever of it dies, and nothing of it is left."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.experiment.small_runs import SPEC, same, spec

from fedraw.errors import BadInput, Interrupted, MissingExtra, WorkerDied
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.simulate import simulate
from fedraw.simulation.executors import ray_cluster, ray_workers
from fedraw.simulation.executors.ray_cluster import cluster, cpus_of_cluster

if TYPE_CHECKING:
    from fedraw.learning.models import ModelFactory

pytest.importorskip("ray")
# Ray leaves the files and processes of its servers to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning"),
]

RAY = Options("ray", 2)


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    with cluster(cpus=2):
        yield


def children(pid: int) -> list[int]:
    """All processes below this one."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def workers() -> list[int]:
    def is_worker(pid: int) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return b"ray::TrainingWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    return [pid for pid in children(os.getpid()) if is_worker(pid)]


def wait_until(holds: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_cluster_that_other_machines_could_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Should another version of Ray not heed what keeps it on loopback, nothing runs on it.

    This test comes first: the others share a cluster, and a process has one at most.
    """
    import ray

    monkeypatch.setattr(ray_cluster, "_on_loopback", lambda ray: nullcontext())
    with (
        pytest.raises(BadInput, match=r"other machines can reach.*executor='processes\'"),
        cluster(),
    ):
        pytest.fail("it was started")
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sent_along"), [("fedraw", 0), ("qfedavg", 65536)])
def test_the_log_is_the_same_on_a_cluster(
    name: str, sent_along: int, two_cpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "SENT_ALONG", sent_along)  # 0: models are put in the store
    run_seed(spec(name), 1, tmp_path / "inline")
    run_seed(spec(name), 1, tmp_path / "ray", options=RAY)
    assert same(tmp_path / "inline", tmp_path / "ray")
    wait_until(lambda: not workers(), 20)


@pytest.mark.slow
def test_zero_workers_are_all_cpus_and_a_connection_is_left_as_it_was(two_cpus: None) -> None:
    import ray

    counts = []
    options = Options("ray", 0, progress=lambda event: counts.append(len(workers())))
    run_seed(spec(), 1, options=options)
    assert max(counts) == cpus_of_cluster() == 2
    assert ray.is_initialized()


def listening(pids: list[int]) -> list[str]:
    """The addresses at which these processes accept TCP connections."""
    sockets = set()
    for descriptor in (fd for pid in pids for fd in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):  # it may be gone by now
            sockets.add(str(descriptor.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].split(":")[0])
                swapped = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found.append(str(ipaddress.ip_address(swapped)))
    return found


def test_a_cluster_of_its_own_listens_on_loopback_only(two_cpus: None) -> None:
    seen: list[str] = []

    def look(event: int) -> None:
        seen.extend(listening([os.getpid(), *children(os.getpid())]))

    run_seed(spec(events=20), 1, options=Options("ray", 1, progress=look))
    assert len(seen) >= 4  # at least the control store, the scheduler, this process, the worker
    assert set(seen) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"}


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(two_cpus: None, tmp_path: Path) -> None:
    killed = []

    def kill_one(event: int) -> None:
        if event in (20, 60):
            killed.append(workers()[0])
            os.kill(killed[-1], signal.SIGKILL)

    run_seed(spec(events=100), 1, tmp_path / "inline")
    run_seed(spec(events=100), 1, tmp_path / "ray", options=replace(RAY, progress=kill_one))
    assert len(set(killed)) == 2
    assert same(tmp_path / "inline", tmp_path / "ray")


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_stopped(two_cpus: None, tmp_path: Path) -> None:
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == 31

    run_seed(spec(), 1, tmp_path / "inline")
    with pytest.raises(Interrupted, match="event 31 of 60"):
        run_seed(spec(), 1, tmp_path / "ray", options=replace(RAY, stop=stop))
    run_seed(spec(), 1, tmp_path / "ray", options=replace(RAY, resume=True))
    assert same(tmp_path / "inline", tmp_path / "ray")


def failing_model(fail: Callable[[], None]) -> ModelFactory:
    """One that fails in training; it is made here, so Ray sends it whole, not as a name."""
    from torch import Tensor, nn

    class Failing(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.linear = nn.Linear(64, classes)

        def forward(self, images: Tensor) -> Tensor:
            if self.training:
                fail()
            scores: Tensor = self.linear(images.flatten(1))
            return scores

    return lambda shape, classes: Failing(classes)


@pytest.mark.slow
def test_a_mistake_in_a_model_ends_the_run_and_is_not_repeated(
    two_cpus: None, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"

    def fail() -> None:
        with tries.open("a") as file:
            file.write("x")
        raise ZeroDivisionError("my own mistake")

    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        simulate(spec(), model=failing_model(fail), executor="ray", jobs=1)
    assert len(tries.read_text()) <= 2  # this one, and the one that was sent along


@pytest.mark.slow
def test_a_model_that_kills_its_workers_is_given_up(two_cpus: None) -> None:
    here = os.getpid()

    def fail() -> None:
        assert os.getpid() != here
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerDied, match=r"4 workers died over client .* out of memory\?"):
        simulate(spec(), model=failing_model(fail), executor="ray", jobs=1)


@pytest.mark.slow
def test_a_model_that_cannot_travel_is_named(two_cpus: None) -> None:
    import threading

    from torch import nn

    lock = threading.Lock()

    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        with lock:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    with pytest.raises(BadInput, match="the ray executor cannot send this to a worker"):
        simulate(spec(), model=model, executor="ray", jobs=RAY.workers)


@pytest.mark.slow
def test_a_model_that_workers_cannot_import_is_named_with_the_cause(
    two_cpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch import nn

    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    here_only = types.ModuleType("here_only")
    here_only.net, model.__module__, model.__qualname__ = model, "here_only", "net"  # type: ignore[attr-defined]
    model.__name__ = "net"
    monkeypatch.setitem(sys.modules, "here_only", here_only)
    words = r"cannot load model here_only\.net \(ModuleNotFoundError: No module named 'here_only'\)"
    with pytest.raises(BadInput, match=words):
        simulate(spec(), model=model, executor="ray", jobs=RAY.workers)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingExtra, match=r"this needs ray: pip install 'fedraw\[ray\]'"),
        cluster(),
    ):
        pass


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    (folder / "spec.toml").write_text(SPEC.format(name="fedraw", events=100))
    # Tests that run in the background of a shell inherit an ignored SIGINT.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import fedraw.cli.main as m; m.main()"
    command = [sys.executable, "-c", code, "run", "spec.toml", "--out", "cut", "--executor", "ray"]
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_no_process(tmp_path: Path) -> None:
    options = ("--seeds", "1,2", "--jobs", "2")
    process = start(tmp_path, *options)
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 0)
    below = children(process.pid)
    assert len(below) > 4
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of them get it
    assert "continue with --resume" in finish(process, 130)
    wait_until(lambda: not any(alive(pid) for pid in below), 40)
    errors = finish(start(tmp_path, *options, "--resume"))
    assert "ray" not in errors.lower().replace("fedraw", "")
    for seed in (1, 2):
        run_seed(spec(events=100), seed, tmp_path / f"inline-{seed}")
        assert same(tmp_path / f"inline-{seed}", tmp_path / "cut" / f"seed-{seed}")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow
def test_nothing_of_a_cluster_outlives_its_command(sent: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, "--jobs", "2")
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 10_000)
    below = children(process.pid)
    process.send_signal(sent)
    finish(process, -9 if sent is signal.SIGKILL else 130)
    # Two agents of Ray look for their dead server for a while.
    wait_until(lambda: not any(alive(pid) for pid in below), 40)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_address_where_nobody_is_gets_a_message(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    errors = finish(start(tmp_path, "--address", address), 2)
    assert f"no Ray cluster at --address '{address}'" in errors
    assert "Connection refused" in errors


@pytest.mark.slow
def test_something_else_at_the_address_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        errors = finish(start(tmp_path, "--address", address), 2)
    assert "no answer within 20 s" in errors


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """A cluster that somebody else has started."""
    port = free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    command += ["--disable-usage-stats"]
    # Not `ray stop`, which stops every Ray of this user.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"--block" in line:
                break
        yield f"127.0.0.1:{port}"
        below = children(process.pid)
        process.terminate()
        process.stdout.read()
    wait_until(lambda: not any(alive(pid) for pid in below), 90)


@pytest.mark.slow
def test_a_running_cluster_is_used_and_goes_on_running(head: str, tmp_path: Path) -> None:
    finish(start(tmp_path, "--address", head))
    finish(start(tmp_path, "--address", head, "--jobs", "1", "--force"))
    run_seed(spec(events=100), 1, tmp_path / "inline")
    assert same(tmp_path / "inline", tmp_path / "cut" / "seed-1")


OWN_TRAINING = """
import fedraw, torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(x.flatten(1))

def train(model, data, context):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    context.state["trainings"] = context.state.get("trainings", 0) + 1
    return {"trainings": float(context.state["trainings"])}

for executor in ("inline", "ray"):
    result = fedraw.simulate(
        strategy=fedraw.FedRAW(buffer=3), model=Net, train=train, events=40, seeds=[1], jobs=2,
        partition=fedraw.Coverage(clients=8, rare_labels=[9], clients_per_common_label=5),
        executor=executor, out=executor,
    )
    print(max(result.arrivals()["train trainings"]))
"""


@pytest.mark.slow
def test_a_function_and_a_state_of_a_script_reach_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(OWN_TRAINING)
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    inline, ray = done.stdout.split()
    assert inline == ray and float(ray) > 1
    logs = [tmp_path / kind / "seed-1" / "events.jsonl" for kind in ("inline", "ray")]
    assert logs[0].read_bytes() == logs[1].read_bytes()
