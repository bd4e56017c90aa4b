"""Faults that a test installs in a rank's process, so that production code needs no hooks for tests.

The test process sends each instrument to the rank's process, which calls its `install`. An instrument wraps functions
of the trainer at named points. A point has two moments, before the call and after its return. So
`Kill("charge", "after")` ends the process when a charge is durable and nothing was revealed under it.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch

from tensorguard.aggregation import pairwise_masks, reduce
from tensorguard.aggregation.header import HeaderAgreement
from tensorguard.aggregation.protocol import AggregationConfig, SecureAggregator
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.checkpoint import store
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.file import FileLedger
from tensorguard.models import sharded_base
from tensorguard.models.source import ModelNotFoundError
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.stream import SecretStream
from tensorguard.training import setup, worker
from tensorguard.training.budget_gate import BudgetGate
from tensorguard.training.checkpointing import Checkpointer
from tensorguard.training.config import WorkerConfig
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Moment = Literal["before", "after"]

POINTS: dict[str, tuple[Any, str]] = {
    "acquire": (FileLedger, "acquire"),
    "gradients": (ShardGradients, "add_to"),
    "budget gate": (BudgetGate, "ensure_charged"),
    "charge": (FileLedger, "charge"),
    "agree": (HeaderAgreement, "agree"),
    "reveal": (reduce, "reveal"),
    "verify": (pairwise_masks, "verify_sum"),
    "apply": (PrivateStep, "_apply"),
    "write": (CheckpointStore, "write"),
    "sync": (store, "sync_directory"),
    "replace": (CheckpointStore, "remove"),
    "publish": (FileLedger, "record_checkpoint"),
    "prune": (Checkpointer, "_prune"),
    "outcome": (FileLedger, "record_outcome"),
}
"""The points, in the order in which a run reaches them: name to the owner and the name of a function. Rank 0 passes all
of them."""

POINTS_ON_EVERY_RANK = ("gradients", "budget gate", "agree", "reveal", "verify", "apply")
"""The points that every rank passes, once in each step."""


class Instrument(Protocol):
    """A change of the code in a rank's process."""

    def install(self, rank: int, directory: Path) -> None:
        """Change this process, which is that of `rank`. `directory` is the run's folder."""
        ...


def wrap(
    point: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> None:
    """Call `before` with the arguments of a point's function, and `after` with its result."""
    owner, name = POINTS[point]
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result)
        return result

    replace_attribute(owner, name, wrapped)


def at_call(nth: int, action: Callable[[], None]) -> Callable[..., None]:
    """A function that calls `action` the `nth` time it is called itself, whatever its arguments are."""
    calls = itertools.count(1)

    def counting(*_: Any, **__: Any) -> None:
        if next(calls) == nth:
            action()

    return counting


def replace_attribute(owner: Any, name: str, value: Any) -> None:
    """Replace a function of production code in this process."""
    setattr(owner, name, value)


@dataclass(frozen=True)
class Kill:
    """Sends SIGKILL when `rank` passes a point for the `nth` time: to its own process, or to all ranks."""

    point: str
    moment: Moment
    rank: int = 0
    nth: int = 1
    all_ranks: bool = False

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        hit = at_call(self.nth, lambda: kill(directory, rank, self.all_ranks))
        wrap(self.point, before=hit if self.moment == "before" else None, after=hit if self.moment == "after" else None)


