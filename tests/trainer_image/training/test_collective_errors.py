"""What is said of an error: our own sentence, the mend for a lack of memory, of anything else no word of its own."""

from __future__ import annotations

import pytest
import torch
from ray.exceptions import OutOfMemoryError

from tensafe_api.reasons import Reason
from tensorguard.training.collective_errors import describe_error


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (OutOfMemoryError("node a of patient 7"), "raise spec.cluster.worker.memory"),
        (torch.OutOfMemoryError("CUDA out of memory, patient 7"), "lower spec.training.microBatchSize"),
    ],
)
def test_out_of_memory_names_the_field_that_fixes_it(error: Exception, mend: str) -> None:
    """On real pods Ray's memory monitor ended the reading of the data, and nobody could tell what to do."""
    reason, sentence = describe_error(error)
    assert reason is Reason.WORKER_LOST
    assert mend in sentence
    assert "patient" not in sentence


def test_only_the_type_of_a_foreign_error_is_reported() -> None:
    reason, sentence = describe_error(KeyError("patient 7"))
    assert reason is Reason.INTERNAL_ERROR
    assert sentence.startswith("KeyError; ")
    assert "patient" not in sentence
