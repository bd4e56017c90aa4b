"""The canaries of an audit: which there are, their gradients, and their scores.

A canary is a record of no person. Its gradient has one coordinate of its own, far above the clip norm, so that after
clipping it is one clip norm in that coordinate: no record can leave a clearer trace. Each canary is in the data with
probability 1/2. One that is in is sampled, clipped, rounded, summed, noised, masked and decoded as a record is. Its
score is the sum over the steps of what was decoded at its coordinate, in clip norms.

`attach_canaries` puts them into a `PrivateStep`, with or without records beside them. It replaces the sampler by one
over both, and the gradients by those of both. All other parts of the step are the ones of training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tensafe_api.resources.mechanism import Mechanism
from tensorguard.aggregation.channel import Channel
from tensorguard.privacy.clipping import GridClipper, rows_at_once
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.step import PrivateStep, UnitGradients
from tensorguard.training.stop_signal import StopSignal

NORM = 10.0
"""The norm of a canary's gradient before clipping, in clip norms. A step that does not clip shows by it."""
_KEY_BYTES = 32


@dataclass(frozen=True)
class Canaries:
    """All canaries of an audit, the same on each rank. Canary i belongs to the shard of rank i mod N.

    Attributes:
        included: which of them are in the data, bool [m]: fair and independent coins.
        coordinates: the coordinate of each, int64 [m], all different.
    """

    included: np.ndarray
    coordinates: np.ndarray

    @classmethod
    def draw(cls, channel: Channel, count: int, dimension: int) -> Canaries:
        """Draw the coins and the coordinates from the entropy of rank 0. Every rank calls this.

        Raises:
            ValueError: there are more canaries than coordinates.
        """
        if count > dimension:
            raise ValueError(f"{count} canaries need as many trained parameters, and there are {dimension}")
        stream = SecretStream(channel.all_gather(bytes(SecretStream().bytes(_KEY_BYTES)))[0])
        included = (stream.uint64(count) & np.uint64(1)).astype(bool)
        return cls(included, np.sort(np.argsort(stream.uint64(dimension), kind="stable")[:count]))

    def coordinates_on(self, rank: int, size: int) -> np.ndarray:
        """The coordinates of the included canaries in the shard of `rank`, of `size` ranks: int64 [n]."""
        own: np.ndarray = self.coordinates[rank::size][self.included[rank::size]]
        return own


class CanaryGradients:
    """Computes the gradients of the units of a shard to which the included canaries of one rank were added.

    The units below `first` are those of the shard; the others are the canaries at `coordinates`, in this order.
    """

    def __init__(
        self, records: UnitGradients | None, first: int, coordinates: np.ndarray, dimension: int, stream: SecretStream
    ) -> None:
        self._records = records
        self._first = first
        self._coordinates = torch.from_numpy(coordinates)
        self._dimension = dimension
        self._stream = stream

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> bool:
        """Add the clipped gradients of `units` to `clipper`. The protocol is that of `UnitGradients`."""
        if self._records is not None:
            records = [unit for unit in units if unit < self._first]
            if not self._records.add_to(clipper, records, stop):
                return False
        rounding = self._stream.keyed_seeds()
        drawn = [unit - self._first for unit in units if unit >= self._first]
        at_once = rows_at_once(self._dimension, clipper.device)
        for start in range(0, len(drawn), at_once):
            if stop:
                return False
            block = drawn[start : start + at_once]
            rows = torch.zeros(len(block), self._dimension)
            rows[torch.arange(len(block)), self._coordinates[block]] = NORM * clipper.clip
            clipper.add(rows.to(clipper.device), rounding(block, [0] * len(block)))
        return True


@dataclass(frozen=True)
class Scores:
    """The scores of the canaries, as every reader of the sums can compute them.

    Attributes:
        steps: T, the number of steps.
        included: which canaries are in the data, bool [m].
        scores: in clip norms, float64 [m].
    """

    steps: int
    included: np.ndarray
    scores: np.ndarray

    def save(self, path: Path) -> None:
        """Create a file with the scores, which only its owner can read. They are noised sums: the charges cover them.

        Raises:
            FileExistsError: the file exists.
        """
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            np.savez(file, steps=self.steps, included=self.included, scores=self.scores)

    @classmethod
    def load(cls, path: Path) -> Scores:
        with np.load(path, allow_pickle=False) as file:
            return cls(int(file["steps"]), file["included"], file["scores"])


class ScoreKeeper:
    """Adds up the decoded gradients of a step at the coordinates of the canaries."""

    def __init__(self, step: PrivateStep, canaries: Canaries, mechanism: Mechanism) -> None:
        self._canaries = canaries
        self._clip_norms = mechanism.expected_batch_size / float(mechanism.clip)
        self._parameters = step.parameters
        self._coordinates = torch.from_numpy(canaries.coordinates)
        self._sums = torch.zeros(len(canaries.included), dtype=torch.float64)
        self._steps = 0
        step.optimizer.register_step_pre_hook(lambda *_: self._keep())

    def scores(self) -> Scores:
        """The scores after the steps so far, the same on each rank."""
        return Scores(self._steps, self._canaries.included, self._sums.numpy() * self._clip_norms)

    def _keep(self) -> None:
        """Keep the decoded gradient, which the optimiser is about to use."""
        parts = [p.grad.flatten().cpu() for p in self._parameters if p.grad is not None]
        self._sums += torch.cat(parts)[self._coordinates]
        self._steps += 1


def attach_canaries(
    step: PrivateStep,
    count: int,
    mechanism: Mechanism,
    channel: Channel,
    *,
    records: int = 0,
    gradients: UnitGradients | None = None,
) -> ScoreKeeper:
    """Put `count` canaries into `step`, before its first run. Every rank calls this.

    Args:
        count: m, the number of canaries of all ranks together.
        records: the number of units of this rank's shard; 0 without records.
        gradients: computes the gradients of these units; None without records.

    Raises:
        ValueError: there are more canaries than coordinates.
    """
    dimension = sum(parameter.numel() for parameter in step.parameters)
    canaries = Canaries.draw(channel, count, dimension)
    stream = SecretStream()
    own = canaries.coordinates_on(channel.rank, channel.size)
    step.sampler = PoissonSampler(records + len(own), mechanism.sample_rate, stream.derive("sampling"))
    step.gradients = CanaryGradients(gradients, records, own, dimension, stream.derive("seeds"))
    return ScoreKeeper(step, canaries, mechanism)
