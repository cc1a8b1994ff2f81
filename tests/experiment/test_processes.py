"""Workers: the same bytes for any number of them, and none outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import fedraw
from tests.experiment.small_runs import FILES, SPEC, same, spec
from torch import nn

from fedraw.errors import BadInput, WorkerDied
from fedraw.experiment.cells import Cell, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec
from fedraw.simulation.executors import Job, Train, TrainingResult
from fedraw.simulation.executors.processes import Processes


@pytest.mark.parametrize(
    ("name", "workers"),
    [("fedraw", 3), pytest.param("ca2fl", 1, marks=pytest.mark.slow), ("qfedavg", 2)],
)
def test_the_log_is_the_same_for_any_number_of_workers(
    name: str, workers: int, tmp_path: Path
) -> None:
    run_seed(spec(name), 1, tmp_path / "inline")
    run_seed(spec(name), 1, tmp_path / "workers", options=Options("processes", workers))
    assert same(tmp_path / "inline", tmp_path / "workers")


def test_cells_side_by_side_are_what_they_are_one_by_one(tmp_path: Path) -> None:
    def cells(folder: str) -> list[Cell]:
        return [Cell(spec(), seed, tmp_path / folder / str(seed)) for seed in (1, 2, 3)]

    told: dict[int, int] = {}
    one = run_cells(cells("one"), Options("batched"), jobs=1)
    two = run_cells(cells("two"), Options("batched"), jobs=2, progress=told.__setitem__)
    assert [result.seed for result in two] == [1, 2, 3]
    assert told == {0: 60, 1: 60, 2: 60}
    for left, right in zip(one, two, strict=True):
        assert left.summary == right.summary
        assert left.folder is not None
        assert right.folder is not None
        assert same(left.folder, right.folder)


def test_callbacks_of_parallel_cells_wait_for_each_other(tmp_path: Path) -> None:
    tables = {**spec("fedraw").to_dict(), "training": {"kind": "none"}}
    cells = [Cell(Spec.from_dict(tables), seed, tmp_path / str(seed)) for seed in range(1, 7)]
    inside, together = [0], []

    def note(number: int, content: object) -> None:
        inside[0] += 1
        time.sleep(0.002)  # long enough for the other thread to call as well
        together.append(inside[0])
        inside[0] -= 1

    run_cells(cells, Options(), jobs=2, progress=note, observe=note, done=note)
    assert len(together) > 6
    assert set(together) == {1}


def test_a_mistake_in_a_cell_reaches_the_user(tmp_path: Path) -> None:
    tables = spec("fedraw").to_dict()
    tables["strategy"]["buffer"] = 11
    tables["training"] = {"kind": "none"}  # so that no process imports torch
    wrong = Spec.from_dict(tables)
    cells = [Cell(wrong, seed, tmp_path / str(seed)) for seed in (1, 2)]
    with pytest.raises(BadInput, match="never fills"):
        run_cells(cells, Options(), jobs=2)
    with pytest.raises(BadInput, match="jobs = 0 must be"):
        run_cells(cells, Options(), jobs=0)


def test_a_model_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        with lock:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    with pytest.raises(BadInput, match=r"model .*model cannot be sent to a worker process"):
        simulate(spec(), model=model, executor="processes", jobs=1)


# What a user types into a notebook, of which worker processes know nothing.
TYPED = """
import fedraw
import torch
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def step(model, x, y):
    nn.functional.cross_entropy(model(x), y).backward()
    torch.optim.Adam(model.parameters(), 0.01).step()

def train(model, data, context):
    for x, y in data:
        model.zero_grad()
        step(model, x, y)
    context.state["trainings"] = context.state.get("trainings", 0) + 1
    return {"trainings": context.state["trainings"]}

