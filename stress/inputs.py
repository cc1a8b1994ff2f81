"""Feeds mutated specs and tables to the command line, which must accept or clearly refuse them.

Each trial takes a valid SPEC.toml, label table, table of times or trace, changes it in one or two
places (huge numbers, NUL, deep nesting, odd Unicode, wrong types, torn text), and passes it to
`fedraw run --dry-run`, a run of a few events, or `fedraw audit`. Failures are a traceback, a
warning, a refusal that names no file, a result that is not finite, control characters in the
output, more than 4 GB of memory, and a hang.

Run: python -m stress.inputs --trials 2000 --seed 1
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedraw.errors import BadInput, FedrawError
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec, to_toml
from stress import simulator_kills
from stress.commands import command, run_here
from stress.forked import Ended, Send, run_forked
from stress.outcomes import Options, Outcome, Result, Tally, main, scratch, wrong

MEMORY = 4 << 30
EVENTS = 6
ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Rng = np.random.Generator

# Changes of the defaults; the specs contain every key.
SPECS: Sequence[Mapping[str, Mapping[str, Any]]] = (
    {},
    {"training": {"kind": "none"}},
    {"partition": {"kind": "dirichlet", "alpha": 0.5}, "strategy": {"name": "fedbuff"}},
    {"partition": {"kind": "iid"}, "strategy": {"name": "qfedavg"}, "speeds": {"kind": "equal"}},
    {"speeds": {"kind": "ratio", "ratio": 20}, "strategy": {"name": "fedasync"}},
    {"speeds": {"arrivals": "jitter", "jitter": 0.3}, "strategy": {"name": "ca2fl"}},
    {"speeds": {"arrivals": "recorded", "trace": "trace.csv"}},
    {"misreport": {"label": 9, "share": 0.9, "form": "paper"}, "strategy": {"name": "fedfa"}},
    {"drift": {"kind": "move", "label": 9}, "training": {"kind": "none"}},
    {"drift": {"kind": "new", "label": 9, "declared": "again"}},
    {"label_noise": {"share": 0.2}, "strategy": {"name": "fedavg"}},
    {"strategy": {"name": "fedraw-replay"}, "training": {"momentum": 0.5}},
)

NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "-0.0",
    "0.5",
    "1e-320",
    "1e-9",
    "1e300",
    "1e308",
    "1e309",
    "-1e309",
    "nan",
    "inf",
    "-inf",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "100000000",
]
LONG_NUMBERS = ("9" * 400, "-" + "9" * 400, "0." + "0" * 400 + "1", "1" + "0" * 5000)
TEXTS = (
    "", " ", "\0", "a\0b", "\x1b[2J\x1b[31mred", "\x7f", "\u202eevil", "\ufeff", "é", "e\u0301",
    "\U0001d518", "\u0000\u0001", "nan", "None", "-", "../../etc/passwd", "%s%n", "[bold]x[/bold]",
    "x" * 300, "y" * 200_000, "a,b", 'a"b', "a\nb", "a\rb", "\t", "=1+1", "١٢٣", "1_000", "0x10",
    "٣", "1e3", "+5", "5.0", "1,5",
)  # fmt: skip


def spec_text(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a valid spec with every key in it."""
    rare = {"rare_labels": [8, 9], **changes.get("partition", {})}
    return to_toml(Spec.from_dict({**changes, "partition": rare}).to_dict())


def odd_toml(rng: Rng) -> str:
    """Return an unexpected TOML value."""
    match rng.integers(8):
        case 0 | 1:
            return str(rng.choice(NUMBERS))
        case 2:
            return str(rng.choice(LONG_NUMBERS))
        case 3 | 4:
            return json.dumps(pick(TEXTS, rng), ensure_ascii=bool(rng.integers(2)))
        case 5:
            depth = int(rng.choice([1, 3, 100, 2000]))
            return "[" * depth + "]" * depth
        case 6:
            kinds = ("true", "[]", "{}", "{a = 1}", "[1, 'a']", "1979-05-27T07:32:00Z", "07:32:00")
            return str(rng.choice(kinds))
        case _:
            return f"[{', '.join(['1'] * int(rng.choice([2, 1000, 50_000])))}]"


def odd_cell(rng: Rng) -> str:
    match rng.integers(5):
        case 0 | 1:
            return str(rng.choice(NUMBERS))
        case 2:
            return str(rng.choice(LONG_NUMBERS))
        case _:
            text = pick(TEXTS, rng)
            return '"' + text.replace('"', '""') + '"' if rng.random() < 0.5 else text


def pick(values: Sequence[str], rng: Rng) -> str:
    return values[int(rng.integers(len(values)))]  # rng.choice would strip NULs


