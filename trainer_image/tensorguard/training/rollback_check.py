"""Refuses a ledger that was rolled back, by comparing it with the checkpoints and the run log.

A hash chain does not show that its last entries were removed, or that the file is an old copy from a backup. But every
checkpoint records the head and the length of the ledger at the time it was written, and the run log records how many
steps were charged. A ledger with fewer entries or fewer charged steps than these is refused.
"""

from __future__ import annotations

from pathlib import Path

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.checkpoint.store import CheckpointConflict, CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, parse_trainer_state
from tensorguard.ledger.contract import Ledger, LedgerCorrupt, LedgerState
from tensorguard.training.run_log import steps_charged_in

_RESTORE = "entries were removed or replaced; restore the latest ledger, since what was spent stays spent"


def read_checked(ledger: Ledger, run_log: Path) -> LedgerState:
    """Read the ledger, and compare its charged steps with those in the run log.

    The run log is read first: a step is charged in the ledger before it is logged, so a running job never looks as if
    charges were removed.

    Raises:
        LedgerCorrupt: the run log records more charged steps than the ledger, or is missing although steps were
            charged.
        LedgerError: the ledger cannot be read.
    """
    logged = steps_charged_in(run_log)
    state = ledger.read()
    if state.steps_charged and not run_log.exists():
        raise LedgerCorrupt(f"{run_log} is missing, and the ledger beside it cannot be checked without it; restore it")
    check_charged(state, logged, run_log)
    return state


def check_charged(state: LedgerState, logged: int, run_log: Path) -> None:
    """Raise LedgerCorrupt if the ledger has fewer charged steps than the `logged` ones of `run_log`."""
    if logged > state.steps_charged:
        raise LedgerCorrupt(
            f"the ledger has {state.steps_charged} charged steps, but {run_log} records {logged}: {_RESTORE}"
        )


def check_same_job(state: LedgerState, expected: LedgerSpec) -> None:
    """Compare the specification of a ledger with that of the job in whose folder it is.

    Raises:
        LedgerCorrupt: it is the ledger of another run.
    """
    differing = [name for name in LedgerSpec.model_fields if getattr(state.spec, name) != getattr(expected, name)]
    if differing:
        raise LedgerCorrupt(
            f"the ledger is that of another run than job.yaml beside it: they differ in {', '.join(differing)}; "
            "restore the ledger of this run, since what was spent stays spent"
        )


def check_checkpoints(store: CheckpointStore, ledger: Ledger) -> None:
    """Compare the ledger with every checkpoint in `store`.

    Raises:
        LedgerCorrupt: a checkpoint was written with a ledger that this one does not extend.
        CheckpointConflict: a checkpoint belongs to another job; the two jobs would overwrite each other's checkpoints.
        CheckpointError: a checkpoint cannot be read.
    """
    uid = ledger.read().spec.job_uid
    for name in store.names():
        check_checkpoint(store, name, ledger, uid)


def check_checkpoint(store: CheckpointStore, name: str, ledger: Ledger, uid: str) -> None:
    """Compare the ledger of the job with this `uid` with one checkpoint in `store`. Raises as `check_checkpoints`."""
    seen = parse_trainer_state(store.read(name, only=(TRAINER_STATE,)), store.uri(name))
    if seen.job_uid != uid:
        raise CheckpointConflict(
            f"{store.uri(name)} is the checkpoint of another job; set spec.checkpoint.uri to another location"
        )
    if not ledger.extends(seen.ledger_head, seen.ledger_length):
        raise LedgerCorrupt(f"the ledger is shorter than it was when {store.uri(name)} was written: {_RESTORE}")
