"""A status that the API server does not store is shortened, or reported in an Event of the job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.platform.fixtures.job_harness import JobHarness, Refuse
from e2e.platform.fixtures.polling import wait_until
from tensafe_api.reasons import Reason
from tensafe_kubectl.diagnosis import Seen, diagnose
from tensafe_operator.runtime.api_errors import ApiError, ObjectTooLarge

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
    job = cluster.get("tsj", cluster.name) or {}
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
    job = cluster.get("tsj", cluster.name) or {}
    assert "InternalError" not in json.dumps(job)
    found = diagnose(Seen(job, warnings=warnings_about(cluster)), cluster.now)
    assert found.reason == "Forbidden" and "the platform team owns this object" in found.what


def label(cluster: JobHarness, labels: dict[str, str]) -> bool:
    """Give the job these labels; return whether the API server accepts them."""
    command = ("patch", "tsj", cluster.name, "--type=merge", "--patch-file=/dev/stdin")
    text = json.dumps({"metadata": {"labels": labels}})
    return not cluster.plane.kubectl("-n", cluster.namespace, *command, text=text, check=False).returncode


def fill(cluster: JobHarness) -> None:
    """Give the job labels until there are ten bytes left for its status, or fewer."""
    labels, step = 0, 2000
    while step:
        numbers = range(labels, labels + step)
        if label(cluster, {f"{number:05d}{'a' * 50}": "b" * 63 for number in numbers}):
            labels += step
        else:
            step //= 4
    take_what_is_left(cluster, "z")


def take_what_is_left(cluster: JobHarness, letter: str) -> None:
    """Give the job short labels that begin with this letter, until there are ten bytes left, or fewer."""
    for number, length in enumerate((60, 60, 60, 30, 15, 7, 3, 1, 0)):
        label(cluster, {f"{letter}{number}": "b" * length})


def test_charges_count_in_the_status_of_a_job_that_a_user_has_filled_with_labels(cluster: JobHarness) -> None:
    pod = cluster.start_training()
    made = {"uri": "s3://m/5", "step": 5, "attempt": 1, "digest": "d", "statementDigest": "s", "final": False}
    releases = [{**made, "stepsCharged": 5}]
    cluster.charge(pod, 5, releases=releases)
    cluster.reconcile()
    assert len(cluster.status()["checkpoints"]) == 1
    fill(cluster)
    cluster.charge(pod, 1000, releases=releases)
    cluster.reconcile(passes=2)
    assert cluster.status()["privacy"]["stepsCharged"] == 1000
    assert cluster.condition("Stalled")["reason"] == "Forbidden"
    assert cluster.condition("Stalled")["message"].startswith("The job is too large for the API server")
    for letter, steps in (("y", 10**4), ("x", 10**6)):
        take_what_is_left(cluster, letter)
        cluster.charge(pod, steps, releases=releases)
        cluster.reconcile(passes=2)
        assert cluster.status()["privacy"]["stepsCharged"] == steps
    version = (cluster.get("tsj", cluster.name) or {})["metadata"]["resourceVersion"]
    cluster.reconcile()
    assert (cluster.get("tsj", cluster.name) or {})["metadata"]["resourceVersion"] == version

    fewer = (f"{number:05d}{'a' * 50}-" for number in range(50))
    cluster.plane.kubectl("-n", cluster.namespace, "label", "tsj", cluster.name, *fewer)
    cluster.reconcile()
    assert cluster.condition("Stalled")["status"] == "False" and len(cluster.status()["checkpoints"]) == 1


def test_status_that_cannot_be_stored_at_all_is_reported_in_an_event(cluster: JobHarness) -> None:
    cluster.apply()
    fill(cluster)
    with pytest.raises(ObjectTooLarge):
        cluster.reconcile(passes=1)
    (event,) = warnings_about(cluster)
    assert event["reason"] == "Forbidden"
    assert event["message"].startswith("The status of this job cannot be written: The job is too large for the API")
    assert cluster.get("rayjob", "claims-triage-a1") is None
