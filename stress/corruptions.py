"""Damages files of runs and servers and uses them: an error must name the damage.

Each trial copies a folder (of a run or a server, finished or not), damages one file, and then does
what a user would do next: `watch`, `compare`, and `--resume` or a restart of the server. Each of
these must either give the same result as without the damage, or refuse with a message that names
the folder. After a refusal every file must be unchanged. The worst outcome counts.

Run: python -m stress.corruptions --trials 1000 --seed 1
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.engine import Engine

from fedraw.errors import BadInput, FedrawError
from fedraw.experiment.options import Options as RunOptions
from fedraw.experiment.runner import run_seed
from fedraw.storage import snapshot
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy
from stress import server_kills, simulator_kills
from stress.commands import command, run_here
from stress.forked import Ended, Kill, Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong

LOG = "events.jsonl"
# The fields of `watch` that depend on the current time.
OF_THE_MOMENT = ("written", "quiet", "rate", "seconds_left")
STRATEGIES = (FedRAW(buffer=3), FedBuff(buffer=2), FedAvg())

Rng = np.random.Generator
# Returns the damaged content of a file; None deletes the file.
Damage = Callable[[bytes, Rng], bytes | None]


def flip_bit(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(content: bytes, rng: Rng) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 2 and rng.random() < 0.5:
        return b"".join(lines[: int(rng.integers(1, len(lines)))])
    return content[: int(rng.integers(len(content)))]


def drop_line(content: bytes, rng: Rng) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[int(rng.integers(len(lines)))]
    return b"".join(lines)


def duplicate_line(content: bytes, rng: Rng) -> bytes:
    lines = content.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    return b"".join([*lines[: at + 1], *lines[at:]])


def swap_lines(content: bytes, rng: Rng) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        one, two = rng.choice(len(lines), 2, replace=False).tolist()
        lines[one], lines[two] = lines[two], lines[one]
    return b"".join(lines)


def alter_figure(content: bytes, rng: Rng) -> bytes:
    digits = [i for i, byte in enumerate(content) if chr(byte).isdecimal()]
    if not digits:
        return flip_bit(content, rng)
    at = int(rng.choice(digits))
    return content[:at] + str(int(rng.integers(10))).encode() + content[at + 1 :]


def misspell(content: bytes, rng: Rng) -> bytes:
    """Remove a letter of a word, for example in the kind of a record."""
    letters = [i for i, byte in enumerate(content) if chr(byte).isascii() and chr(byte).isalpha()]
    if not letters:
        return flip_bit(content, rng)
    at = int(rng.choice(letters))
    return content[:at] + content[at + 1 :]


def zero_page(content: bytes, rng: Rng) -> bytes:
    size = int(rng.choice([64, 512, 4096]))
    at = int(rng.integers(0, len(content), endpoint=False)) // size * size
    return content[:at] + bytes(len(content[at : at + size])) + content[at + size :]


def append_junk(content: bytes, rng: Rng) -> bytes:
    lines = content.splitlines(keepends=True)
    match rng.integers(4):
        case 0:
            return content + rng.bytes(int(rng.integers(1, 200)))
        case 1:
            return content + b'{"kind":"arrival","event":21,"half a li'
        case 2:
            return content + lines[int(rng.integers(len(lines)))]  # a true record, but an old one
        case _:
            return content + b"\n"


def delete(content: bytes, rng: Rng) -> None:
    return None


DAMAGES: Mapping[str, Damage] = {
    "flipped bit": flip_bit,
    "truncation": truncate,
    "dropped line": drop_line,
    "duplicated line": duplicate_line,
    "swapped lines": swap_lines,
    "altered figure": alter_figure,
    "lost letter": misspell,
    "zeroed page": zero_page,
    "appended junk": append_junk,
    "deleted file": delete,
}


@dataclass
class Used:
    """One use of a folder, and its result without damage."""

    name: str
    do: Callable[[Send], int]
    expected: str = ""

    def attempt(self) -> Ended:
        return run_forked(self.do)


@dataclass
class Subject:
    """A folder to damage, and the uses of it; the last one may change the folder."""

    name: str
    original: Path
    folder: Path  # of the copies that are used
    uses: list[Used] = field(default_factory=list)

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.original, self.folder)

    def learn(self) -> None:
        """Record the results without damage; leave out uses that an undamaged folder refuses."""
        self.restore()
        kept = []
        for use in self.uses:
            ended = use.attempt()
            if ended.code == 0:
                use.expected = ended.printed
                kept.append(use)
            elif ended.code != 2:
                raise AssertionError(f"{self.name}, {use.name}, undamaged: {ended.problem}")
        self.uses = kept


def resumed(spec: Any, folder: Path) -> Callable[[Send], int]:
    """Return a function that resumes a run to its end and prints the resulting bytes."""

    def work(send: Send) -> int:
        simulator_kills.checkpoint_often(10)
        try:
            result = run_seed(spec, simulator_kills.SEED, folder, options=RunOptions(resume=True))
        except BadInput as refusal:
            print(refusal, file=sys.stderr)
            return 2
        except (FedrawError, OSError) as failure:
            print(failure, file=sys.stderr)
            return 1
        files = simulator_kills.read_files(folder)
        files.pop("spec.toml", None)
        found = {name: content.hex() for name, content in sorted(files.items())}
        print(json.dumps([result.summary, result.model.tobytes().hex(), found]))
        return 0

    return work


def restarted(folder: Path, strategy: Strategy[Any]) -> Callable[[Send], int]:
    """Return a function that restarts a server and prints the state that it continues from."""

    def work(send: Send) -> int:
        try:
            engine = Engine(folder, strategy, **server_kills.SETTINGS)
        except BadInput as refusal:
            print(refusal, file=sys.stderr)
            return 2
        store = engine.coordinator._store
        arrays = snapshot.Arrays()
        tree = snapshot.pack(store.strategy_state, arrays) if store.begun else None
        book = store.state
        facts = [
            book.event,
            book.accepted,
            book.counts,
            list(book.awaiting_model),
            list(book.quarantined),
        ]
        facts += [book.scale, book.norms, book.labels_added, book.rare_labels, book.ended]
        print(json.dumps([tree, {name: a.tobytes().hex() for name, a in arrays.items()}, facts]))
        if engine.coordinator.finished is None:
            engine.accept(engine.coordinator.accepted + 2)
        return 0

    return work


def looks(folder: Path) -> list[Used]:
    commands = ("watch", "compare")
    return [Used(name, command(name, str(folder), "--json")) for name in commands]


def subjects(root: Path) -> list[Subject]:
    """Create runs and servers, finished and unfinished."""
    found = []
    at = root / "damaged" / "folder"
    for name, spec in simulator_kills.SPECS.items():
        whole = simulator_kills.Undisturbed.of(spec, root / name / "finished")
        half = Kill("call", int(whole.calls * 0.6))
        ended = run_forked(
            simulator_kills.simulate(spec, root / name / "unfinished", resume=False), half
        )
        assert ended.was_killed, ended.problem
        for state in ("finished", "unfinished"):
            uses = [*looks(at), Used("resume", resumed(spec, at))]
            found.append(Subject(f"run, {state}", root / name / state, at, uses))
    for strategy in STRATEGIES:
        at_root = root / f"server, {type(strategy).__name__}"
        serve = partial(server_kills.serve, strategy=strategy, life=1, begun=1_000_000.0, seed=1)
        calls = run_forked(serve(at_root / "finished"), count_calls=True).calls
        half = Kill("call", int(calls * 0.6))
        ended = run_forked(serve(at_root / "unfinished"), half)
        assert ended.was_killed, ended.problem
        for state in ("finished", "unfinished"):
            uses = [*looks(at), Used("restart", restarted(at, strategy))]
            found.append(Subject(f"server, {state}", at_root / state, at, uses))
    for name in ("watch", "compare"):
        run_here(name, str(found[0].original), "--json")  # so that no child has to import modules
    for subject in found:
        subject.learn()
    return found


def damage(folder: Path, rng: Rng) -> tuple[str, Path, bool]:
    """Damage one file; return the damage, the file, and whether it only became shorter."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    log = folder / LOG
    while True:
        path = log if rng.random() < 0.5 else files[int(rng.integers(len(files)))]
        name = str(rng.choice(list(DAMAGES)))
        before = path.read_bytes()
        after = DAMAGES[name](before, rng)
        if after == before:
            continue
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)
        shorter = after is None or before.startswith(after)
        return name, path, path == log and shorter


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def trial(subject: Subject, rng: Rng) -> Result:
    subject.restore()
    what, path, shorter = damage(subject.folder, rng)
    named = f"{subject.original.parent.name}: {what} in {path.relative_to(subject.folder)}"
    outcome = Outcome.IDENTICAL
    for use in subject.uses:
        before = contents(subject.folder)
        ended = use.attempt()
        problem = judge(use, ended, subject.folder, shorter)
        if ended.code != 0 and not problem:
            outcome = Outcome.CLEAR_ERROR
            after = contents(subject.folder)
            lost = [name for name in before if after.get(name) != before[name]]
            lost = [name for name in lost if not name.endswith(".part") and "draft" not in name]
            problem = f"refused, but changed {', '.join(lost)}" if lost else ""
        if problem:
            return wrong(subject.name, f"{named}; {use.name}: {problem}")
    return Result(subject.name, outcome)


