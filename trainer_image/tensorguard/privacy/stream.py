"""Secret randomness: everything that a privacy claim rests on is drawn here.

Each worker makes one `SecretStream` from the operating system's entropy at its start and derives one stream from it for
each purpose: sampling, noise, rounding, dropout. Nothing is seeded by a manifest, by `torch.manual_seed` or by another
rank, and no key is ever written to a checkpoint, so a run that is restarted draws afresh.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class SecretStream:
    """An AES-256-CTR key stream, read in order. Its bytes are indistinguishable from uniform ones to whoever lacks the
    key.
    """

    def __init__(self, key: bytes | None = None) -> None:
        """Args: key: 32 bytes; from the operating system's entropy when absent (tests give one, nothing else does)."""
        self._key = os.urandom(32) if key is None else key
        if len(self._key) != 32:
            raise ValueError("a stream's key has 32 bytes")
        self._cipher = Cipher(algorithms.AES(self._key), modes.CTR(bytes(16))).encryptor()

    def derive(self, purpose: str) -> SecretStream:
        """An independent stream for `purpose`; the same purpose gives the same stream."""
        return SecretStream(
            HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tensafe stream " + purpose.encode()).derive(self._key)
        )

    def bytes(self, count: int) -> bytearray:
        """The next `count` bytes."""
        # The output buffer needs a block's slack, though CTR writes only `count` bytes.
        out = bytearray(count + 15)
        written = self._cipher.update_into(bytes(count), out)
        del out[written:]
        return out

    def uint64(self, count: int) -> np.ndarray:
        """The next `count` uniform 64-bit integers, uint64 [count]."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)

    def keyed_seeds(self) -> KeyedSeeds:
        """A new family of seeds, keyed by the next 32 bytes."""
        return KeyedSeeds(bytes(self.bytes(32)))


class KeyedSeeds:
    """A seed for each record of one step: a pseudorandom function of (unit, record), so that no record's seed depends
    on who else joined.

    The seeds are for generators that need no secrecy of their own (dropout, rounding): what they must be is
    independent.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    def __call__(self, units: Sequence[int], records: Sequence[int]) -> list[int]:
        """One seed in [0, 2^63) for each pair."""
        blocks = np.stack([np.asarray(units, dtype="<u8"), np.asarray(records, dtype="<u8")], axis=1)
        words = np.frombuffer(self._cipher.encryptor().update(blocks.tobytes()), dtype="<u8")
        return [int(word) >> 1 for word in words[::2]]
