"""The logger `tensafe.audit`: each charge, checkpoint, evaluation and end, as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.distributed import (
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
    TrainingFailed,
)

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


class StopAtStepFour(TenSafeCallback):
    def on_step(self, trainer, step):
        if step == 4:
            trainer.stop()


def test_audit_log_has_charges_checkpoints_and_the_end(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake.losses = (0.9,)
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        TenSafeTrainer(config()).fit(RECORDS, RECORDS[:5])
    lines = [json.loads(record.message) for record in caplog.records if record.name == "tensafe.audit"]
    assert [line["event"] for line in lines] == ["started", "charged", "evaluated", *["charged"] * 9, "ended"]
    charges = [line for line in lines if line["event"] == "charged"]
    assert [line["stepsCharged"] for line in charges] == list(range(1, 11))
    assert 0 < float(charges[0]["epsilonSpent"]) < float(charges[-1]["epsilonSpent"]) <= 8
    assert {line["job"] for line in lines} == {"tiny-bert-v2"}


def test_audit_log_has_a_step_that_was_charged_and_not_taken(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake.killed_at, fake.reason, fake.message = 4, Reason.WORKER_LOST, "the workers failed"
    with caplog.at_level(logging.INFO, "tensafe.audit"), pytest.raises(TrainingFailed) as failed:
        TenSafeTrainer(config()).fit(RECORDS)
    lines = [json.loads(record.message) for record in caplog.records if record.name == "tensafe.audit"]
    assert [line["event"] for line in lines] == ["started", *["charged"] * 4, "ended"]
    assert lines[-2]["stepsCharged"] == 4
    assert lines[-2]["epsilonSpent"] == failed.value.job.status.privacy.epsilon_spent


def test_audit_log_of_a_resume_shows_which_charges_are_new(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    trainer = TenSafeTrainer(config(), [StopAtStepFour()])
    trainer.fit(RECORDS)
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        TenSafeTrainer(config()).fit(RECORDS, resume_from_checkpoint=tmp_path / "checkpoints")
    lines = [json.loads(record.message) for record in caplog.records if record.name == "tensafe.audit"]
    assert [line["event"] for line in lines] == ["resumed", "started", *["charged"] * 6, "ended"]
    assert [line["stepsCharged"] for line in lines if "stepsCharged" in line] == [4, 5, 6, 7, 8, 9, 10]


def test_audit_log_can_be_disabled(fake: Any, config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        TenSafeTrainer(config(enable_audit_logging=False)).fit(RECORDS)
    assert not [record for record in caplog.records if record.name == "tensafe.audit"]
