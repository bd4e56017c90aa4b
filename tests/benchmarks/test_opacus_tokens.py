"""A peer's step on a causal model is DP-SGD with one loss for each record, with hooks and with ghost clipping."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.peers import steps
from benchmarks.peers.causal import NextToken, next_token_rows

WORDS, RECORDS, LENGTH = 7, 6, 5


class Tiny(nn.Module):
    """A frozen embedding and a trained output layer, called like a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(WORDS, 16).requires_grad_(False)
        self.output = nn.Linear(16, WORDS)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.output(2 * self.embedding(input_ids)))


def factors(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters() if parameter.requires_grad])


def clipped_mean(ids: torch.Tensor) -> torch.Tensor:
    """Compute the reference one record at a time."""
    model = Tiny()
    total = torch.zeros(len(factors(model)))
    for record in ids:
        model.zero_grad()
        cross_entropy(model(record[None], record[None]).logits[0, :-1], record[1:]).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert gradient.norm() > 1, "clipping must be active"
        total += gradient / gradient.norm()
    return total / len(ids)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("micro_batch", [6, 4, 1])
def test_step_is_the_clipped_mean_over_records(mode: str, micro_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "NOISE_MULTIPLIER", 0.0)
    monkeypatch.setattr(torch.optim, "AdamW", lambda parameters, lr: torch.optim.SGD(parameters, lr=1.0))
    ids = torch.randint(WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(4))
    model = Tiny()
    before = factors(model)
    steps.opacus_step(NextToken(model), next_token_rows(ids), micro_batch, mode, by_token=True)()
    torch.testing.assert_close(before - factors(model), clipped_mean(ids), rtol=1e-3, atol=1e-5)


def test_plain_step_is_the_mean_over_records_for_every_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "AdamW", lambda parameters, lr: torch.optim.SGD(parameters, lr=1.0))
    ids = torch.randint(WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(4))
    moved = []
    for micro_batch in (6, 4, 1):
        model = Tiny()
        before = factors(model)
        steps.plain_step(NextToken(model), next_token_rows(ids), micro_batch, by_token=True)()
        moved.append(before - factors(model))
    torch.testing.assert_close(moved[0], moved[1])
    torch.testing.assert_close(moved[0], moved[2])
