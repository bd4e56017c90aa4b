"""Runs the audit of one job on this machine, and compares what it finds with the job's claim.

    choose the number of guesses ─► run the steps with canaries in a worker group ─► scores ─► bounds ─► verdict

In: a job with its plan. Out: an `AuditResult`. Nothing that is computed here depends on the records of the job, except
the scores of an audit with records, which are noised sums.
"""

from __future__ import annotations

import functools
import math
import secrets
import tempfile
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tensafe_api.accounting import composition
from tensafe_api.manifest.text import dump_manifest
from tensafe_api.resolve import Plan, ledger_spec
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.canary_audit.canaries import Scores
from tensorguard.canary_audit.expectation import ClaimedSteps, Expectation, choose_guesses, expect
from tensorguard.canary_audit.lower_bound import Guesses, GuessPlan, guess, noise_at_most
from tensorguard.canary_audit.ranks import SCORES, AuditSize, run_rank_with_records, run_rank_without_records
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local import driver
from tensorguard.runners.local.ray_cluster import local_ray
from tensorguard.runners.preflight import check_local_resources, cpus_per_rank, cpus_per_worker
from tensorguard.runners.run_folder import RAY_TRAIN_FOLDER, write_owner_only
from tensorguard.runners.worker_group import WorkerGroup, run_workers
from tensorguard.signing.keys import identity_in_environment
from tensorguard.training.config import WorkerConfig
from tensorguard.training.run_log import Listener
from tensorguard.training.stop_signal import StopSignal

NOISE_SIGNIFICANCE = 1e-6
"""Probability with which an audit of the claimed noise finds it too small. The noise bound is close to the claim, so a
larger one would refute too many jobs that keep theirs. A one-run bound is far below the claim of such a job."""


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        claimed: the audited steps, as the ledger accounts them.
        scores: of the canaries.
        plan: how many guesses were planned.
        guesses: the attack's guesses.
        one_run: the one-run bound of ε.
        expectation: which one-run bound to expect.
        sigma_at_most: the upper bound of σ, from the scores of the canaries that are out.
        noise_bound: the ε of the audited steps with noise of `sigma_at_most`: a lower bound if the noise is Gaussian.
    """

    claimed: ClaimedSteps
    scores: Scores
    plan: GuessPlan
    guesses: Guesses
    one_run: float
    expectation: Expectation
    sigma_at_most: float
    noise_bound: float

    @property
    def refuted_by_guesses(self) -> bool:
        return self.one_run > self.claimed.epsilon

    @property
    def refuted_by_noise(self) -> bool:
        return self.sigma_at_most < self.claimed.noise_multiplier

    @property
    def refuted(self) -> bool:
        """Whether a lower bound exceeds the claim: the steps are less private than the ledger accounts them."""
        return self.refuted_by_guesses or self.refuted_by_noise


class AuditFailed(RuntimeError):
    """The audit did not end, so it has no result. `str()` is a sentence; `exit_code` is that of `tensafe run`."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Audit:
    """An audit of `plan`: its size and the number of guesses are fixed before anything runs."""

    plan: Plan
    size: AuditSize
    guesses: GuessPlan
    significance: float

    @classmethod
    def of(cls, plan: Plan, size: AuditSize, significance: float, guesses: GuessPlan | None = None) -> Audit:
        """The audit of `plan`, with the best number of guesses where none is given."""
        chosen = guesses or choose_guesses(claimed_steps(plan, size.steps), size.canaries, significance)
        return cls(plan, size, chosen, significance)

    @property
    def claimed(self) -> ClaimedSteps:
        """The steps under audit."""
        return claimed_steps(self.plan, self.size.steps)

    @functools.cached_property
    def expectation(self) -> Expectation:
        """The one-run bound to expect."""
        return expect(self.claimed, self.size.canaries, self.guesses, self.significance)

    def judge(self, scores: Scores) -> AuditResult:
        """The bounds that the scores prove, beside the claim."""
        guesses = guess(scores.scores, scores.included, self.guesses)
        sigma_at_most = noise_at_most(scores.scores[~scores.included], scores.steps, NOISE_SIGNIFICANCE)
        return AuditResult(
            claimed=self.claimed,
            scores=scores,
            plan=self.guesses,
            guesses=guesses,
            one_run=guesses.lower_bound(self.claimed.delta, self.significance),
            expectation=self.expectation,
            sigma_at_most=sigma_at_most,
            noise_bound=self._epsilon_with(sigma_at_most),
        )

    def _epsilon_with(self, sigma: float) -> float:
        """The ε of the audited steps with noise of another σ."""
        if math.isinf(sigma):
            return 0.0
        try:
            return composition.epsilon(
                sample_rate=self.claimed.sample_rate,
                noise_multiplier=sigma,
                steps=self.claimed.steps,
                delta=self.claimed.delta,
                accountant=self.plan.accountant,
            )
        except (OverflowError, ZeroDivisionError, ValueError):  # almost no noise
            return math.inf


