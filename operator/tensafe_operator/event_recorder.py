"""Records changes of a job's status as Kubernetes Events of the job, and as log lines with its name and attempt.

It is called after the status was written, so that no Event reports a change that was not stored. A failed write of an
Event is not retried: the status holds the same facts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tensafe_api.resources.job import API_VERSION, KIND
from tensafe_api.resources.status import Status
from tensafe_api.timestamps import format_time
from tensafe_operator import names
from tensafe_operator.decision.transitions import Transition
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import CONFLICT, ApiError, ApiUnavailable

log = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1024


async def record_events(
    api: ApiClient, job: Mapping[str, Any], status: Status, transitions: Sequence[Transition], now: float
) -> None:
    """Log the transitions that have led to this status, and create an Event for each."""
    attempt = status.attempts[-1].number if status.attempts else None
    for transition in transitions:
        level = logging.WARNING if transition.warning else logging.INFO
        fields = {**job_fields(job), "attempt": attempt, "phase": status.phase, "reason": transition.reason}
        log.log(level, transition.message, extra=fields)
    events = (_event(job, transition, now) for transition in transitions)
    await asyncio.gather(*(_create(api, job, event) for event in events))


def job_fields(job: Mapping[str, Any]) -> dict[str, str]:
    """The fields by which a log line names this job."""
    return names.log_fields(job["metadata"]["namespace"], job["metadata"]["name"])


async def _create(api: ApiClient, job: Mapping[str, Any], event: dict[str, Any]) -> None:
    try:
        await api.create(event)
    except (ApiUnavailable, ApiError) as error:
        if not (isinstance(error, ApiError) and error.status == CONFLICT):
            log.warning("an Event could not be created: %s", error, extra=job_fields(job))


def _event(job: Mapping[str, Any], transition: Transition, now: float) -> dict[str, Any]:
    """The Event. Its name is derived from the transition and the job's version, so that it is created only once."""
    metadata = job["metadata"]
    text = "" if transition.repeated else transition.message
    seed = "/".join((metadata["uid"], str(metadata["resourceVersion"]), transition.reason, text))
    when = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(seed.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": transition.type,
        "reason": transition.reason,
        "message": transition.message[:_LONGEST_MESSAGE],
        "source": {"component": names.OPERATOR},
        "reportingComponent": names.OPERATOR,
        "reportingInstance": names.OPERATOR,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
