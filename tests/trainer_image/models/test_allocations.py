"""Counting the memory of tensors without numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tensorguard.models.allocations import Allocations, FollowsOnly, FusedAttention


def numbers(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def test_peak_counts_what_is_alive_at_the_same_time() -> None:
    with Allocations() as allocations:
        first = numbers(100) + 1  # two tensors, of which one stays
        second = first * 2
        del first
        third = second * 2
        view = third[:50]
        del third
    assert allocations.peak == 3 * 400 - 400
    assert allocations.now == 2 * 400
    del second
    assert allocations.now == 400, "a view keeps the whole tensor"
    del view
    assert allocations.now == 0


def test_ignored_tensors_and_changes_in_place_count_nothing() -> None:
    weights = numbers(100)
    with Allocations([weights]) as allocations:
        weights.add_(1)
        view = weights[:10]
    assert (allocations.peak, view.shape) == (0, (10,))


def test_kept_tensors_of_autograd_count() -> None:
    inputs = numbers(100).requires_grad_()
    with Allocations([inputs]) as allocations:
        loss = inputs.exp().sum()
        assert allocations.now == 400 + 4
        loss.backward()
    assert allocations.now == 400 + 4, "the gradient stays, and the result of exp is gone"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attention_keeps_no_scores(device: str) -> None:
    query, key, value = (numbers(2, 4, 512, 32).requires_grad_() for _ in range(3))
    mask = torch.ones(2, 1, 512, 512, dtype=torch.bool, device="meta")
    with Allocations([query, key, value, mask]) as allocations, FusedAttention(device):
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores, masks = 2 * 4 * 512 * 512 * 4, 2 * 512 * 512 * (4 + 1)
    assert out.nbytes < allocations.peak < out.nbytes + masks + 2 * 4 * 512 * 4 + 1
    assert allocations.peak < scores


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attention_without_a_fused_kernel_keeps_scores(device: str) -> None:
    query, key = (numbers(1, 4, 64, 30).requires_grad_() for _ in range(2))
    value = numbers(1, 4, 64, 31)
    with Allocations([query, key, value]) as allocations, FusedAttention(device):
        functional.scaled_dot_product_attention(query, key, value)
    assert allocations.peak > 4 * 64 * 64 * 4


def test_scaled_output_is_noticed_and_a_cast_is_not() -> None:
    logits = torch.empty(2, 3, dtype=torch.bfloat16, device="meta")
    with FollowsOnly() as after:
        cast = after.follow(logits).float()[:, :]
        assert after.unchanged and after.follows(cast)
        assert not after.follows(numbers(2, 3))
        scaled = cast * 2
    assert not after.unchanged and after.follows(scaled)
