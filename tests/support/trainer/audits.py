"""Audits without records whose ranks are threads of this process, instead of processes of Ray. All else is real."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.canary_audit.canaries import Scores
from tensorguard.canary_audit.job_audit import temporary_config
from tensorguard.canary_audit.ranks import SCORES, AuditSize, audit_without_records
from tests.support.trainer.thread_group import results_of

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
  cluster: {workers: 2, worker: {cpus: "1"}}
"""
"""A job of one step, which every record joins: its claim is ε = 4.377."""


def scores_on_threads(job: TenSafeTrainingJob, plan: Plan, size: AuditSize) -> Scores:
    """`scores_without_records` on threads."""
    with tempfile.TemporaryDirectory() as name:
        config = temporary_config(job, plan, Path(name))
        results_of(
            plan.mechanism.workers, lambda channel: audit_without_records(config, size, channel, torch.device("cpu"))
        )
        return Scores.load(Path(name) / SCORES)
