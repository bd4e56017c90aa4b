"""Keys of records and units: keyed hashes that decide a record's worker, and reveal nothing without the job's key.

In comes a record's raw content; out go 32 bytes for the record and 32 for its unit. The hash of a unit selects its
worker, so the worker depends on nothing but the unit: neither on the order of the rows nor on other records. If shards
were cut by row number, one more record would move others from worker to worker, and the draws of the workers would no
longer be independent of it. Every hash is HMAC-SHA256 under the job's secret key, with a different prefix for each use.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence

import numpy as np

WIDTH = 32  # bytes of every hash here


def content_of(values: Sequence[str | None]) -> bytes:
    """A record's converted values, in a fixed order of columns, as JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def record_key(key: bytes, content: bytes) -> bytes:
    """The key of a record, 32 bytes; equal contents have equal keys."""
    return hmac.digest(key, b"tensafe/record\0" + content, "sha256")


def unit_key(key: bytes, *, user: str | None, content: bytes) -> bytes:
    """The key of a record's unit, 32 bytes: of its user (`values.id_of`), or of its own content if it has none."""
    message = b"tensafe/user\0" + user.encode() if user is not None else b"tensafe/example\0" + content
    return hmac.digest(key, message, "sha256")


def shard_of(unit: bytes, workers: int) -> int:
    """The worker in [0, workers) that holds a unit."""
    return int.from_bytes(unit, "big") % workers


def record_key_sum(record_keys: Sequence[bytes]) -> int:
    """The sum mod 2^256 of record keys (32 bytes each, big-endian). It does not depend on their order or shard."""
    words = np.frombuffer(b"".join(record_keys), ">u4").reshape(-1, WIDTH // 4).sum(axis=0, dtype=np.uint64)
    return sum(int(word) << 32 * (7 - i) for i, word in enumerate(words)) % (1 << 8 * WIDTH)  # exact for n < 2^32


def dataset_digest(key: bytes, sums: Iterable[int]) -> str:
    """The data set's digest from the sums of the keys of its records, as "hmac-sha256:" and 64 hexadecimal digits.

    It covers every record that is read, and changes when one is added, removed or changed. It does not depend on the
    order of records or on the number of workers. It may be published: it is a keyed hash of the sum, so without the
    secret key not even the difference of two digests reveals anything about a record. With the key it is an exact test
    of a guessed data set.
    """
    total = sum(sums) % (1 << 8 * WIDTH)
    return (
        "hmac-sha256:" + hmac.new(key, b"tensafe/dataset\0" + total.to_bytes(WIDTH, "big"), hashlib.sha256).hexdigest()
    )
