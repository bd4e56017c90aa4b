"""The operator is upgraded, and rolled back, under a job that trains: the job does not notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.team_namespace import TeamNamespace
from e2e.platform.helm import CHART, helm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

RELEASE = ("tensafe", "--namespace", SYSTEM, "--wait", "--timeout", "180s")


def operators(team: TeamNamespace) -> set[str]:
    """The UIDs of the operator's pods once it is rolled out, but for those that are told to go."""
    kubectl(team.kubeconfig, "-n", SYSTEM, "rollout", "status", "deployment/tensafe-operator", "--timeout=300s")
    listed = kubectl(team.kubeconfig, "-n", SYSTEM, "get", "pods", "-o", "json").stdout
    pods = (pod["metadata"] for pod in json.loads(listed)["items"])
    return {pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


def test_a_job_does_not_notice_an_upgrade_and_a_rollback_of_the_operator(
    disposable_cluster: Cluster, team: TeamNamespace, data: Path
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    team.submit()
    status = team.wait_for_step(2)
    first = operators(team)

    helm(
        *("upgrade", RELEASE[0], str(CHART), *RELEASE[1:], "--reuse-values", "--set", "podAnnotations.upgraded=yes"),
        kubeconfig=team.kubeconfig,
    )
    second = operators(team)
    assert not first & second, "the upgrade has replaced nothing"
    status = team.wait_for_step(status["progress"]["step"] + 2)

    helm("rollback", *RELEASE, kubeconfig=team.kubeconfig)
    assert not second & operators(team), "the rollback has replaced nothing"
    team.wait_for_step(status["progress"]["step"] + 2)

    over = team.wait_until_finished(600)
    assert over["phase"] == "Succeeded", json.dumps(over, indent=1)
    assert [attempt["number"] for attempt in over["attempts"]] == [1]
    assert team.incarnation(1) == 1
    assert over["privacy"]["stepsRecharged"] == 0
