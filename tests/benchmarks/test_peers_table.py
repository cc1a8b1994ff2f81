"""The table of benchmarks/peers, from recorded measurements; no test needs a peer."""

import json

import pytest
from benchmarks.peers import job as jobs
from benchmarks.peers.__main__ import Run, without
from benchmarks.peers.result import read
from benchmarks.peers.table import Round, between_markers, parts, rows, tables

from fedraw.learning import models


def line(peer: str, variant: str, steps: int, seconds: float, cores: int = 1) -> str:
    return json.dumps(
        {
            **{"peer": peer, "variant": variant, "job": "digits", "cores": cores},
            **{"updates": steps // 6, "steps": steps, "seconds": seconds, "cpu": seconds / 2},
            **{"peak_mb": 300, "versions": {"torch": "2.13.0"}, "note": ""},
        }
    )


def recorded(*lines: tuple[int, str]) -> list[Round]:
    return [Round(number, read(text)) for number, text in lines]


def test_ratios_are_per_step_and_within_a_round() -> None:
    """The machine was twice as slow in the second round, which no ratio shows."""
    rounds = recorded(
        (0, line("bare", "optim", 1_200, 1.2)),
        (0, line("pfl", "", 600, 0.9)),  # half the steps: 1.5 ms each
        (1, line("bare", "optim", 1_200, 2.4)),
        (1, line("pfl", "", 600, 1.8)),
    )
    bare, pfl = rows(rounds)
    assert (bare.key.peer, bare.wall) == ("bare", [1.0, 1.0])
    assert pfl.wall == pytest.approx([1.5, 1.5])
    assert pfl.cpu == pytest.approx([1.5, 1.5])


def test_each_number_of_cores_has_its_own_table_and_bare_loop() -> None:
    text = tables(
        recorded(
            (0, line("bare", "optim", 600, 0.6)),
            (0, line("bare", "optim", 600, 0.3, cores=2)),
            (0, line("appfl", "gc-off", 600, 0.6, cores=2)),
        )
    )
    one, two = text.split("\n\n**")
    assert "1 core**" in one
    assert "appfl" not in one
    assert "| appfl, gc-off | 100 | 1 | **2.00** | 2.00 to 2.00 | 2.00 | 300 |" in two


def test_a_measurement_without_a_bare_loop_is_left_out() -> None:
    assert rows(recorded((0, line("pfl", "", 600, 0.9)))) == []


def test_the_advantage_is_the_framework_times_the_memory_format() -> None:
    """A peer takes 6 s, 3 s with channels last, and fedraw 2 s: 3.0 = 1.5 x 2.0."""
    rounds = recorded(
        (0, line("bare", "optim", 600, 4.0)),
        (0, line("fedraw", "inline", 600, 2.0)),
        (0, line("appfl", "gc-off", 600, 6.0)),
        (0, line("appfl", "channels-last", 600, 3.0)),
        (0, line("pfl", "channels-last", 600, 3.0)),  # without its run in the default format
    )
    (appfl,) = parts(rounds)
    assert appfl[1:] == ([3.0], [1.5], [2.0])
    assert "| appfl, gc-off | 1 | **3.00** | 3.00 to 3.00 | 1.50 | 2.00 |" in tables(rounds)


def test_a_run_without_channels_last_has_no_table_of_parts() -> None:
    assert "framework" not in tables(recorded((0, line("bare", "optim", 600, 0.6))))


def test_only_text_between_the_markers_is_replaced() -> None:
    page = "a\n<!-- peers -->\nold\n<!-- /peers -->\nb\n"
    assert between_markers(page, "peers", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no <!-- other -->"):
        between_markers(page, "other", "new")


@pytest.mark.parametrize(("job", "model"), [("digits", "mlp"), ("cnn", "cnn")])
def test_the_peers_train_the_networks_of_fedraw(job: str, model: str) -> None:
    theirs = jobs.network(job)
    ours = models.MODELS[model](jobs.SHAPES[job], jobs.CLASSES)
    assert str(theirs) == str(ours)


def test_a_repeated_round_replaces_its_own_measurements_only() -> None:
    records: list[dict[str, object]] = [
        {"round": 0, "line": json.loads(line("pfl", "", 600, 0.9))},
        {"round": 1, "line": json.loads(line("pfl", "", 600, 9.0))},
        {"round": 1, "line": json.loads(line("bare", "optim", 600, 0.5))},
        {"absent": "flsim digits x1", "why": "not set up"},
    ]
    kept = without(records, 1, [Run("pfl", "digits")])
    assert kept == [records[0], *records[2:]]
