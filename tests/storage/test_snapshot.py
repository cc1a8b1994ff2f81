from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
