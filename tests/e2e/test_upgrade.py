"""The operator is upgraded, and rolled back, under a job that trains: the job does not notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.platform.cluster import SYSTEM, Cluster
from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.clinic import Clinic
from e2e.platform.helm import CHART, helm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

RELEASE = ("tensafe", "--namespace", SYSTEM, "--wait", "--timeout", "180s")


def operators(clinic: Clinic) -> set[str]:
    """The UIDs of the operator's pods once it is rolled out, but for those that are told to go."""
    kubectl(clinic.kubeconfig, "-n", SYSTEM, "rollout", "status", "deployment/tensafe-operator", "--timeout=300s")
    listed = kubectl(clinic.kubeconfig, "-n", SYSTEM, "get", "pods", "-o", "json").stdout
    pods = (pod["metadata"] for pod in json.loads(listed)["items"])
    return {pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


def test_a_job_does_not_notice_an_upgrade_and_a_rollback_of_the_operator(
    whole_cluster: Cluster, clinic: Clinic, data: Path
) -> None:
    clinic.upload(data)
    clinic.provide_model()
    clinic.submit()
    status = clinic.until_step(2)
    first = operators(clinic)

    helm(
        *("upgrade", RELEASE[0], str(CHART), *RELEASE[1:], "--reuse-values", "--set", "podAnnotations.upgraded=yes"),
        kubeconfig=clinic.kubeconfig,
    )
    second = operators(clinic)
    assert not first & second, "the upgrade has replaced nothing"
    status = clinic.until_step(status["progress"]["step"] + 2)

    helm("rollback", *RELEASE, kubeconfig=clinic.kubeconfig)
    assert not second & operators(clinic), "the rollback has replaced nothing"
    clinic.until_step(status["progress"]["step"] + 2)

    over = clinic.until_over(600)
    assert over["phase"] == "Succeeded", json.dumps(over, indent=1)
    assert [attempt["number"] for attempt in over["attempts"]] == [1]
    assert clinic.incarnation(1) == 1
    assert over["privacy"]["stepsRecharged"] == 0
