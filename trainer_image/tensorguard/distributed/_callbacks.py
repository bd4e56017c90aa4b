"""What of one's own runs beside a training.

In come the run's events, on the thread that called `fit`; out go calls of `TenSafeCallback`s. The workers do not wait
for callbacks, so a slow one lags behind the training, and no callback sees anything private: no training loss, no
gradient norm, no batch.

A callback that raises stops the training. The exception waits until the workers have sealed a checkpoint, and then
leaves `fit`; whoever caught it can go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from tensafe_api.resolve import Plan
from tensorguard.training.run_log import LogRecord, Started, Stepped
from tensorguard.training.stop_signal import StopSignal

if TYPE_CHECKING:
    from tensorguard.distributed._trainer import TenSafeTrainer


class TenSafeCallback:
    """Override what you need; `trainer.epsilon_spent`, `.step`, `.total_steps` and `.stop()` are live in all of it."""

    def on_train_begin(self, trainer: TenSafeTrainer) -> None:
        """The workers are about to take their first step of this call of `fit`."""

    def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
        """`step` steps are done. A step that is run again after a crash comes again."""

    def on_epoch_end(self, trainer: TenSafeTrainer, epoch: int) -> None:
        """As many steps are done as `epoch` passes over `unit_at_least` units take; once for each epoch."""

    def on_train_end(self, trainer: TenSafeTrainer) -> None:
        """The workers are done, well or not; called where `on_train_begin` was."""


class Dispatcher:
    """Makes calls of events, for one call of `fit`. `error` is what the first callback to raise has raised."""

    def __init__(
        self, trainer: TenSafeTrainer, callbacks: Sequence[TenSafeCallback], plan: Plan, at_least: int, stop: StopSignal
    ) -> None:
        self.error: BaseException | None = None
        self._trainer = trainer
        self._callbacks = callbacks
        self._stop = stop
        self._epochs_per_step = Fraction(plan.mechanism.expected_batch_size, at_least)
        self._total_steps = plan.steps
        self._epochs = 0
        self._begun = False

    def hear(self, event: LogRecord) -> None:
        """Call whom `event` concerns; once a callback has raised, nobody any more."""
        if self.error is not None:
            return
        if isinstance(event, Started) and not self._begun:
            self._begun = True
            self._epochs = int(event.step * self._epochs_per_step)
            self._call(lambda callback: callback.on_train_begin(self._trainer))
        elif isinstance(event, Stepped):
            self._call(lambda callback: callback.on_step(self._trainer, event.step))
            while self.error is None and self._epochs < int(event.step * self._epochs_per_step):
                self._epochs += 1
                self._call(lambda callback: callback.on_epoch_end(self._trainer, self._epochs))

    def end(self) -> None:
        """The training is over: every callback hears of it, even after one has raised."""
        if self._begun:
            for callback in self._callbacks:
                self._guard(lambda callback=callback: callback.on_train_end(self._trainer))  # type: ignore[misc]

    def _call(self, act: Callable[[TenSafeCallback], None]) -> None:
        for callback in self._callbacks:
            if self.error is None:
                self._guard(lambda callback=callback: act(callback))  # type: ignore[misc]

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self.error = self.error or error
            self._stop.request()
