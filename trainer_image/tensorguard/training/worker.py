"""Trains one rank of one attempt, from a new process to the last checkpoint.

In comes a `WorkerConfig` and a channel to the other ranks; out go checkpoints, charges in the ledger, and log records.
Whatever can fail in the same way again is set up first, and all ranks agree on the result (`set_up`,
`acquire_ledger`). Steps follow until the plan is done, the budget is exhausted, or a stop is requested.

The process may be killed at any point. The ledger was charged for every step that was revealed, and the next
incarnation resumes from the newest checkpoint that the ledger recorded.

The module needs no Ray: `runners.worker_group` calls it under Ray Train, tests call it without.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from tensafe_api.job_status import evaluation_result, progress_at
from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import Outcome
from tensafe_api.resources.status import Progress
from tensafe_api.statement.contents import canonical_json
from tensorguard.aggregation.channel import Channel, check_all_reduce_wraps
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.aggregation.session import Session, number_bytes
from tensorguard.checkpoint.encryption import Recipients, check_identity, recipients_of
from tensorguard.data.batches import evaluation_batches, micro_batches
from tensorguard.ledger.backends import JobObject, open_ledger
from tensorguard.ledger.contract import Ledger
from tensorguard.models.adapter import load_adapter_state
from tensorguard.models.bit_equality import use_deterministic_kernels
from tensorguard.models.frozen_prefix import StateRows
from tensorguard.models.tasks import task_of
from tensorguard.signing.base import SigningKey
from tensorguard.signing.keys import read_signing_key
from tensorguard.training.acquisition import NOT_RANK_0, Acquisition, acquire_ledger
from tensorguard.training.audit_trail import AuditTrail
from tensorguard.training.budget_gate import BudgetGate, Verdict
from tensorguard.training.checkpointing import FINAL, Checkpointer, restore_checkpoint
from tensorguard.training.collective_errors import AttemptFailed, describe_error, run_on_all_ranks
from tensorguard.training.config import RUN_LOG, WorkerConfig, append_traceback
from tensorguard.training.evaluation import evaluate_on_all_ranks
from tensorguard.training.initial_adapter import read_initial_adapter
from tensorguard.training.run_log import (
    Ended,
    Evaluated,
    Listener,
    LogRecord,
    Preparing,
    RunLog,
    Saved,
    Started,
    Stepped,
)
from tensorguard.training.setup import set_up
from tensorguard.training.statement_inputs import statement_inputs
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal

SECONDS_BETWEEN_PROGRESS = 5.0
_LONGEST_REASON = 100
"""The size of a message with `StepComponents.why_no_states`, since all ranks send as many bytes."""


def train(config: WorkerConfig, channel: Channel, device: torch.device, listener: Listener | None = None) -> None:
    """Take part in one attempt until it ends. Call on every rank; rank 0 logs how the attempt ended.

    Args:
        listener: on rank 0, called with each record that is written to the run log.

    Raises:
        Exception: an error that a restart may fix, such as a lost peer. An error that would occur again is logged as
            the end of the attempt and is not raised.
    """
    take_part(Worker(config, channel, device, listener))


def take_part(worker: Worker) -> None:
    """Run `worker` from its start to the end of the attempt. Raises as `train` does."""
    try:
        worker.start()
        worker.run_steps()
    except AttemptFailed as failure:
        if failure.__cause__ is not None:
            worker.record_traceback()
        worker.log_end(failure.reason, str(failure))
    except Exception as error:
        worker.record_traceback()
        worker.audit.log_failure(*describe_error(error))
        raise
    finally:
        worker.close()


class Worker:
    """The state of one rank. Call `start`, `run_steps`, `log_end` (after a failure only) and `close`, in this order."""

    def __init__(
        self, config: WorkerConfig, channel: Channel, device: torch.device, listener: Listener | None = None
    ) -> None:
        torch.set_num_threads(config.threads)
        use_deterministic_kernels()
        self.config = config
        self._channel = channel
        self._device = device
        self.audit = AuditTrail.of(config, channel.rank)
        self._ledger = self._open_ledger() if channel.rank == 0 else None
        self._log = RunLog(config.directory / RUN_LOG) if channel.rank == 0 else None
        self._listener = listener
        self._stop = StopSignal.of(config.directory)
        self._job_object = JobObject(config.ledger_location)
        self.private_step: PrivateStep | None = None
        self._step = 0
        self._saved_step = 0
        self._resumed_from_final = False
        self._progress = Progress()
        self._signing_key: SigningKey | None = None
        self._recipients: Recipients | None = None

    def start(self) -> None:
        """Set up the components, acquire the ledger, restore the newest checkpoint, and prepare the aggregation."""
        check_all_reduce_wraps(self._channel)
        rank = self._channel.rank
        components = set_up(self.config, rank, self._device, partial(run_on_all_ranks, self._channel))
        self.components = components
        self._check_same_start()
        self._log_records_at_once()
        self._log_why_no_states()
        self._compute_states()
        acquisition = run_on_all_ranks(self._channel, self._acquire)
        acquisition = Acquisition.unpack(self._channel.all_gather(acquisition.pack())[0])
        session = Session(
            job=self.config.job_uid,
            attempt=self.config.attempt,
            incarnation=acquisition.incarnation,
            workers=self._channel.size,
        )
        run_on_all_ranks(self._channel, lambda: self._restore(acquisition))
        self._acquired_as = (self.config.attempt, acquisition.incarnation)
        self.audit.incarnation = acquisition.incarnation
        self._step = acquisition.step
        self._saved_step = acquisition.step
        self._resumed_from_final = acquisition.checkpoint == FINAL
        mechanism = components.plan.mechanism
        aggregation = AggregationConfig(
            channel=self._channel,
            session=session,
            job_key=self.config.job_key(),
            grid_bits=mechanism.grid_bits,
            verify=components.job.spec.aggregation.verify,
        )
        aggregator = create_aggregator(aggregation)
        self.audit.log_keys(aggregator, self._channel.size)
        self.private_step = PrivateStep(
            aggregator=aggregator,
            budget_gate=BudgetGate(
                self._channel,
                components.plan,
                self._ledger,
                acquisition.step,
                lambda: self._stop.requested or self._job_object.is_suspended(),
            ),
            sampler=components.sampler,
            gradients=components.unit_gradients,
            clipper=components.clipper,
            noise=components.noise,
            noise_stream=components.noise_stream,
            parameters=components.parameters,
            optimizer=components.optimizer,
            learning_rate=components.learning_rate,
            gradient_per_grid_step=float(mechanism.clip) / (mechanism.grid * mechanism.expected_batch_size),
            stop=self._stop,
            keep_private_metrics=self._keep_private_metrics if components.private_metrics is not None else None,
        )
        self._write_record(Started(time.time(), self.config.attempt, acquisition.incarnation, acquisition.step))

    def run_steps(self) -> None:
        """Run steps until the plan is done, the budget is exhausted, or a stop is requested."""
        assert self.private_step is not None
        plan, steps = self.components.plan, self._planned_steps()
        if self._resumed_from_final and self._step < steps:  # it has no optimiser state to train on with
            return self._end_exhausted()
        while self._step < steps:
            verdict = self.private_step.run(self._step)
            if verdict is Verdict.STOP:
                return self._end_interrupted()
            if verdict is Verdict.EXHAUSTED:
                return self._end_exhausted()
            self._step += 1
            self._log_step()
            if self._step % plan.evaluate_every == 0 and self._step < steps:
                self._evaluate()
            if self._step % plan.checkpoint_every == 0 and self._step < steps:
                self._save()
        return self._complete(f"all {steps} steps are done")

    def _planned_steps(self) -> int:
        return self.components.plan.steps

    def _complete(self, message: str) -> None:
        self._finish("Completed", Reason.COMPLETED, message)

    def _log_step(self) -> None:
        assert self.private_step is not None
        self._write_record(Stepped(time.time(), self._step, self.private_step.budget_gate.steps_charged))

    def log_end(self, reason: Reason, message: str) -> None:
        """Log how the attempt ended."""
        self._write_record(Ended(time.time(), self.config.attempt, reason.value, message))
        self.audit.log_failure(reason, message)

    def record_traceback(self) -> None:
        """Write the current exception to the run's private folder.

        Ray may restart the worker group after this, and the traceback would be lost with the process.
        """
        append_traceback(self.config.traceback_file(f"rank{self._channel.rank}"), self.config.attempt)

    def close(self) -> None:
        """Stop the background thread, and close the ledger and the run log."""
        if self.private_step is not None:
            self.private_step.close()
        if self._ledger is not None:
            self._ledger.close()
        if self._log is not None:
            self._log.close()

    def _check_same_start(self) -> None:
        """Check that the workers start from one adapter. Each has read it by itself, and it may have been replaced."""
        initial = self.components.initial
        own = hashlib.sha256(canonical_json(initial.summary if initial else {})).digest()
        if set(self._channel.all_gather(own)) != {own}:
            raise AttemptFailed(
                Reason.CONFIGURATION_CHANGED,
                "spec.lora.initFrom: the workers read different adapters: change no checkpoint while a job starts",
            )

    def _log_records_at_once(self) -> None:
        """Log that workers compute fewer records at once than the manifest asks for, since it makes steps slower."""
        messages = self._channel.all_gather(number_bytes(self.components.records_at_once))
        fewest = min(int.from_bytes(message, "big") for message in messages)
        asked = self.components.job.spec.training.micro_batch_size
        if fewest < asked:
            what = (
                f"Computing {fewest} instead of {asked} records at once: on this machine, a record's gradient would "
                "change with its place among more"
            )
            self._write_record(Preparing(time.time(), what))

    def _log_why_no_states(self) -> None:
        """Log that a worker computes the frozen layers in every step, since it makes steps slower."""
        messages = self._channel.all_gather(self.components.why_no_states.encode().ljust(_LONGEST_REASON))
        if why := max(messages).decode().strip():
            self._write_record(Preparing(time.time(), f"Computing the frozen layers in every step: {why}"))

    def _compute_states(self) -> None:
        """Compute what is frozen for the records of this rank, once. Call on every rank.

        The ranks meet every few seconds, so that none waits long for another. A stop request ends it on all of them:
        no step is computed then, and the run ends as it does between steps.
        """
        parts = self._state_parts()

        def compute_some() -> tuple[bool, bool]:
            end = time.monotonic() + SECONDS_BETWEEN_PROGRESS
            for _ in parts:
                if self._stop.requested or time.monotonic() > end:
                    return False, self._stop.requested
            return True, self._stop.requested

        while True:
            own = run_on_all_ranks(self._channel, compute_some)
            found = [tuple(each) for each in self._channel.all_gather(bytes(own))]
            if any(stop for _, stop in found):
                return self._stop.request()
            if all(done for done, _ in found):
                return None

    def _state_parts(self) -> Iterator[None]:
        """Compute the states, one micro-batch for each `next`; nothing where every step computes the frozen layers."""
        components = self.components
        if not isinstance(components.form, StateRows):
            return
        form, folder, shard = components.form, Path(self.config.private_directory), components.shard
        rows, size = form.without_states, components.records_at_once
        done, shown = 0, time.monotonic()
        for records in form.fill(shard, micro_batches(shard, range(len(shard)), size=size, form=rows), folder):
            done += records
            if time.monotonic() - shown > SECONDS_BETWEEN_PROGRESS:
                shown = time.monotonic()
                part = done / shard.number_of_records
                self._write_record(Preparing(time.time(), f"Computing the frozen layers once: {part:.0%}"))
            yield
        if components.evaluation is not None and self._is_evaluated():
            batches = evaluation_batches(
                components.evaluation,
                size=components.job.spec.training.micro_batch_size,
                form=rows,
                rank=self._channel.rank,
                workers=self._channel.size,
            )
            for _ in form.fill(components.evaluation, batches, folder):
                yield

    def _open_ledger(self) -> Ledger:
        return self.audit.watch(open_ledger(self.config.directory, self.config.ledger_location))

    def _acquire(self) -> Acquisition:
        if self._ledger is None:
            return NOT_RANK_0
        if self.config.signing_key is not None:
            self._signing_key = read_signing_key(self.config.signing_key)
        file = self.config.recipients_file
        self._recipients = recipients_of(self.components.job, Path(file) if file else None)
        if self._recipients is not None:
            check_identity(self.components.job, self._recipients, self.components.identities)
        return acquire_ledger(self._ledger, self.config, self.components, self._signing_key)

    def _restore(self, acquisition: Acquisition) -> bool:
        """Restore the checkpoint on this rank. Returns True, since `run_on_all_ranks` needs a result."""
        components = self.components
        store, model, optimizer = components.store, components.model, components.optimizer
        if acquisition.checkpoint:
            restore_checkpoint(
                store, acquisition.checkpoint, acquisition.digest, model, optimizer, components.identities
            )
        elif components.initial is not None and components.initial.tensors is None:
            # The ledger records no checkpoint, so the one of this job that exists is not complete.
            mechanism = components.plan.mechanism
            components.initial = read_initial_adapter(
                components.job.spec, mechanism, components.identity, components.identities
            )
            load_adapter_state(model, components.initial.tensors or {})
        return True

    def _keep_private_metrics(self, step: int) -> None:
        components = self.components
        assert components.private_metrics is not None
        components.private_metrics.record_step(step, components.clipper, components.unit_gradients.take_losses())

    def _end_interrupted(self) -> None:
        """Save the steps that were revealed, so that a resume repeats none of them."""
        if self._saved_step != self._step:
            self._save()
        if self._ledger is not None:
            self._ledger.record_outcome("Suspended")
        self.log_end(Reason.INTERRUPTED, f"stopped on request after step {self._step} of {self.components.plan.steps}")

    def _end_exhausted(self) -> None:
        """End before the step that would exceed the target: with a final checkpoint, or as a failure.

        `spec.privacy.onBudgetExhausted` decides which.
        """
        plan = self.components.plan
        message = (
            f"step {self._step + 1} of {plan.steps} would exceed spec.privacy.targetEpsilon ({plan.target_epsilon:g})"
        )
        if self.components.job.spec.privacy.on_budget_exhausted == "Fail":
            return self.log_end(Reason.PRIVACY_BUDGET_EXCEEDED, message)
        return self._finish("BudgetExhausted", Reason.BUDGET_EXHAUSTED, message)

    def _finish(self, outcome: Outcome, reason: Reason, message: str) -> None:
        """Write the final checkpoint, then record in the ledger that no step follows.

        An earlier incarnation may have been killed between the two. Then its final checkpoint stays: the ledger has
        its digest, and a second one under the same name would not match it until the ledger records that one as well.
        """
        if not (self._resumed_from_final and self._saved_step == self._step):
            self._evaluate()
            self._save(final=True)
        if self._ledger is not None:
            self._ledger.record_outcome(outcome)
        self.log_end(reason, message)

    def _is_evaluated(self) -> bool:
        """Whether the evaluation set is used: the result on a private one is kept in the private metrics only."""
        evaluation = self.components.job.spec.evaluation
        return evaluation is not None and (
            evaluation.visibility == "Public" or self.components.private_metrics is not None
        )

    def _evaluate(self) -> None:
        """Evaluate on the evaluation set.

        The result on a public set goes to the run log, that on a private set to the private metrics only, where the
        job keeps them.
        """
        components = self.components
        evaluation = components.job.spec.evaluation
        if components.evaluation is None or evaluation is None or not self._is_evaluated():
            return
        assert self.private_step is not None
        self.audit.log_evaluation(self._step, evaluation.visibility)
        training = components.job.spec.training
        loss, metrics = evaluate_on_all_ranks(
            self._channel,
            components.evaluation,
            components.model,
            task=task_of(components.job.spec),
            batch_size=training.micro_batch_size,
            form=components.form,
            device=self._device,
            head=components.output_head,
            same_number=components.sharding is not None,
            aggregator=self.private_step.aggregator if evaluation.visibility == "Private" else None,
        )
        if evaluation.visibility == "Public":
            self._write_record(Evaluated(time.time(), self._step, loss, metrics))
        elif components.private_metrics is not None:
            components.private_metrics.record_evaluation(self._step, loss, metrics)

    def _save(self, *, final: bool = False) -> None:
        """Write a checkpoint of the present step (rank 0) and log it."""
        self._saved_step = self._step
        if self._ledger is None:
            return
        assert self.private_step is not None
        components, aggregation = self.components, self.private_step.aggregator.statement()
        checkpointer = Checkpointer(
            store=components.store,
            ledger=self._ledger,
            source=components.source,
            model=components.model,
            optimizer=components.optimizer,
            statement_inputs=partial(
                statement_inputs,
                components,
                self.config.place,
                aggregation,
                self._job_object.image(),
                audit_log=self.audit.position,
            ),
            keep=components.job.spec.checkpoint.keep,
            acquired_as=self._acquired_as,
            use=task_of(components.job.spec).loading_lines("BASE", "ADAPTER"),
            signing_key=self._signing_key,
            recipients=self._recipients,
        )
        published = checkpointer.save(self._step, final=final)
        if published is None:
            return
        charged = self._ledger.read().steps_charged
        self._write_record(Saved(time.time(), published.step, published.uri, published.digest, final, charged))

    def _write_record(self, record: LogRecord) -> None:
        """Write a record to the run log, pass it to the listener, and update the ledger's progress. Rank 0 only."""
        if self._log is None or self._ledger is None:
            return
        self._log.write(record)
        if self._listener is not None:
            self._listener(record)
        match record:
            case Stepped():
                self._progress = progress_at(record.step, self.components.plan.steps, record.time)
                self._ledger.set_progress(self._progress)
            case Evaluated() if math.isfinite(record.loss):
                result = evaluation_result(record.step, record.loss, record.metrics)
                self._ledger.set_progress(self._progress, result)
