"""What users derive from to run code of their own during a training, and what that code can use of the trainer.

This module imports neither the trainer nor the dispatcher: the trainer gives itself to callbacks as a `RunningTrainer`.
"""

from __future__ import annotations

from typing import Protocol

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
    """Override the methods that you need.

    All of them run in the process that called `fit`, on its thread. `trainer.epsilon_spent`, `trainer.step`,
    `trainer.total_steps` and `trainer.stop()` are up to date in each. A callback receives nothing private: no training
    loss, no gradient norm, no batch size.
    """

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """The workers are about to take their first step of this call of `fit`."""

    def on_step(self, trainer: RunningTrainer, step: int) -> None:
        """`step` steps are done. A step that runs again after a crash is reported again."""

    def on_epoch_end(self, trainer: RunningTrainer, epoch: int) -> None:
        """As many steps are done as `epoch` passes over `unit_at_least` units take. Called once for each epoch."""

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """The workers have ended, with or without success. Called only if `on_train_begin` was called."""
