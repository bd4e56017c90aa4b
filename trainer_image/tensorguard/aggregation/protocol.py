"""The interface between a training step and a secure aggregation protocol.

In: each worker's integer sum of clipped gradients, and its share of the noise. Out: the noised sum over all workers,
the same on every worker, or nothing at all. Figures that belong to no step can be added in the same way, without noise.
A protocol is one subclass of `SecureAggregator`; `aggregation.registry` finds it by name.

The base class checks that the step is charged and new, and compares its header (`aggregation.header`), before it calls
the protocol. A protocol therefore cannot skip these checks. The caller, `training.step`, charges the ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from tensafe_api.statement.contents import AggregationStatement
from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.header import CARRIER_BITS, Header, HeaderAgreement
from tensorguard.aggregation.session import Session

FIGURES = 1 << 63
"""The number of the first sum of figures. Every step has a smaller number, so no key stream is used for both."""
VerifyLevel = Literal["Disabled", "Standard", "Strict"]
"""How thoroughly a sum is verified after the reveal: `spec.aggregation.verify` of the manifest."""


@dataclass(frozen=True)
class AggregationConfig:
    """Everything that a protocol receives when a worker group starts."""

    channel: Channel
    session: Session
    job_key: bytes
    """32 secret bytes that only the job's workers hold."""
    grid_bits: int
    """k: one clip norm is 2^k grid steps. All workers must agree on it."""
    verify: VerifyLevel
    """A protocol verifies at least this much, or its `__init__` raises `AggregationError`."""


class SecureAggregator(ABC):
    """One aggregation protocol on one worker, for one incarnation of the worker group.

    Guarantees that every protocol gives, and on which the privacy statement relies:

    - Only the noised sum of all workers is revealed. The messages of any proper subset of the workers reveal nothing
      about the local sums of the others.
    - The sum is exact modulo 2^32: integers in, integers out, with no rounding on the way. Local sums beyond an int32
      saturate first (`reduce.saturate`), so that neighbouring sums stay equally close.
    - A worker that is lost, or whose message is missing, aborts the step. No partial sum is revealed.
    - Everything that a worker receives is verified, as thoroughly as `AggregationConfig.verify` asks. A message that
      is not authentic, or a sum that is not the sum of its parts, raises `AggregationError`, and the worker group
      restarts.
    - No key stream is used twice. A step number occurs once in each incarnation, and each incarnation has new keys.
      Sums of figures have numbers of their own, from `FIGURES` on.
    """

    name: ClassVar[str]
    """The name under which `aggregation.registry` lists the protocol."""
    public_keys: tuple[str, ...] = ()
    """Fingerprints of the public keys that the workers have exchanged, by rank, for the audit log."""

    def __init__(self, config: AggregationConfig) -> None:
        """Agree with the other workers on what the protocol needs, such as keys. Every worker calls this once.

        Raises:
            AggregationError: when the workers cannot agree.
        """
        self.channel = config.channel
        self._grid_bits = config.grid_bits
        self._agreement = HeaderAgreement(config.channel, config.session, config.job_key)
        self._next_step = 0
        self._next_figures = FIGURES

    def __init_subclass__(cls) -> None:
        if checks := {"sum", "sum_figures"} & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__} overrides `{checks.pop()}`, which checks each step: override `reveal` instead"
            )

    def prepare(self, step: int, dimension: int) -> None:  # noqa: B027 - optional
        """Do the work for `step` that depends on no data, such as drawing masks.

        The training loop calls this on another thread, one step ahead, and waits for it before it calls `sum` for the
        same step. `reveal` must also work for a step that was not prepared. The default does nothing.
        """

    @final
    def sum(
        self,
        step: int,
        local_sum: np.ndarray,
        noise: np.ndarray,
        *,
        charged_through: int,
        ledger_head: str,
        stop: bool,
    ) -> np.ndarray | None:
        """The noised sum of all workers for `step`. The ledger must already be charged for the step.

        Args:
            step: the number of the step, from 0.
            local_sum: this worker's sum of clipped gradients in grid steps, int64 [d].
            noise: this worker's share of the noise in grid steps, int64 [d].
            charged_through: the step below which all steps are charged.
            ledger_head: hash (32 bytes, hex) of the ledger entry under which they are charged.
            stop: whether this worker wants to stop before the step is revealed.

        Returns:
            int32 [d], the same on every worker; None when any worker wants to stop, and then nothing was revealed.

        Raises:
            AggregationError: when the workers differ on the step, or the sum cannot be verified.
            ValueError: for a step that is not charged, or that is not after the previous one (its masks could then be
                used twice).
            TypeError: when the protocol does not reveal an int32 [d].
        """
        if not self._next_step <= step < charged_through:
            raise ValueError(
                f"step {step} cannot be revealed: the next step is {self._next_step}, and {charged_through} are charged"
            )
        self._next_step = step + 1
        header = Header(
            session=self._agreement.session,
            step=step,
            charged_through=charged_through,
            grid_bits=self._grid_bits,
            dimension=len(local_sum),
            carrier_bits=CARRIER_BITS,
            ledger_head=ledger_head,
        )
        if self._agreement.agree(header, stop):
            return None
        return self._revealed(step, local_sum, noise)

    @final
    def sum_figures(self, values: np.ndarray) -> np.ndarray:
        """The exact sum over all workers of figures that belong to no step, such as those of an evaluation.

        It holds no noise, and no ledger is charged: the caller decides that every worker may see the sum. As in a step,
        nothing else is revealed. Every worker calls this at the same point.

        Args:
            values: this worker's figures, int64 [n]. A sum beyond an int32 wraps.

        Returns:
            int32 [n], the same on every worker.

        Raises:
            AggregationError: when the workers differ, or the sum cannot be verified.
        """
        number, self._next_figures = self._next_figures, self._next_figures + 1
        header = Header(
            session=self._agreement.session,
            step=number,
            charged_through=0,
            grid_bits=self._grid_bits,
            dimension=len(values),
            carrier_bits=CARRIER_BITS,
            ledger_head="0" * 64,
        )
        self._agreement.agree(header, stop=False)
        return self._revealed(number, values, np.zeros_like(values))

    def _revealed(self, number: int, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
        total = self.reveal(number, values, noise)
        if total.dtype != np.int32 or total.shape != values.shape:
            raise TypeError(f"{self.name} revealed {total.dtype} {total.shape}, not int32 {values.shape}")
        return total

    @abstractmethod
    def reveal(self, step: int, local_sum: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Compute and verify the sum, after all workers have agreed on the step. Only the base class calls this.

        Arguments and errors are those of `sum`. For a sum of figures, `step` is its number, at least `FIGURES`, and
        `noise` is zero. Each number occurs once in an incarnation. Returns int32 [d], the same on every worker.
        """

    @abstractmethod
    def statement(self) -> AggregationStatement:
        """The protocol's own part of the privacy statement."""