def claimed_steps(plan: Plan, steps: int) -> ClaimedSteps:
    """The first `steps` steps of `plan`, without those of earlier trainings, which no audit of these steps can see."""
    mechanism = plan.mechanism.model_copy(update={"earlier_steps": ()})
    return ClaimedSteps(
        sample_rate=float(mechanism.sample_rate),
        noise_multiplier=float(mechanism.noise_multiplier),
        steps=steps,
        delta=composition.job_delta(plan.delta),
        epsilon=composition.job_epsilon(mechanism, steps, plan.delta, plan.accountant),
    )


def scores_without_records(job: TenSafeTrainingJob, plan: Plan, size: AuditSize) -> Scores:
    """Run the audit of `job` without its records, in a worker group on this machine. Nothing is left behind.

    Args:
        job: with all defaults.

    Raises:
        RunRefused: this machine has too few CPUs or GPUs.
        Exception: whatever the workers raise.
    """
    check_local_resources(job)
    with tempfile.TemporaryDirectory(prefix="tensafe-audit-") as name:
        config = temporary_config(job, plan, Path(name))
        cpus = math.ceil(job.spec.cluster.workers * cpus_per_worker(job))
        gpus = job.spec.cluster.workers * job.spec.cluster.worker.gpus
        group = replace(WorkerGroup.of(job), max_restarts=0)
        with local_ray(Path(name), cpus=cpus, gpus=gpus):
            function = partial(run_rank_without_records, size=size)
            run_workers(function, config.pack(), group, Path(name) / RAY_TRAIN_FOLDER)
        return Scores.load(Path(name) / SCORES)


def temporary_config(job: TenSafeTrainingJob, plan: Plan, directory: Path) -> WorkerConfig:
    """The parameters of workers without records, with a new ledger and a new job key in `directory`."""
    uid = str(uuid.uuid4())
    FileLedger.create(directory, ledger_spec(job, plan, uid))
    write_owner_only(directory / "job.key", secrets.token_bytes(32))
    return WorkerConfig(
        job=dump_manifest(job, format="json"),
        job_uid=uid,
        attempt=1,
        place="OneMachine",
        run_directory=str(directory),
        private_directory=str(directory),
        key_file=str(directory / "job.key"),
        shards=(),
        evaluation=None,
        dataset_digest="",
        threads=max(1, int(cpus_per_rank(job))),
    )


def scores_with_records(
    job: TenSafeTrainingJob,
    size: AuditSize,
    *,
    output_dir: Path,
    base_dir: Path,
    listener: Listener,
    stop: StopSignal,
) -> Scores:
    """Run the audit of `job` on its records. The ledger in `output_dir` is charged for each step.

    No adapter is written.

    Args:
        job: as loaded from the manifest.
        output_dir: the folder of the audit's ledger, as that of a run.
        base_dir: the folder to which relative paths in the manifest refer.

    Raises:
        RunRefused: the run cannot start as requested; nothing was changed or spent.
        AuditFailed: the run ended before its last step. The charged steps stay charged.
    """
    unused = output_dir / "checkpoints"
    checkpoint = job.spec.checkpoint.model_copy(update={"uri": str(unused), "signing": None, "encryption": None})
    retry = job.spec.retry.model_copy(update={"max_restarts": 0})  # scores of a second incarnation would lack steps
    spec = job.spec.model_copy(update={"checkpoint": checkpoint, "evaluation": None, "retry": retry})
    result = driver.run(
        job.model_copy(update={"spec": spec}),
        output_dir=output_dir,
        base_dir=base_dir,
        resume=False,
        listener=listener,
        stop=stop,
        address="local",
        identity=identity_in_environment(),  # of the adapter that the job may start from
        rank_function=partial(run_rank_with_records, size=size),
    )
    if unused.is_dir() and not any(unused.iterdir()):
        unused.rmdir()
    if not (output_dir / SCORES).exists():
        status = result.job.status
        conditions = status.conditions if status else []
        sentence = next((each.message for each in conditions if each.message), "it ended without a reason")
        raise AuditFailed(f"{sentence}; charged steps stay charged", result.exit_code)
    return Scores.load(output_dir / SCORES)
