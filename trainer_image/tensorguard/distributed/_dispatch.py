"""Calls a user's callbacks while a training runs.

In come the run's log records, on the thread that called `fit`; out go calls of `TenSafeCallback`s. The workers do not
wait for callbacks: a slow callback lags behind the training.

A callback that raises stops the training. The workers first save a checkpoint, then `fit` raises the exception; the
caller can resume from that checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from tensafe_api.resolve import Plan
from tensorguard.distributed._callbacks import RunningTrainer, TenSafeCallback
from tensorguard.training.run_log import LogRecord, Started, Stepped
from tensorguard.training.stop_signal import StopSignal


class CallbackDispatcher:
    """Turns log records into calls, for one call of `fit`. `error`: what the first failing callback raised."""

    def __init__(
        self, trainer: RunningTrainer, callbacks: Sequence[TenSafeCallback], plan: Plan, at_least: int, stop: StopSignal
    ) -> None:
        self.error: BaseException | None = None
        self._trainer = trainer
        self._callbacks = callbacks
        self._stop = stop
        self._epochs_per_step = Fraction(plan.mechanism.expected_batch_size, at_least)
        self._epochs = 0
        self._started = False

    def dispatch(self, record: LogRecord) -> None:
        """Call the callbacks' methods for `record`. Does nothing once a callback has raised."""
        if self.error is not None:
            return
        if isinstance(record, Started) and not self._started:
            self._started = True
            self._epochs = int(record.step * self._epochs_per_step)
            self._call(lambda callback: callback.on_train_begin(self._trainer))
        elif isinstance(record, Stepped):
            self._call(lambda callback: callback.on_step(self._trainer, record.step))
            while self.error is None and self._epochs < int(record.step * self._epochs_per_step):
                self._epochs += 1
                self._call(lambda callback: callback.on_epoch_end(self._trainer, self._epochs))

    def end(self) -> None:
        """Call `on_train_end` of every callback, also after one has raised."""
        if self._started:
            for callback in self._callbacks:
                self._guard(lambda each: each.on_train_end(self._trainer), callback)

    def _call(self, method: Callable[[TenSafeCallback], None]) -> None:
        for callback in self._callbacks:
            if self.error is None:
                self._guard(method, callback)

    def _guard(self, method: Callable[[TenSafeCallback], None], callback: TenSafeCallback) -> None:
        try:
            method(callback)
        except BaseException as error:
            self.error = self.error or error
            self._stop.request()
