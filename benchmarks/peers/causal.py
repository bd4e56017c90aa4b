"""Causal language models as the peers' steps call them, and the step of FastDP.

A model of transformers comes in. A module whose logits and labels fit each other goes out: the logits of a position
predict the next token, so those of the last one are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from benchmarks.peers.steps import NOISE_MULTIPLIER, token_criterion


class NextToken(nn.Module):
    """A causal model without the logits of the last position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """Logits [m, L - 1, V] as ``.logits``, for the labels ``input_ids[:, 1:]``."""
        return SimpleNamespace(logits=self.model(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1])


def next_token_rows(ids: torch.Tensor) -> TensorDataset:
    """``(input_ids, attention_mask, labels)`` for tokens [n, L] that are all learned."""
    return TensorDataset(ids, torch.ones_like(ids), ids[:, 1:])


def has_fastdp() -> bool:
    """Whether FastDP is installed. It is not on the package index: it is installed from its repository."""
    return importlib.util.find_spec("fastDP") is not None


def fastdp_step(model: nn.Module, rows: TensorDataset, micro_batch: int) -> Callable[[], None]:
    """A private step of FastDP with book-keeping on the whole of ``rows``.

    Written from its documentation; it has not run where this was written.
    """
    engine: Any = importlib.import_module("fastDP").PrivacyEngine(
        model,
        batch_size=len(rows),
        sample_size=len(rows),
        num_steps=1000,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=1.0,
        clipping_fn="Abadi",
        clipping_mode="MixOpt",
        loss_reduction="mean",
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    engine.attach(optimizer)
    criterion = token_criterion(cross_entropy)
    ids, mask, labels = rows.tensors

    def step() -> None:
        for part_ids, part_mask, part_labels in zip(*(t.split(micro_batch) for t in (ids, mask, labels))):
            criterion(model(input_ids=part_ids, attention_mask=part_mask).logits, part_labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
