"""One loss for each record, from its own tokens alone.

In: a model and a micro-batch (tensors with one row for each record). Out: fp32 [m], whose sum `privacy.gradients`
differentiates; for evaluation, sums that can be added over batches. A task (`models.tasks`) chooses its loss.

The `.loss` of transformers models is not used: it averages over the batch's tokens, so a long record shrinks the
gradient of a short one (measured: a norm went from 1.02 to 1.45 when a third record joined). Here a record's loss is
the mean over its own learned tokens. Tokens with label -100 are not learned. A record without a learned token, and
every dummy row, has a loss of exactly 0 and a gradient of exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tensorguard.data.shard import IGNORE_INDEX
from tensorguard.models.tasks.base import Task
from tensorguard.privacy.gradients import Batch

if TYPE_CHECKING:
    from tensorguard.models.output_head import OutputHead

LossFunction = Callable[[nn.Module, Batch], torch.Tensor]
"""(model, batch) to one loss for each record, fp32 [m].

A batch has `input_ids` and `attention_mask` int64 [m, L], any other named inputs of the model's forward pass, and
`labels` int64 [m, L] or [m], according to the task's target.
"""


class _MeanTokenLoss(torch.autograd.Function):
    """Cross entropy of each record, averaged over its learned tokens, without an fp32 copy of the batch's logits.

    `functional.cross_entropy` in fp32 keeps [m, L, V] floats of log-probabilities until the backward pass: 2 GB for 8
    records of 512 tokens and 128,000 words. This class keeps the logits, in their own dtype, and one number for each
    token. Each record has separate kernel calls of shape [n, V], so its slot has no effect.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """logits: float [m, L, V]. labels: int64 [m, n] for positions 0 to n - 1, with n at most L. Returns [m]."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        losses = torch.zeros(len(logits), dtype=exact, device=logits.device)
        normalisers = torch.empty(labels.shape, dtype=exact, device=logits.device)
        weights = token_weights(labels, exact)
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


def token_weights(labels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1/(number of the record's learned tokens) where a token is learned, else 0: float [m, tokens]."""
    learned = labels != IGNORE_INDEX
    return learned.to(dtype) / learned.sum(dim=1, keepdim=True).clamp(min=1)


def _mean_token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses: torch.Tensor = _MeanTokenLoss.apply(logits, labels)
    return losses


def causal_lm_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean loss (nats) of each record over its own learned tokens.

    Args: `logits` float [m, L, V]; `labels` int64 [m, L], not shifted: position i is predicted from those before it.
    Returns: fp32 [m] (fp64 for fp64 logits); exactly 0 for a record without a learned token.
    """
    return _mean_token_losses(logits, labels[:, 1:])


def token_classification_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of each record over its own labelled tokens.

    Args: `logits` float [m, L, classes]; `labels` int64 [m, L], -100 for tokens without a label.
    Returns: fp32 [m] (fp64 for fp64 logits); exactly 0 for a record without a labelled token.
    """
    return _mean_token_losses(logits, labels)


def classification_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy (nats) of each record. `logits`: float [m, classes]. `labels`: int64 [m]. fp32 [m]; 0 for -100."""
    if logits.shape[-1] < 2:
        raise ValueError(f"spec.model.numLabels is {logits.shape[-1]}: classification needs at least two labels.")
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact, labels, ignore_index=IGNORE_INDEX, reduction="none")


def forward_logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The model's logits, [m, L, V] or [m, labels]. The model does not get the labels: it would average its loss."""
    logits: torch.Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
    return logits


def record_loss(task: Task, head: OutputHead | None = None) -> LossFunction:
    """The loss function of a task: one loss for each record of a batch.

    Args:
        head: computes the losses without the logits (`models.output_head`); None: from the logits.
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
def evaluate_batch(model: nn.Module, batch: Batch, task: Task, head: OutputHead | None = None) -> EvaluationSums:
    """The sums of one batch. Dummy rows and records without a learned token do not count. Call `model.eval()` first.

    Args:
        head: computes the losses without the logits (`models.output_head`); None: from the logits.
    """
    labels = batch["labels"]
    if head is not None:
        return EvaluationSums(float(head.losses(model, batch).double().sum()), int(task.learns(labels).sum()))
    logits = forward_logits(model, batch)
    loss = float(task.losses(logits, labels).double().sum())
    return EvaluationSums(loss, int(task.learns(labels).sum()), task.counts(logits, labels))
