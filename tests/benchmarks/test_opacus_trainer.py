"""The comparison is fair: Opacus runs with the requested settings, and its arithmetic is that of DP-SGD."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.peers import opacus_trainer
from tensorguard.training.schedule import learning_rate_schedule

CLIP, EXPECTED = 0.5, 10


class Tiny(nn.Module):
    """A linear classifier that is called like a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.linear(input_ids * attention_mask))


@pytest.fixture
def rows() -> TensorDataset:
    torch.manual_seed(4)
    return TensorDataset(torch.randn(12, 4), torch.ones(12, 4), torch.randint(3, (12,)))


def clipped_mean(rows: TensorDataset) -> torch.Tensor:
    """Compute the reference one example at a time: clip, sum, divide by the public batch size."""
    model = Tiny()
    total = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    for ids, mask, label in rows:
        model.zero_grad()
        nn.functional.cross_entropy(model(ids[None], mask[None]).logits, label[None]).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        total += gradient * min(1.0, CLIP / gradient.norm())
    return total / EXPECTED


@pytest.mark.parametrize("micro_batch", [12, 5, 1])
def test_step_is_the_clipped_sum_over_the_public_batch_size(
    rows: TensorDataset, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With plain gradient descent at rate 1, all rows drawn and no noise, the weights move by the negative gradient.
    monkeypatch.setattr(torch.optim, "AdamW", lambda parameters, lr, weight_decay: torch.optim.SGD(parameters, lr=lr))
    model = Tiny()
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    settings = opacus_trainer.Settings(
        noise_multiplier=0.0,
        sample_rate=1.0,
        steps=1,
        expected_batch=EXPECTED,
        learning_rate=1.0,
        max_grad_norm=CLIP,
        warmup_ratio=0.0,
        micro_batch=micro_batch,
    )
    opacus_trainer.train(model, rows, settings, seed=1)
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(before - after, clipped_mean(rows), rtol=1e-4, atol=1e-6)


def test_draws_have_the_requested_rate(rows: TensorDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(opacus_trainer, "take_step", lambda model, optimizer, batch, micro: drawn.append(len(batch[0])))
    settings = opacus_trainer.Settings(1.0, sample_rate=0.35, steps=2000, expected_batch=5, learning_rate=0.1)
    opacus_trainer.train(Tiny(), rows, settings, seed=1)
    mean = sum(drawn) / len(drawn)
    standard_error = (12 * 0.35 * 0.65 / 2000) ** 0.5
    assert len(drawn) == 2000
    assert abs(mean - 12 * 0.35) < 5 * standard_error  # make_private's own rate, 1/len(loader), would be 1/2


@pytest.mark.parametrize(("steps", "warmup_ratio", "warmup"), [(81, 0.1, 9), (40, 0.1, 4), (10, 0.0, 0)])
def test_schedule_equals_tensafes(steps: int, warmup_ratio: float, warmup: int) -> None:
    theirs = learning_rate_schedule(1.0, "Linear", steps, warmup)
    for step in range(steps):
        assert opacus_trainer.linear_schedule(step, steps, warmup_ratio) == pytest.approx(theirs(step))


@pytest.mark.parametrize("constant_rate", [True, False])
def test_rate_without_a_schedule_stays(constant_rate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    monkeypatch.setattr(
        opacus_trainer, "take_step", lambda model, optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    settings = opacus_trainer.Settings(
        noise_multiplier=1.0,
        sample_rate=0.5,
        steps=10,
        expected_batch=EXPECTED,
        learning_rate=1.0,
        constant_rate=constant_rate,
    )
    model = Tiny()
    optimizer = SimpleNamespace(param_groups=torch.optim.AdamW(model.parameters()).param_groups)
    opacus_trainer.take_steps(model, optimizer, iter([()] * 10), settings)
    assert (rates == [1.0] * 10) == constant_rate and len(rates) == 10
