"""Two teams train at the same time with jobs of one name; neither can read, charge or write the other's objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs.controlplane import kubectl
from tests.support.team_namespace import TeamNamespace
from tests.support.trainer.adapters import download_final_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

SMALL = {
    "spec__training__steps": 8,
    "spec__cluster__workers": 1,
    "spec__cluster__head": {"cpus": "200m", "memory": "2500Mi"},
    "spec__cluster__worker": {"cpus": "300m", "memory": "4Gi"},
}
FORBIDDEN = (
    ("get", "privacyledgers.tensafe.io"),
    ("update", "privacyledgers.tensafe.io/status"),
    ("get", "tensafetrainingjobs.tensafe.io"),
    ("get", "secrets"),
    ("list", "pods"),
)


def test_jobs_of_one_name_in_two_namespaces_are_isolated(
    team: TeamNamespace, other_team: TeamNamespace, data: Path, tmp_path: Path
) -> None:
    teams = (team, other_team)
    for each_team in teams:
        each_team.upload_data(data)
        each_team.copy_model_to_pvc()
    for each_team, steps in zip(teams, (8, 10)):
        each_team.submit(**{**SMALL, "spec__training__steps": steps})
    for each_team in teams:
        each_team.wait_for_step(1)

    # While both train: a worker of one team has no rights in the other's namespace.
    for each_team, neighbour in (teams, reversed(teams)):
        for verb, resource in (("get", "privacyledgers.tensafe.io"), ("update", "privacyledgers.tensafe.io/status")):
            assert may(each_team, each_team, verb, resource), (verb, resource)
        for verb, resource in FORBIDDEN:
            assert not may(each_team, neighbour, verb, resource), (verb, resource)
    keys = [secret(each_team) for each_team in teams]
    assert keys[0] != keys[1]

    for each_team, steps in zip(teams, (8, 10)):
        finished = each_team.wait_until_finished(600)
        assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
        assert finished["privacy"]["stepsCharged"] == steps
        assert each_team.steps_charged(finished["ledgerName"]) == steps
        folder = tmp_path / each_team.namespace
        folder.mkdir()
        assert download_final_model(each_team, finished["finalModel"], folder)["statement.json"]


def may(team: TeamNamespace, owner: TeamNamespace, verb: str, resource: str) -> bool:
    """Whether a team's trainer has a permission in the owner's namespace."""
    kind, _, subresource = resource.partition("/")
    question = ("auth", "can-i", verb, kind, f"--as=system:serviceaccount:{team.namespace}:trainer")
    answer = kubectl(
        team.kubeconfig, "-n", owner.namespace, *question, f"--subresource={subresource}", check=False
    ).stdout.strip()
    assert answer in ("yes", "no"), answer
    return answer == "yes"


def secret(team: TeamNamespace) -> str:
    """The key of a team's job, from the Secret that its worker mounts."""
    (worker,) = team.pod_names("worker")
    pod = team.get("pod", worker)
    assert pod is not None
    (name,) = (each["secret"]["secretName"] for each in pod["spec"]["volumes"] if each["name"] == "key")
    found = team.get("secret", name)
    assert found is not None
    return json.dumps(found["data"])
