"""The audit log of a training from Python: a file in the run's folder, and the logger `tensafe.audit`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.distributed import (
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
    TrainingFailed,
)
from tensorguard.verification.audit_logs import verify_audit_log
from tensorguard.verification.ledgers import read_file_ledger

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


class StopAtStepFour(TenSafeCallback):
    def on_step(self, trainer, step):
        if step == 4:
            trainer.stop()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "tensafe.audit"]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [json.loads(line)["event"] for line in messages(caplog)]


@pytest.mark.slow
def test_file_and_logger_have_charges_checkpoints_and_the_end(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        result = TenSafeTrainer(config()).fit(RECORDS, RECORDS[:5])
    assert events(caplog) == ["Open", "Start", *["Charge"] * 10, "Publication"]
    lines = [json.loads(line) for line in messages(caplog)]
    assert [line["stepsCharged"] for line in lines if line["event"] == "Charge"] == list(range(1, 11))
    assert {line["job"] for line in lines} == {"tiny-bert-v2"}
    assert (result.output_dir / AUDIT_LOG).read_text() == "".join(f"{line}\n" for line in messages(caplog))
    copy = tmp_path / "copy.jsonl"
    copy.write_text("".join(f"{line}\n" for line in messages(caplog)))
    verify_audit_log(str(copy), lambda uid: read_file_ledger(result.output_dir))


@pytest.mark.slow
def test_step_that_was_charged_and_not_taken_is_logged(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake.killed_at, fake.reason, fake.message = 4, Reason.WORKER_LOST, "the workers failed"
    with caplog.at_level(logging.INFO, "tensafe.audit"), pytest.raises(TrainingFailed):
        TenSafeTrainer(config()).fit(RECORDS)
    assert events(caplog) == ["Open", "Start", *["Charge"] * 4]


def test_resume_logs_only_what_is_new(
    fake: Any, config: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    TenSafeTrainer(config(), [StopAtStepFour()]).fit(RECORDS)
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        TenSafeTrainer(config()).fit(RECORDS, resume_from_checkpoint=tmp_path / "checkpoints")
    assert events(caplog) == ["Resume", *["Charge"] * 6, "Publication"]
    assert json.loads(messages(caplog)[-2])["stepsCharged"] == 10


def test_audit_log_can_be_disabled(fake: Any, config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tensafe.audit"):
        result = TenSafeTrainer(config(enable_audit_logging=False)).fit(RECORDS)
    assert not messages(caplog)
    assert not (result.output_dir / AUDIT_LOG).exists()
