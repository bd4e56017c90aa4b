"""`TenSafeTrainer.fit`: the local runner behind `tensafe run`, called from Python; `inspect` is `tensafe inspect`.

In: a configuration, callbacks, and data in memory. `_manifests` makes a `TenSafeTrainingJob` of them, and
`tensorguard.runners.local.driver` trains it in worker processes. Out: a result, or an exception, made from the job's
final status. Callbacks run on the caller's thread. Nothing about privacy is decided here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensafe_api.accounting.composition import job_epsilon
from tensafe_api.manifest.text import ManifestError
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resolve import Plan, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.status import Status
from tensafe_api.tasks import METRICS
from tensorguard.data.errors import DataError
from tensorguard.distributed._audit import AuditLogCopy
from tensorguard.distributed._callbacks import TenSafeCallback
from tensorguard.distributed._checkpoints import TSSPCheckpointCallback
from tensorguard.distributed._config import INTERNAL, TenSafeTrainingConfig
from tensorguard.distributed._datasets import check_kind, in_memory, uri_of
from tensorguard.distributed._dispatch import CallbackDispatcher
from tensorguard.distributed._errors import (
    ConfigurationError,
    PrivacyBudgetExceeded,
    RayTimeoutError,
    TrainingFailed,
    with_python_names,
)
from tensorguard.distributed._hooks import hooks_of
from tensorguard.distributed._manifests import build_job, run_folder
from tensorguard.distributed._progress_log import log_record, report_plan, visible_logs
from tensorguard.distributed._resume import check_resumes
from tensorguard.distributed._signals import StopOnSignal
from tensorguard.inspection.inspection import Inspection
from tensorguard.inspection.job import inspect_job
from tensorguard.ledger.contract import LedgerMissing
from tensorguard.ledger.file import FileLedger
from tensorguard.models.source import ModelNotFoundError
from tensorguard.models.unsupported import UnsupportedModelError
from tensorguard.runners.local import driver
from tensorguard.runners.local.data_preparation import InMemoryData
from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.runners.preflight import RunRefused, with_absolute_paths
from tensorguard.signing.base import PKCS11_SCHEME, SIGSTORE_SCHEME
from tensorguard.signing.keys import SIGNING_KEY_VARIABLE, identity_in_environment
from tensorguard.training.config import RUN_LOG
from tensorguard.training.private_metrics import PrivateMetricsReader
from tensorguard.training.rollback_check import check_charged
from tensorguard.training.run_log import LogRecord, Saved, Stepped, steps_charged_in
from tensorguard.training.stop_signal import StopSignal

_CONFIGURATION_FAULTS = {
    Reason.CHECKPOINT_UNWRITABLE,
    Reason.DATASET_UNREADABLE,
    Reason.DATASET_UNSUITABLE,
    Reason.GRID_OVERFLOW,
    Reason.INVALID_MANIFEST,
    Reason.MODEL_UNAVAILABLE,
    Reason.MODEL_UNSUPPORTED,
}
"""Reasons that name a field to change, where no step was charged."""


@dataclass(frozen=True)
class TenSafeResult:
    """The result of a training.

    Attributes:
        job: the job with its status, as `tensafe run` prints it (`tensafe_api.manifest.text.dump_manifest`).
        metrics: dp_epsilon (the ε to sign off, of steps_claimed steps) and dp_epsilon_spent (of steps_charged steps),
            both rounded up; dp_delta, noise_multiplier, sample_rate, steps, total_steps; best_eval_loss and
            final_eval_loss, which are None if nothing was evaluated; best_eval_accuracy and best_eval_f1, which are
            None if the task does not have that metric.
        checkpoint: path or URI of the final adapter, else of the last saved one, else None.
        output_dir: the run's folder.
    """

    job: TenSafeTrainingJob
    metrics: dict[str, float | int | None]
    checkpoint: str | None
    output_dir: Path

    @property
    def phase(self) -> str:
        """How the training ended.

        Succeeded; BudgetExhausted if the budget ended before the planned steps; Suspended after `trainer.stop()`.
        """
        return _status(self.job).phase or Phase.FAILED.value


class TenSafeTrainer:
    """Trains a LoRA adapter under differential privacy.

    Attributes:
        config: the configuration that was passed, with what a TSSPCheckpointCallback asks for.
        step: steps done, as reported to the callbacks; 0 before the first.

    Raises:
        ConfigurationError: `config` is no configuration, or a method of a callback has arguments that it would not be
            given.
    """

    def __init__(self, config: TenSafeTrainingConfig, callbacks: Sequence[TenSafeCallback] = ()) -> None:
        if not isinstance(config, TenSafeTrainingConfig):
            raise ConfigurationError(
                f"config: a {type(config).__name__}, but a TenSafeTrainingConfig is needed: write "
                "TenSafeTrainer(TenSafeTrainingConfig(model_name=..., dp_config=...))"
            )
        self._hooks = hooks_of(callbacks, internal=config.private_metrics == INTERNAL)
        for callback in callbacks:
            if isinstance(callback, TSSPCheckpointCallback):
                config = callback.configure(config)
        self.config = config
        self.step = 0
        self._plan: Plan | None = None
        self._output_dir = Path()
        self._charged = 0
        """The highest number of charged steps that the run has logged: the ledger never has fewer."""
        self._stop: StopSignal | None = None

    def fit(
        self, train_dataset: Any, eval_dataset: Any = None, resume_from_checkpoint: str | Path | bool | None = None
    ) -> TenSafeResult:
        """Train, and return when the training has ended.

        Args:
            train_dataset: the private data: a Ray, Hugging Face or torch data set, a pandas DataFrame, or a list. Its
                records are dicts, or tuples whose positions `columns` names. Or the path or URI of files, as in a
                manifest; then `columns` and `unit_at_least` must be set.
            eval_dataset: a *public* data set with the same columns. What is measured on it is shown, and costs no ε.
                That it is public is your word. A set is refused if most of its records are in train_dataset.
            resume_from_checkpoint: resume an earlier run: its checkpoint_dir, its output_dir, its newest checkpoint, or
                True for the run in this configuration's folders. The configuration and the data must be those of that
                run.

        Raises:
            ConfigurationError: the training cannot start with this configuration; nothing was spent.
            RayTimeoutError: Ray had no resources for the workers within `ray_timeout`.
            PrivacyBudgetExceeded: the next step would have passed target_epsilon, and stop_on_budget_exceeded is False.
            TrainingFailed: the training started, and failed.
            KeyboardInterrupt: after Ctrl-C, once a checkpoint is saved.
            Exception: whatever a callback or a logging handler raised, once a checkpoint is saved.
        """
        _check_datasets(train_dataset, eval_dataset)
        eval_uri = uri_of(eval_dataset)
        job = build_job(self.config, train_dataset, evaluates=eval_dataset is not None, eval_uri=eval_uri)
        output_dir = run_folder(self.config)
        resume = resume_from_checkpoint is not None and resume_from_checkpoint is not False
        if resume and resume_from_checkpoint is not True:
            check_resumes(job, output_dir, str(resume_from_checkpoint))
        try:
            completed, plan = resolve_job(job)
        except ManifestError as error:
            raise ConfigurationError(with_python_names(str(error))) from None
        self._plan, self._stop, self._output_dir, self.step = plan, StopSignal(), output_dir, 0
        self._charged = steps_charged_in(output_dir / RUN_LOG)
        internal = self.config.private_metrics == INTERNAL
        private_folder = PrivateFolder.of(output_dir, job.spec.checkpoint.uri).path
        private_metrics = PrivateMetricsReader(private_folder, plan.mechanism.workers) if internal else None
        dispatcher = CallbackDispatcher(self, self._hooks, completed, plan, self._stop, private_metrics, self._spent)
        audit = AuditLogCopy(output_dir) if self.config.enable_audit_logging else None
        listener = _Listener(self, dispatcher, audit)
        with visible_logs(), StopOnSignal(self._stop) as signals:
            report_plan(self.config, completed, plan)
            try:
                finished = driver.run(
                    job,
                    output_dir=output_dir,
                    base_dir=Path.cwd(),
                    resume=resume,
                    listener=listener.listen,
                    stop=self._stop,
                    data=InMemoryData(in_memory(train_dataset), in_memory(eval_dataset)),
                    timeout=self.config.ray_timeout,
                    admitted=listener.begin,
                    signing_key=self._signing_key(),
                    identity=self._identity(),
                ).job
                listener.write_logs(None)
            except (ManifestError, RunRefused) as error:
                raise ConfigurationError(with_python_names(str(error))) from error
            dispatcher.end()
        note = _end_note(finished, output_dir)
        signals.pass_on(note)
        if dispatcher.error is not None:
            dispatcher.error.add_note(note)
            raise dispatcher.error
        _raise_failure(finished, output_dir)
        return TenSafeResult(finished, _metrics(finished), _checkpoint(finished), output_dir)

    def inspect(self, train_dataset: Any, eval_dataset: Any = None, *, show_records: bool = False) -> Inspection:
        """Count what `fit` would train, without training or spending anything. The result is private.

        The data is read in this process; the model's weights are not. What `fit` would refuse in the data is in
        `refusals` of the result, and everything else is counted nevertheless.

        Args:
            train_dataset: as for `fit`.
            eval_dataset: as for `fit`.
            show_records: whether the result has content: three records with the tokens that are learned, ids that look
                alike, and labels that are no class.

        Raises:
            ConfigurationError: the configuration is invalid, or the model's tokenizer cannot be loaded.
        """
        _check_datasets(train_dataset, eval_dataset)
        eval_uri = uri_of(eval_dataset)
        job = build_job(self.config, train_dataset, evaluates=eval_dataset is not None, eval_uri=eval_uri)
        try:
            found = inspect_job(
                with_absolute_paths(resolve_job(job)[0], Path.cwd()),
                train=in_memory(train_dataset),
                evaluation=in_memory(eval_dataset),
                show_records=show_records,
            )
        except (ManifestError, DataError, ModelNotFoundError, UnsupportedModelError) as error:
            raise ConfigurationError(with_python_names(str(error))) from None
        named = (replace(each, field=with_python_names(each.field)) for each in found.suggestions)
        return replace(found, suggestions=tuple(named), refusals=tuple(map(with_python_names, found.refusals)))

    def _signing_key(self) -> str | Path | None:
        """What signs the checkpoints: the file of a key, or where another one is (`key_location`); None without one."""
        key = self.config.signing_key or os.environ.get(SIGNING_KEY_VARIABLE)
        if not key or str(key).startswith((PKCS11_SCHEME, SIGSTORE_SCHEME)):
            return key or None
        return Path(key).expanduser().absolute()

    def _identity(self) -> Path | None:
        """The file of the identity that decrypts an earlier checkpoint; None without one."""
        given = self.config.identity
        return Path(given).expanduser().absolute() if given else identity_in_environment()

    def stop(self) -> None:
        """Request a checkpoint and the end of the training; `fit` then returns. For callbacks and other threads.

        The steps that are charged already are finished first, about ten seconds of work, so a resume repeats none.
        """
        if self._stop is None:
            raise ConfigurationError("stop: no training is running: call fit first")
        self._stop.request(after_charged_steps=True)

    def __getattr__(self, name: str) -> Any:
        """Explain `train_step` of the Ray Train guide, which is not offered."""
        if name == "train_step":
            raise AttributeError(
                "train_step is not offered: each step draws its own random batch, as the accounting assumes; call fit. "
                "For a loop of your own, DistributedRDPAccountant.step counts each step"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def total_steps(self) -> int:
        """Steps of the plan; 0 before `fit`."""
        return self._plan.steps if self._plan else 0

    @property
    def epsilon_spent(self) -> float:
        """ε of all steps that the ledger has charged so far, including those of earlier runs that were resumed.

        A step is charged before it runs, so this ε is never too small.

        Raises:
            LedgerCorrupt: the ledger has fewer charged steps than the run has logged.
        """
        return self._spent()[1]

    def _spent(self) -> tuple[int, float]:
        """The number of steps that the ledger has charged so far, and their ε. Raises as `epsilon_spent`."""
        if self._plan is None:
            return 0, 0.0
        try:
            state = FileLedger(self._output_dir).read()
        except LedgerMissing:
            return 0, 0.0
        check_charged(state, self._charged, self._output_dir / RUN_LOG)
        # By the ledger's own figures: the ledger may belong to a run that this configuration was refused to resume.
        return state.steps_charged, job_epsilon(
            state.spec.mechanism, state.steps_charged, state.spec.delta, state.spec.accountant
        )


class _Listener:
    """Passes the log records of a run to the program's logs and to the callbacks, and keeps the trainer's figures."""

    def __init__(self, trainer: TenSafeTrainer, dispatcher: CallbackDispatcher, audit: AuditLogCopy | None) -> None:
        self._trainer, self._dispatcher, self._audit = trainer, dispatcher, audit

    def begin(self) -> None:
        """The run was admitted, and starts."""
        if self._audit is not None:
            self._audit.start()
        self._dispatcher.begin()

    def listen(self, event: LogRecord) -> None:
        if isinstance(event, Stepped):
            self._trainer.step = event.step
        if isinstance(event, Stepped | Saved):
            self._trainer._charged = max(self._trainer._charged, event.charged)
        self.write_logs(event)
        self._dispatcher.dispatch(event)

    def write_logs(self, event: LogRecord | None) -> None:
        """Log a record, if there is one, and what is new in the audit log."""
        try:
            if event is not None:
                log_record(event)
            if self._audit is not None:
                self._audit.log_new()
        except Exception as error:  # of a handler that the program has configured
            self._dispatcher.fail(error)


def _check_datasets(train_dataset: Any, eval_dataset: Any) -> None:
    """Refuse data sets that are missing, of a kind that is none, or the same."""
    if train_dataset is None:
        raise ConfigurationError("train_dataset: missing: pass the private data, or the path or URI of its files")
    if eval_dataset is train_dataset:
        raise ConfigurationError(
            "eval_dataset: it is train_dataset, so exact losses of the private data would be shown: "
            "pass a public data set, or leave eval_dataset out"
        )
    check_kind(eval_dataset, "eval_dataset")


def _raise_failure(job: TenSafeTrainingJob, output_dir: Path) -> None:
    status = _status(job)
    if status.phase != Phase.FAILED:
        return
    attempt = status.attempts[-1]
    message = with_python_names(attempt.message or "the training failed without a reason")
    if attempt.reason == Reason.PRIVACY_BUDGET_EXCEEDED:
        raise PrivacyBudgetExceeded(message, job)
    if attempt.reason == Reason.RESOURCES_MISSING:
        raise RayTimeoutError(message)
    if attempt.reason in _CONFIGURATION_FAULTS and status.privacy.steps_charged == 0:
        raise ConfigurationError(message)
    failure = TrainingFailed(f"{attempt.reason}: {message}", job)
    if (private := PrivateFolder.of(output_dir, job.spec.checkpoint.uri).path).exists():
        failure.add_note(f"the run's private folder is {private}")
    raise failure


def _end_note(job: TenSafeTrainingJob, output_dir: Path) -> str:
    """A note for an exception that the training itself did not cause: how the training ended, and how to resume it."""
    status = _status(job)
    if status.phase != Phase.SUSPENDED:
        return f"the training ended as {status.phase}; its folder is {output_dir}"
    if status.ledger_name is None:
        return "the training stopped before its first step; nothing was spent"
    return (
        f"the training stopped after step {status.progress.step or 0} and saved a checkpoint; resume with "
        f"fit(..., resume_from_checkpoint={str(output_dir)!r})"
    )


def _metrics(job: TenSafeTrainingJob) -> dict[str, float | int | None]:
    status = _status(job)
    privacy, progress = status.privacy, status.progress
    losses = [float(evaluation.loss) for evaluation in status.evaluations]
    measured = [evaluation.metrics() for evaluation in status.evaluations]
    best = {name: max((float(each[name]) for each in measured if name in each), default=None) for name in METRICS}
    return {
        "dp_epsilon": _float(privacy.epsilon_claimed),
        "dp_epsilon_spent": _float(privacy.epsilon_spent),
        "steps_claimed": privacy.steps_claimed,
        "steps_charged": privacy.steps_charged,
        "dp_delta": _float(privacy.delta),
        "noise_multiplier": _float(privacy.noise_multiplier),
        "sample_rate": _float(privacy.sample_rate),
        "steps": progress.step,
        "total_steps": progress.total_steps,
        "best_eval_loss": min(losses, default=None),
        "final_eval_loss": losses[-1] if losses else None,
        **{f"best_eval_{name}": value for name, value in best.items()},
    }


def _checkpoint(job: TenSafeTrainingJob) -> str | None:
    status = _status(job)
    uris = [status.final_model.uri] if status.final_model else [record.uri for record in status.checkpoints]
    return uris[-1].removeprefix("file://") if uris else None


def _status(job: TenSafeTrainingJob) -> Status:
    return job.status or Status()


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)
