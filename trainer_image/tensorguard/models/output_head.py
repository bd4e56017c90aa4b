"""The loss of a language model without its logits: the output layer is computed in chunks of tokens.

A vocabulary of 152,000 words makes the logits of four records of 1,024 tokens 1.2 GB in bf16, their gradients as much
again, and one record in fp32 0.6 GB. Here each chunk's logits and gradients exist only until they are multiplied by the
layer's weights. What stays is the gradient of the hidden states, which is as large as they are.

In: a causal model whose output layer is frozen, and a micro-batch. Out: the same losses as those of
`losses.causal_lm_losses`, and the same gradients up to rounding. Each record has separate kernel calls, whose shapes
depend on the micro-batch's shape and the vocabulary alone. So a record's slot and neighbours have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tensorguard.models.batch_losses import forward_logits
from tensorguard.models.dropout import record_seeds
from tensorguard.models.losses import token_weights
from tensorguard.models.sharded_base import recover_from_failed_pass
from tensorguard.models.tasks.base import Task
from tensorguard.models.tasks.causal_lm import CausalLM
from tensorguard.privacy.gradients import Batch

CHUNK_SCORES = 1 << 25
"""The largest number of logits that exist at a time, unless one token has more: 128 MB in fp32."""


@dataclass(frozen=True)
class OutputHead:
    """The frozen output layer of a causal model."""

    layer: nn.Linear

    def losses(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean loss (nats) of each record over its own learned tokens: a `batch_losses.LossFunction`.

        Returns fp32 [m] (fp64 for an fp64 model); exactly 0 for a record without a learned token.
        """
        hidden = self.hidden_states(model, batch)
        labels = batch["labels"][:, 1:]  # position i is predicted from those before it
        losses: torch.Tensor = _ChunkedTokenLoss.apply(hidden, self.layer.weight, self.layer.bias, labels)
        return losses

    def hidden_states(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """What the model gives to the output layer, [m, L, width]."""
        received: list[torch.Tensor] = []

        def keep(hidden: torch.Tensor) -> torch.Tensor:
            received.append(hidden)
            return hidden

        with replaced(self.layer, keep):
            forward_logits(model, batch)
        (hidden,) = received
        return hidden


def frozen_output_layer(task: Task, model: nn.Module) -> nn.Linear | None:
    """The linear and frozen output layer of `model`; None if it has none, or if the task needs the logits."""
    # A subclass of CausalLM may have another loss, or metrics that need the logits.
    causal = type(task).losses is CausalLM.losses and type(task).counts is Task.counts
    layer: Any = model.get_output_embeddings() if causal else None  # type: ignore[operator]
    if type(layer) is not nn.Linear or any(parameter.requires_grad for parameter in layer.parameters()):
        return None
    return layer


def find_output_head(task: Task, model: nn.Module, batch: Batch) -> OutputHead | None:
    """The output layer of `model`, if the loss can be computed from it; None if the whole logits are needed.

    It must be linear and frozen, and its output must be the model's logits: some models scale or cap them afterwards.
    This is tried with `batch`, which is public dummy input, and with an output of very small and very large numbers, in
    which every scale and cap shows.
    """
    layer = frozen_output_layer(task, model)
    if layer is None:
        return None
    head, training = OutputHead(layer), model.training
    try:
        with torch.no_grad(), record_seeds(model, [0] * len(batch["labels"])):
            unchanged = all(_passes_on_output(model.train(mode), layer, batch) for mode in (True, False))
            whole = forward_logits(model, batch)  # in evaluation mode, so without dropout
            same = torch.equal(layer(head.hidden_states(model, batch)).to(whole.dtype), whole)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a model may do anything with its logits; then it gets them
        recover_from_failed_pass(model)
        return None
    finally:
        model.train(training)
    return head if unchanged and same else None


def _passes_on_output(model: nn.Module, layer: nn.Linear, batch: Batch) -> bool:
    """Whether the model's logits are what `layer` returns, whatever that is."""
    words = layer.out_features
    sizes = torch.logspace(-3, 4, words, device=layer.weight.device)
    signs = 1 - 2 * (torch.arange(words, device=sizes.device) % 2)
    wide = (sizes * signs).to(layer.weight.dtype)
    with replaced(layer, lambda hidden: wide.expand(*hidden.shape[:-1], words).clone()):
        logits = forward_logits(model, batch)
    return torch.equal(logits, wide.to(logits.dtype).expand_as(logits))


@contextmanager
def replaced(layer: nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let `layer` compute `forward`. The attribute hides the method of the class until it is removed."""
    vars(layer)["forward"] = forward
    try:
        yield
    finally:
        del vars(layer)["forward"]


class _ChunkedTokenLoss(torch.autograd.Function):
    """Cross entropy of each record, averaged over its learned tokens, from hidden states and a frozen linear layer.

    The forward pass also computes the gradients, so that no logits are computed twice. The backward pass multiplies
    them by the tokens' weights and the loss scale, because small products would vanish in fp16.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
    ) -> torch.Tensor:
        """hidden: float [m, L, h]. weight: [V, h]. labels: int64 [m, n], n at most L. Returns float [m]."""
        exact = torch.promote_types(hidden.dtype, torch.float32)
        weights = token_weights(labels, exact)
        losses = torch.zeros(labels.shape, dtype=exact, device=hidden.device)
        gradients = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        for i, own in enumerate(hidden):
            for part in _chunks(labels.shape[1], len(weight)):
                # A copy, because the kernel of a single token depends on how its address is aligned.
                scores = functional.linear(own[part].clone(), weight, bias).to(exact)
                targets = labels[i, part].clamp(min=0).unsqueeze(-1)
                normaliser = scores.logsumexp(dim=-1, keepdim=True)
                losses[i, part] = (normaliser - scores.gather(-1, targets)).squeeze(-1)
                if gradients is not None:
                    scores.sub_(normaliser).exp_()  # softmax
                    scores.scatter_add_(-1, targets, -torch.ones_like(targets, dtype=exact))
                    gradients[i, part] = scores.to(weight.dtype) @ weight
        ctx.save_for_backward(gradients, weights)
        return torch.stack([own.sum() for own in torch.where(weights > 0, losses * weights, 0.0)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        gradients, weights = ctx.saved_tensors
        factors = (weights * grad.unsqueeze(-1)).unsqueeze(-1)
        out = torch.zeros_like(gradients)
        tokens = weights.shape[1]
        for i, own in enumerate(gradients):
            out[i, :tokens] = (own[:tokens] * factors[i]).masked_fill_(weights[i].unsqueeze(-1) == 0, 0.0)
        return out, None, None, None


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    """The tokens of a record in chunks of a power of two, with at most CHUNK_SCORES logits each."""
    size = 1 << (max(1, CHUNK_SCORES // vocabulary).bit_length() - 1)
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))
