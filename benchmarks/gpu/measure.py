"""Times and memory of the variants in interleaved rounds, and of noise and masks beside the compute of a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import masks
from benchmarks.gpu.setting import Setting, Timed, peak_memory, synchronize
from benchmarks.gpu.variants import Step, Variant, private, trained
from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.neighbours import MAX_DEGREE
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.stream import SecretStream


def take(step: Step, setting: Setting, first: int = 0) -> list[float]:
    """Take one step that is not timed, then the timed ones. Returns the seconds of each."""
    seconds = []
    for number in range(first, first + 1 + setting.steps):
        synchronize(setting.device)
        started = time.perf_counter()
        step(number)
        synchronize(setting.device)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def measure(variant: Variant, setting: Setting, channel: Channel) -> Timed:
    """Make the variant's model, take its steps, and free it."""
    peaks: list[int] = []
    with peak_memory(setting.device, peaks), variant(setting, channel) as step:
        seconds = take(step, setting)
    return Timed(tuple(seconds), peaks[0])


@dataclass
class Rounds:
    """All rounds of one variant."""

    found: list[Timed]

    @property
    def seconds(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(timed.seconds) for timed in self.found]

    @property
    def peak(self) -> int:
        """The largest peak of memory in bytes."""
        return max(timed.peak for timed in self.found)

    def over(self, other: Rounds) -> list[float]:
        """The ratio of the times in each round."""
        return [mine / theirs for mine, theirs in zip(self.seconds, other.seconds)]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The median, and the range in brackets."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


@dataclass(frozen=True)
class Ahead:
    """Noise and masks of d numbers on the CPU, beside a step on the device.

    Attributes:
        noise: seconds of the noise alone, in one thread.
        masks: seconds of the masks for 32 neighbours alone, in one thread.
        with_both: seconds of each step while noise and masks are made for the next one.
        without: seconds of each step without them.
    """

    dimension: int
    noise: float
    masks: float
    with_both: list[float]
    without: list[float]

    @property
    def ratio(self) -> float:
        """A step with noise and masks over a step without."""
        return statistics.median(self.with_both) / statistics.median(self.without)


class _NoiseAndMasks:
    """Draws the noise of a step and makes its masks, as in a group with 32 neighbours, or does neither.

    A job with one worker has no masks. These are thrown away, so that the step's sum stays right.
    """

    def __init__(self, noise: DiscreteGaussian, dimension: int) -> None:
        self._noise = noise
        self._pairs = masks.pair_keys(range(1, MAX_DEGREE + 1))
        self._nothing = np.zeros(dimension, dtype=np.int64)
        self._step = 0
        self.on = True

    def draw(self, count: int, stream: SecretStream) -> np.ndarray:
        if not self.on:
            return self._nothing
        self.masks(count)
        return self._noise.draw(count, stream)

    def masks(self, count: int) -> None:
        self._step += 1
        pairwise_mask(self._pairs, 0, self._step, count)


def measure_ahead(setting: Setting, channel: Channel) -> Ahead:
    """Take steps with and without noise and masks, in turns, on factors of the high rank."""
    with private(setting, channel, trained(setting, setting.size.high_rank)) as step:
        dimension = sum(parameter.numel() for parameter in step.parameters)
        both = _NoiseAndMasks(step.noise, dimension)
        noise = masks.milliseconds(lambda: step.noise.draw(dimension, step.noise_stream), 1) / 1000
        made = masks.milliseconds(lambda: both.masks(dimension), 1) / 1000
        step.noise = both  # type: ignore[assignment]
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * setting.rounds):
            # What is made during a step is for the next one, so the step that `take` does not time changes the kind.
            both.on = number % 2 == 0
            seconds[both.on] += take(step.run, setting, first=number * (1 + setting.steps))
    return Ahead(dimension, noise, made, seconds[True], seconds[False])


def interleaved(
    variants: dict[str, Variant], setting: Setting, channel: Channel, failed: dict[str, str]
) -> dict[str, Rounds]:
    """Measure all variants in each round. A variant that is in `failed`, or fails, is left out from then on."""
    found: dict[str, Rounds] = {}
    for _ in range(setting.rounds):
        for name in _remaining(variants, failed):
            try:
                timed = measure(variants[name], setting, channel)
            except Exception as error:  # a peer may fail in any way
                failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
                found.pop(name, None)
                continue
            found.setdefault(name, Rounds([])).found.append(timed)
    return found


def _remaining(variants: Iterable[str], failed: dict[str, str]) -> list[str]:
    return [name for name in variants if name not in failed]
