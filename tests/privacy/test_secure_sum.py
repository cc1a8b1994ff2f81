from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.histograms import client_ids
from tests.privacy.laws import band, strays

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.privacy.secure_sum import masked, new_keys, pair_seed, unmasked

HELD: dict[ClientId, list[bool]] = {
    "north": [True, False, True],
    "south": [True, False, False],
    3: [False, False, True],
}


def seed_of(one: ClientId, other: ClientId, salt: str = "") -> bytes:
    pair = "|".join(sorted([repr(one), repr(other)]))
    return hashlib.sha256((salt + pair).encode()).digest()


def sent(
    held: Mapping[ClientId, list[bool]], round_name: str = "r", salt: str = ""
) -> dict[ClientId, list[int]]:
    return {
        client: masked(
            bits, client, {o: seed_of(client, o, salt) for o in held if o != client}, round_name
        )
        for client, bits in held.items()
    }


@given(st.data(), st.lists(client_ids, min_size=3, max_size=7, unique=True), st.integers(0, 5))
def test_masks_cancel_exactly(data: st.DataObject, roster: list[ClientId], n: int) -> None:
    label_set = st.lists(st.booleans(), min_size=n, max_size=n)
    held = {client: data.draw(label_set) for client in roster}
    assert unmasked(sent(held), roster) == [sum(bits) for bits in zip(*held.values(), strict=True)]


def test_a_secure_sum_with_keys_of_the_clients() -> None:
    keys = {client: new_keys() for client in HELD}
    messages: dict[ClientId, list[int]] = {}
    for client, bits in HELD.items():
        private = keys[client][0]
        seeds = {o: pair_seed(private, keys[o][1]) for o in HELD if o != client}
        messages[client] = json.loads(json.dumps(masked(bits, client, seeds, "1 May")))
    assert unmasked(messages, HELD) == [2, 0, 2]


def test_each_pair_of_clients_has_its_own_seed() -> None:
    (a, a_public), (b, b_public), (c, c_public) = new_keys(), new_keys(), new_keys()
    assert pair_seed(a, b_public) == pair_seed(b, a_public)
    assert len({pair_seed(a, b_public), pair_seed(a, c_public), pair_seed(b, c_public)}) == 3
    for public in (b"short", bytes(32)):  # the second is a point at which every secret is zero
        with pytest.raises(BadInput, match="no X25519 key"):
            pair_seed(c, public)


@pytest.mark.parametrize("bit", [False, True])
def test_a_single_message_does_not_reveal_its_bits(bit: bool) -> None:
    seeds: dict[ClientId, bytes] = {other: seed_of("north", other) for other in ("south", 3)}
    words = np.array(masked([bit] * 5000, "north", seeds, "r"), np.float64) / 2**64
    points = np.linspace(0, 1, 100)
    assert strays(words, points, points) < band(len(words))


def test_a_missing_client_is_named() -> None:
    messages = sent(HELD)
    del messages["south"]
    with pytest.raises(BadInput, match="client 'south' sent nothing to the secure sum") as noticed:
        unmasked(messages, HELD)
    assert "begin a new round" in str(noticed.value)
    again: dict[ClientId, list[bool]] = {
        "north": HELD["north"],
        "west": [True, True, True],
        3: HELD[3],
    }
    assert unmasked(sent(again, "second try"), again) == [2, 1, 3]


@given(st.sampled_from(list(HELD)))
def test_a_roster_without_the_missing_client_does_not_cancel(gone: ClientId) -> None:
    messages = sent(HELD)
    del messages[gone]
    with pytest.raises(BadInput, match="do not cancel"):
        unmasked(messages, list(messages))


def test_another_round_or_other_seeds_are_detected() -> None:
    for odd in (sent(HELD, round_name="r2"), sent(HELD, salt="x")):
        with pytest.raises(BadInput, match="do not cancel"):
            unmasked(sent(HELD) | {3: odd[3]}, HELD)


def test_malformed_messages_are_refused() -> None:
    good = sent(HELD)
    half: Any = 0.5
    for bad, message in (
        (good | {"stranger": good[3]}, "'stranger' is not in the round's roster"),
        (good | {3: good[3][1:]}, "differ in length"),
        (good | {3: [-1, *good[3][1:]]}, "must be a list of whole numbers"),
        (good | {3: [2**64, *good[3][1:]]}, "must be a list of whole numbers"),
        (good | {3: [half, *good[3][1:]]}, "must be a list of whole numbers"),
    ):
        with pytest.raises(BadInput, match=message):
            unmasked(bad, HELD)


def test_masking_needs_three_clients_and_complete_seeds() -> None:
    seed = bytes(32)
    with pytest.raises(BadInput, match="needs three clients"):
        masked([True], "a", {"b": seed}, "r")
    with pytest.raises(BadInput, match="'a' has a seed with itself"):
        masked([True], "a", {"a": seed, "b": seed}, "r")
    with pytest.raises(BadInput, match="shared with 'c' has 3 bytes"):
        masked([True], "a", {"b": seed, "c": b"abc"}, "r")
