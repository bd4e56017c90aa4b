"""One private step on one worker, as the list of its nine parts.

Read `PrivateStep.run` to see what happens to a unit, which is one record or all records of one user. It is drawn or
not; its own gradient is computed, clipped, rounded to the integer grid and added to the local sum. Noise and masks hide
the local sum, and only the noised sum of all workers is revealed. The numbers in the comments are those of the parts:

    1 sample  2 gradients  3 clip and round  4 noise  5 charge the ledger  6 mask  7 sum over workers  8 verify
    9 update the model

Noise and masks depend on no data: a background thread makes both one step ahead. So `run` takes the noise after part 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from tensorguard.aggregation.channel import to_host
from tensorguard.aggregation.protocol import SecureAggregator
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import BudgetGate, Verdict
from tensorguard.training.stop_signal import StopSignal


class UnitGradients(Protocol):
    """Computes the gradients of the drawn units (`training.unit_gradients`)."""

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> bool:
        """Add each unit's clipped gradient to `clipper`; return whether all were added.

        It may return early once `stop` is set on any worker. Then the step must not be revealed.
        """
        ...


@dataclass
class PrivateStep:
    """The components of a step, with the state that they keep between steps."""

    aggregator: SecureAggregator
    budget_gate: BudgetGate
    sampler: PoissonSampler
    gradients: UnitGradients
    clipper: GridClipper
    noise: DiscreteGaussian
    noise_stream: SecretStream
    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    gradient_per_grid_step: float
    """C/(S·B): the change of the mean gradient for one grid step of the sum (clip C, grid S, expected batch B)."""
    stop: StopSignal
    keep_private_metrics: Callable[[int], None] | None = None
    """Keeps this worker's private figures of a step, whose number from 1 comes in. None unless the job keeps them.

    It is called after the charge and before the sum. So figures exist for charged steps only, and those of all workers
    exist once one worker has the sum.
    """

    def __post_init__(self) -> None:
        self._dimension = sum(parameter.numel() for parameter in self.parameters)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise-and-masks")
        self._ahead: tuple[int, Future[np.ndarray]] | None = None

    def run(self, step: int) -> Verdict:
        """Run step number `step` (from 0).

        Returns CONTINUE after the step. For any other verdict nothing was revealed, and the model is unchanged.
        """
        prepared = self._prepared(step)
        units = self.sampler.draw()  # 1
        complete = self.gradients.add_to(self.clipper, units.tolist(), self.stop)  # 2, 3
        local_sum = to_host(self.clipper.take()).numpy()
        allowed = self.budget_gate.ensure_charged(step, bool(self.stop))  # 5
        if allowed.verdict is not Verdict.CONTINUE:
            return allowed.verdict
        if self.keep_private_metrics is not None:
            self.keep_private_metrics(step + 1)
        noise = prepared.result()  # 4
        self._prepare(step + 1)
        total = self.aggregator.sum(  # 6, 7, 8
            step,
            local_sum,
            noise,
            charged_through=allowed.charged_through,
            ledger_head=allowed.head,
            stop=bool(self.stop) or not complete,
        )
        if total is None:
            return Verdict.STOP
        self._apply(total, self.learning_rate(step))  # 9
        return Verdict.CONTINUE

    def close(self) -> None:
        """Stop the background thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prepared(self, step: int) -> Future[np.ndarray]:
        if self._ahead is None or self._ahead[0] != step:
            self._prepare(step)
        assert self._ahead is not None
        return self._ahead[1]

    def _prepare(self, step: int) -> None:
        """Draw noise and masks for `step` on the background thread, before the step: they depend on no data."""

        def make() -> np.ndarray:
            self.aggregator.prepare(step, self._dimension)
            return self.noise.draw(self._dimension, self.noise_stream)

        self._ahead = (step, self._pool.submit(make))

    def _apply(self, total: np.ndarray, rate: float) -> None:
        """Run the optimiser on the decoded mean gradient, which is bit for bit the same on every worker."""
        grid_steps = torch.from_numpy(total).to(self.parameters[0].device).to(torch.float64)
        mean = grid_steps.mul_(self.gradient_per_grid_step).to(torch.float32)
        del grid_steps  # before the optimiser needs memory
        start = 0
        for parameter in self.parameters:
            parameter.grad = mean[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
