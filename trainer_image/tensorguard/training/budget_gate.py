"""Charges the ledger before a step is revealed (part 5 of a step).

Rank 0 holds the ledger and charges it for a chunk of steps ahead of the work. Chunks are small, so that a crash leaves
few steps charged and not run. They are larger than one step, because each charge is a write to a disk or to an API
server. Rank 0 then sends all ranks a message of fixed length: the verdict, the step before which all steps are
charged, and the ledger entry of the charge. Every rank puts the last two into the header of each step, so no rank can
take part in a reveal that was not charged.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from tensafe_api.resolve import Plan
from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.ledger.contract import Ledger, LedgerCorrupt

CHUNK_SECONDS = 10.0
"""A chunk covers about this many seconds of steps."""
_MESSAGE = struct.Struct(">BQ32s")


class Verdict(IntEnum):
    """Rank 0's decision at the end of a chunk. The numbers are part of the message between ranks."""

    CONTINUE = 0
    EXHAUSTED = 1
    STOP = 2


@dataclass(frozen=True)
class Allowance:
    """Which steps may run.

    Attributes:
        verdict: whether the next step may run.
        charged_through: steps below this number are charged.
        head: hash of the ledger entry that charged them, 64 hexadecimal digits.
    """

    verdict: Verdict
    charged_through: int
    head: str


class BudgetGate:
    """Charges steps on rank 0, and receives rank 0's verdict on the other ranks.

    Attributes:
        allowance: the present allowance, the same on every rank.
        steps_charged: steps charged over all attempts, as rank 0 last read them; 0 on the other ranks.
    """

    def __init__(
        self,
        channel: Channel,
        plan: Plan,
        ledger: Ledger | None,
        from_step: int,
        stops_after_charged: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args:
        ledger: the acquired ledger on rank 0, None on the other ranks.
        from_step: the step at which this incarnation starts.
        stops_after_charged: called before each charge; true once the run is to stop after the steps that are charged.
        """
        self._stops_after_charged = stops_after_charged
        self._channel = channel
        self._plan = plan
        self._ledger = ledger
        self._started = (time.monotonic(), from_step)
        self.allowance = Allowance(Verdict.CONTINUE, from_step, "0" * 64)
        self.steps_charged = 0

    def ensure_charged(self, step: int, stop: bool) -> Allowance:
        """Charge `step`, unless it is charged already, the budget is exhausted or a stop is requested.

        Every rank calls this for each step.

        Raises:
            AggregationError: rank 0's verdict is CONTINUE although the step is not charged.
        """
        if step < self.allowance.charged_through:
            return self.allowance
        mine = self._charge(step, stop) if self._ledger is not None else self.allowance
        message = _MESSAGE.pack(mine.verdict, mine.charged_through, bytes.fromhex(mine.head))
        verdict, charged_through, head = _MESSAGE.unpack(self._channel.all_gather(message)[0])
        self.allowance = Allowance(Verdict(verdict), charged_through, head.hex())
        if self.allowance.verdict is Verdict.CONTINUE and charged_through <= step:
            raise AggregationError(f"worker 0 started step {step}, but only steps below {charged_through} are charged")
        return self.allowance

    def _charge(self, step: int, stop: bool) -> Allowance:
        assert self._ledger is not None
        if stop or self._stops_after_charged():
            return Allowance(Verdict.STOP, step, self.allowance.head)
        self.steps_charged = self._ledger.read().steps_charged
        steps = self._plan.affordable_steps(self.steps_charged, min(self._chunk(step), self._plan.steps - step))
        if steps == 0:
            return Allowance(Verdict.EXHAUSTED, step, self.allowance.head)
        state = self._ledger.charge(steps)
        if state.steps_charged < self.steps_charged + steps:
            raise LedgerCorrupt("the ledger lacks steps that were just charged; no further step is revealed")
        self.steps_charged = state.steps_charged
        return Allowance(Verdict.CONTINUE, step + steps, state.head)

    def _chunk(self, step: int) -> int:
        """The steps of about ten seconds: at most a hundredth of the plan, at least one."""
        started, first = self._started
        done = step - first
        if not done:
            return 1
        in_time = int(CHUNK_SECONDS * done / (time.monotonic() - started))
        return max(1, min(in_time, self._plan.chunk_steps))
