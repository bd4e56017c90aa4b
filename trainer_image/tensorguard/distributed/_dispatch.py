"""Calls a user's callbacks while a training runs.

In come the methods of the callbacks and the run's log records, on the thread that called `fit`; out go calls. The
workers do not wait for callbacks: a slow callback lags behind the training. Only `on_train_begin` is called before Ray
and the workers start.

A callback that raises stops the training. The workers first finish the steps that are charged and save a checkpoint,
then `fit` raises the exception. The caller can resume from that checkpoint: the exception costs no ε.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.distributed._callbacks import RunningTrainer
from tensorguard.distributed._hooks import METRICS, PRIVATE_METRICS, Hook, Hooks
from tensorguard.distributed._metrics import MetricsOfRun
from tensorguard.training.private_metrics import PrivateMetricsReader
from tensorguard.training.run_log import LogRecord, Started, Stepped
from tensorguard.training.stop_signal import StopSignal


class CallbackDispatcher:
    """Turns log records into calls, for one call of `fit`. `error`: what failed first, a callback or a logging handler.

    Args:
        job: the completed job of `plan`.
        private_metrics: the private figures of the run; None unless the job keeps them.
        spent: returns how many steps the ledger has charged so far, and their ε.
    """

    def __init__(
        self,
        trainer: RunningTrainer,
        hooks: Hooks,
        job: TenSafeTrainingJob,
        plan: Plan,
        stop: StopSignal,
        private_metrics: PrivateMetricsReader | None,
        spent: Callable[[], tuple[int, float]],
    ) -> None:
        self.error: BaseException | None = None
        self._trainer = trainer
        self._hooks = hooks
        self._plan = plan
        self._evaluates = job.spec.evaluation is not None
        self._stop = stop
        self._private_metrics = private_metrics
        self._spent = spent
        self._metrics = MetricsOfRun(job, plan)
        self._epochs_per_step = Fraction(plan.mechanism.expected_batch_size, job.spec.dataset.unit.at_least)
        self._epochs = 0
        self._ending_epochs: list[int] = []
        """Epochs whose end waits for the evaluation of their last step."""
        self._begun = False

    def begin(self) -> None:
        """Call `on_train_begin`. The run was accepted, and nothing has started."""
        self._begun = True
        self._call("on_train_begin")

    def dispatch(self, record: LogRecord) -> None:
        """Call the callbacks' methods for `record`. Does nothing once a callback has raised."""
        self._metrics.update(record)
        self._end_epochs()
        if isinstance(record, Started):
            self._epochs = max(self._epochs, int(record.step * self._epochs_per_step))
        elif isinstance(record, Stepped):
            self._call("on_step", record.step)
            done = int(record.step * self._epochs_per_step)
            self._ending_epochs = list(range(self._epochs + 1, done + 1))
            self._epochs = max(self._epochs, done)
            if not self._is_evaluated(record.step):
                self._end_epochs()

    def end(self) -> None:
        """Call `on_train_end` of every callback, also after one has raised."""
        self._end_epochs()
        if self._begun:
            for hook in self._hooks["on_train_end"]:
                self._guard(hook)

    def fail(self, error: BaseException) -> None:
        """Stop the training after the charged steps, because of `error`. Only the first error is kept."""
        self.error = self.error or error
        self._stop.request(after_charged_steps=True)

    def _is_evaluated(self, step: int) -> bool:
        """Whether the evaluation of `step` follows as the next record, unless the run fails before."""
        return self._evaluates and (step % self._plan.evaluate_every == 0 or step == self._plan.steps)

    def _end_epochs(self) -> None:
        epochs, self._ending_epochs = self._ending_epochs, []
        for epoch in epochs:
            self._call("on_epoch_end", epoch)

    def _call(self, name: str, *arguments: int) -> None:
        for hook in self._hooks[name]:
            if self.error is None:
                self._guard(hook, *arguments)

    def _guard(self, hook: Hook, *arguments: int) -> None:
        optional: dict[str, dict[str, float]] = {}
        try:
            if METRICS in hook.takes:
                optional[METRICS] = self._metrics.metrics(*self._spent())
            if PRIVATE_METRICS in hook.takes and self._private_metrics is not None:
                optional[PRIVATE_METRICS] = self._private_metrics.at(*arguments)
            hook.method(self._trainer, *arguments, **optional)
        except BaseException as error:
            self.fail(error)
