from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedraw.core.types import Vector
from fedraw.storage import snapshot


@dataclass(eq=False)
class Shelf:
    model: Vector
    buffer: list[Vector]
    by_name: dict[str, Vector]


def shelf() -> Shelf:
    one, two, three = (np.full(4, value, np.float32) for value in (1, 2, 3))
    return Shelf(one, [two, three, one], {"again": two})


@dataclass
class Many:
    numbers: list[int]
    fixed: tuple[int, ...]
    mapping: dict[int, int]
    gaps: dict[int, int | None]
    named: dict[str, int]
    huge: list[int]
    flags: list[bool]


def test_an_external_array_is_stored_by_its_name_only(tmp_path: Path) -> None:
    kept = shelf()
    two = kept.buffer[0]
    snapshot.save(kept, tmp_path, {id(two): "update 7"})
    stored = load_file(tmp_path / "state.safetensors")
    assert sorted(array[0] for array in stored.values()) == [1, 3]
    tree, _ = snapshot.read(tmp_path)
    assert tree["buffer"][0] == tree["by_name"][0][1] == {"array": "update 7"}
    read = snapshot.load(Shelf, tmp_path, {"update 7": two})
    assert read.buffer[0] is two
    assert read.by_name["again"] is two
    assert read.buffer[1].tobytes() == kept.buffer[1].tobytes()
    assert read.buffer[2] is read.model


def test_a_missing_external_array_is_named(tmp_path: Path) -> None:
    kept = shelf()
    snapshot.save(kept, tmp_path, {id(kept.model): "update 7"})
    with pytest.raises(KeyError, match="update 7"):
        snapshot.load(Shelf, tmp_path)


def test_an_external_array_may_not_have_a_number_as_its_name() -> None:
    with pytest.raises(ValueError, match="'0'"):
        snapshot.Arrays({1: "0"})


def test_all_arrays_may_be_external(tmp_path: Path) -> None:
    kept = shelf()
    arrays = [kept.model, *kept.buffer]
    external = {id(array): f"update {array[0]:.0f}" for array in arrays}
    snapshot.save(kept, tmp_path, external)
    assert load_file(tmp_path / "state.safetensors") == {}
    read = snapshot.load(Shelf, tmp_path, {external[id(array)]: array for array in arrays})
    assert read.model is kept.model


@pytest.mark.parametrize("count", [3, 1000])
def test_short_and_long_lists_survive_a_round_trip(count: int, tmp_path: Path) -> None:
    kept = Many(
        list(range(count)),
        tuple(range(count)),
        {i: -i for i in range(count)},
        {i: None if i % 2 else i for i in range(count)},
        {f"client {i}": i for i in range(count)},
        [2**70 + i for i in range(count)],
        [True] * count,
    )
    snapshot.save(kept, tmp_path)
    assert snapshot.load(Many, tmp_path) == kept
    assert all(flag is True for flag in snapshot.load(Many, tmp_path).flags)


class Slots(NamedTuple):
    clients: Sequence[int | str] = ()
    vectors: tuple[Vector, ...] = ()


@dataclass
class Kept:
    norm: float
    slots: Slots
    rates: Mapping[str, float]
    last: list[int] | None = None
    by_client: dict[int, float] = field(default_factory=dict)


@pytest.mark.parametrize("count", [3, 1000])
def test_numbers_of_numpy_named_tuples_and_unions_survive_a_round_trip(
    count: int, tmp_path: Path
) -> None:
    numpy: Any = np.float32(0.5)
    int_of_numpy: Any = np.int64(3)
    clients, by_client = list(range(count)), {int_of_numpy: 0.25}
    kept = Kept(numpy, Slots(clients, (np.ones(2, np.float32),)), {"a": 0.5}, clients, by_client)
    snapshot.save(kept, tmp_path)
    read = snapshot.load(Kept, tmp_path)
    assert (read.norm, read.rates, read.last) == (0.5, {"a": 0.5}, clients)
    assert read.by_client == {3: 0.25}
    assert read.slots.clients == clients
    assert read.slots.vectors[0].tolist() == [1, 1]
    assert snapshot.can_be_saved(kept)


@dataclass
class Bare:
    buffer: list = field(default_factory=list)  # type: ignore[type-arg]


@dataclass
class Nested:
    buffer: dict[str, list] = field(default_factory=lambda: {"a": []})  # type: ignore[type-arg]


@dataclass
class Unknown:
    inside: Any


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Bare(), "Bare.buffer has the type list"),
        (Nested(), "the type list does not say what it contains"),
        (Unknown(Bare()), "a Bare cannot be read back as typing.Any"),
    ],
)
def test_a_type_that_does_not_say_what_it_contains_is_named_even_if_it_is_empty(
    state: Any, words: str
) -> None:
    assert words in (snapshot.saving_problem(state) or "")
    assert not snapshot.can_be_saved(state)
