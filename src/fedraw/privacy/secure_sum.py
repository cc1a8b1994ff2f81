"""A secure sum: the server learns the exact coverage, but no client's bits.

Every pair of clients shares a seed (`pair_seed`). The server does not know it, because it only
relays their public keys (X25519). Both clients expand the seed to the same words. One client adds
the words to its bits and the other subtracts them, modulo 2^64. A single message looks like noise,
and the sum of all messages is the sum of the bits. Each client also sends a masked 1, from which
the server sees whether all masks cancel.

If a client drops out, its masks remain in the others' messages. The server detects this and ends
the round. It does not recover the masks; Bonawitz et al. (2017) split the seeds among clients for
that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import shake_256
from operator import index

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import ClientId
from fedraw.errors import BadInput, MissingExtra

SEED_BYTES = 32
WORD_BYTES = 8
AGAIN = "begin a new round, under a new name, among the remaining clients"


def new_keys() -> tuple[bytes, bytes]:
    """Return a private key, which never leaves the client, and the public key for the others."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise MissingExtra("cryptography", "privacy") from error
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def pair_seed(own_private: bytes, their_public: bytes) -> bytes:
    """Return the seed for `masked` that this client shares with another.

    The other client computes the same seed from its private key and this client's public key.
    Public keys must come from their owners: a server that replaces them with its own can read
    everything.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise MissingExtra("cryptography", "privacy") from error
    try:
        own = x25519.X25519PrivateKey.from_private_bytes(own_private)
        secret = own.exchange(x25519.X25519PublicKey.from_public_bytes(their_public))
    except ValueError:
        raise BadInput(
            "a key for a secure sum is no X25519 key of 32 bytes; see new_keys"
        ) from None
    both = sorted([own.public_key().public_bytes_raw(), their_public])
    info = b"fedraw secure sum" + b"".join(both)
    return HKDF(SHA256(), SEED_BYTES, salt=None, info=info).derive(secret)


def masked(
    held: Sequence[bool], client: ClientId, seeds: Mapping[ClientId, bytes], round_name: str
) -> list[int]:
    """Return a client's message: a masked word for each label, and one that counts the client.

    `held` has a presence bit for each label, and `seeds` the seed shared with each other client of
    the round. Never use the name of a round twice, because two messages under the same masks reveal
    how their bits differ.
    """
    if client in seeds:
        raise BadInput(f"client {client!r} has a seed with itself; give seeds of other clients")
    if len(seeds) < 2:
        raise BadInput(
            "a secure sum needs three clients; with two, each would learn the other's bits"
        )
    words = np.array([*map(bool, held), True]).astype(np.uint64)
    for other, seed in seeds.items():
        mask = _expanded(seed, round_name, words.size, other)
        # The order of the names decides which of the two clients adds.
        words = words + mask if repr(client) < repr(other) else words - mask
    return [int(word) for word in words]


def unmasked(messages: Mapping[ClientId, Sequence[int]], roster: Collection[ClientId]) -> list[int]:
    """Return the number of clients that hold each label; raise BadInput if a message is missing.

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
            f"{_named(missing)} sent nothing to the secure sum, so masks remain in it; {AGAIN}"
        )
    strange = [client for client in messages if client not in roster]
    if strange:
        raise BadInput(f"{_named(strange)} is not in the round's roster; {AGAIN}")
    if len({len(message) for message in messages.values()}) != 1:
        raise BadInput("messages of a secure sum differ in length; agree on one list of labels")
    try:
        words = np.array([list(map(index, message)) for message in messages.values()], np.uint64)
    except (OverflowError, TypeError, ValueError):
        raise BadInput(
            "a message of a secure sum must be a list of whole numbers from 0 to 2^64 − 1"
        ) from None
    *sums, clients = map(int, words.sum(axis=0, dtype=np.uint64))  # modulo 2^64
    if clients != len(messages) or any(total > clients for total in sums):
        raise BadInput(
            "the masks of a secure sum do not cancel, because a client used other seeds, another "
            f"name of the round or another roster; {AGAIN}"
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
