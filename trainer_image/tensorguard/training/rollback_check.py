"""Who else knows what was spent: the checkpoints and the event log bear witness against a ledger that was cut short.

A hash chain does not show that its tail was cut off, nor a copy from a backup that it is old. But every checkpoint
records the head and length of the ledger that it was written under, and the event log how many steps were charged; a
ledger that knows of less is refused.
"""

from __future__ import annotations

from pathlib import Path

from tensorguard.checkpoint.store import CheckpointConflict, CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, parse_trainer_state
from tensorguard.ledger.contract import Ledger, LedgerCorrupt, LedgerState
from tensorguard.training.run_log import steps_charged_in

_PUT_BACK = "entries were cut off or replaced; put back the ledger as it was, since what was spent stays spent"


def check_run_log(events: Path, ledger: LedgerState) -> None:
    """Raise LedgerCorrupt where the event log tells of more charges than the ledger, or cannot be asked."""
    if ledger.steps_charged and not events.exists():
        raise LedgerCorrupt(f"{events} is gone, which tells whether the ledger beside it is whole; put it back")
    if (told := steps_charged_in(events)) > ledger.steps_charged:
        raise LedgerCorrupt(
            f"the ledger holds {ledger.steps_charged} charged steps, and {events} tells of {told}: {_PUT_BACK}"
        )


def check_checkpoints(store: CheckpointStore, ledger: Ledger) -> None:
    """Raise unless every checkpoint in `store` is of this job, and the ledger goes on from what each saw of it.

    Raises:
        LedgerCorrupt: where a checkpoint saw a ledger that this one does not go on from.
        CheckpointConflict: where another job keeps its checkpoints here: the two would overwrite each other's.
    """
    uid = ledger.read().spec.job_uid
    for name in store.names():
        seen = parse_trainer_state(store.read(name, only=TRAINER_STATE), store.uri(name))
        if seen.job_uid != uid:
            raise CheckpointConflict(f"{store.uri(name)} is another job's checkpoint; name another spec.checkpoint.uri")
        if not ledger.extends(seen.ledger_head, seen.ledger_length):
            raise LedgerCorrupt(
                f"the ledger is shorter than the one that {store.uri(name)} was written under: {_PUT_BACK}"
            )
