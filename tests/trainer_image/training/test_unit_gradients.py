"""From drawn units to their clipped sum: the sum does not depend on how the micro-batches fall."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorguard.data.rows import TokenRows
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients, _by_unit
from tests.support.trainer.pipeline import CLIP, CPU, GRID, LENGTH, WORDS, Unit, make_shard, pipeline, squared_norm


def units(count: int, records: int) -> list[Unit]:
    generator = np.random.default_rng(records)
    return [
        [
            (generator.integers(1, WORDS - 1, generator.integers(2, LENGTH)).tolist(), int(generator.integers(2)))
            for _ in range(generator.integers(1, records + 1))
        ]
        for _ in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["SequenceClassification", "CausalLM"])
@pytest.mark.parametrize("records", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_gradient_accumulation_changes_the_sum_only_by_rounding(task: str, records: int) -> None:
    """An expected batch much larger than the micro-batch is processed in pieces, with the same result as in one."""
    data = units(24, records)
    sums = [pipeline(task, rows=rows).sum(data) for rows in (1, 2, 8, 32)]
    # Kernels for different shapes differ in the last bits of fp32. This may shift a unit's coordinate by one grid step.
    largest = np.sqrt(squared_norm(sums[0]))
    assert largest > GRID
    for total in sums[1:]:
        assert np.abs(total - sums[0]).max() <= len(data)
        assert np.sqrt(squared_norm(total - sums[0])) < 1e-3 * largest


def test_user_is_clipped_once_for_all_records() -> None:
    """Eleven copies of a record, over two micro-batches, add at most S. As eleven units they add more."""
    pipe = pipeline("SequenceClassification")
    record = ([7, 9, 11], 1)
    one_user = pipe.sum([[record] * 11])
    eleven_units = pipe.sum([[record]] * 11)
    assert (0.9 * GRID) ** 2 < squared_norm(one_user) <= GRID**2
    assert squared_norm(eleven_units) > 25 * GRID**2


def test_rows_of_a_unit_are_added_in_order_across_micro_batches() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    closed, sums, still_open = _by_unit([4, 4, 7, 9, 9, 9], rows, None)
    assert closed == [4, 7]
    assert [row.tolist() for row in sums] == [[2.0, 4.0], [4.0, 5.0]]
    assert still_open is not None
    assert (still_open[0], still_open[1].tolist()) == (9, [24.0, 27.0])
    rows.copy_(torch.arange(12.0).reshape(6, 2))  # the next micro-batch is in the same memory
    closed, sums, still_open = _by_unit([9, 3], rows[:2], still_open)
    assert closed == [9]
    assert [row.tolist() for row in sums] == [[24.0, 28.0]]
    assert still_open is not None
    assert (still_open[0], still_open[1].tolist()) == (3, [2.0, 3.0])


def test_stop_request_skips_the_rest_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline("SequenceClassification")
    data = units(24, 1)
    stop, passes = StopSignal(), 0
    compute = ShardGradients._compute

    def computing(*arguments: object) -> torch.Tensor:
        nonlocal passes
        passes += 1
        stop.request()
        return compute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardGradients, "_compute", computing)
    gradients = ShardGradients(
        make_shard(data, pipe.task),
        pipe.model,
        pipe.gradients,
        SecretStream(),
        micro_batch_size=4,
        form=TokenRows(LENGTH, 0, 9),
        device=CPU,
    )
    gradients.add_to(GridClipper(pipe.gradients.dimension, GRID, CLIP, CPU), range(24), stop)
    assert passes == 1
