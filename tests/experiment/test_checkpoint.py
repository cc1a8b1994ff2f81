from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import fedraw

from fedraw.core.federation import Federation
from fedraw.core.types import Vector
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.log_file import Position
from fedraw.experiment.cells import Cell, resume_lines
from fedraw.experiment.checkpoints import EVERY_SECONDS, Checkpoints
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.simulate import simulate
from fedraw.experiment.spec import Spec, to_toml
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Contents, Event, Needs, Receivers, Setup

FILES = ("events.jsonl", "summary.json", "spec.toml", "model.safetensors")


def spec(name: str = "fedraw", **run: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": name, **({"buffer": 4} if name == "fedraw" else {})},
            "training": {"epochs": 1},
            "run": {"events": 50, "evaluate_every": 10, "seeds": [1], **run},
        }
    )


def stopped_at(event: int, wanted: Spec, folder: Path, resume: bool = False) -> None:
    """Run until the event, as if someone had pressed Ctrl-C then."""
    asked = iter(range(10**9))
    begun = 0
    if resume:
        begun = int(next((folder / "checkpoint").iterdir()).name)
    options = Options(resume=resume, stop=lambda: next(asked) + 1 + begun >= event)
    with pytest.raises(Interrupted, match=f"interrupted at event {event} of 50"):
        run_seed(wanted, 1, folder, options=options)


def same(one: Path, two: Path) -> bool:
    return all((one / file).read_bytes() == (two / file).read_bytes() for file in FILES)


# A run of one pass writes no checkpoints: test_one_pass_runs.py.
TRAINING = [n for n, m in CATALOG.items() if not m.is_ablation and n != "one-pass"]


