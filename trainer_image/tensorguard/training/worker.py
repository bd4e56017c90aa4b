"""One rank of one attempt, from an empty process to a sealed checkpoint.

Everything that may fail for good is built first and agreed on (`set_up`, `acquire`); then steps follow each other until
they are done, the budget is, or somebody asks to stop. The process may be killed at any point: the ledger has been
charged for whatever was revealed, and the next incarnation goes on from the last checkpoint that the ledger knows.

This runs under Ray Train (`runners.worker_group`) and without Ray alike: all it needs is a channel to the other
workers.
"""

from __future__ import annotations

import math
import struct
import time
from dataclasses import dataclass

import torch

from tensafe_api.reasons import Reason
from tensafe_api.resolve import ledger_spec
from tensafe_api.resources.ledger import Outcome
from tensafe_api.resources.status import Progress
from tensafe_api.statement import AggregationStatement, StatementInputs
from tensafe_api.status_fold import evaluation_result, progress_at
from tensorguard.aggregation.channel import Channel, check_all_reduce_wraps
from tensorguard.aggregation.keys import Session
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.ledger.backends import SuspendFlag, open_ledger
from tensorguard.ledger.contract import LedgerState
from tensorguard.models.tasks import task_of
from tensorguard.training.budget_gate import BudgetGate, Verdict
from tensorguard.training.checkpointing import (
    FINAL,
    Checkpointer,
    checkpoint_name,
    latest_checkpoint,
    restore_checkpoint,
)
from tensorguard.training.collective_errors import AttemptFailed, run_on_all_ranks
from tensorguard.training.config import RUN_LOG, TRACEBACKS, WorkerConfig, append_traceback
from tensorguard.training.evaluation import evaluate_on_all_ranks
from tensorguard.training.rollback_check import check_checkpoints, check_run_log
from tensorguard.training.run_log import Ended, Evaluated, Listener, LogRecord, RunLog, Saved, Started, Stepped
from tensorguard.training.setup import StepComponents, set_up
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal

_CLAIM = struct.Struct(">QQ64s71s")


@dataclass(frozen=True)
class Acquisition:
    """What rank 0 found when it claimed the ledger: which incarnation this is, and where it goes on."""

    incarnation: int
    step: int
    checkpoint: str
    digest: str

    def pack(self) -> bytes:
        return _CLAIM.pack(self.incarnation, self.step, self.checkpoint.encode(), self.digest.encode())

    @classmethod
    def unpack(cls, message: bytes) -> Acquisition:
        incarnation, step, *texts = _CLAIM.unpack(message)
        return cls(incarnation, step, *(text.rstrip(b"\0").decode() for text in texts))


def train(config: WorkerConfig, channel: Channel, device: torch.device, listener: Listener | None = None) -> None:
    """Take part in one attempt until it ends. Returns on every rank, having told the event log how it ended (rank 0).

    Args:
        listener: hears on rank 0 what the event log is told.

    Raises:
        Exception: whatever a restart may mend, such as a lost peer. What would come again is told and not raised.
    """
    worker = Worker(config, channel, device, listener)
    try:
        worker.start()
        worker.run_steps()
    except AttemptFailed as failure:
        if failure.__cause__ is not None:
            worker.record_traceback()
        worker.log_end(failure.reason, str(failure))
    except Exception:
        worker.record_traceback()
        raise
    finally:
        worker.close()


