"""Audits of a small job without its records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.canary_audit.job_audit import Audit, AuditResult
from tensorguard.canary_audit.lower_bound import GuessPlan
from tensorguard.canary_audit.ranks import AuditSize
from tests.support.trainer.audits import MANIFEST, scores_on_threads

RunAudit = Callable[..., AuditResult]


@pytest.fixture
def audited() -> RunAudit:
    """`audited("spec...=...", canaries=5000)`: the result of an audit of `MANIFEST` with these changes."""

    def run(*overrides: str, canaries: int = 5000, guesses: GuessPlan | None = None) -> AuditResult:
        job, plan = resolve_job(load_manifest(MANIFEST, overrides))
        audit = Audit.of(plan, AuditSize(canaries, plan.steps), 0.05, guesses)
        return audit.judge(scores_on_threads(job, plan, audit.size))

    return run
