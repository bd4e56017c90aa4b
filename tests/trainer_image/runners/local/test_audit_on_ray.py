"""`tensafe audit` in processes of Ray: with the data of a job it charges a ledger and leaves no adapter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorguard.ledger.file import FileLedger
from tests.support.trainer.command import write_job

pytestmark = pytest.mark.ray


def audit(folder: Path, temporary: Path, *arguments: str) -> tuple[int, Any]:
    """The exit code and the figures of the command, run as a shell would."""
    write_job(folder)
    changes = ["--set", "spec.dataset.uri=data.jsonl", "--set", "spec.cluster.workers=1"]
    size = ["--canaries", "300", "--steps", "3"]
    command = [sys.executable, "-m", "tensorguard.cli.main", "audit", str(folder / "job.yaml"), "-o", "json"]
    done = subprocess.run(
        [*command, *changes, *size, *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def test_audit_without_data_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    code, found = audit(tmp_path, temporary)
    assert code == 0, found
    assert found["byGuesses"]["canaries"] == 300
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "data.jsonl", "job.yaml", temporary.name}
    assert not list(temporary.iterdir())


def test_audit_with_data_charges_a_ledger_and_writes_no_adapter(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "audit"
    code, found = audit(tmp_path, temporary, "--with-data", "--output-dir", str(out))
    assert code == 0, found
    assert found["claimed"]["steps"] == 3 == FileLedger(out).read().steps_charged
    assert not list(out.rglob("*.safetensors")) and not (out / "checkpoints").exists()
    code, refusal = audit(tmp_path, temporary, "--with-data", "--output-dir", str(out))
    assert code == 2 and "--output-dir" in refusal