def judge(use: Used, ended: Ended, folder: Path, shorter: bool) -> str:
    """Return the problem of one use; empty if its result is identical or a clear error."""
    if ended.code == 2 and "Traceback" not in ended.errors:
        return "" if str(folder) in ended.errors else f"names no file: {ended.errors.strip()}"
    if ended.code != 0:
        return ended.problem
    if use.name == "watch" and shorter:
        return ""  # a shorter log is an earlier moment of the same run
    found, expected = (comparable(use, text) for text in (ended.printed, use.expected))
    return "" if found == expected else f"silently different: {difference(found, expected)}"


def comparable(use: Used, text: str) -> Any:
    document = json.loads(text)
    if use.name == "watch":
        for run in document["runs"]:
            for key in OF_THE_MOMENT:
                run.pop(key, None)
            if run["state"] != "finished":
                run["state"] = "unfinished"
    return document


def difference(found: Any, expected: Any, where: str = "") -> str:
    """Return the first place where two documents differ."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        pairs = [(f"{where}.{key}", found[key], expected[key]) for key in found]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [
            (f"{where}[{i}]", *pair) for i, pair in enumerate(zip(found, expected, strict=True))
        ]
    else:
        one, two = str(found), str(expected)
        if max(len(one), len(two)) > 100:
            return f"{where} has other content ({len(one)} characters, not {len(two)})"
        return f"{where} is {one}, not {two}"
    return next(difference(one, two, at) for at, one, two in pairs if one != two)


def run(options: Options, tally: Tally) -> None:
    simulator_kills.warm_up(simulator_kills.SPECS)
    with scratch() as root:
        known = subjects(root)
        for number in options.numbers:
            rng = np.random.default_rng([options.seed, number])
            tally.add(number, trial(known[number % len(known)], rng))


if __name__ == "__main__":
    main("corruptions", run, 1000, "Damage the files of runs and servers, then use them.")