@pytest.mark.parametrize("name", TRAINING)
def test_an_interrupted_run_goes_on_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    run_seed(spec(name), 1, tmp_path / "whole")
    stopped_at(13, spec(name), tmp_path / "cut")
    stopped_at(30, spec(name), tmp_path / "cut", resume=True)
    run_seed(spec(name), 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")
    assert not (tmp_path / "cut" / "checkpoint").exists()


def test_with_bounded_concurrency_too(tmp_path: Path) -> None:
    bounded = spec(concurrency=3)
    run_seed(bounded, 1, tmp_path / "whole")
    stopped_at(21, bounded, tmp_path / "cut")
    run_seed(bounded, 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


def test_what_was_logged_after_the_checkpoint_happens_again(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    stopped_at(20, spec(), tmp_path / "cut")
    with (tmp_path / "cut" / "events.jsonl").open("ab") as log:
        log.write(b'{"kind":"arrival","event":21,"half a li')
    (tmp_path / "cut" / "checkpoint" / "draft").mkdir()  # the next one was being written
    run_seed(spec(), 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    run_seed(spec(), 1, tmp_path / "whole")
    stopped_at(20, spec(), tmp_path / "cut")
    Checkpoints(tmp_path / "cut").remove()
    run_seed(spec(), 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_kept(tmp_path: Path) -> None:
    first = run_seed(spec(), 1, tmp_path)
    times = {file: (tmp_path / file).stat().st_mtime_ns for file in FILES}
    again = run_seed(spec(), 1, tmp_path, options=Options(resume=True))
    assert times == {file: (tmp_path / file).stat().st_mtime_ns for file in FILES}
    assert again.summary == first.summary
    assert again.model.tobytes() == first.model.tobytes()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("log", r"events\.jsonl, line 31 is not a record of an event log"),
        ("arrays", "state.safetensors is damaged: its checksum"),
        ("tree", "state.json is damaged: its checksum"),
        ("missing", "state.json is damaged: its checksum"),
        ("manifest", "manifest.json is damaged or of another version"),
        ("spec", "its training.lr was 0.1 and is now 0.2; use the same spec"),
        ("spec file", "spec.toml cannot be read"),
    ],
)
def test_damage_is_named_and_nothing_is_overwritten(
    damage: str, message: str, tmp_path: Path
) -> None:
    stopped_at(20, spec(), tmp_path)
    (checkpoint,) = (tmp_path / "checkpoint").iterdir()
    resumed = spec()
    if damage == "log":
        path = tmp_path / "events.jsonl"
        path.write_bytes(path.read_bytes()[:-100])
    elif damage in ("arrays", "tree"):
        path = checkpoint / ("state.safetensors" if damage == "arrays" else "state.json")
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    elif damage == "missing":
        (checkpoint / "state.json").unlink()
    elif damage == "manifest":
        (checkpoint / "manifest.json").write_text('{"format": 99}')
    elif damage == "spec file":
        (tmp_path / "spec.toml").write_text("[run")
    else:
        tables = spec().to_dict()
        tables["training"]["lr"] = 0.2
        resumed = Spec.from_dict(tables)
    before = snapshot(tmp_path)
    with pytest.raises(BadInput, match=message):
        run_seed(resumed, 1, tmp_path, options=Options(resume=True))
    assert snapshot(tmp_path) == before


def test_a_run_without_a_folder_cannot_be_resumed() -> None:
    with pytest.raises(BadInput, match="only a run with a folder can be resumed"):
        simulate(spec(), resume=True)


@dataclass(eq=False)
class Latest:
    """A user's state: the last model, and something that may not be plain data."""

    model: Vector
    federation: Federation
    note: Any
    version: int = 0

    @property
    def contents(self) -> Contents:
        return Contents()


@dataclass(frozen=True)
class TakeAll:
    """A user's strategy: the last model to arrive is the model."""

    note: Any

    @property
    def needs(self) -> Needs:
        return Needs()

    def start(self, setup: Setup) -> tuple[Latest, Receivers]:
        state = Latest(setup.model, Federation.of(setup.clients), self.note)
        return state, setup.clients.clients

    def step(self, state: Latest, event: Event) -> tuple[Latest, Receivers]:
        assert isinstance(event, Arrived)
        state.model, state.version = event.update.vector, state.version + 1
        return state, [event.update.client]


def test_a_users_own_state_is_saved_without_any_code_for_it(tmp_path: Path) -> None:
    from fedraw.experiment.parts import Parts

    own = Parts(strategy=TakeAll("plain"))
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run_seed(spec(), 1, tmp_path / "cut", own, Options(stop=lambda: next(asked) == 20))
    run_seed(spec(), 1, tmp_path / "cut", own, Options(resume=True))
    run_seed(spec(), 1, tmp_path / "whole", own)
    assert same(tmp_path / "whole", tmp_path / "cut")


def test_a_state_that_cannot_be_saved_is_said_at_the_start(tmp_path: Path) -> None:
    from fedraw.experiment.parts import Parts

    own = Parts(strategy=TakeAll(iter([])))
    with pytest.warns(UserWarning, match="state of TakeAll is not made of .* cannot be resumed"):
        run_seed(spec(), 1, tmp_path, own)
    assert (tmp_path / "summary.json").exists()


def test_a_state_that_cannot_be_saved_any_more_ends_the_checkpoints_and_not_the_run(
    tmp_path: Path,
) -> None:
    from fedraw.experiment.parts import Parts

    class Forgetful(TakeAll):
        def step(self, state: Latest, event: Event) -> tuple[Latest, Receivers]:
            state, receivers = super().step(state, event)
            state.note = iter([])
            return state, receivers

    own, asked = Parts(strategy=Forgetful("plain")), iter(range(100))
    with (
        pytest.warns(UserWarning, match=r"state Latest cannot be saved at event 21 \(.*iterator"),
        pytest.raises(Interrupted),
    ):
        run_seed(spec(), 1, tmp_path, own, Options(stop=lambda: next(asked) == 20))


def test_a_disk_that_is_full_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(to_toml(spec().to_dict()))
    code = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
    # A checkpoint after every event; soon one has more models than fit.
    code += "import fedraw.experiment.checkpoints as c; c.EVERY_SECONDS = 1e-9\n"
    code += "c.LARGEST_SHARE = 1e9; import fedraw.cli.main as m; m.main()"
    command = [sys.executable, "-c", code, "run", "spec.toml", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "out/seed-1/checkpoint/draft/state.safetensors" in done.stderr
    assert "Traceback" not in done.stderr
    done = fedraw(*command[3:], "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_resumed_run_says_where_it_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = spec(seeds=[1, 2, 3, 4])
    stopped_at(13, wanted, tmp_path / "seed-1")
    run_seed(wanted, 2, tmp_path / "seed-2")
    (tmp_path / "seed-3").mkdir()
    lines = [
        "seed 1: resumes after 13 of 50 arrivals",
        "seed 2: finished already, so its result is kept",
        "seed 3: starts from the beginning, because it has no checkpoint",
    ]
    cells = [Cell(wanted, seed, tmp_path / f"seed-{seed}") for seed in wanted.run.seeds]
    assert list(resume_lines(cells)) == lines
    (tmp_path / "spec.toml").write_text(to_toml(wanted.to_dict()))
    for name in ("python", "command"):
        shutil.copytree(tmp_path, tmp_path.with_name(name))
    simulate(wanted, out=tmp_path.with_name("python"), resume=True)
    assert capsys.readouterr().err.splitlines() == lines
    done = fedraw("run", "spec.toml", "--out", ".", "--resume", cwd=tmp_path.with_name("command"))
    assert done.stderr.splitlines()[:3] == lines


def test_writing_never_takes_more_than_a_fiftieth_of_the_time(tmp_path: Path) -> None:
    now = [0.0]
    saved = _saved()

    class Slow:
        """A simulation whose state takes two virtual seconds to save."""

        def save(self) -> Any:
            now[0] += 2.0
            return saved

    checkpoints = Checkpoints(tmp_path, clock=lambda: now[0])
    assert not checkpoints.is_due
    now[0] = EVERY_SECONDS
    assert checkpoints.is_due
    slow: Any = Slow()
    checkpoints.write(slow, Position())
    now[0] += 99
    assert not checkpoints.is_due
    now[0] += 2
    assert checkpoints.is_due
    manifest = next(tmp_path.rglob("manifest.json"))
    assert json.loads(manifest.read_text())["event"] == 0


def _saved() -> Any:
    from fedraw.simulation.loop import Saved, Timeline

    return Saved(Timeline(), None, "{}")
