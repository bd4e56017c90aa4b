"""Audits without records, whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.platform.trainer.thread_group import results_of
from tensafe_api.manifest import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.auditing.canaries import Scores
from tensorguard.auditing.job_audit import Audit, AuditResult, temporary_config
from tensorguard.auditing.ranks import SCORES, AuditSize, audit_without_records

MANIFEST = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata: {name: audited}
spec:
  model: {name: unused, task: SequenceClassification, numLabels: 2}
  dataset:
    uri: unused.jsonl
    columns: {text: text, label: label}
    unit: {kind: Example, atLeast: 512}
  training: {steps: 1, expectedBatchSize: 512}
  privacy: {targetEpsilon: "10", noiseMultiplier: "1", targetDelta: "1e-5"}
  checkpoint: {uri: unused}
  cluster: {workers: 2}
"""
"""One step, which every record joins."""

RunAudit = Callable[..., AuditResult]


@pytest.fixture
def audited(tmp_path: Path) -> RunAudit:
    """`audited("spec...=...", canaries=5000)`: the result of an audit of the job above with these changes."""

    def run(*overrides: str, canaries: int = 5000, before: Callable[[Any], None] = lambda channel: None) -> AuditResult:
        job, plan = resolve_job(load_manifest(MANIFEST, overrides))
        audit = Audit.of(plan, AuditSize(canaries, plan.steps), 0.05)
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        config = temporary_config(job, plan, directory)

        def one(channel: Any) -> None:
            before(channel)
            audit_without_records(config, audit.size, channel, torch.device("cpu"))

        results_of(plan.mechanism.workers, one)
        return audit.judge(Scores.load(directory / SCORES))

    return run
