"""The parts of a run are put together as the ledger's spec says.

Tests of a part cannot see that a run uses it with another rate, another key or another grid. Here three real workers
(`Worker.start` and `run_steps`) train as threads of this process. Only the model is replaced: every record has the same
large gradient, so that sums can be predicted. What passes between the parts is recorded, and compared with the ledger.

Random tests fail by chance at most once in 10^9 runs: the tails are those of exact distributions.
"""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tensafe_api.resources.mechanism import Mechanism
from tensorguard.aggregation.protocol import SecureAggregator
from tensorguard.data.batches import MicroBatch
from tensorguard.privacy.noise import MAX_TOTAL_VARIATION, DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import KeyedSeeds, SecretStream
from tensorguard.training import setup
from tensorguard.training.step import PrivateStep
from tensorguard.training.unit_gradients import ShardGradients
from tensorguard.training.worker import Worker
from tests.support.trainer.rank_harness import Job, records
from tests.support.trainer.thread_group import ThreadChannel, results_of

pytestmark = pytest.mark.slow

WORKERS, STEPS, UNITS = 3, 40, 240
CHANCE = 1e-9
"""The probability with which a test may fail although nothing is wrong."""


@dataclass
class Recorded:
    """What one worker used, and what it handed to the next part in each step."""

    step: PrivateStep
    draws: list[np.ndarray] = field(default_factory=list)
    local_sums: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)
    handed: list[np.ndarray] = field(default_factory=list)
    """The vectors that the channel received, uint32 [d]."""
    totals: list[np.ndarray] = field(default_factory=list)
    seeds: list[KeyedSeeds] = field(default_factory=list)


@dataclass
class Run:
    """A finished run."""

    mechanism: Mechanism
    """As the ledger records it."""
    ranks: list[Recorded]


def run_recorded(job: Job) -> Run:
    """Train with all workers of `job`, and record every one of them."""
    job.attempt += 1
    loading = threading.Lock()  # transformers changes global defaults while it loads a model
    load, keyed_seeds = setup._load, SecretStream.keyed_seeds
    by_thread: dict[int, Recorded] = {}

    def locked_load(*arguments: Any) -> Any:
        with loading:
            return load(*arguments)

    def equal_gradients(gradients: ShardGradients, batch: MicroBatch, _dropout: KeyedSeeds) -> torch.Tensor:
        return torch.full((len(batch.units), gradients._gradients.dimension), 1000.0)

    def recorded_seeds(stream: SecretStream) -> KeyedSeeds:
        by_thread[threading.get_ident()].seeds.append(found := keyed_seeds(stream))
        return found

    def work(channel: ThreadChannel) -> Recorded:
        one = Worker(job.config(), channel, torch.device("cpu"))
        try:
            one.start()
            assert one.private_step is not None
            recorded = by_thread[threading.get_ident()] = Recorded(one.private_step)
            record(recorded, channel)
            one.run_steps()
        finally:
            one.close()
        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "_load", locked_load)
        patch.setattr(ShardGradients, "_compute", equal_gradients)
        patch.setattr(SecretStream, "keyed_seeds", recorded_seeds)
        ranks = results_of(job.workers, work)
    return Run(job.ledger().spec.mechanism, ranks)


def record(recorded: Recorded, channel: ThreadChannel) -> None:
    """Record what passes between the parts of one worker's steps."""
    step = recorded.step
    draw, all_reduce, sum_up = step.sampler.draw, channel.all_reduce, step.aggregator.sum

    def recorded_draw() -> np.ndarray:
        recorded.draws.append(found := draw())
        return found

    def recorded_sum(number: int, local_sum: np.ndarray, noise: np.ndarray, **arguments: Any) -> Any:
        recorded.local_sums.append(local_sum.copy())
        recorded.noise.append(noise.copy())
        total = sum_up(number, local_sum, noise, **arguments)
        recorded.totals.append(total)
        return total

    def recorded_all_reduce(vector: np.ndarray) -> np.ndarray:
        recorded.handed.append(vector.copy())
        return all_reduce(vector)

    for owner, name, replacement in (
        (step.sampler, "draw", recorded_draw),
        (step.aggregator, "sum", recorded_sum),
        (channel, "all_reduce", recorded_all_reduce),
    ):
        setattr(owner, name, replacement)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    job = Job.make(
        tmp_path_factory.mktemp("wiring") / "run",
        f"spec.cluster.workers={WORKERS}",
        "spec.cluster.worker.cpus=100m",
        f"spec.training.steps={STEPS}",
        f"spec.checkpoint.everySteps={STEPS}",
        "spec.training.expectedBatchSize=100",
        "spec.training.microBatchSize=32",
        "spec.privacy.targetEpsilon=50",
        rows=records(UNITS),
    )
    run = run_recorded(job)
    assert job.ended().reason == "Completed", job.ended().message
    assert all(len(rank.handed) == STEPS for rank in run.ranks)
    return run


def assert_binomial(count: int, trials: int, probability: float) -> None:
    """Fails by chance with probability `CHANCE` at most."""
    assert stats.binom.cdf(count, trials, probability) > CHANCE / 2, f"{count} of {trials} are too few"
    assert stats.binom.sf(count - 1, trials, probability) > CHANCE / 2, f"{count} of {trials} are too many"


def test_each_unit_joins_a_step_at_the_sampling_rate_of_the_ledger(run: Run) -> None:
    drawn = sum(len(draw) for rank in run.ranks for draw in rank.draws)
    assert_binomial(drawn, STEPS * UNITS, float(run.mechanism.sample_rate))


