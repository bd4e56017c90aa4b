"""A blocked job reports the reason within ten seconds, and continues by itself once the cause is fixed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.platform import images
from e2e.platform.cluster import Cluster
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import BUCKET, JOB, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

DEADLINE_SECONDS = 60
REPORT_SECONDS = 10
"""Goal for the time from apply to the reason in the status."""


def stalled(status: dict[str, Any]) -> str:
    """Reason and message of the condition Stalled; empty if the job is not blocked."""
    found = (each for each in status.get("conditions", ()) if each["type"] == "Stalled" and each["status"] == "True")
    return next((f"{each['reason']}: {each['message']}" for each in found), "")


def reason_of_waiting(status: dict[str, Any]) -> str:
    """Reason and message of the condition Ready, which every job has."""
    ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    return f"{ready.get('reason')}: {ready.get('message')}"


@contextmanager
def blocked_job(team: TeamNamespace, stopwatch: Stopwatch, reason: str, **changes: Any) -> Iterator[str]:
    """Submit a job that is blocked for a reason, and check that it reports the reason in time.

    The caller fixes the cause. The job must then train, and is deleted.
    """
    with stopwatch(f"apply → {reason} reported", goal=REPORT_SECONDS):
        team.submit(**changes)
        status = team.wait_for_status(lambda status: reason_of_waiting(status).startswith(reason), 60)
    assert bool(stalled(status)) == (reason != "Unschedulable"), "an autoscaler may still add a node"
    yield reason_of_waiting(status)
    assert not stalled(team.wait_for_step(1, 300))
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.pod_names(), 180)


@pytest.mark.gate
def test_blocked_job_reports_why_and_trains_once_the_cause_is_fixed(
    team: TeamNamespace, data: Path, local_cluster: Cluster | None, stopwatch: Stopwatch
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    with blocked_job(team, stopwatch, "SecretMissing", spec__storage__secretName="later") as message:
        assert "later" in message
        team.create_s3_secret("later")

    label = f"tensafe-test-gpu={team.namespace}"
    absent = dict([label.split("=")])
    try:
        with blocked_job(
            team, stopwatch, "Unschedulable", **own_checkpoints(team, 2), spec__cluster__nodeSelector=absent
        ) as message:
            assert "node" in message
            team.kubectl("label", "node", "--all", label, "--overwrite")
    finally:
        team.kubectl("label", "node", "--all", "tensafe-test-gpu-")

    if local_cluster is None:
        return  # importing an image needs access to the node
    image = f"localhost/tensafe-trainer:{team.namespace}"
    changes = {**own_checkpoints(team, 3), "spec__cluster__image": image, "spec__cluster__rayVersion": "2.60.0"}
    try:
        with blocked_job(team, stopwatch, "ImagePullFailed", **changes) as message:
            assert image in message
            local_cluster.node.tag(images.names_of_ours()[1], image)
    finally:
        local_cluster.node.untag(image)


def test_job_waits_for_its_secret_as_long_as_its_author_wants(team: TeamNamespace, data: Path) -> None:
    """Without a deadline it waits, and uses up no attempt. With one it ends."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit(spec__storage__secretName="later", spec__startDeadlineSeconds=DEADLINE_SECONDS)
    ended = team.wait_until_finished(DEADLINE_SECONDS + 120)
    failed = next(each for each in ended["conditions"] if each["type"] == "Failed")
    assert (ended["phase"], failed["reason"]) == ("Failed", "StartDeadlineExceeded")
    assert not ended["privacy"].get("stepsCharged")
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.pod_names(), 180)

    begun = time.monotonic()
    changes = {**own_checkpoints(team, 2), "spec__retry": {"maxAttempts": 1}}
    team.submit(spec__storage__secretName="later", **changes)
    team.wait_for_status(lambda status: stalled(status).startswith("SecretMissing"), 60)
    waited = team.wait_for_status(lambda _: time.monotonic() > begun + 2 * DEADLINE_SECONDS, 3 * DEADLINE_SECONDS)
    assert stalled(waited).startswith("SecretMissing")
    team.create_s3_secret("later")
    trains = team.wait_for_step(1, 300)
    assert [attempt["number"] for attempt in trains["attempts"]] == [1]


def test_head_that_crashes_is_reported_and_the_job_trains_with_more_memory(team: TeamNamespace, data: Path) -> None:
    """The sidecar of the head runs on, so that the kubelet reports no failed pod before KubeRay deletes it."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    head = JOB["spec"]["cluster"]["head"]
    team.submit(spec__cluster__head={**head, "memory": "256Mi"})
    status = team.wait_for_status(lambda status: stalled(status).startswith("CrashLoop"), 180)
    assert "container ray-head ended with exit code" in stalled(status)
    patch(team, suspend=True)
    team.wait_for_status(lambda status: status["phase"] == "Suspended", 60)
    patch(team, suspend=False, cluster={"head": head})
    assert not stalled(team.wait_for_step(1, 300))


def patch(team: TeamNamespace, **spec: Any) -> None:
    team.kubectl("patch", "tsj", "triage", "--type=merge", "-p", json.dumps({"spec": spec}))


def own_checkpoints(team: TeamNamespace, number: int) -> dict[str, str]:
    """A separate checkpoint address for each further job, since no job may write over another's checkpoints."""
    return {"spec__checkpoint__uri": f"s3://{BUCKET}/models/{number}/"}
