"""Numerics of one step with up to 256 workers, in one process: noise shares, masks of neighbours, and the int32 sum."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from tensafe_api.accounting.composition import MIN_NOISE
from tensafe_api.resolve import _grid_bits
from tensafe_api.resources.mechanism import Mechanism
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import NeighbourGraph
from tensorguard.aggregation.reduce import add_noise_and_mask, to_signed
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.stream import SecretStream

LENGTH, BATCH = 600, 512


def mechanism(workers: int) -> Mechanism:
    return Mechanism(
        sample_rate="0.01",
        noise_multiplier="0.8",
        clip="1.0",
        unit="Example",
        workers=workers,
        grid_bits=_grid_bits(BATCH, 0.8),
        expected_batch_size=BATCH,
    )


def pair_key(one: int, other: int) -> PairKey:
    return PairKey(mask=hashlib.sha256(f"{sorted((one, other))}".encode()).digest(), tag=b"")


@pytest.mark.parametrize("workers", [64, 256])
def test_step_of_many_workers_reveals_the_exact_sum_with_the_accounted_noise(workers: int) -> None:
    """Units are all in one shard in the first coordinate, and spread over the workers in the others."""
    plan, graph = mechanism(workers), NeighbourGraph.of(workers)
    sigma = float(plan.noise_multiplier) * plan.grid
    assert sigma >= MIN_NOISE
    sampler, stream, circle = DiscreteGaussian(plan.share_sigma), SecretStream(bytes(32)), graph.circle(bytes(32))
    generator = np.random.default_rng(workers)
    largest = math.floor(BATCH + 8 * math.sqrt(BATCH)) * plan.grid
    total = np.zeros(LENGTH, dtype=np.uint32)
    exact, noise = np.zeros((2, LENGTH), dtype=np.int64)
    for rank in range(workers):
        local = generator.integers(-largest // workers, largest // workers, LENGTH)
        local[0] = largest if rank == 3 else 0
        share = sampler.draw(LENGTH, stream.derive(f"{rank}"))
        keys = {peer: pair_key(rank, peer) for peer in graph.neighbours(rank, circle)}
        total += add_noise_and_mask(local, share, pairwise_mask(keys, rank, 5, LENGTH))
        exact, noise = exact + local, noise + share
    assert np.array_equal(to_signed(total), exact + noise)
    assert 1e-6 < stats.chi2(LENGTH).sf((noise.astype(float) ** 2).sum() / sigma**2) < 1 - 1e-6
