from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM, measured, presence_in, slot_law, subset_law
from tests.simulation.scenes import flat

from fedraw.auditing import presence as module
from fedraw.auditing.methods import Buffer
from fedraw.auditing.presence import arrival_shares, group_presence, presence
from fedraw.core.randomness import Streams
from fedraw.core.types import Floats
from fedraw.errors import BadInput
from fedraw.simulation.speeds import Speeds, mean_seconds
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy

SECONDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


@CALM
@given(SECONDS, st.floats(1e-6, 1e6))
def test_shares_of_arrivals_are_inverse_to_the_times(seconds: list[float], scale: float) -> None:
    p = arrival_shares(seconds)
    assert p.sum() == pytest.approx(1)
    assert p * np.array(seconds) == pytest.approx(p[0] * seconds[0])
    assert arrival_shares(np.array(seconds) * scale) == pytest.approx(p)


@CALM
@given(SECONDS, st.integers(1, 4))
def test_in_a_window_or_a_block_every_slot_is_a_draw(seconds: list[float], size: int) -> None:
    p = arrival_shares(seconds)
    everything = presence_in(slot_law(p, size), p.size)
    assert presence(p, size, "window") == pytest.approx(everything, rel=1e-9)
    assert presence(p, size, "blocks").tolist() == presence(p, size, "window").tolist()


@CALM
@given(SECONDS, st.data())
def test_with_one_slot_per_client_the_buffer_is_a_subset(
    seconds: list[float], data: st.DataObject
) -> None:
    p = arrival_shares(seconds)
    size = data.draw(st.integers(1, p.size))
    exact = presence(p, size, "dedup")
    assert exact == pytest.approx(presence_in(subset_law(p, size), p.size), rel=1e-9)
    assert exact.sum() == pytest.approx(size)
    assert (np.diff(exact[np.argsort(p)]) >= -1e-12).all()


@CALM
@given(SECONDS, st.data(), st.integers(0, 63))
def test_the_presence_of_anyone(seconds: list[float], data: st.DataObject, bits: int) -> None:
    p = arrival_shares(seconds)
    group = np.array([bool(bits >> i & 1) for i in range(p.size)])
    size = data.draw(st.integers(1, min(p.size, 4)))
    for buffer, law in (("window", slot_law(p, size)), ("dedup", subset_law(p, size))):
        anyone = sum(chance for held, chance in law.items() if group[list(held)].any())
        found = group_presence(p, group, size, buffer)  # type: ignore[arg-type]
        assert found == pytest.approx(anyone, rel=1e-9, abs=1e-12)


@CALM
@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 4)), min_size=1, max_size=5), st.data()
)
def test_a_group_is_as_many_clients(groups: list[tuple[float, int]], data: st.DataObject) -> None:
    many = np.array([count for _, count in groups])
    alone = arrival_shares(np.repeat([seconds for seconds, _ in groups], many))
    shares = alone[np.cumsum(many) - 1]
    size = data.draw(st.integers(1, alone.size))
    inside = np.arange(many.size) == 0
    buffers: list[Buffer] = ["window", "dedup"]
    for buffer in buffers:
        assert np.repeat(presence(shares, size, buffer, many), many) == pytest.approx(
            presence(alone, size, buffer), rel=1e-8
        )
        assert group_presence(shares, inside, size, buffer, many) == pytest.approx(
            group_presence(alone, np.repeat(inside, many), size, buffer), rel=1e-8, abs=1e-12
        )


def test_a_single_client_is_always_in() -> None:
    alone, inside = np.array([1.0]), np.array([True])
    buffers: list[Buffer] = ["window", "blocks", "dedup"]
    for buffer in buffers:
        assert presence(alone, 1, buffer).tolist() == [1.0]
        assert group_presence(alone, inside, 1, buffer) == 1.0
        assert group_presence(alone, ~inside, 1, buffer) == 0.0


