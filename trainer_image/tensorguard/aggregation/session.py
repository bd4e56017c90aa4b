"""The session of a worker group, and the keys and tags that are bound to it. Every aggregation protocol uses them."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
TAG_BYTES = 32


@dataclass(frozen=True)
class Session:
    """The facts that every worker of one incarnation must agree on before the first step."""

    job: str
    attempt: int
    incarnation: int
    workers: int

    def context(self) -> bytes:
        """An unambiguous encoding: the job's name is preceded by its length, the numbers have eight bytes each."""
        job = self.job.encode()
        numbers = (len(job), self.attempt, self.incarnation, self.workers)
        return b"tensafe/1" + b"".join(map(number_bytes, numbers)) + job


def number_bytes(number: int) -> bytes:
    """A rank, a step number or another count as eight bytes, big-endian."""
    return number.to_bytes(8, "big")


def derive_key(key: bytes, purpose: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 of `key` for one purpose."""
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=purpose).derive(key)


def tag(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the concatenated `parts`, each of which must have a fixed length."""
    return hmac.digest(key, b"".join(parts), "sha256")