def torn(text: str, rng: Rng) -> bytes:
    """Damage the bytes of a text, whatever they mean."""
    content = text.encode("utf-8", "surrogatepass")
    at = int(rng.integers(len(content) + 1))
    inserted = [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\x1b[31m", b'"']
    match rng.integers(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + inserted[int(rng.integers(len(inserted)))] + content[at:]
        case 2:
            size = int(rng.integers(1, 40))
            return content[:at] + content[at + size :]
        case 3:
            return content + content
        case 4:
            return content.decode("utf-8", "replace").encode("utf-16")
        case _:
            return b"" if rng.random() < 0.2 else content.replace(b"\n", b"\r\n")


def mutated_spec(text: str, rng: Rng) -> bytes:
    """Change the value of a key, add an unknown key or section, or tear the text."""
    lines = text.splitlines()
    settings = [i for i, line in enumerate(lines) if " = " in line]
    for _ in range(1 + (rng.random() < 0.3)):
        at = settings[int(rng.integers(len(settings)))]
        key = lines[at].partition(" = ")[0]
        match rng.integers(10):
            case 0:
                lines[at] += f"\n{json.dumps(pick(TEXTS, rng))} = {odd_toml(rng)}"
            case 1:
                lines[at] += f"\n[{json.dumps(pick(TEXTS, rng))}]\nx = {odd_toml(rng)}"
            case 2:
                return torn("\n".join(lines), rng)
            case 3 | 4 | 5:
                lines[at] = f"{key} = {other_number(lines[at], rng)}"
            case _:
                lines[at] = f"{key} = {odd_toml(rng)}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def other_number(line: str, rng: Rng) -> str:
    """Return an odd value, of the same type if the line sets a number, to pass type checks."""
    value = line.partition(" = ")[2]
    if re.fullmatch(r"-?\d+", value):
        return pick([n for n in (*NUMBERS, *LONG_NUMBERS) if re.fullmatch(r"-?\d+", n)], rng)
    if re.fullmatch(r"[-+.\de]+", value):
        return pick(NUMBERS, rng)
    return odd_toml(rng)


def mutated_table(text: str, rng: Rng) -> bytes:
    """Change a cell, a row or a column, or tear the text."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(1 + (rng.random() < 0.3)):
        row = rows[int(rng.integers(len(rows)))]
        at = int(rng.integers(len(row)))
        match rng.integers(12):
            case 0:
                rows.insert(int(rng.integers(len(rows))), list(row))
            case 1:
                del row[at]
                row.extend([""] * (not row))
            case 2:
                row.append(odd_cell(rng))
            case 3:
                del rows[int(rng.integers(len(rows)))]
                rows = rows or [[""]]
            case 4:
                rows[0][int(rng.integers(len(rows[0])))] = odd_cell(rng)
            case 5:
                return torn(text, rng)
            case 6:
                for i, own in enumerate(rows):
                    own += [f"label {j}" if i == 0 else "1" for j in range(15_000)]
            case _:
                row[at] = odd_cell(rng)
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def trace() -> str:
    rows = [f"{client},{1 + client % 7 / 10}" for client in range(30) for _ in range(3)]
    return "\n".join(["client,seconds", *rows])


def long_labels() -> str:
    rows = [f"site {s},label {k},{1 + (s * k) % 9}" for s in range(14) for k in range(s % 4, 6)]
    return "\n".join(["client,label,count", *rows])


def wide_labels() -> str:
    head = ",".join(["client", *(f"label {k}" for k in range(6))])
    rows = [",".join([f"site {s}", *(str(1 + (s * k) % 9) for k in range(6))]) for s in range(14)]
    return "\n".join([head, *rows])


def times() -> str:
    return "\n".join(["client,seconds", *(f"site {s},{1 + s / 3:.2f}" for s in range(14))])


def timestamps() -> str:
    rows = [f"site {i % 14},{1700000000 + 7 * i + i % 5}" for i in range(80)]
    return "\n".join(["client,timestamp", *rows])


def some_events(path: Path) -> Callable[[Send], int | None]:
    """Run the first events of a spec that a dry run has accepted."""

    def work(send: Send) -> int:
        spec = Spec.from_file(path)
        spec = replace(spec, run=replace(spec.run, events=EVENTS, seeds=spec.run.seeds[:1]))
        if spec.training.epochs > 100:
            return 0  # it would take that long
        try:
            run_seed(spec, spec.run.seeds[0])
        except BadInput as refusal:
            print(f"{path}: {refusal}", file=sys.stderr)
            return 2
        except FedrawError as failure:
            print(f"{path}: {failure}", file=sys.stderr)
            return 2
        return 0

    return work


def spec_trial(folder: Path, rng: Rng) -> Result:
    path = folder / "spec.toml"
    sections = SPECS[int(rng.integers(len(SPECS)))]
    path.write_bytes(mutated_spec(spec_text(sections), rng))
    (folder / "trace.csv").write_text(trace())
    return run_spec("spec", path, rng, ("spec.toml", "trace.csv"))


def trace_trial(folder: Path, rng: Rng) -> Result:
    path = folder / "spec.toml"
    sections = {**SPECS[6], "training": {"kind": "none"}}
    path.write_text(spec_text(sections))
    (folder / "trace.csv").write_bytes(mutated_table(trace(), rng))
    return run_spec("trace", path, rng, ("spec.toml", "trace.csv"))


def run_spec(kind: str, path: Path, rng: Rng, names: Sequence[str]) -> Result:
    out = str(path.parent / "out")
    words = ["run", str(path), "--dry-run", "--out", out, *(["--json"] * int(rng.integers(2)))]
    ended = run_forked(command(*words), memory=MEMORY)
    result = judged(kind, ended, names, is_json="--json" in words)
    if result.outcome is Outcome.ACCEPTED:
        ended = run_forked(some_events(path), memory=MEMORY)
        result = judged(kind, ended, names, is_json=False)
    if result.outcome is Outcome.WRONG:
        return wrong(kind, f"{result.detail}\n{changed(path)}")
    return result


def changed(path: Path) -> str:
    """Return the lines of a spec that no default spec has, for a report."""
    plain = {line for changes in SPECS for line in spec_text(changes).splitlines()}
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    return "\n".join(repr(line[:80]) for line in lines if line not in plain)[:600]


def audit_trial(folder: Path, rng: Rng) -> Result:
    wide, labels = bool(rng.integers(2)), folder / "labels.csv"
    original = wide_labels() if wide else long_labels()
    labels.write_text(original)
    words = ["audit", str(labels), *(["--json"] * int(rng.integers(2)))]
    kind, path = ("wide labels" if wide else "long labels"), labels
    if rng.random() < 0.6:
        path = folder / "times.csv"
        original = times() if rng.random() < 0.5 else timestamps()
        kind = "timestamps" if "timestamp" in original else "times"
        words += ["--times", str(path)]
    path.write_bytes(mutated_table(original, rng))
    ended = run_forked(command(*words), memory=MEMORY)
    result = judged(kind, ended, (path.name,), is_json="--json" in words)
    if result.outcome is Outcome.WRONG:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
        odd = [repr(line[:80]) for line in lines if line not in original.splitlines()]
        return wrong(kind, f"{result.detail}\n" + "\n".join(odd[:4]))
    return result


def judged(kind: str, ended: Ended, names: Sequence[str], *, is_json: bool) -> Result:
    """Classify the result of a command by its exit code and its output."""
    if problem := problem_of(ended, names, is_json=is_json):
        return wrong(kind, problem)
    return Result(kind, Outcome.CLEAR_ERROR if ended.code == 2 else Outcome.ACCEPTED)


def problem_of(ended: Ended, names: Sequence[str], *, is_json: bool) -> str:
    """Return the problem of a command's result; empty if there is none."""
    output, problem = ended.printed + ended.errors, ""
    if ended.code not in (0, 2) or "Traceback" in ended.errors:
        problem = ended.problem
    elif "Warning" in ended.errors:
        problem = f"a warning: {ended.errors.strip()[-300:]}"
    elif escape := ESCAPES.search(output):
        problem = f"control character {escape.group()!r} in the output"
    elif ended.code == 2 and not any(name in output for name in names):
        problem = f"the refusal names no file: {ended.errors.strip()[:300]}"
    elif ended.code == 0 and is_json:
        try:
            json.loads(ended.printed, parse_constant=_refuse)
        except ValueError as failure:
            problem = f"the output is not valid JSON: {failure}"
    return problem


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} in it")


def refuse_bad_originals(folder: Path) -> None:
    """Refuse invalid originals: every trial would test the same refusal."""
    folder.mkdir()
    (folder / "trace.csv").write_text(trace())
    for changes in SPECS:
        (folder / "spec.toml").write_text(spec_text(changes))
        run_here("run", str(folder / "spec.toml"), "--dry-run", "--out", str(folder / "out"))
    for labels in (long_labels(), wide_labels()):
        (folder / "labels.csv").write_text(labels)
        for table in (times(), timestamps()):
            (folder / "times.csv").write_text(table)
            given = ("--times", str(folder / "times.csv"))
            run_here("audit", str(folder / "labels.csv"), *given)


def run(options: Options, tally: Tally) -> None:
    simulator_kills.warm_up(simulator_kills.SPECS)
    with scratch() as root:
        refuse_bad_originals(root / "originals")
        for number in options.numbers:
            rng = np.random.default_rng([options.seed, number])
            folder = root / str(number)
            folder.mkdir()
            kinds = (spec_trial, audit_trial, spec_trial, audit_trial, trace_trial)
            tally.add(number, kinds[number % len(kinds)](folder, rng))


if __name__ == "__main__":
    main("inputs", run, 2000, "Feed mutated specs and tables to the command line.")