@pytest.mark.parametrize("size", [0, 4, 100])
def test_a_buffer_that_cannot_fill_is_refused(size: int) -> None:
    p = np.full(3, 1 / 3)
    with pytest.raises(BadInput, match=f"a buffer of {size} .* with 3 clients; .* from 1 to 3"):
        presence(p, size, "dedup")
    with pytest.raises(BadInput, match="never fills"):
        group_presence(p, p > 1, size, "dedup")
    with pytest.raises(BadInput, match="with 3 clients"):
        presence(np.full(1, 1 / 3), size, "dedup", np.array([3]))


def test_a_buffer_too_large_for_the_exact_law_has_the_mean_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = arrival_shares(np.geomspace(1, 100, 400))
    exact = presence(p, 100, "dedup")
    monkeypatch.setattr(module, "EXACT_UP_TO", 1000)
    mean_field = presence(p, 100, "dedup")
    assert 0 < np.abs(mean_field - exact).max() < 2e-3
    assert mean_field.sum() == pytest.approx(100)


# Against the paper: 30 clients, a buffer of 10, means over draws of the clients' speeds.


def over_speeds(kind: Speeds, rare: int, buffer: Buffer, ratio: float = 2.0) -> float:
    """Percent of buffers with a rare client, on average over draws of the speeds."""
    group = np.arange(30) < rare
    found = []
    for seed in range(200):
        seconds = mean_seconds(kind, 30, range(rare), Streams(seed).generator("speeds"), ratio)
        found.append(group_presence(arrival_shares(seconds), group, 10, buffer))
    return 100 * float(np.mean(found))


@pytest.mark.parametrize(
    ("rare", "window", "dedup"),
    [(6, 62.4, 75.0), (4, 46.6, 58.4)],
    ids=["three rare labels", "two rare labels"],
)
def test_presence_in_the_paper(rare: int, window: float, dedup: float) -> None:
    assert over_speeds("correlated", rare, "window") == pytest.approx(window, abs=1)
    assert over_speeds("correlated", rare, "dedup") == pytest.approx(dedup, abs=1)


@pytest.mark.parametrize(("ratio", "window", "dedup"), [(10, 21, 32), (20, 11, 18)])
def test_presence_in_the_paper_at_extreme_slowness(
    ratio: float, window: float, dedup: float
) -> None:
    assert over_speeds("ratio", 6, "window", ratio) == pytest.approx(window, abs=1)
    assert over_speeds("ratio", 6, "dedup", ratio) == pytest.approx(dedup, abs=1)


@pytest.mark.parametrize(("holders", "dedup"), [(1, 46), (2, 75), (3, 91), (5, 99.6), (7, 100)])
def test_presence_in_the_paper_by_the_number_of_holders(holders: int, dedup: float) -> None:
    assert over_speeds("correlated", 3 * holders, "dedup") == pytest.approx(dedup, abs=1)


# Against the simulator itself.


def some_seconds(clients: int) -> Floats:
    """From 1 to 20, the slow and the quick ones mixed."""
    return np.geomspace(1, 20, clients)[np.random.default_rng(clients).permutation(clients)]


@pytest.mark.parametrize(("clients", "size"), [(6, 3), (10, 9), (30, 10)])
@pytest.mark.parametrize(
    ("method", "buffer"), [(FedFa, "window"), (FedBuff, "blocks"), (FedRAW, "dedup")]
)
def test_the_simulator_agrees(
    method: type[Strategy[Any]], buffer: Buffer, clients: int, size: int
) -> None:
    seconds = some_seconds(clients)
    strategy: Strategy[Any] = method(size)  # type: ignore[call-arg]
    run = measured(strategy, seconds, flat(clients), 20_000, seed=clients)
    gap: npt.NDArray[np.float64] = run.presence - presence(arrival_shares(seconds), size, buffer)
    assert np.abs(gap / run.presence_error).max() < 4.5  # of t with 19 degrees, 30 at a time
    assert np.abs(gap).max() < 0.06
