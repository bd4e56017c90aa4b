"""Writes the folder of a run as a training leaves it, without a training: manifest, ledger, log, checkpoints.

Its private parts hold the word `SECRET`: the records' address and columns, labels, variables of the environment, the
private metrics, tracebacks. A test can so look for that word in everything that leaves the folder.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from tensafe_api.manifest.text import dump_manifest, parse_job
from tensafe_api.reasons import Reason
from tensafe_api.resolve import ledger_spec, resolve_job
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, STATEMENT_FILE, STATEMENT_PAGE
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.contract import PublishedCheckpoint
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local.earlier_run import MANIFEST
from tensorguard.runners.run_folder import LOCK_FILE
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import Ended, Evaluated, RunLog, Saved, Started, Stepped

START = 1_000_000.0
STEP_SECONDS = 7.0
"""Duration of each step in the log."""


class RecordedRun:
    """A run whose steps are charged one by one. Call the methods in the order of the events.

    Attributes:
        steps_taken: how many steps the log has, those that ran again included.
    """

    def __init__(self, directory: Path, *, steps: int = 20, **privacy: Any) -> None:
        """Write the manifest and open the ledger.

        Args:
            directory: of the run; created.
            steps: of the plan.
            privacy: fields of `spec.privacy`.
        """
        directory.mkdir(parents=True)
        self.directory = directory
        manifest = {
            "apiVersion": "tensafe.io/v1alpha1",
            "kind": "TenSafeTrainingJob",
            "metadata": {"name": "triage", "annotations": {"team": "SECRET"}, "uid": str(uuid.uuid4())},
            "spec": {
                "model": {
                    "name": "/home/SECRET/models/tiny",
                    "task": "SequenceClassification",
                    "numLabels": 2,
                    "labelNames": ["no", "SECRET"],
                },
                "dataset": {
                    "uri": "/data/SECRET/train.jsonl",
                    "columns": {"text": "SECRET", "label": "label"},
                    "unit": {"kind": "Example", "atLeast": 1000},
                },
                "evaluation": {"uri": "/data/SECRET/public.jsonl", "visibility": "Public", "everySteps": 5},
                "training": {"steps": steps, "expectedBatchSize": 100, "learningRate": "1e-2"},
                "privacy": {"targetEpsilon": "8", **privacy},
                "checkpoint": {"uri": str(directory / "checkpoints"), "everySteps": 10},
                "cluster": {"workers": 2, "env": [{"name": "TOKEN", "value": "SECRET"}]},
                "observability": {"privateMetrics": "Internal"},
            },
        }
        self.job, self.plan = resolve_job(parse_job(manifest))
        (directory / MANIFEST).write_text(dump_manifest(self.job))
        (directory / LOCK_FILE).touch()
        (directory / "private-metrics-rank0.jsonl").write_text('{"step": 1, "units": 97, "meanNorm": "SECRET"}\n')
        (directory / "errors-rank0.log").write_text("ValueError: SECRET\n")
        self.steps_taken = 0
        self._time = START
        self._store = CheckpointStore.for_job(self.job)
        FileLedger.create(directory, ledger_spec(self.job, self.plan, self.job.metadata.uid or "")).close()
        self._ledger = FileLedger(directory)

    def start(self, attempt: int, incarnation: int, step: int) -> None:
        self._ledger.acquire(attempt=attempt, from_step=step)
        self._write(Started(self._time, attempt, incarnation, step))

    def take_steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.steps_taken += 1
            self._time += STEP_SECONDS
            self._write(Stepped(self._time, step, self.charge()))

    def charge(self) -> int:
        """Charge a step without taking it: a crash may follow. Returns the number of charged steps."""
        return self._ledger.charge(1).steps_charged

    def evaluate(self, step: int, loss: float, accuracy: float) -> None:
        self._write(Evaluated(self._time, step, loss, {"accuracy": accuracy}))

    def save(self, step: int, *, final: bool = False) -> None:
        files = {
            ADAPTER_WEIGHTS: f"weights of step {step}".encode(),
            ADAPTER_CONFIG: b"{}",
            STATEMENT_FILE: json.dumps({"step": step}).encode(),
            STATEMENT_PAGE: b"# Privacy statement of triage\n",
            "optimizer.safetensors": b"SECRET",
        }
        name = "final" if final else f"step-{step:06d}"
        digest = self._store.write(name, files)
        uri = self._store.uri(name)
        state = self._ledger.record_checkpoint(PublishedCheckpoint(step, 1, uri, digest, "sha256:0", final))
        self._write(Saved(self._time, step, uri, digest, final, state.steps_charged))

    def end(self, reason: Reason, attempt: int = 1) -> None:
        self._write(Ended(self._time, attempt, reason.value, ""))
        self._ledger.close()

    def kill(self) -> None:
        """End without a word, as a killed process does."""
        self._ledger.close()

    def _write(self, record: Any) -> None:
        log = RunLog(self.directory / RUN_LOG)
        log.write(record)
        log.close()


def crashed_and_finished(directory: Path, **privacy: Any) -> RecordedRun:
    """A run of 20 steps that crashed after step 12, when 13 were charged, and resumed at 10: 22 taken, 23 charged."""
    run = RecordedRun(directory, **privacy)
    run.start(1, 1, 0)
    run.take_steps(1, 5)
    run.evaluate(5, 0.69, 0.5)
    run.take_steps(6, 10)
    run.evaluate(10, 0.60, 0.6)
    run.save(10)
    run.take_steps(11, 12)
    run.charge()
    run.start(1, 2, 10)
    run.take_steps(11, 15)
    run.evaluate(15, 0.5, 0.7)
    run.take_steps(16, 20)
    run.evaluate(20, 0.4, 0.8)
    run.save(20, final=True)
    run.end(Reason.COMPLETED)
    return run
