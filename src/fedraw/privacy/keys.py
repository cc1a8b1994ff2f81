"""Seeds that two clients share and the server that relays their keys does not know (X25519)."""

from __future__ import annotations

from fedraw.errors import BadInput, MissingExtra
from fedraw.privacy.secure_sum import SEED_BYTES


def new_keys() -> tuple[bytes, bytes]:
    """A private key, which never leaves the client, and the public one to hand round."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError as error:
        raise MissingExtra("cryptography", "privacy") from error
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def pair_seed(own_private: bytes, their_public: bytes) -> bytes:
    """The seed for `masked`; the other client gets the same from its private and this public key.

    Public keys must come from their owners: a server that swaps them for its own reads everything.
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
