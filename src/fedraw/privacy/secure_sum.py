"""Coverage exactly, and nobody's bits: a sum under masks that cancel pairwise.

Each two clients share a seed (`keys.pair_seed`). From it both expand the same words, which one adds
to its bits and the other subtracts, modulo 2^64. A message alone looks like noise; the sum of all
is the sum of the bits. One more word, 1 from each client, tells whether all masks have cancelled.

A client that drops out leaves its masks in the others' messages. That is noticed and ends the
round: its masks are not recovered here (Bonawitz et al., 2017, split the seeds among clients
for that).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import shake_256
from operator import index

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import ClientId
from fedraw.errors import BadInput

SEED_BYTES = 32
WORD_BYTES = 8
AGAIN = "begin a new round, under a new name, among those who are there"


def masked(
    held: Sequence[bool], client: ClientId, seeds: Mapping[ClientId, bytes], round_name: str
) -> list[int]:
    """What a client sends: a word for each label and one that counts the client.

    `seeds` has the seed shared with each other client of the round. A round's name is used once
    ever: two messages under the same masks give away how their bits differ.
    """
    if client in seeds:
        raise BadInput(f"client {client!r} has a seed with itself; seeds are for the other clients")
    if len(seeds) < 2:
        raise BadInput(
            "a secure sum needs three clients; of two, each would learn the other's bits"
        )
    words = np.array([*map(bool, held), True]).astype(np.uint64)
    for other, seed in seeds.items():
        mask = _expanded(seed, round_name, words.size, other)
        words = words + mask if repr(client) < repr(other) else words - mask  # either side agrees
    return [int(word) for word in words]


def unmasked(messages: Mapping[ClientId, Sequence[int]], roster: Collection[ClientId]) -> list[int]:
    """How many clients hold each label, or an error if anyone of the round's roster is missing.

    >>> seeds = {pair: bytes(31) + bytes([n]) for n, pair in enumerate(["ab", "ac", "bc"])}
    >>> sent = {
    ...     "a": masked([True, True], "a", {"b": seeds["ab"], "c": seeds["ac"]}, "1 May"),
    ...     "b": masked([True, False], "b", {"a": seeds["ab"], "c": seeds["bc"]}, "1 May"),
    ...     "c": masked([True, False], "c", {"a": seeds["ac"], "b": seeds["bc"]}, "1 May"),
    ... }
    >>> unmasked(sent, "abc")
    [3, 1]
    """
    missing = [client for client in roster if client not in messages]
    if missing:
        raise BadInput(
            f"{_named(missing)} sent nothing to the secure sum, so masks are left in it; {AGAIN}"
        )
    strange = [client for client in messages if client not in roster]
    if strange:
        raise BadInput(f"{_named(strange)} is not in the round's roster; {AGAIN}")
    if len({len(message) for message in messages.values()}) != 1:
        raise BadInput("messages of a secure sum differ in length; agree on one list of labels")
    try:
        words = np.array([list(map(index, message)) for message in messages.values()], np.uint64)
    except (OverflowError, TypeError, ValueError):
        raise BadInput("a message of a secure sum is no list of words from 0 to 2^64 − 1") from None
    *sums, clients = map(int, words.sum(axis=0, dtype=np.uint64))  # modulo 2^64
    if clients != len(messages) or any(total > clients for total in sums):
        raise BadInput(
            "the masks of a secure sum do not cancel: someone used other seeds, another round's "
            f"name or another roster; {AGAIN}"
        )
    return sums


def _expanded(seed: bytes, round_name: str, words: int, other: ClientId) -> npt.NDArray[np.uint64]:
    if len(seed) != SEED_BYTES:
        raise BadInput(
            f"the seed shared with {other!r} has {len(seed)} bytes; it must have {SEED_BYTES}"
        )
    stream = shake_256(seed + round_name.encode()).digest(WORD_BYTES * words)
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _named(clients: Sequence[ClientId]) -> str:
    return f"client {several(map(repr, clients), most=10)}"
