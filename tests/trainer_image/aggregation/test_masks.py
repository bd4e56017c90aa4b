"""Masks: uniform for any proper subset of the workers, cancelled in the full sum, and never used twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import key_stream, pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.reduce import add_noise_and_mask, to_signed

LENGTH = 1 << 15


def keys(size: int, incarnation: int = 1) -> list[dict[int, PairKey]]:
    """The pair keys of a group, by rank."""
    pairs: list[dict[int, PairKey]] = [{} for _ in range(size)]
    for low, high in combinations(range(size), 2):
        material = hashlib.sha512(f"{low} {high} {incarnation}".encode()).digest()
        pairs[low][high] = pairs[high][low] = PairKey(mask=material[:32], tag=material[32:])
    return pairs


def uniform(words: np.ndarray) -> bool:
    """Whether each of the four bytes of the words looks uniform."""
    bytewise = words.view(np.uint8).reshape(-1, 4)
    columns = [np.bincount(bytewise[:, place], minlength=256) for place in range(4)]
    return all(stats.chisquare(counts).pvalue > 1e-6 for counts in columns)


def test_key_stream_is_aes_256_ctr_of_key_and_step() -> None:
    key = bytes(range(32))
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = b"".join((5 << 64 | position).to_bytes(16, "big") for position in range(3))
    expected = np.frombuffer(block.update(counters), dtype="<u4")
    assert key_stream(key, 5, 12).tolist() == expected.tolist()
    assert key_stream(key, 5, 12).tobytes()[:16].hex() == "2751403d569b53f53b2b383e436b1da4"
    for length in (0, 1, 3, 4, 5, 11):
        assert key_stream(key, 5, length).tolist() == expected[:length].tolist()


def test_no_block_is_used_for_two_steps_pairs_or_incarnations() -> None:
    blocks: set[bytes] = set()
    count = 0
    for incarnation in (1, 2):
        for low, high in combinations(range(4), 2):
            key = keys(4, incarnation)[low][high].mask
            for step in (0, 1, 2, 255, 256, 2**32, 2**63):
                words = key_stream(key, step, 4 * 64).tobytes()
                blocks |= {words[start : start + 16] for start in range(0, len(words), 16)}
                count += 64
    assert len(blocks) == count


def test_mask_is_the_signed_sum_of_the_key_streams() -> None:
    """Masks are computed in parts, which must continue each stream where the part before ended."""
    length, pairs = 3 * LENGTH + 5, keys(5)[2]
    streams = {peer: key_stream(key.mask, 7, length) for peer, key in pairs.items()}
    expected = streams[3] + streams[4] - streams[0] - streams[1]
    assert np.array_equal(pairwise_mask(pairs, 2, 7, length), expected)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_sum_of_every_proper_subset_is_uniform_and_full_sum_is_exact(size: int) -> None:
    """The vectors are as far from uniform as possible: small, equal, and at the limits of the carrier."""
    values = np.tile(np.array([0, 1, -1, 5, 2**31 - 1, -(2**31) + 1, 1000, -1000]), LENGTH // 8)
    pairs = keys(size)
    sent = [
        add_noise_and_mask(values, np.zeros(LENGTH, dtype=np.int64), pairwise_mask(pairs[rank], rank, 7, LENGTH))
        for rank in range(size)
    ]
    for members in range(1, size):
        for subset in combinations(range(size), members):
            assert uniform(sum((sent[rank] for rank in subset), np.zeros(LENGTH, dtype=np.uint32))), subset
    total = sum(sent, np.zeros(LENGTH, dtype=np.uint32))
    exact = [(value * size + 2**31) % 2**32 - 2**31 for value in values[:8].tolist()]
    assert to_signed(total)[:8].tolist() == exact
    assert (to_signed(total).reshape(-1, 8) == to_signed(total)[:8]).all()
    assert not uniform(total)


ZEROS = np.zeros(LENGTH, dtype=np.int64)


def sent_in(graph: NeighbourGraph) -> tuple[list[dict[int, PairKey]], list[np.ndarray]]:
    """The keys of each worker's neighbours, and the vectors that the workers send for sums of zero."""
    pairs, circle = keys(graph.workers), graph.circle(bytes(32))
    near = [{peer: mine[peer] for peer in graph.neighbours(rank, circle)} for rank, mine in enumerate(pairs)]
    return near, [
        add_noise_and_mask(ZEROS, ZEROS, pairwise_mask(mine, rank, 7, LENGTH)) for rank, mine in enumerate(near)
    ]


def seen_by(together: tuple[int, ...], near: list[dict[int, PairKey]], sent: list[np.ndarray]) -> list[np.ndarray]:
    """The vectors of the others, without all masks that the workers `together` know."""
    known = [{peer: key for peer, key in mine.items() if peer in together} for mine in near]
    return [
        sent[rank] - pairwise_mask(known[rank], rank, 7, LENGTH) for rank in range(len(sent)) if rank not in together
    ]


def total_of(vectors: Iterable[np.ndarray]) -> np.ndarray:
    return sum(vectors, np.zeros(LENGTH, dtype=np.uint32))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_fewer_workers_than_neighbours_learn_only_the_sum_of_the_others(size: int) -> None:
    """Of seven workers with four neighbours each: every proper subset of the others looks uniform."""
    graph = NeighbourGraph(7, 4)
    near, sent = sent_in(graph)
    for together in list(combinations(range(7), size))[::12]:
        others = seen_by(together, near, sent)
        for members in range(1, len(others)):
            assert all(uniform(total_of(subset)) for subset in combinations(others, members))
        assert not total_of(others).any()


def test_workers_that_separate_the_others_learn_the_sum_of_each_part() -> None:
    """What happens with too few neighbours: on a ring, the two neighbours of a worker learn its vector."""
    graph = NeighbourGraph(7, 2)
    near, sent = sent_in(graph)
    together = tuple(near[3])
    others = [rank for rank in range(7) if rank not in together]
    seen = dict(zip(others, seen_by(together, near, sent)))
    rest = [seen[rank] for rank in others if rank != 3]
    assert not seen[3].any()
    assert all(map(uniform, rest)) and not total_of(rest).any()


def test_mask_is_new_in_each_step_and_incarnation() -> None:
    masks = [
        pairwise_mask(keys(3, incarnation)[rank], rank, step, LENGTH)
        for incarnation in (1, 2)
        for step in (0, 1)
        for rank in range(3)
    ]
    for one, other in combinations(masks, 2):
        # Masks of two ranks in one step share a pair, which one adds and the other subtracts. Neither their sum nor
        # their difference is constant.
        assert (one == other).mean() < 1e-3
        assert uniform(one - other)
        assert uniform(one)


def test_worker_without_peers_has_no_mask() -> None:
    assert not pairwise_mask({}, 0, 3, 10).any()
