"""Secret randomness: the source of every random number that the privacy claim rests on.

At its start each worker creates one `SecretStream` from the entropy of the operating system. It derives from it one
stream for each purpose: sampling, noise, rounding, dropout. No seed comes from a manifest, from `torch.manual_seed` or
from another rank. No key is ever written to a checkpoint, so a restarted run draws new random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class SecretStream:
    """An AES-256-CTR key stream, read in order. To an adversary who lacks the key, its bytes are indistinguishable from
    uniform bytes.
    """

    def __init__(self, key: bytes | None = None) -> None:
        """Start a stream.

        Args:
            key: 32 bytes; from the entropy of the operating system if absent. Only tests and `derive` pass one.
        """
        self._key = os.urandom(32) if key is None else key
        if len(self._key) != 32:
            raise ValueError(f"the key of a stream must have 32 bytes, not {len(self._key)}")
        self._cipher = Cipher(algorithms.AES(self._key), modes.CTR(bytes(16))).encryptor()

    def derive(self, purpose: str) -> SecretStream:
        """An independent stream for `purpose`; the same purpose gives the same stream."""
        return SecretStream(
            HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tensafe stream " + purpose.encode()).derive(self._key)
        )

    def bytes(self, count: int) -> bytearray:
        """The next `count` bytes."""
        # The output buffer must be one block longer, although CTR mode writes only `count` bytes.
        out = bytearray(count + 15)
        written = self._cipher.update_into(bytes(count), out)
        del out[written:]
        return out

    def uint64(self, count: int) -> np.ndarray:
        """The next `count` uniform 64-bit integers, uint64 [count]."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)

    def keyed_seeds(self) -> KeyedSeeds:
        """A new family of seeds; the next 32 bytes are its key."""
        return KeyedSeeds(bytes(self.bytes(32)))


class KeyedSeeds:
    """A seed for each record of one step: a pseudorandom function of (unit, record). The seed of a record does not
    depend on the other units that joined.

    The seeds are for generators whose output must be independent but need not be secret (dropout, rounding).
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    def __call__(self, units: Sequence[int], records: Sequence[int]) -> list[int]:
        """One seed in [0, 2^63) for each pair."""
        blocks = np.stack([np.asarray(units, dtype="<u8"), np.asarray(records, dtype="<u8")], axis=1)
        words = np.frombuffer(self._cipher.encryptor().update(blocks.tobytes()), dtype="<u8")
        return [int(word) >> 1 for word in words[::2]]
