"""Why nothing runs: each obstacle by its reason, with the object's name."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from tensafe_api.reasons import Reason
from tensafe_operator.plan.observed import Observed, Warned
from tensafe_operator.plan.waiting import obstacle, ready


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w-1", "labels": {"ray.io/node-type": "worker"}}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"name": "ray", "image": "registry/none:1", "state": state}])


def seen(*pods: dict[str, Any], warnings: tuple[Warned, ...] = (), kuberay: bool = True) -> Observed:
    return Observed(World.with_job().job, pods=pods, warnings=warnings, kuberay=kuberay)


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}


@pytest.mark.parametrize(
    ("observed", "reason", "says"),
    [
        (seen(kuberay=False), Reason.KUBERAY_MISSING, "KubeRay"),
        (seen(waiting("ImagePullBackOff")), Reason.IMAGE_PULL_FAILED, "registry/none:1"),
        (seen(waiting("ErrImageNeverPull")), Reason.IMAGE_PULL_FAILED, "pod w-1"),
        (seen(waiting("CrashLoopBackOff")), Reason.CRASH_LOOP, "container ray"),
        (seen(waiting("CreateContainerConfigError", 'secret "hub" not found')), Reason.SECRET_MISSING, "hub"),
        (seen(pod(conditions=[UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (
            seen(warnings=(Warned("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found'),)),
            Reason.SECRET_MISSING,
            "s3-keys",
        ),
        (
            seen(warnings=(Warned("RayJob", "a1", "FailedCreate", "exceeded quota: few"),)),
            Reason.QUOTA_EXCEEDED,
            "few",
        ),
        (seen(warnings=(Warned("RayJob", "a1", "Forbidden", "not allowed"),)), Reason.FORBIDDEN, "not allowed"),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_what_stands_in_the_way(observed: Observed, reason: Reason, says: str) -> None:
    found = obstacle(observed)
    assert found is not None
    assert found.reason is reason
    assert says in found.message


def test_nothing_stands_in_the_way_of_pods_that_run() -> None:
    running = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert obstacle(seen(running)) is None
    assert ready([running, pod(phase="Pending")]) == 1
