"""A local runner that trains nothing but charges a real ledger and reports log records; and a configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.audit_log.audited_ledger import AuditedLedger
from tensorguard.audit_log.places import audit_log_of
from tensorguard.distributed import DistributedDPConfig, TenSafeTrainingConfig
from tensorguard.ledger.contract import Ledger, PublishedCheckpoint
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local import driver
from tensorguard.runners.local.status import exit_code_of, status_from_run
from tensorguard.training.run_log import Ended, Evaluated, Listener, LogRecord, Started, Stepped


@dataclass
class FakeRunner:
    """Replaces `tensorguard.runners.local.driver.run`; the attributes define the course of its run."""

    reason: Reason = Reason.COMPLETED
    message: str = ""
    losses: tuple[float, ...] = ()
    refusal: Exception | None = None
    at_step: Callable[[int], None] = lambda step: None
    starts: bool = True
    """Whether a step is charged before the run ends."""
    killed_at: int | None = None
    """The step after whose charge the workers are killed."""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def run(
        self, job: TenSafeTrainingJob, *, output_dir: Path, listener: Listener, stop: Any, **others: Any
    ) -> driver.RunResult:
        self.calls.append({"job": job, "output_dir": output_dir, "stop": stop, **others})
        if self.refusal:
            raise self.refusal
        others["admitted"]()
        job, plan = resolve_job(job)
        output_dir.mkdir(parents=True, exist_ok=True)
        if not others["resume"]:
            FileLedger.create(output_dir, driver.ledger_spec(job, plan, "uid-1"))
        log = audit_log_of(job, "uid-1", output_dir, in_pod=False, process="rank 0")
        ledger: Ledger = AuditedLedger(FileLedger(output_dir), log) if log else FileLedger(output_dir)
        state = ledger.read()
        start = state.checkpoints[-1].step if state.checkpoints else 0
        attempt = state.attempt + 1
        ledger.acquire(attempt=attempt, from_step=start)
        records: list[LogRecord] = []

        def report(record: LogRecord) -> None:
            records.append(record)
            listener(record)

        report(Started(time.time(), attempt, 1, start))
        ended = Ended(time.time(), attempt, self.reason.value, self.message)
        for step in range(start + 1, plan.steps + 1) if self.starts else ():
            if stop.requested:
                ended = Ended(time.time(), attempt, Reason.INTERRUPTED.value, "stopped on request")
                break
            charged = ledger.charge(1).steps_charged
            if step == self.killed_at:
                break
            self.at_step(step)
            report(Stepped(time.time(), step, charged))
            if step <= len(self.losses):
                report(Evaluated(time.time(), step, self.losses[step - 1], {"accuracy": 1 - self.losses[step - 1] / 2}))
        if self.starts and self.reason is not Reason.WORKER_LOST:
            last = next(record.step for record in reversed(records) if isinstance(record, Stepped))
            uri = f"{job.spec.checkpoint.uri}/step-{last}"
            Path(uri).mkdir(parents=True)
            (Path(uri) / "manifest.json").touch()
            ledger.record_checkpoint(
                PublishedCheckpoint(last, attempt, uri, "sha256:0", "sha256:0", ended.reason == "Completed")
            )
        report(ended)
        state = ledger.read()
        ledger.close()
        status = status_from_run(job, plan, state, records, ended)
        return driver.RunResult(job.model_copy(update={"status": status}), exit_code_of(Reason(ended.reason)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """The fake runner, in place of the real one."""
    made = FakeRunner()
    monkeypatch.setattr(driver, "run", made.run)
    return made


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., TenSafeTrainingConfig]:
    """Builds a configuration of ten steps an epoch over 200 records, with changes."""

    def make(**changes: Any) -> TenSafeTrainingConfig:
        fields: dict[str, Any] = {
            "model_name": "acme/Tiny-BERT_v2",
            "num_labels": 2,
            "num_epochs": 1,
            "per_device_batch_size": 5,
            "gradient_accumulation_steps": 2,
            "num_workers": 2,
            "checkpoint_dir": tmp_path / "checkpoints",
            "unit_at_least": 200,
            "dp_config": DistributedDPConfig(target_epsilon=8.0, noise_multiplier=0.8),  # calibrating takes seconds
        }
        return TenSafeTrainingConfig(**(fields | changes))

    return make
