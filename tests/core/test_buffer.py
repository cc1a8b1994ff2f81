from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.buffer import Buffer, OneSlotBuffer, SlidingWindow, Slot
from fedraw.core.types import ClientId
from fedraw.core.update import Update


def sent(client: ClientId, version: int = 0) -> Slot:
    return Slot(Update(client, version, np.zeros(1, np.float32), examples=1), 1.0)


def clients(buffer: Buffer) -> list[ClientId]:
    return [slot.update.client for slot in buffer.slots]


def versions(buffer: Buffer) -> list[int]:
    return [slot.update.start_version for slot in buffer.slots]


def test_the_first_to_have_come_is_the_first_to_go() -> None:
    buffer = OneSlotBuffer(2)
    a, b, c = sent("a"), sent("b"), sent("c")
    assert [buffer.add(slot) for slot in (a, b, c)] == [None, None, a]
    assert clients(buffer) == ["b", "c"]


def test_a_second_update_takes_the_place_of_the_first() -> None:
    buffer = OneSlotBuffer(3)
    old = sent("a", 0)
    for slot in (old, sent("b", 1), sent("c", 2)):
        buffer.add(slot)
    assert buffer.add(sent("a", 3)) is old
    assert clients(buffer) == ["a", "b", "c"]
    assert versions(buffer) == [3, 1, 2]


def test_coming_again_does_not_renew_a_clients_age() -> None:
    buffer = OneSlotBuffer(2)
    for client in ("a", "b", "a"):
        buffer.add(sent(client))
    left = buffer.add(sent("c"))
    assert left is not None
    assert left.update.client == "a"
    assert clients(buffer) == ["b", "c"]


def test_an_evicted_client_comes_back_as_the_youngest() -> None:
    buffer = OneSlotBuffer(2)
    for client in ("a", "b", "c", "a", "d"):
        buffer.add(sent(client))
    assert clients(buffer) == ["a", "d"]


def test_replacing_before_the_buffer_is_full_pushes_nobody_out() -> None:
    buffer = OneSlotBuffer(3)
    for client in ("a", "b", "b", "a"):
        buffer.add(sent(client))
    assert clients(buffer) == ["a", "b"]


def test_a_window_lets_a_fast_client_hold_several_slots() -> None:
    window = SlidingWindow(3)
    for client in ("a", "b", "a", "a", "c"):
        window.add(sent(client))
    assert clients(window) == ["a", "a", "c"]


def test_a_window_returns_what_falls_out() -> None:
    window = SlidingWindow(1)
    a, b = sent("a"), sent("b")
    assert window.add(a) is None
    assert window.add(b) is a


Model = Callable[[list[Slot], Slot, int], list[Slot]]


def listed_one_slot(held: list[Slot], slot: Slot, capacity: int) -> list[Slot]:
    same = [i for i, old in enumerate(held) if old.update.client == slot.update.client]
    if same:
        return [slot if i in same else old for i, old in enumerate(held)]
    return [*held, slot][-capacity:]


def listed_window(held: list[Slot], slot: Slot, capacity: int) -> list[Slot]:
    return [*held, slot][-capacity:]


@pytest.mark.parametrize(
    ("kind", "model"), [(OneSlotBuffer, listed_one_slot), (SlidingWindow, listed_window)]
)
@given(capacity=st.integers(1, 6), arrivals=st.lists(st.integers(0, 8), max_size=40))
def test_a_buffer_is_a_short_list(
    kind: Callable[[int], Buffer], model: Model, capacity: int, arrivals: list[int]
) -> None:
    buffer, held = kind(capacity), list[Slot]()
    for client in arrivals:
        slot, before = sent(client), held
        left = buffer.add(slot)
        held = model(before, slot, capacity)
        assert list(buffer.slots) == held
        assert ([] if left is None else [left]) == [old for old in before if old not in held]
