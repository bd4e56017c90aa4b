"""The losses of a batch: one for each record, or their sums for evaluation.

In: a model and a micro-batch (tensors with one row for each record). Out: fp32 [m], whose sum `privacy.gradients`
differentiates; for evaluation, sums that can be added over batches. A task (`models.tasks`) chooses its loss
(`models.losses`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

import torch
from torch import nn

from tensorguard.models.tasks.base import Task
from tensorguard.privacy.gradients import Batch

LossFunction = Callable[[nn.Module, Batch], torch.Tensor]
"""(model, batch) to one loss for each record, fp32 [m].

A batch has `input_ids` and `attention_mask` int64 [m, L], any other named inputs of the model's forward pass, and
`labels` int64 [m, L] or [m], according to the task's target.
"""


class Head(Protocol):
    """Computes the losses of a batch without its logits (`models.output_head`)."""

    def losses(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """One loss for each record, as a LossFunction."""


def forward_logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The model's logits, [m, L, V] or [m, labels]. The model does not get the labels: it would average its loss."""
    logits: torch.Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
    return logits


def record_loss(task: Task, head: Head | None = None) -> LossFunction:
    """The loss function of a task: one loss for each record of a batch.

    Args:
        head: computes the losses without the logits; None: from the logits.
    """
    if head is not None:
        return head.losses

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return task.losses(forward_logits(model, batch), batch["labels"])

    return loss


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over the records that have something to predict. They are added up over batches and ranks.

    `loss`: sum of record losses (nats). `records`: their number. `counts`: those of the task (`Task.counts`).
    """

    loss: float = 0.0
    records: int = 0
    counts: tuple[int, ...] = ()

    def __add__(self, other: EvaluationSums) -> EvaluationSums:
        counts = tuple(map(sum, zip_longest(self.counts, other.counts, fillvalue=0)))
        return EvaluationSums(self.loss + other.loss, self.records + other.records, counts)


@torch.no_grad()
def evaluate_batch(model: nn.Module, batch: Batch, task: Task, head: Head | None = None) -> EvaluationSums:
    """The sums of one batch. Dummy rows and records without a learned token do not count. Call `model.eval()` first.

    Args:
        head: computes the losses without the logits; None: from the logits.
    """
    labels = batch["labels"]
    if head is not None:
        return EvaluationSums(float(head.losses(model, batch).double().sum()), int(task.learns(labels).sum()))
    logits = forward_logits(model, batch)
    loss = float(task.losses(logits, labels).double().sum())
    return EvaluationSums(loss, int(task.learns(labels).sum()), task.counts(logits, labels))
