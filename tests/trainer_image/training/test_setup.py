"""Checks of the model before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from e2e.platform.trainer.rank_harness import Job
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.setup import _check_vocabulary


def test_tokenizer_with_tokens_unknown_to_the_model_is_refused(tmp_path: Any) -> None:
    """A record with such a token would end the job, which would reveal that the data has such a record."""
    job = Job.make(tmp_path / "run").job
    model: Any = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(44, 2))
    _check_vocabulary(job, model, 43)
    with pytest.raises(AttemptFailed, match=r"spec\.model\.name: the tokenizer of .* tokens up to number 44"):
        _check_vocabulary(job, model, 44)
