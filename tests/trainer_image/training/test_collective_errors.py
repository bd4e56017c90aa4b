"""What is reported of an error: its own sentence, the fix for a lack of memory, or its type alone."""

from __future__ import annotations

import pytest
import torch
from ray.exceptions import OutOfMemoryError

from tensafe_api.reasons import Reason
from tensorguard.training.collective_errors import describe_error


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OutOfMemoryError("node a of patient 7"), "raise spec.cluster.worker.memory"),
        (torch.OutOfMemoryError("CUDA out of memory, patient 7"), "lower spec.training.microBatchSize"),
    ],
)
def test_out_of_memory_names_the_field_that_fixes_it(error: Exception, fix: str) -> None:
    """On real pods Ray's memory monitor killed the reading of the data, and the message did not show what to do."""
    reason, sentence = describe_error(error)
    assert reason is Reason.WORKER_LOST
    assert fix in sentence
    assert "patient" not in sentence


def test_only_the_type_of_a_foreign_error_is_reported() -> None:
    reason, sentence = describe_error(KeyError("patient 7"))
    assert reason is Reason.INTERNAL_ERROR
    assert sentence.startswith("KeyError; ")
    assert "patient" not in sentence


def test_lack_of_memory_of_another_library_is_named() -> None:
    kind = type("OutOfMemoryError", (Exception,), {"__module__": "other.library"})
    assert describe_error(kind("patient 7")) == (Reason.WORKER_LOST, "there is too little memory")
