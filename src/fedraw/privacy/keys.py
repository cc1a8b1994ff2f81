"""Seeds that two clients share without the server, which relays their public keys (X25519)."""

from __future__ import annotations

from fedraw.errors import BadInput, MissingExtra
from fedraw.privacy.secure_sum import SEED_BYTES


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
