"""What users derive from to run code of their own during a training, and what that code can use of the trainer.

This module imports neither the trainer nor the dispatcher: the trainer gives itself to callbacks as a `RunningTrainer`.
"""

from __future__ import annotations

from typing import Any, Protocol

from tensorguard.distributed._config import TenSafeTrainingConfig


class RunningTrainer(Protocol):
    """The part of `TenSafeTrainer` that callbacks use. Annotate the `trainer` of a callback with it."""

    config: TenSafeTrainingConfig
    step: int

    @property
    def total_steps(self) -> int:
        """Steps of the plan."""
        ...

    @property
    def epsilon_spent(self) -> float:
        """ε of all steps that the ledger has charged so far."""
        ...

    def stop(self) -> None:
        """Request that the training saves a checkpoint and ends."""
        ...


class TenSafeCallback:
    """Override the methods that you need, with the arguments that you need.

    All of them run in the process that called `fit`, on its thread. `trainer.epsilon_spent`, `trainer.step`,
    `trainer.total_steps` and `trainer.stop()` are up to date in each. Signatures are checked when a `TenSafeTrainer` is
    created; a misspelt method is refused.

    A method may also have a parameter `metrics`: a dictionary of public figures, which may be sent anywhere. Its keys
    are step, total_steps, epoch, learning_rate, dp_epsilon_spent (the ε of dp_steps_charged steps), dp_steps_charged
    and, after an evaluation, eval_step, eval_loss and the metrics of the task (eval_accuracy, eval_f1).

    With `private_metrics="Internal"`, `on_step` may also have a parameter `private_metrics`: a dictionary of exact
    functions of private data, for trusted readers only. Its keys are loss (the mean training loss of the drawn
    records), units, records, clipped_fraction and mean_norm. `**kwargs` does not receive it.
    """

    def on_train_begin(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """`on_train_begin(trainer)`: the run was accepted. Nothing is spent yet, and nothing if this method raises."""

    def on_step(self, trainer: RunningTrainer, step: int, *args: Any, **kwargs: Any) -> None:
        """`on_step(trainer, step, metrics, private_metrics)`: `step` steps are done.

        A step that runs again after a crash is reported again.
        """

    def on_epoch_end(self, trainer: RunningTrainer, epoch: int, *args: Any, **kwargs: Any) -> None:
        """`on_epoch_end(trainer, epoch, metrics)`: the steps of `epoch` passes over `unit_at_least` units are done.

        Called once for each epoch, and after the evaluation if one is due at that step.
        """

    def on_train_end(self, trainer: RunningTrainer, *args: Any, **kwargs: Any) -> None:
        """`on_train_end(trainer, metrics)`: the workers have ended, with or without success.

        Called only if `on_train_begin` was called.
        """
