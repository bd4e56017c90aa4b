"""What must hold on a device before time matters: sums that wrap around, and gradients that are equal in every bit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.setting import Setting, synchronize
from benchmarks.gpu.variants import TASK, Trained, trained
from benchmarks.group import run_ranks, worker_group
from tensorguard.aggregation.channel import check_all_reduce_wraps
from tensorguard.models.bit_equality import find_bit_equal_shape, use_deterministic_kernels
from tensorguard.models.self_test import SelfTest, SelfTestError, dummy_batches, self_test
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients

GRID = 1 << 14


@dataclass(frozen=True)
class Exactness:
    """The self-test with `rows` records at once, as every run does it.

    Attributes:
        change: largest relative change of a record's gradient with its slot and the other records; 0: all bits are
            equal. None: more than rounding, or no deterministic kernel.
        sum_error: largest relative difference between the sum of the records' gradients and an ordinary gradient.
        milliseconds: time of a record: forward and backward pass, without clipping.
    """

    rows: int
    change: float | None
    sum_error: float | None
    milliseconds: float


def check_wrapping(device: torch.device) -> str:
    """Check that int32 sums wrap modulo 2^32: NCCL over all GPUs of this machine, or gloo between two processes.

    Returns a sentence with the number of ranks. Raises RuntimeError if a sum is wrong.
    """
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    with tempfile.TemporaryDirectory() as scratch:
        run_ranks(ranks, _check_rank, ranks, Path(scratch) / "meet", device.type)
    backend = "NCCL" if device.type == "cuda" else "gloo"
    alone = "; one GPU adds nothing up, so more of them are needed to show it" if ranks == 1 else ""
    return f"int32 sums of {backend} over {ranks} rank{'s' * (ranks > 1)} are exact modulo 2^32{alone}"


def _check_rank(rank: int, ranks: int, store: Path, kind: str) -> None:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    with worker_group(rank, ranks, store, device) as channel:
        check_all_reduce_wraps(channel)


def exactness(setting: Setting, sizes: list[int]) -> Iterator[Exactness]:
    """The self-test of each number of records at once, at the records' full length."""
    made, gradients, test = _self_test(setting)
    for rows in sizes:
        change: float | None = None
        sum_error: float | None = None
        try:
            report = test(rows)
            change, sum_error = report.neighbour_error, report.sum_error
        except torch.OutOfMemoryError:
            break
        except RuntimeError as error:
            if not isinstance(error, SelfTestError) and "deterministic implementation" not in str(error):
                raise
        yield Exactness(rows, change, sum_error, _milliseconds(setting, made, gradients, rows))
    gradients.close()


def exact_micro_batch(setting: Setting) -> int:
    """The largest number of records, up to the micro-batch of `setting`, that a run would compute at once."""
    use_deterministic_kernels()
    _, gradients, test = _self_test(setting)
    try:
        return find_bit_equal_shape(test, rows=setting.micro_batch, device=setting.device)
    finally:
        gradients.close()


def _self_test(setting: Setting) -> tuple[Trained, PerExampleGradients, partial[SelfTest]]:
    made = trained(setting, setting.size.rank)
    gradients = PerExampleGradients(made.model, made.parameters, made.loss)
    return made, gradients, partial(_test, setting, made, gradients)


def _test(setting: Setting, made: Trained, gradients: PerExampleGradients, rows: int) -> SelfTest:
    clipper = GridClipper(gradients.dimension, GRID, 1.0, setting.device)
    length = setting.size.length
    batches = dummy_batches(TASK, made.form, rows=rows, length=length, device=setting.device)
    return self_test(made.model, gradients, clipper, batches)


def _milliseconds(setting: Setting, made: Trained, gradients: PerExampleGradients, rows: int) -> float:
    length = setting.size.length
    batch = dummy_batches(TASK, made.form, rows=rows, length=length, device=setting.device)(0)
    synchronize(setting.device)
    started = time.perf_counter()
    gradients.compute(batch, rows)
    synchronize(setting.device)
    return 1000 * (time.perf_counter() - started) / rows