@dataclass(frozen=True)
class TearLedgerWrite:
    """Kills rank 0 in the middle of writing the `nth` entry that its process appends to the ledger."""

    nth: int
    all_ranks: bool = False

    def install(self, rank: int, directory: Path) -> None:
        if rank:
            return
        passed = 0
        write = os.write

        def torn(descriptor: int, content: Buffer) -> int:
            nonlocal passed
            line = bytes(content)
            if b'"previous":' not in line:
                return write(descriptor, line)
            passed += 1
            if passed < self.nth:
                return write(descriptor, line)
            write(descriptor, line[: len(line) // 2])
            kill(directory, rank, self.all_ranks)
            raise AssertionError("a killed process continued")

        replace_attribute(os, "write", torn)


@dataclass(frozen=True)
class RaiseError:
    """Raises an ordinary exception when `rank` reaches a point for the `nth` time."""

    point: str
    rank: int = 0
    nth: int = 1

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return

        def fail() -> None:
            raise RuntimeError("raised by the test")

        wrap(self.point, before=at_call(self.nth, fail))


@dataclass(frozen=True)
class FailToLoad:
    """Raises an error with a reason where `rank` calls a `function` of `training.setup`."""

    rank: int
    function: str

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return

        def fail(*_: Any, **__: Any) -> None:
            raise ModelNotFoundError("spec.model.name: there is no folder of the test")

        replace_attribute(setup, self.function, fail)


@dataclass(frozen=True)
class ShortTimeout:
    """Ranks wait so many seconds for each other's part of a shared base."""

    seconds: float

    def install(self, rank: int, directory: Path) -> None:
        replace_attribute(sharded_base, "TIMEOUT", timedelta(seconds=self.seconds))


@dataclass(frozen=True)
class StopDuring:
    """Requests a stop while `rank` computes the gradients of its `nth` step, after the first micro-batch.

    Either the flag is set for all ranks, or only this rank sees it, as if the others had checked it just before.
    """

    nth: int
    rank: int = 0
    seen_by_all: bool = True

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        steps = 0
        compute = ShardGradients._compute

        def count(*_: Any, **__: Any) -> None:
            nonlocal steps
            steps += 1

        def computing(gradients: ShardGradients, *args: Any) -> Any:
            rows = compute(gradients, *args)
            if steps == self.nth and self.seen_by_all:
                StopSignal.of(directory).request()
            elif steps == self.nth:
                replace_attribute(StopSignal, "__bool__", lambda _stop: True)
            return rows

        wrap("gradients", before=count)
        replace_attribute(ShardGradients, "_compute", computing)


@dataclass(frozen=True)
class KnownSecrets:
    """Gives each rank the same secrets in every run, so that runs over the same shards draw, round and hide alike."""

    def install(self, rank: int, directory: Path) -> None:
        replace_attribute(setup, "SecretStream", lambda: SecretStream(bytes([rank] * 32)))


@dataclass(frozen=True)
class NoNoise:
    """Sets all shares of noise to zero, so that sums can be compared."""

    def install(self, rank: int, directory: Path) -> None:
        replace_attribute(DiscreteGaussian, "draw", lambda _self, count, _stream: np.zeros(count, dtype=np.int64))


@dataclass(frozen=True)
class HalfNoise:
    """Halves all shares of noise: a mechanism whose σ is half of what its ledger says."""

    def install(self, rank: int, directory: Path) -> None:
        draw = DiscreteGaussian.draw
        replace_attribute(DiscreteGaussian, "draw", lambda sampler, count, stream: draw(sampler, count, stream) // 2)


@dataclass(frozen=True)
class InexactKernel:
    """On one rank, a kernel that does not repeat its bits: rows are off by a relative `error` in every other call."""

    rank: int
    error: float

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        compute, calls = PerExampleGradients.compute, itertools.count()

        def computing(gradients: PerExampleGradients, *arguments: Any) -> torch.Tensor:
            return compute(gradients, *arguments).mul_(1 + self.error * (next(calls) % 2))

        replace_attribute(PerExampleGradients, "compute", computing)


@dataclass(frozen=True)
class OtherGrid:
    """Gives one rank another grid than the rest."""

    rank: int

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return

        def create(config: AggregationConfig) -> SecureAggregator:
            return create_aggregator(replace(config, grid_bits=config.grid_bits - 1))

        replace_attribute(worker, "create_aggregator", create)


@dataclass(frozen=True)
class OtherKey:
    """Gives one rank another job key than the rest."""

    rank: int

    def install(self, rank: int, directory: Path) -> None:
        if rank == self.rank:
            replace_attribute(WorkerConfig, "job_key", lambda _config: bytes(32))


@dataclass(frozen=True)
class OtherHost:
    """Gives one rank another host name than the rest."""

    rank: int

    def install(self, rank: int, directory: Path) -> None:
        if rank == self.rank:
            replace_attribute(socket, "gethostname", lambda: "another-host")


def kill(directory: Path, rank: int, all_ranks: bool) -> None:
    """Send SIGKILL to this process; with `all_ranks`, first to the processes of the other ranks."""
    if all_ranks:
        for path in directory.glob("pid-*"):
            if path.name != f"pid-{rank}":
                try:
                    os.kill(int(path.read_text()), signal.SIGKILL)
                except ProcessLookupError:
                    continue
    os.kill(os.getpid(), signal.SIGKILL)
