"""Deletion: a job that is being deleted does not train, however long a finalizer keeps it.

Garbage collection deletes what a job owns only after the job itself. Any user who may edit a job can give it a
finalizer. Meanwhile its pods would charge the ledger, while no policy of the operator applied to them.
"""

from __future__ import annotations

from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Object
from tensafe_operator.decision.parsing import is_terminal

_ORPHANS = "orphan"
"""Finalizer of an object whose children are kept (`kubectl delete --cascade=orphan`). Garbage collection removes it."""


def is_being_deleted(job: Object) -> bool:
    """Return whether the deletion of a job was requested."""
    return job["metadata"].get("deletionTimestamp") is not None


def end_training(draft: Draft) -> None:
    """Delete the RayJobs that run, unless the user who deletes the job keeps its children."""
    if _ORPHANS in (draft.observed.job["metadata"].get("finalizers") or ()):
        return
    for ray_job in draft.observed.ray_jobs:
        if not is_terminal(ray_job):
            draft.delete(ray_job)
