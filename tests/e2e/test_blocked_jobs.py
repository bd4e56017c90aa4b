"""What stands in a job's way is told within ten seconds; mended outside the job, it goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.platform import images
from e2e.platform.cluster import Cluster
from e2e.platform.fixtures.stopwatch import Stopwatch
from e2e.platform.fixtures.team_namespace import BUCKET, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

TOLD_SECONDS = 10
"""From apply to the reason in the status."""


def stalled(status: dict[str, Any]) -> str:
    """Why a job waits for somebody; empty where it does not."""
    found = (each for each in status.get("conditions", ()) if each["type"] == "Stalled" and each["status"] == "True")
    return next((f"{each['reason']}: {each['message']}" for each in found), "")


@contextmanager
def held_up(team: TeamNamespace, stopwatch: Stopwatch, reason: str, **changes: Any) -> Iterator[str]:
    """A job that is held up for a reason, told in time; afterwards it must go on until it trains, and is deleted."""
    with stopwatch(f"apply → {reason} told", goal=TOLD_SECONDS):
        team.submit(**changes)
        status = team.wait_for_status(lambda status: stalled(status).startswith(reason), 60)
    yield stalled(status)
    assert not stalled(team.wait_for_step(1, 300))
    team.kubectl("delete", "tsj", "triage", "--timeout=300s")
    team.wait_until_none(lambda: team.pod_names(), 180)


@pytest.mark.gate
def test_it_waits_says_why_and_goes_on_once_it_is_mended(
    team: TeamNamespace, data: Path, local_cluster: Cluster | None, stopwatch: Stopwatch
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    with held_up(team, stopwatch, "SecretMissing", spec__storage__secretName="later") as told:
        assert "later" in told
        team.create_s3_secret("later")

    label = f"tensafe-test-gpu={team.namespace}"
    absent = dict([label.split("=")])
    try:
        with held_up(team, stopwatch, "Unschedulable", **own(team, 2), spec__cluster__nodeSelector=absent) as told:
            assert "node" in told
            team.kubectl("label", "node", "--all", label, "--overwrite")
    finally:
        team.kubectl("label", "node", "--all", "tensafe-test-gpu-")

    if local_cluster is None:
        return  # nobody but its owner brings an image to a cluster
    image = f"localhost/tensafe-trainer:{team.namespace}"
    changes = {**own(team, 3), "spec__cluster__image": image, "spec__cluster__rayVersion": "2.60.0"}
    try:
        with held_up(team, stopwatch, "ImagePullFailed", **changes) as told:
            assert image in told
            local_cluster.node.tag(images.names_of_ours()[1], image)
    finally:
        local_cluster.node.untag(image)


def own(team: TeamNamespace, number: int) -> dict[str, str]:
    """A place of its own for the checkpoints of each further job: nobody writes over another's."""
    return {"spec__checkpoint__uri": f"s3://{BUCKET}/models/{number}/"}
