"""The operator is upgraded and rolled back while a job trains; the job continues undisturbed, with its own image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from tests.support.programs.controlplane import kubectl
from tests.support.programs.helm import CHART, helm
from tests.support.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

RELEASE = ("tensafe", "--namespace", SYSTEM, "--wait", "--timeout", "180s")


def operator_pods(team: TeamNamespace) -> set[str]:
    """The UIDs of the operator's pods after its rollout, without those that terminate."""
    kubectl(team.kubeconfig, "-n", SYSTEM, "rollout", "status", "deployment/tensafe-operator", "--timeout=300s")
    listed = kubectl(team.kubeconfig, "-n", SYSTEM, "get", "pods", "-o", "json").stdout
    pods = (pod["metadata"] for pod in json.loads(listed)["items"])
    return {pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


def test_upgrade_and_rollback_of_the_operator_do_not_disturb_a_job(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit()
    status = team.wait_for_step(2)
    first = operator_pods(team)

    helm(
        *("upgrade", RELEASE[0], str(CHART), *RELEASE[1:], "--reuse-values", "--set", "podAnnotations.upgraded=yes"),
        kubeconfig=team.kubeconfig,
    )
    second = operator_pods(team)
    assert not first & second, "the upgrade replaced no pod"
    status = team.wait_for_step(status["progress"]["step"] + 2)

    helm("rollback", *RELEASE, kubeconfig=team.kubeconfig)
    assert not second & operator_pods(team), "the rollback replaced no pod"
    team.wait_for_step(status["progress"]["step"] + 2)

    finished = team.wait_until_finished(600)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert [attempt["number"] for attempt in finished["attempts"]] == [1]
    assert team.incarnation(1) == 1
    assert finished["privacy"]["stepsRecharged"] == 0


def test_attempt_after_an_upgrade_has_the_image_of_the_first(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path
) -> None:
    """The new release has an image for workers that does not exist. New jobs would wait for it, this one does not."""
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit()
    before = team.wait_for_step(6)["resolved"]
    upgrade = (*("upgrade", RELEASE[0], str(CHART)), *RELEASE[1:], "--reuse-values", "--set", "trainer.image.tag=none")
    helm(*upgrade, kubeconfig=team.kubeconfig)
    try:
        operator_pods(team)
        team.kubectl("delete", "rayjob", "triage-a1", "--timeout=300s")
        finished = team.wait_until_finished(900)
    finally:
        helm("rollback", *RELEASE, kubeconfig=team.kubeconfig)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    assert [attempt["number"] for attempt in finished["attempts"]] == [1, 2]
    assert finished["resolved"]["image"].startswith(before["image"])
    assert finished["resolved"]["rayVersion"] == before["rayVersion"]
