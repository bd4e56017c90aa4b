"""The optimiser state and the trainer state are restored bit for bit, and AdamW continues as without a restart."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load

from tensorguard.checkpoint.optimizer_state import OptimizerMismatchError, dump_optimizer, load_optimizer
from tensorguard.checkpoint.trainer_state import TrainerState

STATE = TrainerState(job_uid="3f2a91c0", step=40, attempt=2, incarnation=3, ledger_head="ab" * 32, ledger_length=17)


def test_trainer_state_survives_dump_and_parse() -> None:
    assert TrainerState.parse(STATE.dump()) == STATE
    assert set(json.loads(STATE.dump())) == {
        "job_uid",
        "step",
        "attempt",
        "incarnation",
        "ledger_head",
        "ledger_length",
    }


@pytest.mark.parametrize("content", [b"{}", b"{", b'{"more": 1}', b"[]"])
def test_invalid_trainer_state_is_refused(content: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        TrainerState.parse(content)


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes: list[tuple[int, ...]] = [(3, 4), (7,), (), (2, 3, 2)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def adamw(trained: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.1)


def step(trained: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for parameter in trained:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    optimizer.zero_grad()


def test_adamw_resumes_bit_for_bit() -> None:
    straight = parameters()
    optimizer = adamw(straight)
    for number in range(5):
        step(straight, optimizer, number)
    content = dump_optimizer(optimizer)
    resumed = [torch.nn.Parameter(parameter.detach().clone()) for parameter in straight]
    again = adamw(resumed)
    load_optimizer(again, content)
    assert dump_optimizer(again) == content
    for number in range(5, 10):
        step(straight, optimizer, number)
        step(resumed, again, number)
    for one, other in zip(straight, resumed):
        assert torch.equal(one, other)
    assert dump_optimizer(again) == dump_optimizer(optimizer)


def test_adamw_without_its_state_differs() -> None:
    straight = parameters()
    optimizer = adamw(straight)
    step(straight, optimizer, 0)
    fresh = [torch.nn.Parameter(parameter.detach().clone()) for parameter in straight]
    step(fresh, adamw(fresh), 1)
    step(straight, optimizer, 1)
    assert not torch.equal(straight[0], fresh[0])


def test_settings_come_from_the_manifest_not_from_the_checkpoint() -> None:
    trained = parameters()
    optimizer = adamw(trained)
    step(trained, optimizer, 0)
    other = torch.optim.AdamW(parameters(), lr=7e-5)
    load_optimizer(other, dump_optimizer(optimizer))
    assert other.param_groups[0]["lr"] == 7e-5


def test_optimiser_without_a_step_can_be_restored() -> None:
    content = dump_optimizer(adamw(parameters()))
    assert load(content) == {}
    trained = parameters()
    optimizer = adamw(trained)
    load_optimizer(optimizer, content)
    step(trained, optimizer, 0)


@pytest.mark.parametrize("kept", [slice(0, 3), slice(1, 4), slice(None, None, -1)])
def test_state_of_other_parameters_is_refused(kept: slice) -> None:
    trained = parameters()
    optimizer = adamw(trained)
    step(trained, optimizer, 0)
    other = adamw(parameters()[kept])
    with pytest.raises(OptimizerMismatchError, match=r"spec\.lora: .* resume with the same spec\.lora"):
        load_optimizer(other, dump_optimizer(optimizer))
    assert not other.state
