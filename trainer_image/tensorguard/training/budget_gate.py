"""Step 5: a step is paid for before it is revealed.

Rank 0 holds the ledger and charges in chunks, ahead of the work: small ones, so that a crash over-counts little, and
not one a step, since each is a write to a disk or an API server. It then tells the others in a message of fixed length
through which step they may go, and under which entry of the ledger; all of them put both into the header of every step,
so nobody can take part in a reveal that was not charged.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from tensafe_api.resolve import Plan
from tensorguard.aggregation.channel import AggregationError, Channel
from tensorguard.ledger.contract import Ledger

CHUNK_SECONDS = 10.0
_NOTICE = struct.Struct(">BQ32s")


class Verdict(IntEnum):
    """What rank 0 says where a chunk ends."""

    CONTINUE = 0
    EXHAUSTED = 1
    STOP = 2


@dataclass(frozen=True)
class Allowance:
    """How far the workers may go: steps below `through` are charged, under the ledger entry `head`."""

    verdict: Verdict
    charged_through: int
    head: str


class BudgetGate:
    """Charges steps on rank 0 and learns of it on the others."""

    def __init__(
        self, channel: Channel, plan: Plan, ledger: Ledger | None, from_step: int, suspension: object = False
    ) -> None:
        """Args: ledger: the claimed ledger on rank 0, None elsewhere; from_step: where this incarnation begins;
        suspension: true once the job's author has asked it to stop; looked at before each charge.
        """
        self._suspension = suspension
        self._channel = channel
        self._plan = plan
        self._ledger = ledger
        self._began = (time.monotonic(), from_step)
        self.allowance = Allowance(Verdict.CONTINUE, from_step, "0" * 64)
        self.steps_charged = 0
        """Charged over all attempts, as rank 0 last saw it."""

    def ensure_charged(self, step: int, stop: bool) -> Allowance:
        """See to it that `step` is charged, unless the budget or a stop forbids it. All ranks call this for each step.

        Raises:
            AggregationError: where rank 0 says to go on and the step is not charged.
        """
        if step < self.allowance.charged_through:
            return self.allowance
        mine = self._charge(step, stop) if self._ledger is not None else self.allowance
        notice = _NOTICE.pack(mine.verdict, mine.charged_through, bytes.fromhex(mine.head))
        verdict, charged_through, head = _NOTICE.unpack(self._channel.all_gather(notice)[0])
        self.allowance = Allowance(Verdict(verdict), charged_through, head.hex())
        if self.allowance.verdict is Verdict.CONTINUE and charged_through <= step:
            raise AggregationError(
                f"worker 0 goes on with step {step}, and only steps below {charged_through} are charged"
            )
        return self.allowance

    def _charge(self, step: int, stop: bool) -> Allowance:
        assert self._ledger is not None
        if stop or self._suspension:
            return Allowance(Verdict.STOP, step, self.allowance.head)
        self.steps_charged = self._ledger.read().steps_charged
        steps = self._plan.affordable_steps(self.steps_charged, min(self._chunk(step), self._plan.steps - step))
        if steps == 0:
            return Allowance(Verdict.EXHAUSTED, step, self.allowance.head)
        state = self._ledger.charge(steps)
        self.steps_charged = state.steps_charged
        return Allowance(Verdict.CONTINUE, step + steps, state.head)

    def _chunk(self, step: int) -> int:
        """About ten seconds' worth of steps, at most a hundredth of the plan, at least one."""
        began, first = self._began
        done = step - first
        if not done:
            return 1
        in_time = int(CHUNK_SECONDS * done / (time.monotonic() - began))
        return max(1, min(in_time, self._plan.chunk_steps))
