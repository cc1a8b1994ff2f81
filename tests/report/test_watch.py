from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedraw.eventlog.live import (
    BufferSlot,
    EvaluationPoint,
    Incident,
    LabelRisk,
    LabelTrend,
    Phase,
    Restart,
    RunDetail,
    RunStatus,
    ServerHistory,
)
from fedraw.report.formatting import spark
from fedraw.report.watch import Frame

NASTY = "[red]\x1b[31mé\nnevus 12345678901234567890 and more of it"

RUN = RunStatus(
    folder=Path("runs/mine/seed-1"),
    name="fedraw",
    seed=1,
    state="running",
    event=1500,
    events=3000,
    written=1_700_000_000.0,
    quiet=0.2,
    rate=25.0,
    seconds_left=60.0,
    unread=0,
    checkpoint=None,
    metrics={"GlobalAcc": 81.25, "AvgRare": 5.0},
)
DETAIL = RunDetail(
    curve=tuple(
        EvaluationPoint(
            event,
            {"GlobalAcc": event / 20, "AvgRare": 5.0},
            {"cat": 90.0, "dog": 80.0, "fox": 85.0, "hen": 88.0, "owl": 5.0},
        )
        for event in range(100, 1600, 100)
    ),
    changes={"GlobalAcc": 15.0, "AvgRare": -1.04},
    mean_recall=69.6,
    labels=(
        LabelTrend("owl", True, 5.0, -12.0, True, True),
        LabelTrend("dog", False, 80.0, 0.0, False, False),
        LabelTrend("fox", False, 85.0, 0.0, False, False),
        LabelTrend("hen", False, 88.0, 0.0, False, False),
        LabelTrend("cat", False, 90.0, None, False, False),
    ),
    buffer=(BufferSlot(3, 0.25, 7, False), BufferSlot(12, 0.75, 0, True)),
    capacity=2,
    aggregated_at=1500,
    version=1499,
    clients=30,
    rare_clients=(12, 4),
    unheard=(4, 9),
    participation={"RarePart": 2.5, "BufPres": 61.04},
    rejected={"7": 3},
    refusals=(Incident(1490, 7, "its vector holds a value that is not finite"),),
)