def test_binomial_test_notices_a_rate_that_is_a_fifth_larger(run: Run) -> None:
    trials, rate = STEPS * UNITS, float(run.mechanism.sample_rate)
    with pytest.raises(AssertionError, match="too many"):
        assert_binomial(round(trials * 1.2 * rate), trials, rate)


def test_clipped_sum_of_a_draw_is_one_clip_norm_of_the_ledgers_grid_for_each_unit(run: Run) -> None:
    """All gradients are equal and much larger than the clip norm, so their clipped sum is as large as possible."""
    grid = run.mechanism.grid
    for rank in run.ranks:
        for draw, local_sum in zip(rank.draws, rank.local_sums):
            norm = math.sqrt(sum(int(value) ** 2 for value in local_sum))
            assert 0.9 * len(draw) * grid <= norm <= len(draw) * grid


def test_every_rank_adds_the_share_of_noise_of_the_ledger(run: Run) -> None:
    """σ_w = σ·S/√N, drawn by a sampler whose distance from the discrete Gaussian is known."""
    mechanism = run.mechanism
    sigma = float(mechanism.noise_multiplier) * mechanism.grid / math.sqrt(WORKERS)
    for rank in run.ranks:
        assert type(rank.step.noise) is DiscreteGaussian
        assert rank.step.noise.total_variation <= MAX_TOTAL_VARIATION
        drawn = np.concatenate(rank.noise).astype(np.float64)
        statistic = (drawn**2).sum() / sigma**2
        assert CHANCE < stats.chi2(len(drawn)).sf(statistic) < 1 - CHANCE


def test_vectors_that_reach_the_channel_add_up_to_the_noised_sum(run: Run) -> None:
    for step in range(STEPS):
        handed = sum(rank.handed[step].astype(np.int64) for rank in run.ranks)
        noised = sum(rank.local_sums[step] + rank.noise[step] for rank in run.ranks)
        for rank in run.ranks:
            assert np.array_equal(rank.totals[step], np.asarray(noised).astype(np.uint32).view(np.int32))
            assert np.array_equal(rank.totals[step].view(np.uint32), np.asarray(handed).astype(np.uint32))


def is_uniform(words: np.ndarray, chance: float) -> bool:
    """Whether uint32 [n] looks uniform: each of its 32 bits, and its first four bits together."""
    bits = np.unpackbits(words.astype(">u4").view(np.uint8).reshape(-1, 4), axis=1).sum(axis=0)
    first = np.bincount(words >> 28, minlength=16)
    within = True
    for counts, probability in ((bits, 1 / 2), (first, 1 / 16)):
        least, most = _quantiles(len(words), probability, chance / (2 * (32 + 16)))
        within &= bool(((least <= counts) & (counts <= most)).all())
    return within


def _quantiles(trials: int, probability: float, chance: float) -> tuple[float, float]:
    """Bounds that a binomial count leaves on either side with probability `chance` at most."""
    return stats.binom.ppf(chance, trials, probability), stats.binom.isf(chance, trials, probability)


def test_what_every_rank_hands_to_the_channel_is_uniform(run: Run) -> None:
    for rank in run.ranks:
        assert is_uniform(np.concatenate(rank.handed), CHANCE / WORKERS)


@pytest.mark.slow
def test_vectors_of_two_of_three_ranks_are_uniform_together(run: Run) -> None:
    """Neither the sum nor the difference of the vectors of two ranks, in any two steps, reveals anything."""
    steps = range(0, STEPS, 4)
    pairs = list(itertools.combinations([(rank, step) for rank in range(WORKERS) for step in steps], 2))
    for one, other in pairs:
        first, second = (run.ranks[rank].handed[step] for rank, step in (one, other))
        assert is_uniform(first + second, CHANCE / len(pairs) / 2), (one, other)
        assert is_uniform(first - second, CHANCE / len(pairs) / 2), (one, other)


def test_test_of_uniformity_notices_a_vector_without_a_mask(run: Run) -> None:
    for rank in run.ranks:
        bare = (np.concatenate(rank.local_sums) + np.concatenate(rank.noise)).astype(np.uint32)
        assert not is_uniform(bare, CHANCE)


def test_every_purpose_of_every_rank_has_its_own_key(run: Run) -> None:
    """Sampling, noise, and the seeds of dropout and rounding of each step; and the masks of each pair of workers."""
    keys: dict[tuple[Any, ...], bytes] = {}
    for rank, found in enumerate(run.ranks):
        step = found.step
        assert type(step.sampler) is PoissonSampler
        assert isinstance(step.gradients, ShardGradients)
        keys[rank, "sampling"] = step.sampler._stream._key
        keys[rank, "noise"] = step.noise_stream._key
        keys[rank, "seeds"] = step.gradients._stream._key
        assert len(found.seeds) == 2 * STEPS  # dropout and rounding
        for number, seeds in enumerate(found.seeds):
            keys[rank, "seeds of a step", number] = key_of(seeds)
        pairs = pairs_of(step.aggregator)
        assert len(pairs) == WORKERS - 1
        for peer, pair in pairs.items():
            if rank < peer:
                assert pair == pairs_of(run.ranks[peer].step.aggregator)[rank]
                keys[rank, "mask", peer], keys[rank, "tag", peer] = pair.mask, pair.tag
    assert {len(key) for key in keys.values()} == {32}
    assert len(set(keys.values())) == len(keys)


def key_of(seeds: KeyedSeeds) -> bytes:
    return bytes(seeds._cipher.algorithm.key)  # type: ignore[attr-defined]


def pairs_of(aggregator: SecureAggregator) -> dict[int, Any]:
    return dict(aggregator.pairs)  # type: ignore[attr-defined]
