"""The noise of a real site: secret, and the same whenever the same sums are asked for again.

A site may be asked twice, because a server restarts or a reply is lost. Two messages with different
noise for the same samples would spend the budget twice. So the noise comes from a secret key of the
site and the exact message: the same message gets the same noise, another one independent noise.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedraw.core.private_sums import SumsPrivacy
from fedraw.core.sums import digest
from fedraw.core.types import Floats
from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write

_KEY_BYTES = 32


def noise_of(file: Path, privacy: SumsPrivacy, exact: Floats) -> np.random.Generator:
    """Return the generator of the noise that belongs to these exact sums.

    Args:
        file: The file of the site's key, which is made if it is missing. Without the old key, the
            same samples get other noise, which spends the budget again.
        privacy: The budget; another one has other noise.
        exact: The sums without noise.

    """
    terms = json.dumps(asdict(privacy), sort_keys=True)
    found = hmac.digest(_key(file), f"{terms} {digest(exact)}".encode(), "sha256")
    seed = np.random.SeedSequence(int.from_bytes(found, "big"), pool_size=8)
    return np.random.Generator(np.random.PCG64(seed))


def _key(file: Path) -> bytes:
    try:
        key = bytes.fromhex(file.read_text().strip())
    except FileNotFoundError:
        key = secrets.token_bytes(_KEY_BYTES)
        atomic_write(file, key.hex().encode(), private=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadInput(
            f"{file} is damaged; it has the key of this site's noise, and with another key the "
            "same samples would spend the privacy budget again: restore it, or remove it to allow "
            "that"
        )
    return key
