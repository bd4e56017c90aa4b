"""A status that the API server does not store is reported in an Event of the job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensafe_kubectl.diagnosis import Seen, diagnose
from tensafe_operator.runtime.api_errors import ApiError
from tests.support.job_harness import JobHarness, Refuse
from tests.support.polling import wait_until

pytestmark = pytest.mark.cluster


def warnings_about(cluster: JobHarness) -> list[dict[str, Any]]:
    """The warning Events of the job."""
    about = ("get", "events", "--field-selector=involvedObject.kind=TenSafeTrainingJob,type=Warning", "-o", "json")
    items: list[dict[str, Any]] = json.loads(cluster.plane.kubectl("-n", cluster.namespace, *about).stdout)["items"]
    return items


def wait_until_refused(cluster: JobHarness, **changes: Any) -> None:
    """Create the job again until a new policy refuses its status: it takes effect after a moment."""

    def is_refused() -> bool:
        cluster.plane.kubectl("-n", cluster.namespace, "delete", "tsj", cluster.name, "--ignore-not-found")
        cluster.apply(**changes)
        try:
            cluster.reconcile(passes=1)
        except ApiError:
            return True
        return False

    wait_until(is_refused, 60)


def test_policy_that_refuses_the_status_is_named_in_one_event_and_explained(
    cluster: JobHarness, platform_team: Refuse
) -> None:
    platform_team("UPDATE", "tensafe.io", "tensafetrainingjobs/status")
    wait_until_refused(cluster, spec__suspend=True)
    with pytest.raises(ApiError):
        cluster.reconcile(passes=1)
    job = cluster.get("TenSafeTrainingJob", cluster.name) or {}
    (event,) = (each for each in warnings_about(cluster) if each["involvedObject"]["uid"] == job["metadata"]["uid"])
    assert event["reason"] == "Forbidden" and event["message"].endswith(Reason.FORBIDDEN.fix)
    found = diagnose(Seen(job, warnings=[event]), cluster.now)
    assert found.reason == "Forbidden"
    assert found.what.startswith("The status of this job cannot be written: ")
    assert "the platform team owns this object" in found.what


def test_policy_that_refuses_some_statuses_is_no_failure_of_the_operator(
    cluster: JobHarness, platform_team: Refuse
) -> None:
    """The report of a failure would pass such a policy, and hide which component refuses the status."""
    has_no_attempt = "!has(object.status) || !has(object.status.attempts)"
    platform_team("UPDATE", "tensafe.io", "tensafetrainingjobs/status", unless=has_no_attempt)
    wait_until_refused(cluster)
    job = cluster.get("TenSafeTrainingJob", cluster.name) or {}
    assert "InternalError" not in json.dumps(job)
    found = diagnose(Seen(job, warnings=warnings_about(cluster)), cluster.now)
    assert found.reason == "Forbidden" and "the platform team owns this object" in found.what