partition = fedraw.Coverage(clients=10, rare_labels=[9], clients_per_common_label=6)
how = {"partition": partition, "model": net, "train": train, "events": 20, "seeds": 1}
(one,) = fedraw.simulate(executor="processes", jobs=1, **how)
(other,) = fedraw.simulate(**how)
print(one.log == other.log)
"""


@pytest.mark.parametrize(
    "typed",
    [pytest.param(True, marks=pytest.mark.slow, id="typed"), pytest.param(False, id="a script")],
)
def test_workers_train_a_model_that_only_the_script_has(typed: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("assert __name__ == '__main__', 'imported!'\n" + TYPED)
    command = [sys.executable, *(["-c", TYPED] if typed else ["script.py"])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


RECURSIVE = """
from pathlib import Path
import fedraw

with Path("imports.txt").open("a") as file:
    file.write("imported\\n")
if Path("imports.txt").read_text().count("imported") > 9:
    raise SystemExit("the workers start workers")

def train(model, data, context):
    pass

partition = fedraw.Coverage(clients=10, rare_labels=[9], clients_per_common_label=6)
shared = {"partition": partition, "train": train, "events": 20, "progress": False}
fedraw.simulate(jobs=2, **shared, **options)
"""


@pytest.mark.parametrize("options", ["{'executor': 'processes'}", "{'seeds': [1, 2]}"])
def test_a_module_that_runs_when_it_is_imported_does_not_start_workers_without_end(
    options: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(RECURSIVE.replace("options", options))
    command = [sys.executable, "-c", "import mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "one of these modules starts worker processes of its own" in done.stderr
    assert "below `if __name__ == '__main__':`" in done.stderr
    assert (tmp_path / "imports.txt").read_text().count("imported") <= 3


class Refusal(Exception):
    """Cannot be rebuilt from its message alone, as many exceptions of users cannot."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"{layer}: {reason}")


def refusing_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    if multiprocessing.parent_process() is not None:
        raise Refusal("conv1", "no such kernel")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    with pytest.raises(WorkerDied, match="Refusal: conv1: no such kernel"):
        simulate(spec(), model=refusing_model, executor="processes", jobs=1)


