"""Reads what a run has to send: from its folder, also while it runs, or from the status of a job in a cluster.

Out come `Point`s, published checkpoints, and how the run stands. Both classes have the same methods. Every ε is
computed from the charges of the ledger, or copied from a status that was.

On a tracker's axis, steps never fall: a step that runs again after a crash counts again, so its figures follow those of
its first run. Its `global_step` shows the fall, and ε rises. The status of a job keeps one evaluation for each step of
the plan, and no order in time. There the axis is the step of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Claim, Plan, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.timestamps import parse_time
from tensorguard.ledger.contract import LedgerCorrupt, LedgerMissing, LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local.earlier_run import MANIFEST
from tensorguard.runners.run_folder import is_run_locked
from tensorguard.trackers.attachments import Checkpoint
from tensorguard.trackers.figures import (
    PLD_FIGURES,
    Point,
    evaluation_figures,
    privacy_figures,
    progress_figures,
    public_time,
)
from tensorguard.trackers.tracker import Outcome
from tensorguard.training.config import RUN_LOG
from tensorguard.training.rollback_check import check_same_job
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, RunLogReader, Saved, Started, Stepped

_OUTCOMES = {
    Phase.SUCCEEDED: Outcome.FINISHED,
    Phase.BUDGET_EXHAUSTED: Outcome.FINISHED,
    Phase.SUSPENDED: Outcome.STOPPED,
    Phase.FAILED: Outcome.FAILED,
}


class History(Protocol):
    """What a run has to send. `job` has all defaults filled in."""

    job: TenSafeTrainingJob
    plan: Plan

    def new_points(self) -> Sequence[Point]:
        """The points since the last call."""
        ...

    def new_checkpoints(self) -> Sequence[Checkpoint]:
        """The published checkpoints since the last call, oldest first."""
        ...

    def outcome(self) -> Outcome:
        """How the run stands now."""
        ...

    def closing_point(self) -> Point | None:
        """The privacy figures of all charged steps; None where no step was charged."""
        ...


class RunFolder:
    """The folder of a run on this machine, which may still be running."""

    def __init__(self, directory: Path) -> None:
        """Read the manifest in the folder.

        Raises:
            ManifestError: there is none, or it is not valid.
        """
        self.job, self.plan = resolve_job(load_manifest(directory / MANIFEST))
        self._directory = directory
        self._log = RunLogReader(directory / RUN_LOG)
        self._progress = progress_figures(self.job, self.plan)
        self._claim: Claim | None = None
        self._ended: Ended | None = None
        self._checkpoints: list[Checkpoint] = []
        self._number = self._steps_taken = self._charged = self._charged_shown = 0
        self._time = 0.0

    def new_points(self) -> Sequence[Point]:
        points = []
        for record in self._log.read():
            self._number, self._time = self._number + 1, public_time(record.time)
            if figures := self._figures_of(record):
                points.append(Point(self._number, self._steps_taken, self._time, figures))
        return points

    def new_checkpoints(self) -> Sequence[Checkpoint]:
        found, self._checkpoints = self._checkpoints, []
        return found

    def outcome(self) -> Outcome:
        if is_run_locked(self._directory):
            return Outcome.RUNNING
        if self._ended is None:  # the process was killed before it could log its end
            return Outcome.FAILED
        return _OUTCOMES[Reason(self._ended.reason).phase]

    def closing_point(self) -> Point | None:
        """The ledger counts: it may have charged a step that the log does not have, because a crash followed.

        Raises:
            LedgerError: the ledger was edited, is that of another run or is missing, so the ε of the run is not known.
        """
        try:
            ledger = self._read_ledger()
        except LedgerMissing:
            if self._charged:
                raise
            return None
        if ledger.steps_charged < self._charged:
            raise LedgerCorrupt(
                f"the ledger in {self._directory} has {ledger.steps_charged} charged steps, but {RUN_LOG} records "
                f"{self._charged}: restore the latest ledger, since what was spent stays spent"
            )
        if not ledger.steps_charged:
            return None
        figures = privacy_figures(Claim.of(ledger.spec), ledger.steps_charged)
        return Point(self._number, self._steps_taken, self._time, figures)

    def _read_ledger(self) -> LedgerState:
        state = FileLedger(self._directory).read()
        check_same_job(state, ledger_spec(self.job, self.plan, self.job.metadata.uid or ""))
        return state

    def _figures_of(self, record: LogRecord) -> dict[str, float]:
        match record:
            case Started():
                self._ended = None
            case Ended():
                self._ended = record
            case Stepped():
                self._steps_taken += 1
                return self._progress(record.step) | self._privacy_figures(record.charged)
            case Evaluated():
                return evaluation_figures(record)
            case Saved():
                self._charged = max(self._charged, record.charged)
                self._checkpoints.append(Checkpoint(record.step, record.uri, record.digest, record.final))
        return {}

    def _privacy_figures(self, charged: int) -> dict[str, float]:
        """The privacy figures where they have changed; with PLD, which is slow, only at some of the steps."""
        self._charged = max(self._charged, charged)
        apart = 1 if self.plan.accountant == "RDP" else max(1, self.plan.steps // PLD_FIGURES)
        if self._charged < self._charged_shown + apart:
            return {}
        if self._claim is None:
            self._claim = Claim.of(self._read_ledger().spec)
        self._charged_shown = self._charged
        return privacy_figures(self._claim, self._charged)


class JobStatus:
    """A job with its status, as `kubectl get tsj NAME -o yaml` and `tensafe run` print it."""

    def __init__(self, job: TenSafeTrainingJob) -> None:
        """Resolve the job.

        Raises:
            ManifestError: the manifest does not resolve.
            ValueError: the job has no status, or no uid.
        """
        if job.status is None or job.metadata.uid is None:
            raise ValueError("the job has no status: pass the output of `kubectl get tsj NAME -o yaml`")
        self.job, self.plan = resolve_job(_with_claim_of_status(job))
        self._status = job.status
        self._progress = progress_figures(self.job, self.plan)
        self._read = False
        self._time = public_time(parse_time(job.status.progress.last_update_time) or 0.0)

    def new_points(self) -> Sequence[Point]:
        if self._read:
            return ()
        self._read = True
        points = []
        for result in sorted(self._status.evaluations, key=lambda each: each.step):
            measured = {"eval_loss": result.loss, **{f"eval_{name}": value for name, value in result.metrics().items()}}
            figures = self._progress(result.step) | {key: float(value) for key, value in measured.items()}
            points.append(Point(result.step, result.step, self._time, figures))
        return points

    def new_checkpoints(self) -> Sequence[Checkpoint]:
        final = self._status.final_model
        if final is None:
            return ()
        return (Checkpoint(self._status.progress.step or 0, final.uri, final.digest, final=True),)

    def outcome(self) -> Outcome:
        phase = self._status.phase
        return _OUTCOMES.get(Phase(phase), Outcome.RUNNING) if phase else Outcome.RUNNING

    def closing_point(self) -> Point | None:
        """The figures of the status itself, which the operator computed from the ledger's charges."""
        privacy, step = self._status.privacy, self._status.progress.step or 0
        if not privacy.steps_charged or privacy.epsilon_spent is None or privacy.epsilon_claimed is None:
            return None
        figures = {
            "dp_epsilon_spent": float(privacy.epsilon_spent),
            "dp_steps_charged": privacy.steps_charged,
            "dp_epsilon": float(privacy.epsilon_claimed),
            "dp_steps_claimed": self.plan.claimed_steps(privacy.steps_charged),
        }
        return Point(step, step, self._time, self._progress(step) | figures)


def _with_claim_of_status(job: TenSafeTrainingJob) -> TenSafeTrainingJob:
    """The job with the accountant and σ of its ledger: another version might have other defaults."""
    claim = job.status.privacy if job.status else None
    if claim is None or claim.noise_multiplier is None:
        return job
    values = {"noise_multiplier": claim.noise_multiplier, "accountant": claim.accountant}
    privacy = job.spec.privacy.model_copy(update=values)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"privacy": privacy})})
