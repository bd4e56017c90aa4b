"""DP-SGD by Opacus' ``PrivacyEngine`` in one process: the peer that TenSafe's accuracy is compared with.

Rows, a model and the settings of a run come in. The settings include the noise multiplier, which the caller calibrates
once for both sides. The trained model goes out. This module imports nothing of TenSafe.

``make_private`` would choose two settings itself: it samples at 1/len(loader), which is 1/14 where 512/6920 is meant,
and it divides by the batch size of that rate. So this module creates Opacus' Poisson loader with the right rate, passes
``poisson_sampling=False``, and sets ``expected_batch_size`` afterwards.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Settings:
    """One private training run.

    ``sample_rate`` is each row's probability to join a step, ``expected_batch`` the divisor of the summed gradients and
    ``micro_batch`` the rows of one backward pass. The learning rate warms up and decays linearly, as TenSafe's does;
    with ``constant_rate`` it stays. Opacus has no schedule of its own.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    expected_batch: int
    learning_rate: float
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    constant_rate: bool = False
    micro_batch: int = 64


def linear_schedule(step: int, steps: int, warmup_ratio: float) -> float:
    """The factor of the learning rate in step ``step`` (from 0): linear warm-up, then linear decay to 0 at ``steps``.

    The first step has a rate above 0: a step with rate 0 would spend privacy and learn nothing.
    """
    warmup = math.ceil(steps * warmup_ratio)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / (steps - warmup)


def train(model: torch.nn.Module, rows: TensorDataset, settings: Settings, seed: int) -> None:
    """Train ``model`` in place on ``rows`` of ``(input_ids, attention_mask, label)``; ``seed`` fixes draws and noise.

    Opacus' ordinary random numbers are used (``secure_mode`` off), so that the run can be repeated.
    """
    torch.manual_seed(seed)
    loader = DPDataLoader(rows, sample_rate=settings.sample_rate)
    hooks, optimizer, loader = make_private(model, settings, loader)
    take_steps(model, optimizer, endless(loader), settings)
    hooks.cleanup()


def make_private(
    model: torch.nn.Module, settings: Settings, loader: DataLoader[Any]
) -> tuple[Any, DPOptimizer, DataLoader[Any]]:
    """Opacus' hooks on ``model``, AdamW with clipping and noise, and ``loader``, which keeps its own draws."""
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    hooks, private_optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
        poisson_sampling=False,
        wrap_model=False,
    )
    private_optimizer.expected_batch_size = settings.expected_batch
    return hooks, private_optimizer, loader


def take_steps(
    model: torch.nn.Module, optimizer: DPOptimizer, draws: Iterator[Sequence[torch.Tensor]], settings: Settings
) -> None:
    """Take all steps of ``settings``, each on the next of ``draws``."""
    for step in range(settings.steps):
        factor = 1.0 if settings.constant_rate else linear_schedule(step, settings.steps, settings.warmup_ratio)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor
        take_step(model, optimizer, next(draws), settings.micro_batch)


def endless(loader: DataLoader[Any]) -> Iterator[list[torch.Tensor]]:
    """Yield Poisson draws without end; one pass over Opacus' loader has 1/q draws."""
    while True:
        yield from loader


def take_step(
    model: torch.nn.Module,
    optimizer: DPOptimizer,
    drawn: Sequence[torch.Tensor],
    micro_batch: int,
    criterion: Callable[..., Any] = cross_entropy,
) -> None:
    """Take one step on a whole draw in micro-batches: the clipped sums add up, and the last one adds the noise.
    Rows of similar length form a micro-batch, which is as wide as its longest row.

    The draw must not be empty, because Opacus cannot step without rows (at 256 expected rows, one draw in e^256 is).
    ``criterion`` is the mean over the micro-batch. Ghost clipping has its own, which does both backward passes.
    """
    order = drawn[1].sum(dim=1).argsort()
    ids, mask, labels = (each[order] for each in drawn)
    parts = list(zip(ids.split(micro_batch), mask.split(micro_batch), labels.split(micro_batch)))
    for number, (part_ids, part_mask, part_labels) in enumerate(parts, start=1):
        optimizer.signal_skip_step(do_skip=number < len(parts))
        longest = int(part_mask.sum(dim=1).max())
        logits = model(input_ids=part_ids[:, :longest], attention_mask=part_mask[:, :longest]).logits
        criterion(logits, part_labels).backward()
        optimizer.step()
        optimizer.zero_grad()
