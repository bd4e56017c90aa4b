"""Checks of the model before the first step, and what the statement remarks about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from e2e.platform.trainer.rank_harness import Job
from tensorguard.models.self_test import SelfTest
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.setup import _check_vocabulary, self_test_remarks


def test_remark_states_what_kernel_rounding_could_cost() -> None:
    assert self_test_remarks(SelfTest(sum_error=1e-7, neighbour_error=0.0), 512) == ()
    (remark,) = self_test_remarks(SelfTest(sum_error=1e-7, neighbour_error=2.5e-7), 512)
    assert "a relative 2.5e-07" in remark
    assert "Over an expected batch of 512 this could add 2.6e-04 to a sensitivity of 1" in remark
    assert "The privacy claim does not cover" in remark


def test_tokenizer_with_tokens_unknown_to_the_model_is_refused(tmp_path: Any) -> None:
    """A record with such a token would end the job, which would reveal that the data has such a record."""
    job = Job.make(tmp_path / "run").job
    model: Any = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(44, 2))
    _check_vocabulary(job, model, 43)
    with pytest.raises(AttemptFailed, match=r"spec\.model\.name: the tokenizer of .* tokens up to number 44"):
        _check_vocabulary(job, model, 44)