def drawn(frame: Frame, width: int = 80, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(width=width, file=file, color_system=None, legacy_windows=False)
    with console.capture() as caught:
        console.print(frame)
    return [line.rstrip() for line in caught.get().splitlines()]


def one(run: RunStatus = RUN, detail: RunDetail = DETAIL) -> Frame:
    return Frame([run], run, detail)


def test_the_frame_at_eighty_columns() -> None:
    bar = "━" * 16 + "─" * 15
    assert drawn(one()) == [
        "fedraw  seed 1  running                                         runs/mine/seed-1",
        f"event 1500 of 3000  {bar}  50 %  25/s  1 min 00 s left",
        "",
        "GlobalAcc      75.0  ▁▁▂▂▃▃▃▄▄▅▅▅▆▆▇   +15.0  at event 1500",
        "AvgRare         5.0  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁    −1.0  last 3 against 3 before",
        "",
        "labels        1 of 5 falls behind, 1 of them rare; mean recall 69.6",
        "  owl  rare     5.0  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁   −12.0  far below mean, falling",
        "  dog          80.0  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇    +0.0",
        "  fox          85.0  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇    +0.0",
        "  2 others: 88.0 to 90.0",
        "",
        "buffer        2 slots, aggregated at event 1500, version 1499",
        "  client      3  12*",
        "  weight % 25.0 75.0",
        "  age         7    0",
        "",
        "rare clients* 2 of 30 (6.7 %), 2.5 % of arrivals, buffer presence 61.0 %",
        "no update yet 2 of 30 clients: 4*, 9",
        "",
        "rejected      3 updates: client 7 ×3",
        "  event 1490, client 7: its vector holds a value that is not finite",
    ]


def test_doubted_clients_are_below_rejected_ones() -> None:
    lines = drawn(one(detail=replace(DETAIL, doubted={"29": ["owl"], "3": ["cat", "dog"]})))
    assert lines[-2:] == ["", "doubted       client 29: owl, client 3: cat, dog"]


def test_inferred_labels_are_shown_with_their_holders() -> None:
    lines = drawn(one(detail=replace(DETAIL, inferred={"owl": [2, 3], "emu": ["west"]})))
    assert lines[-2:] == ["", "held by few   owl (2, 3), emu (west)"]


def test_labels_at_risk_are_named_with_the_reason() -> None:
    risks = (
        LabelRisk("owl", True, ("last holder gone", "low recall"), 0, "west", None, 5.0, None),
        LabelRisk("dog", False, ("falling recall",), 2, None, 0.5, 40.0, -20.0),
        LabelRisk("emu", False, ("low standing",), 1, None, 0.02, None, None),
    )
    lines = drawn(one(detail=replace(DETAIL, at_risk=risks)))
    assert "at risk       owl (last holder gone, west), emu (low standing)" in lines


def test_unknown_values_are_dashes() -> None:
    unknown = replace(RUN, rate=None, seconds_left=None)
    assert drawn(one(unknown))[1].endswith("  50 %  –/s  – left")
    young = replace(RUN, state="starting", event=0, events=None, seed=None, rate=None)
    nothing = RunDetail((), {}, None, (), (), None, None, 0, 0, (), (), {}, {}, ())
    assert drawn(one(replace(young, seconds_left=None), nothing)) == [
        "fedraw  starting                                                runs/mine/seed-1",
        f"event 0 of –  {'─' * 50}  –  –/s  – left",
        "",
        "accuracy      no evaluation yet",
        "",
        "buffer        empty",
        "",
        "rejected      none",
    ]


def test_a_filling_buffer_has_no_weights() -> None:
    slots = (BufferSlot(3, None, 1, False), BufferSlot(3, None, 0, False))
    lines = drawn(one(detail=replace(DETAIL, buffer=slots, capacity=10, aggregated_at=1490)))
    start = lines.index(
        "buffer        2 of 10 slots filled, last aggregated at event 1490, version 1499"
    )
    assert lines[start + 1 : start + 3] == ["  client   3 3", "  age      1 0"]


def test_a_stopped_run_shows_since_when_and_how_to_continue() -> None:
    stopped = replace(RUN, state="stopped", quiet=200.0, checkpoint=1480)
    lines = drawn(one(stopped))
    assert re.fullmatch(
        r"nothing written since \d\d:\d\d:\d\d, 3 min 20 s ago; checkpoint at event 1480", lines[2]
    )
    assert lines[3] == "fedraw run SPEC.toml --out runs/mine --resume continues from there"
    far = replace(stopped, folder=Path("/a very/long path" * 5) / "seed-1")
    assert drawn(one(far))[3] == "fedraw run … --resume continues from there"
    bare = drawn(one(replace(stopped, checkpoint=None)))
    assert bare[2].endswith("3 min 20 s ago; no checkpoint")
    assert "resume" not in " ".join(bare)


def test_several_runs_are_listed() -> None:
    other = replace(RUN, name="fedfa", seed=123, state="finished", event=3000, seconds_left=None)
    assert drawn(Frame([RUN, other], RUN, DETAIL))[:4] == [
        "run     seed  state     progress  GlobalAcc  AvgRare        left",
        "fedraw     1  running       50 %       81.2      5.0  1 min 00 s",
        "fedfa    123  finished     100 %       81.2      5.0",
        "",
    ]


def test_many_runs_on_a_low_screen_leave_room_for_the_details() -> None:
    counts: dict[Phase, int] = {"finished": 20, "stopped": 5, "running": 2}
    states = [state for state, count in counts.items() for _ in range(count)]
    runs = [replace(RUN, seed=seed, state=state) for seed, state in enumerate(states)]
    frame = Frame(runs, runs[-1], DETAIL)
    lines = [line.plain for line in frame.lines(80, rows=24)]
    assert len(lines) <= 24
    assert sum("  running  " in line for line in lines[:8]) == 2
    assert "and 2 stopped, 20 finished" in lines
    for part in ("GlobalAcc", "labels", "buffer", "rare clients*", "rejected"):
        assert any(line.startswith(part) for line in lines), part
    assert sum(f" {run.seed} " in line for run in runs for line in drawn(frame)[:30]) >= 27


@pytest.mark.parametrize("rows", [12, 18, 24, 40])
def test_a_frame_is_not_higher_than_its_screen(rows: int) -> None:
    assert len(one().lines(80, rows)) <= rows


def large() -> RunDetail:
    slots = tuple(BufferSlot(f"hospital-{n}", 1 / 40, 1234567, n % 2 == 0) for n in range(40))
    labels = tuple(LabelTrend(f"{n} {NASTY}", True, 100.0, -100.0, True, True) for n in range(30))
    return replace(
        DETAIL,
        buffer=slots,
        labels=labels,
        version=10**9,
        aggregated_at=10**9,
        unheard=tuple(range(10_000, 10_100)),
        clients=20_000,
        rejected={f"hospital-{n}": 10**6 for n in range(50)},
        refusals=(Incident(10**9, NASTY, NASTY * 9),) * 5,
    )


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_screen(width: int, encoding: str) -> None:
    run = replace(
        RUN, event=10**9, events=10**9, seed=10**9, rate=123456.0, seconds_left=10**7, quiet=999.0
    )
    runs = [run, replace(run, name=NASTY), replace(run, state="stopped", checkpoint=10**9)]
    for shown in runs:
        lines = drawn(Frame(runs, shown, large()), width, encoding)
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert "\x1b" not in text
        assert "1000000000" in text
        assert "the heaviest" in text
        assert "client hospital-7" in text
        if encoding == "ascii":
            assert text.isascii()


def test_wide_characters_count_twice() -> None:
    labels = (LabelTrend("黒色腫", True, 5.0, -1.0, True, False), *DETAIL.labels[1:])
    lines = [
        line for line in one(detail=replace(DETAIL, labels=labels)).lines() if "far" in str(line)
    ]
    assert lines[0].cell_len <= 80


def test_a_narrow_screen_folds_lines_without_loss() -> None:
    text = " ".join(drawn(one(), width=40))
    for number in ("1500", "3000", "75.0", "−12.0", "61.0", "1490"):
        assert number in text


def test_a_spark_line_is_drawn_over_events() -> None:
    assert spark([]) == ""
    assert spark([(10, None)]) == " "
    assert spark([(10, 100.0), (20, None)], 5) == "██"
    assert len(spark([(n, 50.0) for n in range(1, 500)])) == 24
    assert spark([(1, 0.0), (2, 0.0), (100, 100.0)], 3) == "▁▁█"


SERVER = replace(RUN, name="fedraw", seed=None, events=None, event=120, is_server=True, rate=0.05)
LIFE = ServerHistory(
    away=(Incident(110, "west", "quarantined for 3600 s"), Incident(90, "east", "out of reach")),
    changed=3,
    restarts=2,
    last_restarts=(Restart(100, 75.0, 4),),
    notes=14,
    quarantined=1,
    last_notes=(Incident(110, "west", "quarantined for 3600 s"), Incident(80, None, "disk full")),
)


def test_a_server_shows_changes_of_the_membership() -> None:
    detail = replace(DETAIL, clients=6, members=4, history=LIFE, unheard=(), rare_clients=("east",))
    lines = drawn(one(SERVER, detail))
    assert lines[0].startswith("fedraw  running")
    assert lines[1] == "event 120  3.0/min"
    start = lines.index("members       4 now, 6 ever, 2 left: west, east*")
    assert lines[start : start + 4] == [
        "members       4 now, 6 ever, 2 left: west, east*",
        "  event 110, client west left: quarantined for 3600 s",
        "  event 90, client east left: out of reach",
        "server        2 restarts, last at event 100 after 1 min 15 s, 4 asked again",
    ]
    assert lines[-2:] == ["notes         14 notes, 1 × quarantine", "  event 80: disk full"]


def test_a_stopped_server_is_started_again_not_resumed() -> None:
    stopped = replace(SERVER, state="stopped", quiet=9000.0, checkpoint=118)
    lines = drawn(one(stopped))
    assert lines[2].endswith("; checkpoint at event 118")
    assert lines[3] == "to continue, start the server app again with this folder; nothing is lost"
    assert "--resume" not in " ".join(lines)


@pytest.mark.parametrize("rows", [18, 24, 40])
def test_the_frame_of_a_server_is_not_higher_than_its_screen(rows: int) -> None:
    detail = replace(DETAIL, clients=6, members=4, history=LIFE)
    assert len(one(SERVER, detail).lines(80, rows)) <= rows


def test_the_frame_of_a_server_is_not_wider_than_its_screen() -> None:
    many = tuple(Incident(10**9, NASTY, NASTY * 9) for _ in range(60))
    life = replace(LIFE, away=many, last_notes=many[:10])
    frame = one(replace(SERVER, event=10**9), replace(large(), members=10**6, history=life))
    for line in drawn(frame):
        assert len(line) <= 80
        assert "\x1b" not in line
