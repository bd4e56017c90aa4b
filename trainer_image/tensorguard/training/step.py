"""One private step on one worker, as the list of its nine parts.

Read this to see what happens to a record: it is drawn or not, its gradient is taken by itself, clipped and rounded onto
the integer grid, added to the local sum, hidden by noise and masks, and never seen again but in the noised sum of all
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from tensorguard.aggregation import reduce
from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.header import CARRIER_BITS, Header, HeaderAgreement
from tensorguard.aggregation.keys import PairKey
from tensorguard.aggregation.masks import pairwise_mask
from tensorguard.aggregation.verify import VerifyLevel, verify_sum
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import BudgetGate, Verdict
from tensorguard.training.stop_signal import StopSignal


class UnitGradients(Protocol):
    """Where the gradients of the drawn units come from (`training.unit_gradients`)."""

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> None:
        """Add each unit's clipped gradient; may return early once `stop` is raised, since then nothing is revealed."""
        ...


@dataclass
class PrivateStep:
    """The parts of a step, and what they remember from one to the next."""

    channel: Channel
    pair_keys: dict[int, PairKey]
    header_agreement: HeaderAgreement
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
    """C/(S·B): what one grid step of the sum is worth in the mean gradient."""
    grid_bits: int
    verify: VerifyLevel
    stop: StopSignal

    def __post_init__(self) -> None:
        self._dimension = sum(parameter.numel() for parameter in self.parameters)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise-and-masks")
        self._ahead: tuple[int, Future[tuple[np.ndarray, np.ndarray]]] | None = None

    def run(self, step: int) -> Verdict:
        """Take step number `step` (from 0). Anything but CONTINUE means that it was not revealed and the model is as it
        was.
        """
        hidden = self._noise_and_mask(step)
        units = self.sampler.draw()  # 1
        self.gradients.add_to(self.clipper, units.tolist(), self.stop)  # 2, 3
        local_sum = self.clipper.take().cpu().numpy()
        allowed = self.budget_gate.ensure_charged(step, bool(self.stop))  # 5
        if allowed.verdict is not Verdict.CONTINUE:
            return allowed.verdict
        noise, masks = hidden.result()  # 4, 6
        self._prepare(step + 1)
        masked = reduce.add_noise_and_mask(local_sum, noise, masks)
        header = Header(
            session=self.header_agreement.session,
            step=step,
            charged_through=allowed.charged_through,
            grid_bits=self.grid_bits,
            dimension=self._dimension,
            carrier_bits=CARRIER_BITS,
            ledger_head=allowed.head,
        )
        if self.header_agreement.agree(header, bool(self.stop)):
            return Verdict.STOP
        total = reduce.reveal(self.channel, masked)  # 7
        verify_sum(self.channel, self.pair_keys, step, masked, total, self.verify)  # 8
        self._apply(reduce.to_signed(total), self.learning_rate(step))  # 9
        return Verdict.CONTINUE

    def close(self) -> None:
        """Stop the thread that works ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _noise_and_mask(self, step: int) -> Future[tuple[np.ndarray, np.ndarray]]:
        if self._ahead is None or self._ahead[0] != step:
            self._prepare(step)
        assert self._ahead is not None
        return self._ahead[1]

    def _prepare(self, step: int) -> None:
        """Draw noise and masks for `step` on the thread: they depend on no data."""

        def make() -> tuple[np.ndarray, np.ndarray]:
            return (
                self.noise.draw(self._dimension, self.noise_stream),
                pairwise_mask(self.pair_keys, self.channel.rank, step, self._dimension),
            )

        self._ahead = (step, self._pool.submit(make))

    def _apply(self, total: np.ndarray, rate: float) -> None:
        """Step the optimiser on the decoded mean: the same on every worker, bit for bit."""
        mean = torch.from_numpy(total.astype(np.float64) * self.gradient_per_grid_step).to(torch.float32)
        place = 0
        for parameter in self.parameters:
            piece = mean[place : place + parameter.numel()].view_as(parameter)
            parameter.grad = piece.to(parameter.device)
            place += parameter.numel()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
