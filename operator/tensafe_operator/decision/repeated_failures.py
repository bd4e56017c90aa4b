"""Repeated: find the failure that one attempt after the other repeats before it can train.

An attempt that has not acquired the ledger has spent nothing, and another one follows: an object store or a hub may
answer again. A wrong address or a missing permission never goes away, and each attempt takes its nodes again.
So the job is stalled, while its attempts continue: also while the next one waits in a queue, or for a node that an
autoscaler may add. Otherwise `Stalled` would change twice with each attempt.
"""

from __future__ import annotations

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Reason
from tensafe_operator.decision.blockers import Blocker
from tensafe_operator.decision.conditions import blocked_state
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.parsing import parse_ledger_status
from tensafe_operator.decision.retry import has_failed

REPEATED = 3
"""So many attempts that fail for the same reason are no outage of a moment."""
_BEFORE_TRAINING = (Reason.STARTING, Reason.RETRYING, Reason.QUEUED, Reason.UNSCHEDULABLE)
"""What a job reports that waits for no user before an attempt trains."""
_FIXES = {Reason.WORKER_LOST: Fix.LOST_AGAIN, Reason.AGGREGATION_FAILED: Fix.LOST_AGAIN}
"""Where the reason's own fix says that the job continues by itself."""


def report_repeated(draft: Draft) -> None:
    """Stall a job that starts although its last attempts have all failed for one reason."""
    state = draft.state
    if state is None or state.stalled or state.reason not in _BEFORE_TRAINING:
        return
    last = [each for each in draft.status.attempts if each.end_time is not None][-REPEATED:]
    if len(last) < REPEATED or not all(map(has_failed, last)) or len({each.reason for each in last}) > 1:
        return
    reason, record = Reason.named(last[-1].reason), parse_ledger_status(draft.observed.ledger)
    if reason is None or (record is not None and any(each.attempt >= last[0].number for each in record.charges)):
        return
    numbers = f"attempts {last[0].number} to {last[-1].number} have failed alike"
    blocker = Blocker(reason, numbers, last[-1].message or reason.sentence, _FIXES.get(reason))
    draft.set_state(blocked_state(blocker, state.phase))
