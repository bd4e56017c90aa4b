"""What stands in a job's way is told within ten seconds of its pods; mended outside the job, it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from clinic import Clinic

from e2e.cluster import images
from e2e.cluster.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

TOLD_SECONDS = 10


def stalled(status: dict[str, Any]) -> str:
    """Why a job waits for somebody; empty where it does not."""
    found = (each for each in status.get("conditions", ()) if each["type"] == "Stalled" and each["status"] == "True")
    return next((f"{each['reason']}: {each['message']}" for each in found), "")


@contextmanager
def held_up(clinic: Clinic, reason: str, **changes: Any) -> Iterator[str]:
    """A job that is held up for a reason, told in time; afterwards it must go on, and is deleted."""
    clinic.submit(**changes)
    clinic.until(lambda _: clinic.pods(), 30)
    status = clinic.until(lambda status: stalled(status).startswith(reason), TOLD_SECONDS)
    yield stalled(status)
    clinic.until(lambda status: not stalled(status) and (status.get("workers") or {}).get("ready") == 2, 240)
    clinic.kubectl("delete", "tsj", "triage", "--timeout=60s")
    clinic.until_gone(lambda: clinic.pods(), 180)


@pytest.mark.gate
def test_it_waits_says_why_and_goes_on_once_it_is_mended(clinic: Clinic, own_cluster: Cluster | None) -> None:
    clinic.provide_model()
    with held_up(clinic, "SecretMissing", spec__storage__secretName="later") as told:
        assert "later" in told
        clinic.kubectl("create", "secret", "generic", "later", "--from-literal=AWS_ACCESS_KEY_ID=x")
    with held_up(clinic, "Unschedulable", spec__cluster__nodeSelector={"tensafe-test-gpu": clinic.namespace}) as told:
        assert "node" in told
        clinic.kubectl("label", "node", "--all", f"tensafe-test-gpu={clinic.namespace}", "--overwrite")
    clinic.kubectl("label", "node", "--all", "tensafe-test-gpu-")
    if own_cluster is None:
        return  # nobody but its owner brings an image to a cluster
    absent = f"localhost/tensafe-trainer:{clinic.namespace}"
    with held_up(clinic, "ImagePullFailed", spec__cluster__image=absent, spec__cluster__rayVersion="2.60.0") as told:
        assert absent in told
        own_cluster.node.tag(images.ours()[1], absent)
    own_cluster.node.untag(absent)
