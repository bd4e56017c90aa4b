"""Cleanup: delete what a job no longer needs: the RayJobs of attempts that have ended, the key of an ended job, and on
request the job.

With the job's key, the digest of the data set, which the ledger publishes, is an exact test of a guess. No attempt
starts after the end of a job, so its key is deleted as soon as the end is stored in the status.

A RayJob holds the last lines of the driver's log. While the job runs it is kept for ten minutes. After the job's end it
is kept for `childrenTTLSeconds`, and that of a failed attempt for at least ten minutes. With `podsTTLSeconds` KubeRay
keeps the pods of an attempt for their logs. They go, and their RayJob with them, before the next attempt starts, and
when the job is suspended.
"""

from __future__ import annotations

from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.decision.draft import Draft
from tensafe_operator.decision.observation import Delete
from tensafe_operator.decision.parsing import is_terminal, parse_ledger_spec
from tensafe_operator.decision.retry import has_failed

KEPT_SECONDS = 600
"""How long the RayJob of a failed attempt is kept for its logs, at least."""
_DEFAULT_TTL_SECONDS = 3600


def delete_old_ray_jobs(draft: Draft, *, final: bool) -> None:
    """Delete each RayJob that is no longer needed, and wake when the next one is due.

    A RayJob that still runs after the end of its attempt is deleted at once. RayJobs of attempts that the status does
    not list are left alone.

    Args:
        final: whether the job has ended.
    """
    spec = draft.observed.job["spec"]
    pods_ttl = spec.get("podsTTLSeconds") or 0
    ttl = max(spec.get("childrenTTLSeconds", _DEFAULT_TTL_SECONDS), pods_ttl) if final else KEPT_SECONDS
    attempts = {each.ray_job_name: each for each in draft.status.attempts}
    for ray_job in draft.observed.ray_jobs:
        attempt = attempts.get(ray_job["metadata"]["name"])
        ended = parse_time(attempt.end_time) if attempt is not None else None
        if attempt is None or ended is None:
            continue
        due = ended + (max(float(ttl), KEPT_SECONDS) if has_failed(attempt) else float(ttl))
        if pods_ttl and not final and not has_failed(attempt):
            due = ended  # it was suspended, and its pods hold their GPUs
        if not is_terminal(ray_job) or due <= draft.now:
            draft.delete(ray_job)
        else:
            draft.wake_at(due)


def delete_job(draft: Draft) -> None:
    """Delete a job `ttlSecondsAfterFinished` after its end, and with it all that it owns. Its ledger has no owner."""
    spec, ended = draft.observed.job["spec"], parse_time(draft.status.completion_time)
    ttl = spec.get("ttlSecondsAfterFinished")
    if ttl is None or ended is None:
        return
    kept = (spec.get("podsTTLSeconds") or 0) if draft.observed.pods else 0
    due = ended + max(ttl, kept)
    if due <= draft.now:
        draft.delete(draft.observed.job)
    else:
        draft.wake_at(due)


def delete_job_key(draft: Draft) -> None:
    """Delete the Secret with the key of a job whose end is stored in its status, and record that in the status.

    The ledger names the Secret. Without the job's own ledger the name is unknown, and the Secret stays until the job is
    deleted. A name that the operator does not give is not followed: it would delete another Secret.
    """
    status, metadata, found = draft.status, draft.observed.job["metadata"], draft.observed.ledger
    opened = parse_ledger_spec(found)
    if status.key_deleted or found is None or opened is None or found["metadata"]["uid"] != status.ledger_uid:
        return
    if opened.key_secret_name.startswith(names.key_prefix(metadata["name"], metadata["uid"])):
        draft.irreversible = True
        draft.actions.append(Delete("Secret", opened.key_secret_name))
        status.key_deleted = True
