"""Recordings that a test installs in a rank's process: what it charged, revealed, drew and sent, in files of the run.

They change nothing of what the process does. `fault_injection` has the points that they wrap, and the faults.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tensorguard.ledger.file import FileLedger
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.fault_injection import replace_attribute, wrap


@dataclass(frozen=True)
class Journal:
    """Writes each charge to the file `journal` once it is durable, and each reveal before it happens."""

    name: str = "journal"

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def write(kind: str, steps: int) -> None:
            os.write(file, f"{kind} {rank} {steps}\n".encode())

        def before_charge(_ledger: FileLedger, steps: int) -> None:
            pending.append(steps)

        pending: list[int] = []
        wrap("charge", before=before_charge, after=lambda _: write("charge", pending.pop()))
        wrap("reveal", before=lambda *_: write("reveal", 1))


@dataclass(frozen=True)
class KeepTotals:
    """Rank 0 stores every revealed total, uint32 [d], as `totals/<process>-<number>.npy`."""

    def install(self, rank: int, directory: Path) -> None:
        if rank:
            return
        folder = directory / "totals"
        folder.mkdir(exist_ok=True)
        count = 0

        def keep(total: np.ndarray) -> None:
            nonlocal count
            np.save(folder / f"{os.getpid()}-{count:04d}.npy", total)
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

        replace_attribute(PrivateStep, "_apply", applying)


@dataclass(frozen=True)
class KeepFloatTraffic:
    """Every rank writes to `traffic-<rank>` what it sends as floating-point numbers: the collective, and a hash."""

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / f"traffic-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor"):
            self._watch(file, name)
        for name in ("all_reduce", "reduce", "broadcast", "send", "isend"):
            self._watch(file, name)

    def _watch(self, file: int, name: str) -> None:
        original = getattr(dist, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            sent = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)][-1]
            if sent.is_floating_point():
                content = sent.detach().contiguous().view(torch.uint8).numpy().tobytes()
                os.write(file, f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
            return original(*args, **kwargs)

        replace_attribute(dist, name, watched)


@dataclass(frozen=True)
class KeepBatchSizes:
    """Every rank writes to `draws-<rank>` how many units each of its steps drew."""

    def install(self, rank: int, directory: Path) -> None:
        file = os.open(directory / f"draws-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def write(_gradients: ShardGradients, _clipper: Any, units: list[int], _stop: StopSignal) -> None:
            os.write(file, f"{len(units)}\n".encode())

        wrap("gradients", before=write)
