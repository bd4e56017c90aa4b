"""Checks the place that `resume_from_checkpoint` names, before anything starts.

In come the job, the run's folder and the place. A place that this run cannot resume from is refused, with one that it
can resume from. `tensorguard.runners.local.earlier_run` then checks the run itself.
"""

from __future__ import annotations

from pathlib import Path

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.distributed._errors import ConfigurationError, with_python_names
from tensorguard.ledger.contract import LedgerError, LedgerMissing
from tensorguard.ledger.file import FileLedger


def check_resumes(job: TenSafeTrainingJob, output_dir: Path, place: str) -> None:
    """Refuse a place that is neither the folder of this configuration's run nor its newest checkpoint.

    Raises:
        ConfigurationError: names what can be resumed.
    """
    from tensorguard.checkpoint.store import CheckpointStore
    from tensorguard.training.checkpointing import latest_checkpoint

    requested = place.removeprefix("file://").rstrip("/")
    requested = requested if "://" in requested else str(Path(requested).expanduser().absolute())
    root = job.spec.checkpoint.uri.rstrip("/")
    if requested in (root, str(output_dir)):
        return
    try:
        state = FileLedger(output_dir).read()
    except LedgerMissing:
        raise ConfigurationError(
            f"resume_from_checkpoint: {requested}: there is no ledger in output_dir ({output_dir}), and a run resumes "
            "from its ledger, which holds the charged steps: set output_dir to the folder of the run to resume"
        ) from None
    except LedgerError as error:
        raise ConfigurationError(with_python_names(str(error))) from error
    if state.outcome in ("Completed", "BudgetExhausted"):
        return  # the runner refuses a run that is over
    newest = latest_checkpoint(CheckpointStore.for_job(job), state)
    if newest is not None and requested == newest.uri.removeprefix("file://").rstrip("/"):
        return
    resumable = (
        f"its newest checkpoint, {newest.uri.removeprefix('file://')} (step {newest.step})"
        if newest
        else "its first step, because it has no checkpoint"
    )
    raise ConfigurationError(
        f"resume_from_checkpoint: {requested} cannot be resumed: the run in {output_dir} resumes from {resumable}: "
        f"pass checkpoint_dir ({root}); for another run, set checkpoint_dir and output_dir to those of that run"
    )
