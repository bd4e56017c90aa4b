"""One training step on given records: without privacy, and with Opacus' hooks or ghost clipping.

A model and its rows come in. A function that takes one step goes out. This module imports nothing of TenSafe, and needs
no data and no pretrained model. ``benchmarks.peers.opacus_step`` and ``benchmarks.gpu`` measure these steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.opacus_trainer import take_step

NOISE_MULTIPLIER = 0.83

Criterion = Callable[[torch.Tensor, torch.Tensor], Any]
"""The mean loss of a micro-batch from logits and labels."""


def token_criterion(criterion: Callable[..., Any], shaped: bool = False) -> Criterion:
    """The criterion of models with labels for each token: logits [m, L, V] and labels [m, L].

    ``shaped``: whether it needs the shape of the logits, as that of ghost clipping does.
    """

    def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        flat = (logits.flatten(0, 1), labels.flatten())
        return criterion(*flat, shape=logits.shape) if shaped else criterion(*flat)

    return mean_loss


def plain_step(
    model: nn.Module, rows: TensorDataset, micro_batch: int, *, by_token: bool = False
) -> Callable[[], None]:
    """An ordinary step: gradients of the mean loss, accumulated over micro-batches, and AdamW.

    ``by_token``: the labels are [m, L], one for each token of the logits [m, L, V].
    """
    criterion = token_criterion(cross_entropy) if by_token else cross_entropy
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    ids, mask, labels = rows.tensors

    def step() -> None:
        for part_ids, part_mask, part_labels in zip(*(t.split(micro_batch) for t in (ids, mask, labels))):
            logits = model(input_ids=part_ids, attention_mask=part_mask).logits
            (criterion(logits, part_labels) * (len(part_ids) / len(rows))).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_step(
    model: nn.Module, rows: TensorDataset, micro_batch: int, mode: str, *, by_token: bool = False
) -> Callable[[], None]:
    """A private step of ``PrivacyEngine`` on the whole of ``rows``; ``mode`` is Opacus' ``grad_sample_mode``."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(rows, batch_size=len(rows)),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        wrap_model=False,
    )
    private_optimizer = made[1]
    ghost = mode == "ghost"
    criterion = made[2] if ghost else cross_entropy
    if by_token:
        criterion = token_criterion(criterion, shaped=ghost)
    return lambda: take_step(model, private_optimizer, rows.tensors, micro_batch, criterion)