def children(pid: int) -> list[int]:
    """All processes below this one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: object, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def start(
    folder: Path, *options: str, start_new_session: bool = False, finishes: bool = True
) -> subprocess.Popen[str]:
    """Start a run with a checkpoint after every event.

    A run that never finishes waits before it would write its results, and spends about a third of
    its time on checkpoints: one after every event takes minutes on a busy disk.
    """
    (folder / "spec.toml").write_text(SPEC.format(name="fedraw", events=200))
    # A kill may fall into the writing of a checkpoint. Tests that run in the background of a shell
    # inherit an ignored SIGINT.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "import fedraw.experiment.checkpoints as c; c.EVERY_SECONDS = 1e-9\n"
    code += f"c.LARGEST_SHARE = {1e9 if finishes else 0.5}; import fedraw.cli.main as m\n"
    if not finishes:
        code += "import time; from fedraw.experiment.run_folder import RunFolder\n"
        code += "RunFolder.write_results = lambda *_: time.sleep(600)\n"
    code += "m.main()"
    command = [sys.executable, "-c", code, "run", "spec.toml", "--out", "cut", *options]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def resume(folder: Path, *options: str) -> None:
    done = fedraw("run", "spec.toml", "--out", "cut", *options, "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("executor", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_run_killed_at_random_points_resumes_to_the_same_bytes(
    executor: str, tmp_path: Path
) -> None:
    run_seed(spec("fedraw", 200), 1, tmp_path / "whole")
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    whole = (tmp_path / "whole" / "events.jsonl").stat().st_size
    options = ("--executor", executor, "--jobs", "2")
    points = sorted(random.Random(executor).sample(range(10, 85), 2))
    for number, percent in enumerate(points):
        # On a busy machine a run could be finished before this process sees how far it is.
        process = start(tmp_path, *options, *(["--resume"] if number else []), finishes=False)
        wait_until(lambda: log.exists() and log.stat().st_size >= whole * percent // 100)  # noqa: B023
        below = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not any(alive(pid) for pid in below), 20)  # noqa: B023
        assert not (log.parent / "summary.json").exists()
    resume(tmp_path, *options)
    assert same(tmp_path / "whole", log.parent)
    assert {path.name for path in log.parent.iterdir()} == {
        *FILES,
        "spec.toml",
        "timing.json",
        "lock",
    }


@pytest.mark.parametrize(
    ("sent", "jobs"),
    [
        (signal.SIGINT, "1"),
        (signal.SIGTERM, "2"),
        pytest.param(signal.SIGINT, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "1", marks=pytest.mark.slow),
    ],
)
def test_asked_to_stop_it_leaves_a_run_that_can_be_resumed(
    jobs: str, sent: signal.Signals, tmp_path: Path
) -> None:
    seeds = ("--seeds", "1,2", "--jobs", jobs)
    process = start(tmp_path, *seeds)
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 20_000)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "continue with --resume" in errors
    assert "Traceback" not in errors
    assert list((log.parent / "checkpoint").iterdir())
    resume(tmp_path, "--seeds", "1,2")
    run_seed(spec("fedraw", 200), 1, tmp_path / "whole")
    assert same(tmp_path / "whole", log.parent)


def test_a_worker_that_is_killed_ends_the_run_with_a_message(tmp_path: Path) -> None:
    process = start(tmp_path, "--executor", "processes", "--jobs", "1")
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 20_000)
    # The resource tracker is a child too; workers are those that spawn_main started.
    workers = [p for p in children(process.pid) if b"spawn_main" in _command(p)]
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "was it killed, or out of memory?" in errors
    assert "Traceback" not in errors


def echo() -> Train:
    return lambda job: TrainingResult(job.model, 1)


def refused_instruction() -> Train:
    return lambda job: os.kill(os.getpid(), signal.SIGILL)  # type: ignore[return-value]


def test_a_worker_that_dies_of_an_illegal_instruction_names_the_remedy() -> None:
    processes = Processes(refused_instruction, size=3, workers=1)
    processes.submit(Job("a", 0, 0, np.zeros(3, np.float32), 0.0))
    with pytest.raises(WorkerDied) as caught:
        processes.collect("a")
    processes.close()
    assert str(caught.value) == (
        "worker 0 died from signal SIGILL (illegal instruction) while it trained client 'a'; the "
        "processor announces an instruction that torch may not use, such as AMX; set the "
        "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    )


def die_of_illegal_instruction(model: Any, data: Any, context: Any) -> None:
    os.kill(os.getpid(), signal.SIGILL)


def test_a_process_of_a_seed_that_dies_of_an_illegal_instruction_names_the_remedy() -> None:
    with pytest.raises(WorkerDied, match=r"from signal SIGILL .*; set .* ONEDNN_MAX_CPU_ISA="):
        simulate(spec(), train=die_of_illegal_instruction, seeds=[1, 2], jobs=2)


def test_a_worker_whose_parent_is_gone_ends_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    processes = Processes(echo, size=3, workers=1)
    processes.submit(Job("a", 0, 0, np.zeros(3, np.float32), 0.0))
    (worker,), (pipe,) = processes._workers, processes._pipes
    assert pipe.poll(120)
    pipe.close()  # with a result unread: the worker meets a reset and not an end
    worker.join(120)
    assert (worker.exitcode, capfd.readouterr().err) == (0, "")
    processes.close()


def test_a_killed_process_group_leaves_no_shared_memory(tmp_path: Path) -> None:
    """Nothing that Python could still do is left: the resource tracker is killed as well."""
    process = start(tmp_path, "--executor", "processes", "--jobs", "1", start_new_session=True)
    log = tmp_path / "cut" / "seed-1" / "events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 20_000)
    group = [process.pid, *children(process.pid)]
    assert len(group) > 2
    mapped = [shared_files(pid) for pid in group]
    assert len(mapped[0]) >= 2  # the models that workers exchange, and the training data
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in group), 20)
    assert [path for paths in mapped for path in paths if Path(path).exists()] == []


def shared_files(pid: int) -> list[str]:
    """The files that a process has mapped to share what it writes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    fields = [line.split(maxsplit=5) for line in lines]
    return [line[5] for line in fields if line[1] == "rw-s"]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
