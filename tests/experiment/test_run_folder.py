"""What happens to the folder of a run: two processes at once, kills, changed and damaged files."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.eventlog.logs import rewrite

from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.compare import compare
from fedraw.eventlog.follow import RunsFollower
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec
from fedraw.report.report_data import read_report_data
from fedraw.storage.lock import LOCK

FILES = ("events.jsonl", "summary.json", "spec.toml", "model.safetensors")
RESUME = Options(resume=True)
FORCE = Options(force=True)


def spec(**sections: Any) -> Spec:
    """Labels without images and no training, so that a run takes a moment."""
    base: dict[str, Any] = {
        "data": {"name": "ham10000-labels"},
        "partition": {"clients": 8, "rare_labels": [3], "clients_per_common_label": 5},
        "strategy": {"name": "fedraw", "buffer": 4},
        "training": {"kind": "none"},
        "run": {"events": 40, "seeds": [1]},
    }
    return Spec.from_dict({**base, **sections})


def stopped_at(event: int, wanted: Spec, folder: Path) -> None:
    asked = iter(range(10**9))
    with pytest.raises(Interrupted):
        run_seed(wanted, 1, folder, options=Options(stop=lambda: next(asked) + 1 >= event))


def content(folder: Path) -> dict[str, bytes]:
    """Everything in the folder but the lock, which says nothing by itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def test_a_refused_force_leaves_the_live_run_alone(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    folder = tmp_path / "live"
    stopped_at(20, spec(), folder)
    unharmed: list[bool] = []

    def meanwhile() -> bool:
        if not unharmed:
            before = content(folder)
            for options in (FORCE, RESUME):
                with pytest.raises(BadInput, match="another process is running"):
                    run_seed(spec(), 1, folder, options=options)
            unharmed.append(content(folder) == before)
        return False

    run_seed(spec(), 1, folder, options=Options(resume=True, stop=meanwhile))
    assert unharmed == [True]
    assert results(folder) == results(tmp_path / "whole")


def test_nothing_is_overwritten_unless_it_was_asked_for(tmp_path: Path) -> None:
    stopped_at(20, spec(), tmp_path)
    before = content(tmp_path)
    with pytest.raises(
        BadInput, match="already holds an unfinished run; continue with resume=True"
    ):
        run_seed(spec(), 1, tmp_path)
    assert content(tmp_path) == before
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(
        BadInput, match="already holds an unfinished run; continue with resume=True"
    ):
        run_seed(spec(), 1, tmp_path)


# Kills runs at their n-th call that opens, writes, syncs, renames or removes a file, counted from
# the moment when the folder is made (new), replaced (force), or completed (finish); then resumes.
KILLED = """
import os, signal, sys
from pathlib import Path
from fedraw.errors import BadInput
from fedraw.experiment import runner
from fedraw.eventlog.compare import compare
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec
from fedraw.eventlog.follow import RunsFollower
from fedraw.report.report_data import read_report_data

CALLS = "mkdir open write close flock fsync truncate rename replace unlink rmdir".split()
WANTED, PLACE, BEGIN = Spec.from_dict(eval(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]

def kill_at(n):
    calls = 0
    def count(frame, event, function):
        nonlocal calls
        calls += event == "c_call" and function.__name__ in CALLS
        if calls > n:
            os.kill(os.getpid(), signal.SIGKILL)
    finish = BEGIN == "finish"
    owner, name = (runner.RunFolder, "write_results") if finish else (runner, "_recording")
    original = getattr(owner, name)
    def counted(*args):
        sys.setprofile(count)
        return original(*args)
    setattr(owner, name, counted)

for n in range(16):
    folder = PLACE / f"kill-{n}"
    if BEGIN == "force":
        run_seed(WANTED, 1, folder)
    child = os.fork()
    if child == 0:
        kill_at(n)
        run_seed(WANTED, 1, folder, options=Options(force=BEGIN == "force"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, n
    try:
        run_seed(WANTED, 1, folder, options=Options(resume=True))
    except BadInput as problem:
        print(n, problem)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("begin", ["new", "force", "finish"])
def test_a_kill_while_files_are_made_can_be_resumed(begin: str, tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, repr(spec().to_dict()), str(tmp_path), begin]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    whole = results(tmp_path / "whole")
    assert all(results(tmp_path / f"kill-{n}") == whole for n in range(16))


@pytest.mark.parametrize("left", ["", "lock", "events.jsonl", "events.jsonl spec.toml"])
def test_an_empty_folder_resumes_as_new(left: str, tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    folder = tmp_path / "empty"
    folder.mkdir()
    for name in left.split():
        (folder / name).touch()
    run_seed(spec(), 1, folder, options=RESUME)
    assert results(folder) == results(tmp_path / "whole")


def changed_trace(path: Path) -> None:
    path.write_text(path.read_text().replace("3,4.0", "3,4.5"))


def changed_names(path: Path) -> None:
    arrays = dict(np.load(path))
    arrays["label_names"] = arrays["label_names"][::-1]
    np.savez(path, **arrays)


def changed_labels(path: Path) -> None:
    arrays = dict(np.load(path))
    arrays["labels"] = arrays["labels"][::-1]
    np.savez(path, **arrays)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    ("name", "change"),
    [("trace.csv", changed_trace), ("own.npz", changed_names), ("own.npz", changed_labels)],
)
def test_a_changed_input_file_is_named(name: str, change: Any, done: bool, tmp_path: Path) -> None:
    durations = "".join(f"{client},{client + 1}.0\n" for client in range(8))
    (tmp_path / "trace.csv").write_text(f"client,seconds\n{durations}")
    labels = np.arange(100) % 10
    names = [f"label {n}" for n in range(10)]
    np.savez(tmp_path / "own.npz", images=np.zeros((100, 4)), labels=labels, label_names=names)
    wanted = spec(
        data={"name": "npz", "path": str(tmp_path / "own.npz")},
        speeds={"arrivals": "recorded", "trace": str(tmp_path / "trace.csv")},
    )
    whole = run_seed(wanted, 1, tmp_path / "whole").model
    folder = tmp_path / "run"
    if done:
        run_seed(wanted, 1, folder)
    else:
        stopped_at(20, wanted, folder)
    before, original = content(folder), (tmp_path / name).read_bytes()
    change(tmp_path / name)
    with pytest.raises(BadInput, match=f"{name}.* changed since"):
        run_seed(wanted, 1, folder, options=RESUME)
    assert content(folder) == before
    (tmp_path / name).write_bytes(original)
    again = run_seed(wanted, 1, folder, options=RESUME)
    assert results(folder) == results(tmp_path / "whole")
    assert again.model.tobytes() == whole.tobytes()


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with a flipped bit, a byte more, a part cut off or out, or junk at its end."""
    at = rng.randrange(len(content))
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + content[at + rng.randint(1, 200) :]
        case 2:
            return content + rng.randbytes(rng.randint(1, 200))
        case 3:
            return content[:at] + b"%c9" % content[at] + content[at + 1 :]
        case 4:
            lines = content.splitlines(keepends=True)
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            return b"".join(lines)
        case _:
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def outcome(wanted: Spec, folder: Path, whole: dict[str, bytes]) -> str:
    """What a resume comes to: the same bytes, or a message and nothing touched."""
    before = content(folder)
    try:
        run_seed(wanted, 1, folder, options=RESUME)
    except BadInput as problem:
        assert content(folder) == before, problem
        assert "\n" not in str(problem)
        return "refused"
    return "identical" if results(folder) == whole else "wrong"


def trials(wanted: Spec, source: Path, whole: Path, place: Path) -> dict[str, int]:
    """60 flips, cuts and insertions, in every file that a resume reads; most of them in the log."""
    rng = random.Random(18)
    files = sorted(content(source).keys() - {"timing.json"})
    counts = dict.fromkeys(("identical", "refused", "wrong"), 0)
    for trial in range(60):
        folder = shutil.copytree(source, place / f"trial-{trial}")
        path = folder / ("events.jsonl" if trial % 2 else rng.choice(files))
        path.write_bytes(damaged(path.read_bytes(), rng))
        counts[outcome(wanted, folder, results(whole))] += 1
    return counts


def test_no_damage_of_an_unfinished_run_is_believed(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    stopped_at(20, spec(), tmp_path / "cut")
    with (tmp_path / "cut" / "events.jsonl").open("ab") as log:
        log.write(b'{"kind":"arrival","event":21,"half a li')
    counts = trials(spec(), tmp_path / "cut", tmp_path / "whole", tmp_path)
    assert counts["wrong"] == 0
    assert counts["refused"] > 30


def test_no_damage_of_a_finished_run_is_believed(tmp_path: Path) -> None:
    trained = {"epochs": 1, "model": "linear"}
    run = {"events": 6, "evaluate_every": 3, "seeds": [1]}
    wanted = spec(data={"name": "digits"}, training=trained, run=run)
    run_seed(wanted, 1, tmp_path / "whole")
    counts = trials(wanted, tmp_path / "whole", tmp_path / "whole", tmp_path)
    assert counts == {"identical": 0, "refused": 60, "wrong": 0}


def test_junk_after_the_checkpoint_of_a_short_log_does_not_block_a_resume(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    stopped_at(5, spec(), tmp_path / "cut")
    with (tmp_path / "cut" / "events.jsonl").open("ab") as log:
        log.write(b'\0\0\n{"kind":"arivall"}\n[1\n\xff')
    run_seed(spec(), 1, tmp_path / "cut", options=RESUME)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def compared(folder: Path) -> None:
    compare([folder])


def reported(folder: Path) -> None:
    read_report_data([folder])


def watched(folder: Path) -> None:
    RunsFollower(folder).poll()


def another_time(folder: Path) -> None:
    """As someone would who knows how digests are made."""
    rewrite(folder / "events.jsonl", lambda text: text.replace('"time":', '"time":1', 3))


def without_end(folder: Path) -> None:
    log = folder / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-2]))


