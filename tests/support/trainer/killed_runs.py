"""Attempts of one worker that a test ends early."""

from __future__ import annotations

import pytest

from tensorguard.training.checkpointing import Checkpointer
from tests.support.trainer.rank_harness import Job


def train_until_killed(job: Job) -> None:
    """Run an attempt in this process that ends before its final checkpoint."""
    save = Checkpointer.save

    def killed(self: Checkpointer, step: int, *, final: bool = False) -> object:
        if final:
            raise RuntimeError("killed")
        return save(self, step, final=final)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "save", killed)
        with pytest.raises(RuntimeError, match="killed"):
            job.train_alone()
