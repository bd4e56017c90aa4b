"""Why nothing runs: each obstacle by its reason, with the object's name."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster
from tensafe_api.reasons import Reason
from tensafe_operator.plan.blockers import count_ready_workers, find_blocker
from tensafe_operator.plan.observed import ClusterWarning, Observed


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w-1", "labels": {"ray.io/node-type": "worker"}}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"name": "ray", "image": "registry/none:1", "state": state}])


def seen(*pods: dict[str, Any], warnings: tuple[ClusterWarning, ...] = (), kuberay: bool = True) -> Observed:
    return Observed(FakeCluster.with_job().job, pods=pods, warnings=warnings, kuberay=kuberay)


_UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}

_NOT_MADE = "FailedToCreateHeadPod"
_LACKS = {"reason": "CreateContainerConfigError", "message": 'secret "later" not found'}


@pytest.mark.parametrize(
    ("observed", "reason", "says"),
    [
        (seen(kuberay=False), Reason.KUBERAY_MISSING, "KubeRay"),
        (seen(waiting("ImagePullBackOff")), Reason.IMAGE_PULL_FAILED, "registry/none:1"),
        (seen(waiting("ErrImageNeverPull")), Reason.IMAGE_PULL_FAILED, "pod w-1"),
        (seen(waiting("CrashLoopBackOff")), Reason.CRASH_LOOP, "container ray"),
        (seen(waiting("CreateContainerConfigError", 'secret "hub" not found')), Reason.SECRET_MISSING, "hub"),
        (seen(waiting("CreateContainerConfigError", 'configmap "tuning" not found')), Reason.SECRET_MISSING, "tuning"),
        (
            seen(waiting("CreateContainerConfigError", "couldn't find key token in Secret clinic/hub")),
            Reason.SECRET_MISSING,
            "key token",
        ),
        (
            seen(waiting("CreateContainerConfigError", "couldn't find key batch in ConfigMap clinic/tuning")),
            Reason.SECRET_MISSING,
            "key batch",
        ),
        (
            seen(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
            Reason.ROOT_IMAGE,
            "will run as root",
        ),
        (
            seen(
                waiting("CreateContainerConfigError", "container has runAsNonRoot and image has non-numeric user (ray)")
            ),
            Reason.ROOT_IMAGE,
            "(ray)",
        ),
        (
            seen(waiting("CreateContainerConfigError", "container's runAsUser breaks non-root policy")),
            Reason.ROOT_IMAGE,
            "runAsUser",
        ),
        (
            seen(waiting("CreateContainerConfigError", 'failed to prepare subPath for volumeMount "data"')),
            Reason.CONTAINER_REFUSED,
            "subPath",
        ),
        (seen(pod(conditions=[_UNSCHEDULABLE])), Reason.UNSCHEDULABLE, "no GPU"),
        (
            seen(warnings=(ClusterWarning("Pod", "w-1", "FailedMount", 'secret "s3-keys" not found'),)),
            Reason.SECRET_MISSING,
            "s3-keys",
        ),
        (
            seen(warnings=(ClusterWarning("Pod", "w-1", "FailedMount", "references non-existent secret key: id"),)),
            Reason.SECRET_MISSING,
            "key: id",
        ),
        (
            seen(warnings=(ClusterWarning("RayJob", "a1", "FailedCreate", "exceeded quota: few"),)),
            Reason.QUOTA_EXCEEDED,
            "few",
        ),
        (
            seen(warnings=(ClusterWarning("RayCluster", "a1", _NOT_MADE, "failed quota: q: must specify limits.cpu"),)),
            Reason.QUOTA_EXCEEDED,
            "limits.cpu",
        ),
        (seen(pod(initContainerStatuses=[{"state": {"waiting": _LACKS}}])), Reason.SECRET_MISSING, '"later"'),
        (seen(warnings=(ClusterWarning("RayJob", "a1", "Forbidden", "not allowed"),)), Reason.FORBIDDEN, "not allowed"),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_what_stands_in_the_way(observed: Observed, reason: Reason, says: str) -> None:
    found = find_blocker(observed)
    assert found is not None
    assert found.reason is reason
    assert says in found.message


def test_a_volume_that_cannot_be_mounted_is_no_missing_secret() -> None:
    told = ClusterWarning(
        "Pod", "w-1", "FailedMount", "driver name efs.csi.aws.com not found in the list of CSI drivers"
    )
    assert find_blocker(seen(warnings=(told,))) is None


def test_who_may_not_run_as_root_is_told_the_field() -> None:
    assert "cluster.securityContext.runAsUser" in Reason.ROOT_IMAGE.fix


def test_nothing_stands_in_the_way_of_pods_that_run() -> None:
    running = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert find_blocker(seen(running)) is None
    assert count_ready_workers([running, pod(phase="Pending")]) == 1
