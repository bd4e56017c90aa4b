"""Tells people: what is new in a job's status becomes Events of the job, and log lines with its name and attempt.

Called after the status was written, so that nothing is told that is not so. An Event that cannot be written is not
worth a retry: the status says the same, and says it for good.
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
from tensafe_operator.plan.transitions import Transition
from tensafe_operator.runtime.api_client import CONFLICT, ApiClient, ApiError, ApiUnavailable

log = logging.getLogger(__name__)
_LONGEST = 1024


async def record_events(
    api: ApiClient, job: Mapping[str, Any], status: Status, told: Sequence[Transition], now: float
) -> None:
    """Write what is `told` of a job, as its status now says."""
    attempt = status.attempts[-1].number if status.attempts else None
    for transition in told:
        level = logging.WARNING if transition.warning else logging.INFO
        fields = {**of(job), "attempt": attempt, "phase": status.phase, "reason": transition.reason}
        log.log(level, transition.message, extra=fields)
    events = (_event(job, transition, now) for transition in told)
    await asyncio.gather(*(_write(api, job, event) for event in events))


async def _write(api: ApiClient, job: Mapping[str, Any], event: dict[str, Any]) -> None:
    try:
        await api.create(event)
    except (ApiUnavailable, ApiError) as error:
        if not (isinstance(error, ApiError) and error.status == CONFLICT):
            log.warning("an Event could not be written: %s", error, extra=of(job))


def of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which a log line tells which job it is about."""
    return {"namespace": job["metadata"]["namespace"], "job": job["metadata"]["name"]}


def _event(job: Mapping[str, Any], transition: Transition, now: float) -> dict[str, Any]:
    """The Event; its name is that of this news of this version of the job, so that it is there once."""
    metadata = job["metadata"]
    seed = "/".join((metadata["uid"], str(metadata["resourceVersion"]), transition.reason, transition.message))
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
        "message": transition.message[:_LONGEST],
        "source": {"component": names.OPERATOR},
        "reportingComponent": names.OPERATOR,
        "reportingInstance": names.OPERATOR,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