class Worker:
    """The state of one rank. `begin`, `work`, `end`, `close`, in this order."""

    def __init__(
        self, config: WorkerConfig, channel: Channel, device: torch.device, listener: Listener | None = None
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self._channel = channel
        self._device = device
        self._ledger = open_ledger(config.directory, config.ledger_location) if channel.rank == 0 else None
        self._log = RunLog(config.directory / RUN_LOG) if channel.rank == 0 else None
        self._listener = listener
        self._stop = StopSignal.of(config.directory)
        self.private_step: PrivateStep | None = None
        self._saved_at = 0
        self._began_sealed = False
        self._progress = Progress()

    def start(self) -> None:
        """Build what a step needs, claim the ledger, agree on keys, and restore the last checkpoint."""
        check_all_reduce_wraps(self._channel)
        components = self.components = run_on_all_ranks(
            self._channel, lambda: set_up(self.config, self._channel.rank, self._device)
        )
        claim = run_on_all_ranks(self._channel, self._claim)
        claim = Acquisition.unpack(self._channel.all_gather(claim.pack())[0])
        session = Session(
            job=self.config.job_uid,
            attempt=self.config.attempt,
            incarnation=claim.incarnation,
            workers=self._channel.size,
            colluders=components.plan.mechanism.colluders,
        )
        run_on_all_ranks(self._channel, lambda: self._restore(claim))
        self._claimed = (self.config.attempt, claim.incarnation)
        self._at = claim.step
        self._saved_at = claim.step
        self._began_sealed = claim.checkpoint == FINAL
        mechanism = components.plan.mechanism
        aggregation = AggregationConfig(
            channel=self._channel,
            session=session,
            job_key=self.config.job_key(),
            grid_bits=mechanism.grid_bits,
            verify=components.job.spec.aggregation.verify,
        )
        self.private_step = PrivateStep(
            aggregator=create_aggregator(aggregation),
            budget_gate=BudgetGate(
                self._channel, components.plan, self._ledger, claim.step, SuspendFlag(self.config.ledger_location)
            ),
            sampler=components.sampler,
            gradients=components.units,
            clipper=components.clipper,
            noise=components.noise,
            noise_stream=components.noise_stream,
            parameters=components.parameters,
            optimizer=components.optimizer,
            learning_rate=components.learning_rate,
            gradient_per_grid_step=float(mechanism.clip) / (mechanism.grid * mechanism.expected_batch_size),
            stop=self._stop,
        )
        self._tell(Started(time.time(), self.config.attempt, claim.incarnation, claim.step))

    def run_steps(self) -> None:
        """Step until the plan is done, the budget is spent, or a stop is asked for."""
        assert self.private_step is not None
        plan = self.components.plan
        while self._at < plan.steps:
            verdict = self.private_step.run(self._at)
            if verdict is Verdict.STOP:
                return self._interrupted()
            if verdict is Verdict.EXHAUSTED:
                return self._exhausted()
            self._at += 1
            if self.components.private is not None:
                self.components.private.record_step(self._at, self.components.clipper)
            self._tell(Stepped(time.time(), self._at, self.private_step.budget_gate.steps_charged))
            if self._at % plan.evaluate_every == 0 and self._at < plan.steps:
                self._evaluate()
            if self._at % plan.checkpoint_every == 0 and self._at < plan.steps:
                self._save()
        return self._finish("Completed", Reason.COMPLETED, f"all {plan.steps} steps are done")

    def log_end(self, reason: Reason, message: str) -> None:
        """Tell how the attempt ended."""
        self._tell(Ended(time.time(), self.config.attempt, reason.value, message))

    def record_traceback(self) -> None:
        """Keep the present exception for the run's owner, before Ray restarts the group."""
        append_traceback(
            self.config.directory / TRACEBACKS.format(who=f"rank{self._channel.rank}"), self.config.attempt
        )

    def close(self) -> None:
        """Let go of the thread, the ledger and the log."""
        if self.private_step is not None:
            self.private_step.close()
        if self._ledger is not None:
            self._ledger.close()
        if self._log is not None:
            self._log.close()

    def _claim(self) -> Acquisition:
        """Rank 0: find where to go on, and claim the ledger from there. The others get what rank 0 found."""
        if self._ledger is None:
            return Acquisition(0, 0, "", "")
        self._ledger.wait_until_free()
        state = self._ledger.read()
        if state.spec != ledger_spec(self.components.job, self.components.plan, self.config.job_uid):
            raise AttemptFailed(
                Reason.CONFIGURATION_CHANGED,
                "the ledger was opened for another plan than this one; resume with the run's own job.yaml",
            )
        if self.config.ledger_location is None:  # in a cluster each pod has an event log of its own
            check_run_log(self.config.directory / RUN_LOG, state)
        check_checkpoints(self.components.store, self._ledger)
        release = latest_checkpoint(self.components.store, state)
        step = release.step if release else 0
        self._check_progress(state, step)
        state = self._ledger.acquire(attempt=self.config.attempt, from_step=step)
        self._ledger.record_dataset(self.config.dataset_digest)
        self.components.store.remove_unfinished()
        return Acquisition(
            state.incarnation, step, checkpoint_name(release) if release else "", release.digest if release else ""
        )

    def _check_progress(self, state: LedgerState, step: int) -> None:
        """A restart that made no checkpoint progress is the last one: another would only spend. Who was told to stop
        has not failed.
        """
        failed = state.attempt == self.config.attempt and state.outcome is None
        restarts = state.start_steps[1:] if failed else ()
        if restarts and restarts[-1] == step:
            raise AttemptFailed(
                Reason.NO_PROGRESS,
                f"the workers were restarted at step {step} and failed again before the next checkpoint; "
                f"see {TRACEBACKS.format(who='rankN')} in the run's folder for why, "
                "mend that, and resume (a smaller spec.checkpoint.everySteps loses less)",
            )

    def _restore(self, claim: Acquisition) -> bool:
        components = self.components
        if claim.checkpoint:
            restore_checkpoint(components.store, claim.checkpoint, claim.digest, components.model, components.optimizer)
        return True

    def _interrupted(self) -> None:
        """Seal what was revealed, so that a resume loses nothing."""
        if self._saved_at != self._at:
            self._save()
        if self._ledger is not None:
            self._ledger.record_outcome("Suspended")
        self.log_end(Reason.INTERRUPTED, f"stopped on request after step {self._at} of {self.components.plan.steps}")

    def _exhausted(self) -> None:
        """The next step would pass the target: end with what there is, or fail, as the manifest says."""
        plan = self.components.plan
        sentence = (
            f"step {self._at + 1} of {plan.steps} would pass spec.privacy.targetEpsilon ({plan.target_epsilon:g})"
        )
        if self.components.job.spec.privacy.on_budget_exhausted == "Fail":
            return self.log_end(Reason.PRIVACY_BUDGET_EXCEEDED, sentence)
        return self._finish("BudgetExhausted", Reason.BUDGET_EXHAUSTED, sentence)

    def _finish(self, outcome: Outcome, reason: Reason, message: str) -> None:
        """The last checkpoint, and the word in the ledger that nothing follows.

        Where an earlier incarnation was killed between the two, its checkpoint stays: it is recorded, and a second one
        under the same name would not be what the ledger says until it is recorded in turn.
        """
        if not (self._began_sealed and self._saved_at == self._at):
            self._evaluate()
            self._save(final=True)
        if self._ledger is not None:
            self._ledger.record_outcome(outcome)
        self.log_end(reason, message)

    def _evaluate(self) -> None:
        """Look at the evaluation set: a public one for all to see, a private one only for trusted eyes."""
        components = self.components
        asked = components.job.spec.evaluation
        if (
            components.evaluation is None
            or asked is None
            or (asked.visibility == "Private" and components.private is None)
        ):
            return
        training = components.job.spec.training
        loss, metrics = evaluate_on_all_ranks(
            self._channel,
            components.evaluation,
            components.model,
            task=task_of(components.job.spec),
            batch_size=training.micro_batch_size,
            max_length=training.max_length,
            pad_id=components.pad_id,
            device=self._device,
        )
        if asked.visibility == "Public":
            self._tell(Evaluated(time.time(), self._at, loss, metrics))
        elif components.private is not None:
            components.private.record_evaluation(self._at, loss, metrics)

    def _save(self, *, final: bool = False) -> None:
        self._saved_at = self._at
        if self._ledger is None:
            return
        assert self.private_step is not None
        components, aggregation = self.components, self.private_step.aggregator.statement()
        saver = Checkpointer(
            store=components.store,
            ledger=self._ledger,
            source=components.source,
            model=components.model,
            optimizer=components.optimizer,
            facts=lambda state, step, adapter: statement_facts(components, aggregation, state, step, adapter),
            keep=components.job.spec.checkpoint.keep,
            claimed=self._claimed,
        )
        release = saver.save(self._at, final=final)
        if release is None:
            return
        charged = self._ledger.read().steps_charged
        self._tell(Saved(time.time(), release.step, release.uri, release.digest, final, charged))

    def _tell(self, event: LogRecord) -> None:
        if self._log is None or self._ledger is None:
            return
        self._log.write(event)
        if self._listener is not None:
            self._listener(event)
        match event:
            case Stepped():
                self._progress = progress_at(event.step, self.components.plan.steps, event.time)
                self._ledger.set_progress(self._progress)
            case Evaluated() if math.isfinite(event.loss):
                self._ledger.set_progress(self._progress, evaluation_result(event.step, event.loss, event.metrics))


def statement_facts(
    components: StepComponents, aggregation: AggregationStatement, state: LedgerState, step: int, adapter_digest: str
) -> StatementInputs:
    """What the statement of a checkpoint says."""
    spec = state.spec
    evaluation = components.job.spec.evaluation
    return StatementInputs(
        job_name=spec.job_name,
        job_uid=spec.job_uid,
        attempt=state.attempt,
        mechanism=spec.mechanism,
        unit_at_least=spec.unit_at_least,
        planned_steps=spec.planned_steps,
        target_epsilon=spec.target_epsilon,
        delta=spec.delta,
        accountant=spec.accountant,
        steps_charged=state.steps_charged,
        steps_recharged=state.steps_recharged,
        step=step,
        events=state.events,
        dimension=components.dimension,
        noise_distance=components.noise.total_variation,
        aggregation=aggregation,
        adapter_digest=adapter_digest,
        ledger_head=state.head,
        ledger_length=state.length,
        dataset_digest=state.dataset_digest,
        lineage=spec.lineage,
        model=components.identity,
        evaluation=f"{evaluation.visibility}: {evaluation.uri}" if evaluation else None,
        private_metrics=components.job.spec.observability.private_metrics,
        remarks=components.remarks,
    )
