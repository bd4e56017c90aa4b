"""Secret streams: reproducible from their key, different for each purpose, new in each process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tensorguard.privacy.stream import KeyedSeeds, SecretStream

KEY = bytes(range(32))


def test_stream_is_aes_256_ctr_of_its_key() -> None:
    # The first block is AES-256 of the zero counter under the key 00 01 .. 1f.
    assert SecretStream(KEY).bytes(16).hex() == "f29000b62a499fd0a9f39a6add2e7780"


def test_reading_in_pieces_equals_reading_at_once() -> None:
    whole, pieces = SecretStream(KEY), SecretStream(KEY)
    assert whole.bytes(100) == pieces.bytes(3) + pieces.bytes(0) + pieces.bytes(61) + pieces.bytes(36)


def test_bytes_are_uniform() -> None:
    counts = np.bincount(np.frombuffer(SecretStream(KEY).bytes(1 << 18), dtype=np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_each_purpose_has_its_own_stream() -> None:
    root = SecretStream(KEY)
    assert root.derive("noise").bytes(64) == SecretStream(KEY).derive("noise").bytes(64)
    drawn = {bytes(root.derive(purpose).bytes(64)) for purpose in ("noise", "sampling", "seeds", "")}
    assert len(drawn) == 4
    assert bytes(SecretStream(KEY).bytes(64)) not in drawn


def test_new_stream_differs_even_with_equal_global_seeds() -> None:
    drawn = set()
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.add(bytes(SecretStream().bytes(32)))
    assert len(drawn) == 3


def test_key_of_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SecretStream(b"short")


def test_seed_depends_only_on_its_own_pair() -> None:
    seeds = KeyedSeeds(KEY)
    joint = seeds([5, 6, 7], [0, 1, 2])
    assert joint == [seeds([unit], [record])[0] for unit, record in ((5, 0), (6, 1), (7, 2))]
    assert all(0 <= seed < 2**63 for seed in joint)


def test_seeds_differ_between_pairs_and_between_steps() -> None:
    stream = SecretStream(KEY)
    units, records = np.divmod(np.arange(10_000), 100)
    seeds = [seed for _ in range(2) for seed in stream.keyed_seeds()(units.tolist(), records.tolist())]
    assert len(set(seeds)) == 20_000


def test_numbers_of_64_bits_have_seeds_of_their_own() -> None:
    """A number that passes through a float would share its seed with the next one."""
    seeds, large = KeyedSeeds(KEY), 2**53
    assert len(set(seeds([large, large + 1, 0, 0], [0, 0, large, large + 1]))) == 4


def test_seeds_have_63_random_bits() -> None:
    seeds = KeyedSeeds(KEY)(range(1000), [0] * 1000)
    for bit in range(63):
        assert stats.binomtest(sum(seed >> bit & 1 for seed in seeds), 1000).pvalue > 1e-9
