"""The loss of each record, from its own tokens alone, as the tasks compute it from a model's logits.

The `.loss` of transformers models is not used: it averages over the batch's tokens, so a long record shrinks the
gradient of a short one (measured: a norm went from 1.02 to 1.45 when a third record joined). Here a record's loss is
the mean over its own learned tokens. Tokens with label -100 are not learned. A record without a learned token, and
every dummy row, has a loss of exactly 0 and a gradient of exactly 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tensorguard.data.shard import IGNORE_INDEX


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
