"""What a test does to a rank's process before it trains, so that production code needs no hooks for tests.

Each instrument travels to the rank and is installed there (`install`): it wraps functions of the engine at named
points. A point has two moments, before the call and after its return, so `Kill("charge", "after")` ends the process
when a charge is durable and nothing has been revealed under it.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from tensorguard.aggregation import pairwise_masks, reduce
from tensorguard.aggregation.header import HeaderAgreement
from tensorguard.checkpoint import store
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.file import FileLedger
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.training import worker
from tensorguard.training.budget_gate import BudgetGate
from tensorguard.training.checkpointing import Checkpointer
from tensorguard.training.config import WorkerConfig
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients

Moment = Literal["before", "after"]

POINTS: dict[str, tuple[Any, str]] = {
    "claim": (FileLedger, "acquire"),
    "gradients": (ShardGradients, "add_to"),
    "allow": (BudgetGate, "ensure_charged"),
    "charge": (FileLedger, "charge"),
    "agree": (HeaderAgreement, "agree"),
    "reveal": (reduce, "reveal"),
    "verify": (pairwise_masks, "verify_sum"),
    "apply": (PrivateStep, "_apply"),
    "write": (CheckpointStore, "write"),
    "sync": (store, "_sync"),
    "replace": (CheckpointStore, "remove"),
    "release": (FileLedger, "record_checkpoint"),
    "prune": (Checkpointer, "_prune"),
    "outcome": (FileLedger, "record_outcome"),
}
"""Where a process can be stopped, in the order in which a run comes to them. Rank 0 passes all of them."""

POINTS_ON_EVERY_RANK = ("gradients", "allow", "agree", "reveal", "verify", "apply")
"""The points that every rank passes, once in each step."""


class Instrument(Protocol):
    """Something that is installed in a rank's process."""

    def install(self, rank: int, directory: Path) -> None: ...


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

    setattr(owner, name, wrapped)


@dataclass(frozen=True)
class Journal:
    """Writes to `journal` what was charged, once that is durable, and what is about to be revealed."""

    name: str = "journal"

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def note(*words: object) -> None:
            os.write(file, (" ".join(map(str, words)) + "\n").encode())

        def charging(_ledger: FileLedger, steps: int) -> None:
            pending.append(steps)

        pending: list[int] = []
        wrap("charge", before=charging, after=lambda _: note("charge", rank, pending.pop()))
        wrap("reveal", before=lambda *_: note("reveal", rank, 1))


@dataclass(frozen=True)
class Kill:
    """SIGKILL when `rank` passes a point for the `nth` time: of its own process, or of all ranks at once."""

    point: str
    moment: Moment
    rank: int = 0
    nth: int = 1
    all_ranks: bool = False

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        passed = 0

        def hit(*_: Any, **__: Any) -> None:
            nonlocal passed
            passed += 1
            if passed == self.nth:
                kill(directory, rank, self.all_ranks)

        wrap(self.point, before=hit if self.moment == "before" else None, after=hit if self.moment == "after" else None)


@dataclass(frozen=True)
class TearLedgerWrite:
    """Dies in the middle of writing the `nth` entry that this process appends to the ledger."""

    nth: int
    all_ranks: bool = False

    def install(self, rank: int, directory: Path) -> None:
        if rank:
            return
        passed = 0
        write = os.write

        def torn(descriptor: int, content: bytes) -> int:
            nonlocal passed
            if b'"previous":' not in content:
                return write(descriptor, content)
            passed += 1
            if passed < self.nth:
                return write(descriptor, content)
            write(descriptor, content[: len(content) // 2])
            kill(directory, rank, self.all_ranks)
            raise AssertionError("a killed process went on")

        os.write = torn


@dataclass(frozen=True)
class RaiseError:
    """An ordinary exception when `rank` comes to a point for the `nth` time."""

    point: str
    rank: int = 0
    nth: int = 1

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        passed = 0

        def hit(*_: Any, **__: Any) -> None:
            nonlocal passed
            passed += 1
            if passed == self.nth:
                raise RuntimeError("the test broke this on purpose")

        wrap(self.point, before=hit)


@dataclass(frozen=True)
class StopDuring:
    """`rank` is asked to stop while it computes the gradients of its `nth` step, after the first micro-batch.

    The flag is raised for all, or seen by this rank alone, as when the others looked a moment before it was raised.
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
                StopSignal.__bool__ = lambda _stop: True  # type: ignore[method-assign]
            return rows

        wrap("gradients", before=count)
        ShardGradients._compute = computing  # type: ignore[method-assign]


@dataclass(frozen=True)
class KeepTotals:
    """Rank 0 keeps every revealed total, uint32 [d], as `totals/<process>-<number>.npy`."""

    def install(self, rank: int, directory: Path) -> None:
        if rank:
            return
        place = directory / "totals"
        place.mkdir(exist_ok=True)
        count = 0

        def keep(total: np.ndarray) -> None:
            nonlocal count
            np.save(place / f"{os.getpid()}-{count:04d}.npy", total)
            count += 1

        wrap("reveal", after=keep)


@dataclass(frozen=True)
class KeepWeights:
    """Every rank writes to `weights-<rank>` a hash of its trained parameters after each step."""

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / f"weights-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        apply = PrivateStep._apply

        def applying(step: PrivateStep, *args: Any) -> None:
            apply(step, *args)
            weights = b"".join(parameter.detach().numpy().tobytes() for parameter in step.parameters)
            os.write(file, (hashlib.sha256(weights).hexdigest() + "\n").encode())

        PrivateStep._apply = applying  # type: ignore[method-assign]


@dataclass(frozen=True)
class NoNoise:
    """All shares of noise are zero, so that what was summed can be compared."""

    def install(self, rank: int, directory: Path) -> None:
        DiscreteGaussian.draw = lambda _self, count, _stream: np.zeros(count, dtype=np.int64)  # type: ignore[method-assign]


@dataclass(frozen=True)
class OtherGrid:
    """One rank believes in another grid than the rest."""

    rank: int

    def install(self, rank: int, directory: Path) -> None:
        if rank != self.rank:
            return
        create = worker.create_aggregator
        worker.create_aggregator = lambda config: create(replace(config, grid_bits=config.grid_bits - 1))


@dataclass(frozen=True)
class OtherKey:
    """One rank holds another job key than the rest."""

    rank: int

    def install(self, rank: int, directory: Path) -> None:
        if rank == self.rank:
            WorkerConfig.job_key = lambda _config: bytes(32)  # type: ignore[method-assign]


@dataclass(frozen=True)
class OpenDraws:
    """Every rank writes to `draws-<rank>` how many units each of its steps drew."""

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / f"draws-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def note(_gradients: ShardGradients, _clipper: Any, units: list[int], _stop: StopSignal) -> None:
            os.write(file, f"{len(units)}\n".encode())

        wrap("gradients", before=note)


def kill(directory: Path, rank: int, all_ranks: bool) -> None:
    """SIGKILL this process, after all others where asked for."""
    if all_ranks:
        for path in directory.glob("pid-*"):
            if path.name != f"pid-{rank}":
                try:
                    os.kill(int(path.read_text()), signal.SIGKILL)
                except ProcessLookupError:
                    continue
    os.kill(os.getpid(), signal.SIGKILL)
