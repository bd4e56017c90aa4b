"""One loss for each record, from nobody else's tokens.

In: a model and a micro-batch (tensors with one row a record). Out: fp32 [m], whose sum `privacy.gradients`
differentiates; for evaluation, sums that may be added over batches.

The models' own `.loss` is never asked for: it averages over the batch's tokens, so a long neighbour shrinks a short
record's gradient (measured: a norm went from 1.02 to 1.45 when a third record joined). Here a record's loss is the mean
over its own learned tokens. Tokens with label -100 are not learned; a record without a learned token, and every dummy
row, has loss exactly 0 and a gradient of exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorguard.data.shard import IGNORE_INDEX
from tensorguard.models.tasks.base import Task
from tensorguard.privacy.gradients import Batch

LossFunction = Callable[[nn.Module, Batch], torch.Tensor]
"""(model, batch) to one loss a record, fp32 [m].

A batch has `input_ids` and `attention_mask` int64 [m, L], whatever else the model's forward pass takes by name, and
`labels` int64 [m, L] or [m], as the task's target is.
"""


class _MeanTokenLoss(torch.autograd.Function):
    """Cross entropy of each record, averaged over its learned tokens, without an fp32 copy of the batch's logits.

    `functional.cross_entropy` in fp32 keeps [m, L, V] floats of log-probabilities until the backward pass: 2 GB for 8
    records of 512 tokens and 128,000 words. Kept here: the logits, in their own dtype, and one number a token. Each
    record goes through kernels of its own, of shape [n, V], so its slot cannot matter.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """logits float [m, L, V], labels int64 [m, n] for positions 0 to n - 1, n at most L; returns [m]."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        losses = torch.zeros(len(logits), dtype=exact, device=logits.device)
        normalisers = torch.empty(labels.shape, dtype=exact, device=logits.device)
        weights = _token_weights(labels, exact)
        for i, own in enumerate(logits):
            scores = own[: labels.shape[1]].to(exact)
            normalisers[i] = scores.logsumexp(dim=-1)
            chosen = scores.gather(-1, labels[i].clamp(min=0).unsqueeze(-1)).squeeze(-1)
            losses[i] = torch.where(weights[i] > 0, (normalisers[i] - chosen) * weights[i], 0.0).sum()
        ctx.save_for_backward(logits, labels, normalisers, weights)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The slope of token t of record i is (softmax - one-hot) times its weight times `grad[i]`."""
        logits, labels, normalisers, weights = ctx.saved_tensors
        slopes = torch.zeros_like(logits)
        for i, own in enumerate(logits):
            weight = (weights[i] * grad[i]).unsqueeze(-1)
            slope = (own[: labels.shape[1]].to(normalisers.dtype) - normalisers[i].unsqueeze(-1)).exp_().mul_(weight)
            slope.scatter_add_(-1, labels[i].clamp(min=0).unsqueeze(-1), -weight)
            slopes[i, : labels.shape[1]] = slope.masked_fill_(weights[i].unsqueeze(-1) == 0, 0.0)
        return slopes, None


def _token_weights(labels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1/(learned tokens of the record) where a token is learned, else 0: float [m, tokens]."""
    learned = labels != IGNORE_INDEX
    return learned.to(dtype) / learned.sum(dim=1, keepdim=True).clamp(min=1)


def causal_lm_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean loss (nats) of each record over its own learned tokens.

    Args: `logits` float [m, L, V]; `labels` int64 [m, L], unshifted: position i is predicted from the ones before it.
    Returns: fp32 [m] (fp64 for fp64 logits); exactly 0 where a record has no learned token.
    """
    return _MeanTokenLoss.apply(logits, labels[:, 1:])


def token_classification_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of each record over its own labelled tokens.

    Args: `logits` float [m, L, classes]; `labels` int64 [m, L], -100 for tokens without a label.
    Returns: fp32 [m] (fp64 for fp64 logits); exactly 0 where a record has no labelled token.
    """
    return _MeanTokenLoss.apply(logits, labels)


def classification_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy (nats) of each record: `logits` float [m, 2 or more], `labels` int64 [m]; fp32 [m], 0 for -100."""
    if logits.shape[-1] < 2:
        raise ValueError(f"spec.model.numLabels is {logits.shape[-1]}: classification needs at least two labels.")
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact, labels, ignore_index=IGNORE_INDEX, reduction="none")


def forward_logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The model's logits, [m, L, V] or [m, labels]; the labels are kept from the model, which would average."""
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits


def record_loss(task: Task) -> LossFunction:
    """The loss function of a task: one loss for each record of a batch."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return task.losses(forward_logits(model, batch), batch["labels"])

    return loss


@dataclass(frozen=True)
class Metrics:
    """Sums over the records that have something to predict. They are added up over batches and ranks.

    `loss`: sum of record losses (nats). `records`: their number. `counts`: those of the task (`Task.counts`).
    """

    loss: float = 0.0
    records: int = 0
    counts: tuple[int, ...] = ()

    def __add__(self, other: Metrics) -> Metrics:
        counts = tuple(map(sum, zip_longest(self.counts, other.counts, fillvalue=0)))
        return Metrics(self.loss + other.loss, self.records + other.records, counts)


@torch.no_grad()
def evaluate(model: nn.Module, batch: Batch, task: Task) -> Metrics:
    """Metrics of one batch; dummy rows and records without a learned token do not count. The caller chose `eval()`."""
    labels = batch["labels"]
    logits = forward_logits(model, batch)
    loss = float(task.losses(logits, labels).double().sum())
    return Metrics(loss, int(task.learns(labels).sum()), task.counts(logits, labels))
