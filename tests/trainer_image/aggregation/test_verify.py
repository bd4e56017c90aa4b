"""Verification: every worker detects a fault between the workers' vectors and the sum."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorguard.aggregation import verify as module
from tensorguard.aggregation.channel import AggregationError
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.protocol import VerifyLevel
from tensorguard.aggregation.verify import verify_sum

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
LENGTH = 500


def keys(size: int) -> list[dict[int, PairKey]]:
    pairs: list[dict[int, PairKey]] = [{} for _ in range(size)]
    for low, high in combinations(range(size), 2):
        material = hashlib.sha512(f"{low} {high}".encode()).digest()
        pairs[low][high] = pairs[high][low] = PairKey(mask=material[:32], tag=material[32:])
    return pairs


def vector(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 2**32, size=LENGTH, dtype=np.uint32)


@pytest.fixture
def fixed_challenge(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Fixes the random challenge, so that a test of probabilities has one result."""

    def fix(number: int) -> None:
        fixed = SimpleNamespace(urandom=lambda count: number.to_bytes(count, "big"))
        monkeypatch.setattr(module, "os", fixed)

    return fix


def step(
    channel: Any, level: VerifyLevel = "Standard", number: int = 3, flip: Callable[[np.ndarray], None] | None = None
) -> None:
    """Sum and verify. `flip` changes the total that this worker received."""
    masked = vector(channel.rank)
    total = channel.all_reduce(masked)
    if flip is not None:
        flip(total)
    verify_sum(channel, keys(channel.size)[channel.rank], number, masked, total, level)


def all_refuse(results: list[Any]) -> bool:
    return all(isinstance(result, AggregationError) for result in results)


@pytest.mark.parametrize("level", ["Disabled", "Standard", "Strict"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_correct_sum_passes(size: int, level: VerifyLevel, workers: Run) -> None:
    workers(size, lambda channel: step(channel, level))


@pytest.mark.parametrize("bit", [0, 7, 20])
@pytest.mark.parametrize("sender", [0, 1, 2])
def test_bit_flipped_in_transit_is_detected_by_all(
    sender: int, bit: int, outcomes: Run, fixed_challenge: Callable[[int], None]
) -> None:
    fixed_challenge(1)

    def work(channel: Any) -> None:
        def flip(origin: int, words: np.ndarray) -> np.ndarray:
            if origin == sender:
                words[123] ^= np.uint32(1 << bit)
            return words

        channel.on_vector = flip
        step(channel)

    results = outcomes(3, work)
    assert [str(result) for result in results] == ["the sum of step 3 is not the sum of what the workers sent"] * 3


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_sum_that_differs_between_workers_is_detected_by_all(victim: int, outcomes: Run) -> None:
    def flip(total: np.ndarray) -> None:
        total[0] ^= np.uint32(1 << 31)

    results = outcomes(3, lambda channel: step(channel, flip=flip if channel.rank == victim else None))
    assert all_refuse(results)
    assert "received different sums in step 3" in str(results[(victim + 1) % 3])


def test_fault_that_leaves_the_total_of_the_words_unchanged_is_detected(
    outcomes: Run, fixed_challenge: Callable[[int], None]
) -> None:
    """Two words are exchanged: their positions are wrong, and the total of all words is unchanged."""
    fixed_challenge(1)

    def work(channel: Any) -> None:
        def swap(origin: int, words: np.ndarray) -> np.ndarray:
            if origin == 1:
                words[[0, 1]] = words[[1, 0]]
            return words

        channel.on_vector = swap
        step(channel)

    assert all_refuse(outcomes(3, work))


@pytest.mark.parametrize("place", [0, 3, 4, 35])
def test_forged_opening_is_detected(place: int, outcomes: Run) -> None:
    """Bytes 0 to 3 are the opening; the next 32 are the digest of the sum."""

    def work(channel: Any) -> None:
        rounds = iter(range(10_000))

        def forge(sender: int, message: bytes) -> bytes:
            if next(rounds) // channel.size != 1 or sender != 1 or channel.rank == 1:
                return message
            changed = bytearray(message)
            changed[place] ^= 1
            return bytes(changed)

        channel.on_message = forge
        step(channel)

    results = outcomes(3, work)
    assert str(results[0]) == str(results[2]) == "the opening of worker 1 in step 3 is not authentic"


def test_opening_of_another_step_is_not_accepted(
    workers: Run, outcomes: Run, fixed_challenge: Callable[[int], None]
) -> None:
    """Tags are bound to one step, so a replay fails even with the same challenge."""
    fixed_challenge(1)
    kept: dict[tuple[int, int], list[bytes]] = {}
    lock = threading.Lock()

    def record(channel: Any) -> None:
        def note(sender: int, message: bytes) -> bytes:
            with lock:
                kept.setdefault((channel.rank, sender), []).append(message)
            return message

        channel.on_message = note
        step(channel, number=3)

    workers(2, record)

    def replay(channel: Any) -> None:
        old = {sender: iter(messages) for (rank, sender), messages in kept.items() if rank == channel.rank}
        channel.on_message = lambda sender, message: next(old[sender]) if sender != channel.rank else message
        step(channel, number=4)

    assert "is not authentic" in str(outcomes(2, replay)[0])


def test_challenge_comes_from_all_workers_and_is_new_each_time(workers: Run) -> None:
    """If one worker chose the challenge, or could predict it, an error could be constructed to pass."""
    openings = []
    for _ in range(3):
        seen: list[bytes] = []

        def work(channel: Any, seen: list[bytes] = seen) -> None:
            if channel.rank == 0:
                channel.on_message = lambda sender, message: seen.append(message) or message
            step(channel)

        workers(2, work)
        assert len({*seen[:2]}) == 2
        openings.append(seen[2][:4])
    assert len(set(openings)) == 3


def test_only_strict_always_detects_errors_in_the_highest_bit(
    outcomes: Run, fixed_challenge: Callable[[int], None]
) -> None:
    def misses(level: VerifyLevel) -> int:
        def flip(total: np.ndarray) -> None:
            total[5] ^= np.uint32(1 << 31)

        count = 0
        for number in range(40):
            fixed_challenge(number)
            count += not all_refuse(outcomes(2, lambda channel: step(channel, level, flip=flip)))
        return count

    assert 8 <= misses("Standard") <= 32
    assert misses("Strict") == 0
    assert misses("Disabled") == 40
