"""Cleanup: delete the RayJobs of attempts that have ended, once their logs have been kept long enough.

A RayJob holds the last lines of the driver's log. While the job runs it is kept for ten minutes. After the job's end it
is kept for `childrenTTLSeconds`, and that of a failed attempt for at least ten minutes.
"""

from __future__ import annotations

from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.draft import Draft
from tensafe_operator.plan.parsing import is_terminal
from tensafe_operator.plan.retry import has_failed

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
    ttl = draft.observed.job["spec"].get("childrenTTLSeconds", _DEFAULT_TTL_SECONDS) if final else KEPT_SECONDS
    attempts = {each.ray_job_name: each for each in draft.status.attempts}
    for ray_job in draft.observed.ray_jobs:
        attempt = attempts.get(ray_job["metadata"]["name"])
        ended = parse_time(attempt.end_time) if attempt is not None else None
        if attempt is None or ended is None:
            continue
        due = ended + (max(float(ttl), KEPT_SECONDS) if has_failed(attempt) else float(ttl))
        if not is_terminal(ray_job) or due <= draft.now:
            draft.delete(ray_job)
        else:
            draft.wake_at(due)