def junk_at_the_end(folder: Path) -> None:
    with (folder / "events.jsonl").open("ab") as log:
        log.write(b"junk")


def another_summary(folder: Path) -> None:
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace('"events": 40', '"events": 41'))


def misspelt(folder: Path) -> None:
    log = folder / "events.jsonl"
    log.write_text(log.read_text().replace('"kind":"arrival"', '"kind":"arivall"', 1))


@pytest.mark.parametrize("read", [compared, reported, watched])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_time, "events.jsonl is not the log that was written: its first 50 lines"),
        (without_end, "events.jsonl is not the log that was written: its first 50 lines"),
        (junk_at_the_end, "events.jsonl has .* bytes, but summary.json belongs to a log of"),
        (another_summary, "summary.json was altered"),
        (misspelt, "line 10 was altered"),
    ],
)
def test_every_reader_holds_the_log_against_the_summary(
    read: Any, change: Any, message: str, tmp_path: Path
) -> None:
    run_seed(spec(), 1, tmp_path)
    read(tmp_path)
    change(tmp_path)
    with pytest.raises(BadInput, match=message):
        read(tmp_path)


@pytest.mark.parametrize("finished", [True, False])
def test_an_altered_spec_of_a_run_is_not_blamed_on_the_user(finished: bool, tmp_path: Path) -> None:
    if finished:
        run_seed(spec(), 1, tmp_path)
    else:
        stopped_at(20, spec(), tmp_path)
    written = tmp_path / "spec.toml"
    written.write_text(written.read_text().replace("buffer = 4", "buffer = 5"))
    with pytest.raises(BadInput, match=r"spec\.toml was altered since the run began; restore it"):
        run_seed(spec(), 1, tmp_path, options=RESUME)


def test_a_finished_run_without_its_log_is_not_left_out_of_a_comparison(tmp_path: Path) -> None:
    for seed in (1, 2):
        run_seed(spec(), seed, tmp_path / f"seed-{seed}")
    (tmp_path / "seed-2/events.jsonl").unlink()
    missing = r"seed-2 is a finished run, but its events\.jsonl is missing; restore the file"
    with pytest.raises(BadInput, match=missing):
        compare([tmp_path])
    with pytest.raises(BadInput, match=missing):
        read_report_data([tmp_path / "seed-2"])
